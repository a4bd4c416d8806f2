//! What a driver is given: what it shares with the others of its master, and the channels to the registry.

use std::sync::Arc;
use std::time::Duration;

use protocol::ids::UnixMillis;
use protocol::view::JobView;
use tokio::sync::{Notify, watch};

use crate::agent_client::AgentClient;
use crate::agent_token::AgentKey;
use crate::backend::PodBackend;
use crate::logs::JobLogs;
use crate::store::{JobStore, Stored};

/// What all drivers of one master share.
pub struct Context {
    /// Where records live.
    pub store: Arc<dyn JobStore>,
    /// Where pods live.
    pub backend: Arc<dyn PodBackend>,
    /// How agents are talked to; each driver adds its job's token.
    pub agents: AgentClient,
    /// What those tokens are derived from.
    pub agent_key: AgentKey,
    /// Names this start of this master as the holder of a record; greater than that of any master that has held a job of
    /// this store before.
    pub boot_id: String,
}

impl Context {
    /// How long ago that was, by the clock of the store.
    pub(super) fn age(&self, since: UnixMillis) -> Duration {
        Duration::from_millis(self.store.now().0.saturating_sub(since.0))
    }
}

/// What a driver is connected to.
pub struct Channels {
    /// The job's record as the store's watch last told it; `None` once it is deleted.
    pub record: watch::Receiver<Option<Stored>>,
    /// Told when somebody has damaged that record.
    pub damaged: Arc<Notify>,
    /// What is shown of the job.
    pub view: watch::Sender<JobView>,
    /// Where its output goes.
    pub logs: Arc<JobLogs>,
}
