//! What the tasks of an agent share.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use protocol::agent::RunStatus;
use protocol::code::CodeId;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::activity::Activity;
use crate::code::CodeFolder;
use crate::log::AgentOutput;
use crate::process::child::RunTemplate;
use crate::run::event::Reply;
use crate::run::{Command, Request};
use crate::stacks::StacksOfRun;
use crate::token::Access;

/// The shared state.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    /// Requests to the runner.
    pub(crate) requests: mpsc::Sender<Request>,
    /// The status of the run.
    pub(crate) status: watch::Receiver<RunStatus>,
    /// The output of all runs.
    pub(crate) output: Arc<AgentOutput>,
    /// Where this output begins in the replica's output, as the first master has told it.
    pub(crate) log_base: Arc<OnceLock<u64>>,
    /// Open requests by HTTP.
    pub(crate) activity: Activity,
    /// Open requests for the status.
    pub(crate) polls: Activity,
    /// Who may send requests by HTTP.
    pub(crate) access: Access,
    /// The code that the job brings.
    pub(crate) code: DeliveredCode,
    /// What all runs have in common.
    pub(crate) template: Arc<RunTemplate>,
    /// The stacks of the run's processes.
    pub(crate) stacks: StacksOfRun,
}

/// The code that the job brings.
#[derive(Debug, Clone)]
pub(crate) struct DeliveredCode {
    pub(crate) folder: Arc<Mutex<CodeFolder>>,
    /// The code of the newest start. Locked until this code is in place.
    pub(crate) next: Arc<Mutex<Option<CodeId>>>,
}

impl DeliveredCode {
    /// The state of the code in this working directory, before any code was delivered. See [`CodeFolder::new`].
    pub(crate) fn new(work_dir: PathBuf, arriving: Option<PathBuf>) -> Self {
        Self { folder: Arc::new(Mutex::new(CodeFolder::new(work_dir, arriving))), next: Arc::default() }
    }
}

impl Agent {
    /// Sends a command to the runner, and waits for the reply. `None` if the agent is ending.
    pub(crate) async fn ask(&self, command: Command) -> Option<Reply> {
        self.send(command).await?.await.ok()
    }

    /// Sends a command to the runner, which ignores the command if the agent is already ending.
    pub(crate) async fn tell(&self, command: Command) {
        drop(self.send(command).await);
    }

    async fn send(&self, command: Command) -> Option<oneshot::Receiver<Reply>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { command, reply }).await.ok()?;
        Some(answer)
    }
}
