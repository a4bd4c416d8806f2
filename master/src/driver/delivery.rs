//! Sends a job's code to its agents. A replica counts as joined when its agent has the code. Each agent reports which
//! code it has, so a new master does not send the code again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use backon::Retryable;
use protocol::agent::{RunState, RunStatus};
use protocol::code::{CodeId, Sha256};
use protocol::error::ErrorCode;
use tokio::sync::Semaphore;
use tracing::debug;

use super::Context;
use super::retry::{is_unreachable, patience};
use crate::agent_client::{AgentClient, AgentError};
use crate::code::{CodeStore, CopyError, Part};
use crate::error_chain::error_chain;
use crate::job::observation::{AgentState, LostRun};

/// Maximum number of agents that receive blobs of a job at the same time. Each job has its own limit, so slow agents of
/// one job do not delay another job.
const AGENTS_AT_ONCE: usize = 32;

/// Maximum number of attempts to send code to an agent. A second attempt helps if a push has sent other code meanwhile,
/// because an agent keeps only one manifest. A second attempt also helps if the agent has found a damaged file.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Delivery {
    id: CodeId,
    agents: AgentClient,
    store: Arc<CodeStore>,
    /// A permit for each agent that receives blobs. A dead agent takes no permit: it does not answer the manifest,
    /// which is sent first.
    turns: Semaphore,
}

/// Why an agent does not have the code.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("this master no longer has the job's code: delete the job, and submit it and its code again")]
    Lost,
    #[error("could not read the job's code")]
    Store(#[source] io::Error),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the agent still lacks {0} files after all missing files were sent")]
    Incomplete(usize),
}

impl From<CopyError> for DeliveryError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Lost => Self::Lost,
            CopyError::Disk(error) => Self::Store(error),
        }
    }
}

impl DeliveryError {
    /// The loss of the replica after this failure. The loss is hopeless if this master has lost the code, or if the
    /// code is invalid. After any other failure, a new pod may receive the code.
    fn lost_run(&self) -> LostRun {
        let reason = format!("its agent did not receive the job's code: {}", error_chain(self));
        match self {
            Self::Lost | Self::Agent(AgentError::Unfit { code: ErrorCode::BadCode, .. }) => LostRun::hopeless(reason),
            Self::Agent(AgentError::Ending(_)) => LostRun::disrupted(reason),
            Self::Store(_) | Self::Agent(_) | Self::Incomplete(_) => LostRun::broken(reason),
        }
    }

    /// Returns the agent's error if the delivery failed at the agent. Otherwise returns `missing`, followed by the
    /// reason why the delivery failed. `missing` is the agent's earlier refusal to be configured without the code.
    pub(super) fn at_agent(self, missing: &str) -> AgentError {
        match self {
            Self::Agent(error) => error,
            Self::Lost | Self::Store(_) | Self::Incomplete(_) => {
                let detail = format!("{missing}; {}", error_chain(&self));
                AgentError::Unfit { code: ErrorCode::CodeMissing, detail }
            }
        }
    }
}

impl Delivery {
    pub(super) fn new(id: CodeId, agents: &AgentClient, context: &Context) -> Self {
        let store = Arc::clone(&context.code);
        Self { id, agents: agents.clone(), store, turns: Semaphore::new(AGENTS_AT_ONCE) }
    }

    pub(super) fn id(&self) -> CodeId {
        self.id
    }

    /// If the agent's first answer shows that the agent needs the code, sends the code. Returns the state to report;
    /// `None` if the agent cannot be reached.
    pub(super) async fn complete(&self, agent: SocketAddr, first: AgentState) -> Option<AgentState> {
        let status = match &first {
            AgentState::Status(status) => status,
            AgentState::SeedOnly => return Some(AgentState::Failed(too_old())),
            AgentState::Silent
            | AgentState::Configured(_)
            | AgentState::Started(_)
            | AgentState::Failed(_)
            | AgentState::Unreachable { .. } => return Some(first),
        };
        if !self.is_missing_at(status) {
            return Some(first);
        }
        if !status.features.code {
            return Some(AgentState::Failed(too_old()));
        }
        match self.deliver(agent).await {
            Ok(()) => Some(first),
            Err(DeliveryError::Agent(AgentError::Unreachable { .. })) => None,
            Err(error) => Some(AgentState::Failed(error.lost_run())),
        }
    }

    /// Whether [`Self::complete`] sends the code after this first answer.
    pub(super) fn is_due(&self, first: &AgentState) -> bool {
        first.status().is_some_and(|status| status.features.code && self.is_missing_at(status))
    }

    /// Whether an agent lacks the code for its next start. An agent whose script runs has the code already.
    fn is_missing_at(&self, status: &RunStatus) -> bool {
        match status.state {
            RunState::Idle | RunState::Configured | RunState::Exited => status.code.staged != Some(self.id),
            RunState::Running | RunState::Stopping => false,
        }
    }

    /// Sends an agent the parts of the code that the agent lacks.
    pub(super) async fn deliver(&self, agent: SocketAddr) -> Result<(), DeliveryError> {
        for _ in 1..ATTEMPTS {
            match self.attempt(agent).await {
                // Another delivery to this agent has begun since the offer, or the agent has found a damaged file.
                Err(
                    DeliveryError::Agent(AgentError::Unfit { code: ErrorCode::CodeMissing, .. })
                    | DeliveryError::Incomplete(_),
                ) => {}
                outcome => return outcome,
            }
        }
        self.attempt(agent).await
    }

    async fn attempt(&self, agent: SocketAddr) -> Result<(), DeliveryError> {
        let missing = self.offer(agent).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.acquire().await.expect("the semaphore is never closed");
        // Usually all agents lack the same blobs, so they share one copy.
        let stream = self.store.copy(Part::Blobs(missing)).await?;
        debug!(%agent, code = %self.id, bytes = stream.bytes().len(), "sending code");
        match self.agents.send_code(agent, self.id, stream.bytes()).await?.missing.len() {
            0 => Ok(()),
            missing => Err(DeliveryError::Incomplete(missing)),
        }
    }

    /// Sends the manifest. Returns the blobs that the agent does not have.
    async fn offer(&self, agent: SocketAddr) -> Result<Vec<Sha256>, DeliveryError> {
        let manifest = self.store.copy(Part::Manifest(self.id)).await?;
        let offer = async || self.agents.offer_code(agent, self.id, manifest.bytes()).await;
        Ok(offer.retry(patience()).when(is_unreachable).await?.missing)
    }
}

/// The loss of a replica whose agent cannot receive code.
fn too_old() -> LostRun {
    LostRun::hopeless(
        "its agent is of an earlier version and cannot receive the job's code: restart the master with an agent of \
         the master's version (--agent-image, or --agent-binary)",
    )
}
