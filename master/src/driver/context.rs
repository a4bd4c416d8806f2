//! The inputs of a driver: the context that all drivers of a master share, the driver's channels to the registry, and
//! what the parts of a driver share.

use std::collections::BTreeSet;
use std::sync::Arc;

use history::History;
use job::key::JobKey;
use protocol::code::CodeId;
use protocol::ids::ReplicaId;
use protocol::stacks::ReplicaStacks;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::reports::Report;
use super::timeline::TimelineOfJob;
use super::view_sender::ViewSender;
use crate::agents::client::AgentClient;
use crate::agents::token::AgentKey;
use crate::backend::PodBackend;
use crate::code::CodeStore;
use crate::logs::JobLogs;
use crate::logs::series::SeriesOfJob;
use crate::store::{JobRecord, JobStore, Stored};
use crate::tally::Tally;
use crate::turns::Lane;

/// What all drivers of one master share.
pub struct Context {
    /// The store of the records.
    pub store: Arc<dyn JobStore>,
    /// The back end that runs the pods.
    pub backend: Arc<dyn PodBackend>,
    /// The client for agents. Each driver adds its job's token.
    pub agents: AgentClient,
    /// The key from which the agents' tokens are derived.
    pub agent_key: AgentKey,
    /// This master's name in the field `holder` of records. The name sorts after the boot ids of all earlier masters of
    /// this store.
    pub boot_id: String,
    /// The code that jobs bring.
    pub code: Arc<CodeStore>,
    /// What has happened to the jobs under this master.
    pub tally: Tally,
    /// The files of jobs that have ended.
    pub history: History,
}

impl Context {
    /// The fingerprints of two keys, if the keys differ: the key of the job's agents, and this master's key.
    pub(crate) fn foreign_key<'a>(&'a self, record: &'a JobRecord) -> Option<(&'a str, &'a str)> {
        let keys = record.agent_key.as_deref().zip(self.agent_key.fingerprint());
        keys.filter(|(theirs, own)| theirs != own)
    }
}

/// What the parts of one driver share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) job: JobKey,
    pub(super) agents: AgentClient,
    pub(super) context: Arc<Context>,
    /// The channel on which tasks report to their driver.
    pub(super) reporter: mpsc::Sender<Report>,
}

impl Common {
    /// Reports to the driver.
    pub(super) async fn report(&self, report: Report) {
        // The send fails only if the driver has ended, so the error does not matter.
        let _ = self.reporter.send(report).await;
    }
}

/// A request to bring new code to a job's agents.
#[derive(Debug)]
pub struct Staging {
    /// The id of the code. The master's code store contains the code.
    pub code: CodeId,
    /// Where the driver sends a channel with the progress. The progress channel closes early if the driver ends.
    pub progress: oneshot::Sender<watch::Receiver<Staged>>,
}

/// The progress of sending new code to a job's agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staged {
    /// The agents of these replicas do not have the code yet.
    Underway(BTreeSet<ReplicaId>),
    /// All agents have the code.
    Everywhere,
    /// This master no longer has the code, because a file of the code is missing or damaged.
    Lost,
    /// An agent did not accept the code. The text names the replica and the reason.
    Refused(String),
}

/// A request for the stacks of a job, and where the driver sends them.
pub type StacksRequest = oneshot::Sender<Vec<ReplicaStacks>>;

/// A driver's channels.
pub struct Channels {
    /// The newest record that the store's watch has reported; `None` after the record's deletion.
    pub record: watch::Receiver<Option<Stored>>,
    /// Notified when somebody has damaged the record.
    pub damaged: Arc<Notify>,
    /// Notified when the job has finished and must be deleted, because there are too many finished jobs. Repeated until
    /// the record is deleted.
    pub surplus: Arc<Notify>,
    /// Requests to bring new code to the agents.
    pub stagings: mpsc::Receiver<Staging>,
    /// Requests for the stacks of the job.
    pub stacks: mpsc::Receiver<StacksRequest>,
    /// The view of the job.
    pub view: ViewSender,
    /// What this master keeps of the job.
    pub kept: Kept,
    /// The job's place among the gangs of this master.
    pub seat: Lane,
}

/// What this master keeps of a job beside its record. It outlives a driver that panics.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The job's output.
    pub logs: Arc<JobLogs>,
    /// What the job's scripts have reported.
    pub series: Arc<SeriesOfJob>,
    /// When the job reached each step.
    pub timeline: Arc<TimelineOfJob>,
}
