//! Sends a job's code to its agents. A replica counts as joined when its agent has the code. Each agent reports which
//! code it has, so a new master does not send the code again. If the master's disk has lost the code, the delivery
//! restores the code from the copy beside the records, or from an agent.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use backon::Retryable;
use job::observation::{AgentState, LostRun, Wait};
use protocol::agent::{RunState, RunStatus};
use protocol::code::{CodeId, Sha256};
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use tracing::debug;

use super::Context;
use super::context::Common;
use super::holders::{Holders, ReadBack};
use super::reports::{Report, Subject};
use super::retry::{is_unreachable, patience};
use crate::agents::client::AgentError;
use crate::code::{CodePart, CopiedPart, PartError};
use crate::error_chain::error_chain;
use crate::store::StoreError;

/// Maximum number of agents that receive blobs of a job at the same time. Each job has its own limit, so slow agents of
/// one job do not delay another job.
const AGENTS_AT_ONCE: usize = 32;

/// Maximum number of attempts to send code to an agent. A second attempt helps if a push has sent other code meanwhile,
/// because an agent keeps only one manifest. A second attempt also helps if the agent has found a damaged file.
const ATTEMPTS: usize = 3;
/// Maximum pause before the master looks again for code that nobody has.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Deliveries that take less time than this are not reported.
const QUIET_DELIVERY: Duration = Duration::from_secs(1);

pub(super) struct Delivery {
    id: CodeId,
    common: Common,
    read_back: ReadBack,
    /// A permit for each agent that receives blobs. A dead agent takes no permit: it does not answer the manifest,
    /// which is sent first.
    turns: Semaphore,
}

