//! The agents that have a job's code, according to their reports. If nobody else has the code, the driver reads the
//! code back from one of these agents.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::agent::CodeStatus;
use protocol::code::CodeId;
use protocol::ids::ReplicaId;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::agents::client::{AgentClient, AgentError};
use crate::code::{CodeStore, UnpackError};
use crate::error_chain::error_chain;

/// Minimum time until the master asks an agent again after the agent did not send the code, or sent wrong content.
const PAUSE: Duration = Duration::from_secs(30);

/// The code of each agent of a job.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<ReplicaId, (SocketAddr, CodeStatus)>);

impl Holders {
    /// Notes which code a replica's agent has; `None` if its pod has ended. Returns whether this is news.
    pub(super) fn note(&mut self, id: ReplicaId, held: Option<(SocketAddr, CodeStatus)>) -> bool {
        let before = match held {
            Some(held) => self.0.insert(id, held),
            None => self.0.remove(&id),
        };
        before != held
    }

    /// The agents that have this code.
    fn of(&self, id: CodeId) -> impl Iterator<Item = SocketAddr> {
        let has = move |code: &CodeStatus| code.staged == Some(id) || code.running == Some(id);
        self.0.values().filter(move |(_, code)| has(code)).map(|(agent, _)| *agent)
    }
}

/// Why an agent's code was not read back.
#[derive(Debug, thiserror::Error)]
enum ReadBackError {
    #[error("it did not send the code")]
    Agent(#[from] AgentError),
    #[error("it sent code that cannot be used")]
    Content(#[from] UnpackError),
}

/// Reads one code back.
#[derive(Debug)]
pub(super) struct ReadBack {
    id: CodeId,
    agents: AgentClient,
    holders: watch::Receiver<Holders>,
    /// When agents last failed to send the code. Locked while an agent sends the code, so that the code is sent once.
    failed: Mutex<BTreeMap<SocketAddr, Instant>>,
}

impl ReadBack {
    pub(super) fn new(id: CodeId, agents: AgentClient, holders: watch::Receiver<Holders>) -> Self {
        Self { id, agents, holders, failed: Mutex::default() }
    }

    /// Makes sure that the store has the code. Asks one agent after another, and returns whether the store has it.
    pub(super) async fn fill(&self, store: &Arc<CodeStore>) -> bool {
        let mut failed = self.failed.lock().await;
        if store.has(self.id).await {
            return true;
        }
        failed.retain(|_, at| at.elapsed() < PAUSE);
        let holders: Vec<SocketAddr> = self.known().into_iter().filter(|agent| !failed.contains_key(agent)).collect();
        for agent in holders {
            match self.read_from(agent, store).await {
                Ok(()) => {
                    info!(code = %self.id, %agent, "read code back from an agent");
                    return true;
                }
                Err(error) => {
                    warn!(code = %self.id, %agent, error = error_chain(&error), "cannot read code back from an agent");
                    failed.insert(agent, Instant::now());
                }
            }
        }
        false
    }

    async fn read_from(&self, agent: SocketAddr, store: &Arc<CodeStore>) -> Result<(), ReadBackError> {
        let pieces = self.agents.held_code(agent, self.id).await?;
        Ok(store.take_back(self.id, pieces).await?)
    }

    /// The agents that are known to have the code.
    pub(super) fn known(&self) -> Vec<SocketAddr> {
        self.holders.borrow().of(self.id).collect()
    }

    /// Returns when an agent outside `known` has the code, or after `limit`.
    pub(super) async fn news(&self, known: &[SocketAddr], limit: Duration) {
        let mut holders = self.holders.clone();
        let is_news = |now: &Holders| now.of(self.id).any(|agent| !known.contains(&agent));
        let news = async {
            // The driver has ended.
            if holders.wait_for(is_news).await.is_err() {
                pending().await
            }
        };
        // A timeout means that it is time to look everywhere again.
        let _ = timeout(limit, news).await;
    }
}
