//! Reads the output of the current run.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tracing::warn;

use super::child::Pipes;
use crate::log::{Output, Stream};
use crate::pump::pump;

/// How long the pipes may stay open after every process of the run is dead. They stay open if the run has sent them
/// over a socket to a process that is not a descendant of the agent.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Whether the run's output has been read.
#[derive(Debug)]
pub(super) enum RunOutput {
    /// There is no run.
    None,
    /// A task reads the pipes.
    Reading {
        task: JoinHandle<()>,
        /// Offset of the run's first byte on stderr.
        stderr_from: u64,
        /// When to give up reading. This is set when every process is dead.
        deadline: Option<Instant>,
    },
    /// All output has been read.
    Read {
        /// Offset of the run's first byte on stderr.
        stderr_from: u64,
    },
}

impl RunOutput {
    /// Starts to read the pipes of a run.
    pub(super) fn read(pipes: Pipes, output: &Arc<Output>) -> Self {
        let stderr_from = output.log(Stream::Stderr).end();
        let task = tokio::spawn(pump(pipes.stdout, pipes.stderr, Arc::clone(output)));
        Self::Reading { task, stderr_from, deadline: None }
    }

    /// Waits until all output has been read. If there is no output to read, never returns.
    pub(super) async fn wait(&mut self) {
        match self {
            Self::Reading { task, stderr_from, .. } => {
                if let Err(error) = task.await {
                    warn!(%error, "the reader of the output failed");
                }
                *self = Self::Read { stderr_from: *stderr_from };
            }
            Self::None | Self::Read { .. } => pending().await,
        }
    }

    /// Call this when every process is dead. Once all output is read or given up, returns the offset of the run's first
    /// byte on stderr.
    pub(super) fn finish(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Read { stderr_from } => Some(*stderr_from),
            Self::Reading { task, stderr_from, deadline } => {
                if *deadline.get_or_insert(now + DRAIN_LIMIT) > now {
                    return None;
                }
                warn!("a process outside the run keeps the run's output open; the rest of the output is not read");
                task.abort();
                Some(*stderr_from)
            }
        }
    }

    /// When [`RunOutput::finish`] gives up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Reading { deadline, .. } => *deadline,
            Self::None | Self::Read { .. } => None,
        }
    }
}