/// Why an agent does not have the code.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error(
        "neither this master, its store of records nor another agent has the job's code: client push {0} sends it again"
    )]
    Lost(JobName),
    #[error("could not read the copy of the job's code")]
    Copy(#[source] StoreError),
    #[error("could not read the job's code")]
    Store(#[source] io::Error),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the agent still lacks {0} files after all missing files were sent")]
    Incomplete(usize),
}

impl DeliveryError {
    /// Why a replica waits, if it may receive the code later: from a user, from the store of records, from an agent, or
    /// when its agent's disk has room.
    fn wait(&self, id: CodeId) -> Option<Wait> {
        let reason = error_chain(self);
        match self {
            Self::Lost(_) => Some(Wait::Code { id, reason }),
            // Without room, a new pod of the replica would not receive the code either.
            Self::Copy(_) | Self::Agent(AgentError::Unfit { code: ErrorCode::CodeStoreFull, .. }) => {
                Some(Wait::Other(reason))
            }
            Self::Store(_) | Self::Agent(_) | Self::Incomplete(_) => None,
        }
    }

    /// The loss of the replica after this failure. The loss is hopeless if the code is invalid. After any other failure,
    /// a new pod may receive the code.
    fn lost_run(&self) -> LostRun {
        let reason = format!("its agent did not receive the job's code: {}", error_chain(self));
        match self {
            Self::Agent(AgentError::Unfit { code: ErrorCode::BadCode, .. }) => LostRun::hopeless(reason),
            Self::Agent(AgentError::Ending(_)) => LostRun::disrupted(reason),
            Self::Lost(_) | Self::Copy(_) | Self::Store(_) | Self::Agent(_) | Self::Incomplete(_) => {
                LostRun::broken(reason)
            }
        }
    }

    /// Returns the agent's error if the delivery failed at the agent. Otherwise returns `missing`, followed by the
    /// reason why the delivery failed. `missing` is the agent's earlier refusal to be configured without the code.
    pub(super) fn at_agent(self, missing: &str) -> AgentError {
        match self {
            Self::Agent(error) => error,
            Self::Lost(_) | Self::Copy(_) | Self::Store(_) | Self::Incomplete(_) => {
                let detail = format!("{missing}; {}", error_chain(&self));
                AgentError::Unfit { code: ErrorCode::CodeMissing, detail }
            }
        }
    }
}

impl Delivery {
    /// `holders` are the agents that have code of the job.
    pub(super) fn new(id: CodeId, common: Common, holders: watch::Receiver<Holders>) -> Self {
        let read_back = ReadBack::new(id, common.agents.clone(), holders);
        Self { id, common, read_back, turns: Semaphore::new(AGENTS_AT_ONCE) }
    }

    pub(super) fn id(&self) -> CodeId {
        self.id
    }

    /// If the agent's first answer shows that the agent needs the code, sends the code. While nobody has the code, waits.
    /// Returns the state to report; `None` if the agent cannot be reached.
    pub(super) async fn complete(&self, agent: SocketAddr, subject: Subject, first: AgentState) -> Option<AgentState> {
        let status = match &first {
            AgentState::Status(status) => status,
            AgentState::SeedOnly => return Some(AgentState::Failed(LostRun::of_prototype())),
            AgentState::Silent
            | AgentState::Configured(_)
            | AgentState::Started(_)
            | AgentState::Failed(_)
            | AgentState::Unreachable { .. } => return Some(first),
        };
        if !self.is_missing_at(status) {
            return Some(first);
        }
        match self.deliver_when_found(agent, subject).await {
            Ok(()) => Some(first),
            Err(DeliveryError::Agent(AgentError::Unreachable { .. })) => None,
            Err(error) => Some(AgentState::Failed(error.lost_run())),
        }
    }

    /// Whether an agent lacks the code for its next start. An agent whose script runs has the code already.
    fn is_missing_at(&self, status: &RunStatus) -> bool {
        match status.state {
            RunState::Idle | RunState::Configured | RunState::Exited => status.code.staged != Some(self.id),
            RunState::Running | RunState::Stopping => false,
        }
    }

    /// Like [`Self::deliver`]. While nobody has the code, reports the reason for which the replica waits, and tries again.
    pub(super) async fn deliver_when_found(&self, agent: SocketAddr, subject: Subject) -> Result<(), DeliveryError> {
        loop {
            let known = self.read_back.known();
            let delivered = tokio::select! {
                delivered = self.deliver(agent) => delivered,
                never = self.tell_of_delivery(subject) => match never {},
            };
            let Some(wait) = delivered.as_ref().err().and_then(|error| error.wait(self.id)) else { return delivered };
            self.common.report(Report::Waits(subject, wait)).await;
            self.read_back.news(&known, LOOK_AGAIN).await;
        }
    }

    /// If the delivery takes long, reports that the replica waits for it. Never returns.
    async fn tell_of_delivery(&self, subject: Subject) -> Infallible {
        sleep(QUIET_DELIVERY).await;
        let wait = Wait::Other("its agent receives the job's code".to_owned());
        self.common.report(Report::Waits(subject, wait)).await;
        pending().await
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
        let stream = self.part(CodePart::Blobs(missing)).await?;
        debug!(%agent, code = %self.id, bytes = stream.bytes().len(), "sending code");
        match self.common.agents.send_code(agent, self.id, stream.bytes()).await?.missing.len() {
            0 => Ok(()),
            missing => Err(DeliveryError::Incomplete(missing)),
        }
    }

    /// Sends the manifest. Returns the blobs that the agent does not have.
    async fn offer(&self, agent: SocketAddr) -> Result<Vec<Sha256>, DeliveryError> {
        let manifest = self.part(CodePart::Manifest(self.id)).await?;
        let offer = async || self.common.agents.offer_code(agent, self.id, manifest.bytes()).await;
        Ok(offer.retry(patience()).when(is_unreachable).await?.missing)
    }

    /// Reads a part of the code from the disk. If the disk has lost the code, first restores the code.
    async fn part(&self, part: CodePart) -> Result<CopiedPart, DeliveryError> {
        let code = &self.common.context.code;
        let mut read = code.copy(part.clone()).await;
        if matches!(read, Err(PartError::Lost)) && self.is_found().await? {
            read = code.copy(part).await;
        }
        read.map_err(|error| match error {
            PartError::Lost => DeliveryError::Lost(self.common.job.name.clone()),
            PartError::Disk(error) => DeliveryError::Store(error),
        })
    }

    /// Restores the code on the disk, from the copy beside the records or from an agent. Returns whether the disk has
    /// the code now.
    async fn is_found(&self) -> Result<bool, DeliveryError> {
        let Context { code, store, .. } = self.common.context.as_ref();
        let is_restored = code
            .restore(self.id, store.code_copies().map(|copies| copies.read(self.id)))
            .await
            .map_err(DeliveryError::Copy)?;
        Ok(is_restored || self.read_back.fill(code).await)
    }
}
