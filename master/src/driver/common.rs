//! What the parts of a driver share: the names of its job, and the way to agents, to the back end and to the driver.

use std::sync::Arc;

use job::key::JobKey;
use tokio::sync::mpsc;

use super::Context;
use super::reports::Report;
use crate::agents::client::AgentClient;

/// What the parts of one driver share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) job: JobKey,
    pub(super) agents: AgentClient,
    pub(super) context: Arc<Context>,
    /// The way of tasks to their driver.
    pub(super) reporter: mpsc::Sender<Report>,
}
