//! Reads the output of the current run.

use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::log::{AgentOutput, Stream};
use crate::pump::{ProcessOutput, pump};

/// How long the pipes may stay open after every process of the run is dead. They stay open while the disk stalls. They
/// also stay open if the run has sent them over a socket to a process that is not a descendant of the agent.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Whether the run's output has been read.
#[derive(Debug)]
pub(super) enum RunOutput {
    /// There is no run.
    None,
    /// A task reads the pipes. It returns the end of each main process's stderr.
    Reading {
        task: JoinHandle<Vec<Vec<u8>>>,
        /// Dropping this sender ends the reading after the bytes that are already in the pipes. `None`: the sender has
        /// been dropped.
        stop: Option<watch::Sender<()>>,
        /// When to stop reading. This is set when every process is dead.
        deadline: Option<Instant>,
    },
    /// All output is in the logs.
    Read {
        /// The end of each main process's stderr.
        stderr: Vec<Vec<u8>>,
    },
}

impl RunOutput {
    /// Starts to read the pipes of a run's main processes.
    pub(super) fn read(outputs: Vec<ProcessOutput>, output: &Arc<AgentOutput>) -> Self {
        let (stop, stopped) = watch::channel(());
        let output = Arc::clone(output);
        let task = tokio::spawn(async move {
            let begin = output.log(Stream::Stderr).end();
            let of_several = pump(outputs, &output, stopped).await;
            if of_several.is_empty() {
                return vec![output.on_disk(move |output| output.stderr_from(begin)).await.unwrap_or_default()];
            }
            of_several
        });
        Self::Reading { task, stop: Some(stop), deadline: None }
    }

    /// Waits until all output has been read. If there is no output to read, never returns.
    pub(super) async fn wait(&mut self) {
        match self {
            Self::Reading { task, .. } => {
                let stderr = task.await.unwrap_or_else(|error| {
                    warn!(%error, "the reader of the output failed");
                    Vec::new()
                });
                *self = Self::Read { stderr };
            }
            Self::None | Self::Read { .. } => pending().await,
        }
    }

    /// Call this when every process is dead. Once all output is in the logs, returns the end of each main process's
    /// stderr.
    pub(super) fn finish(&mut self, now: Instant) -> Option<Vec<Vec<u8>>> {
        match self {
            Self::None => Some(Vec::new()),
            Self::Read { stderr } => Some(mem::take(stderr)),
            Self::Reading { stop, deadline, .. } => {
                if *deadline.get_or_insert(now + DRAIN_LIMIT) <= now {
                    *stop = None;
                }
                None
            }
        }
    }

    /// When [`RunOutput::finish`] stops the reading.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Reading { stop: Some(_), deadline, .. } => *deadline,
            Self::Reading { stop: None, .. } | Self::None | Self::Read { .. } => None,
        }
    }
}
