//! The JSON form of an [`ExitReport`].

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{ExitOutcome, ExitReport};
use crate::ids::UnixMillis;
use crate::processes::EndedProcess;

/// How a run ended. Exactly one of `code`, `signal` and `not_started` is present.
#[skip_serializing_none]
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub(crate) struct ExitReportWire {
    /// Exit code of exec.py, 0 to 255.
    code: Option<i32>,
    /// The signal that killed exec.py.
    signal: Option<i32>,
    /// Present when the run reached its memory limit. `signal` is then 9.
    out_of_memory: Option<OutOfMemoryWire>,
    /// Why no line of exec.py ran.
    not_started: Option<String>,
    /// The process that ended so, in a replica of several processes.
    process: Option<EndedProcess>,
    /// Whether Muster stopped the run.
    #[serde(default)]
    stopped: bool,
    /// Whether the run was stopped because its pod was ended: preempted, evicted, drained or deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    terminated: bool,
    /// When the run ended, by the agent's clock.
    ended_at: UnixMillis,
    /// First line of the exception that ended exec.py.
    exception: Option<String>,
    /// The newest 4096 bytes of stderr, with invalid UTF-8 replaced.
    #[serde(default)]
    stderr_tail: String,
}

/// The run reached its memory limit.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub(crate) struct OutOfMemoryWire {
    /// The memory limit. Absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
}

/// The signal with which the kernel kills a process when memory runs out.
const SIGKILL: i32 = 9;

/// An exit report with no outcome, or with outcomes that exclude each other.
#[derive(Debug, thiserror::Error)]
#[error("an exit report needs exactly one of code, signal and not_started")]
pub(crate) struct AmbiguousExit;

impl TryFrom<ExitReportWire> for ExitReport {
    type Error = AmbiguousExit;

    fn try_from(wire: ExitReportWire) -> Result<Self, Self::Error> {
        let ExitReportWire {
            code,
            signal,
            out_of_memory,
            not_started,
            process,
            stopped,
            terminated,
            ended_at,
            exception,
            stderr_tail,
        } = wire;
        let outcome = match (code, signal, out_of_memory, not_started) {
            (Some(code), None, None, None) => ExitOutcome::Code(code),
            (None, Some(SIGKILL), Some(OutOfMemoryWire { limit_bytes: limit }), None) => {
                ExitOutcome::OutOfMemory { limit }
            }
            (None, Some(signal), None, None) => ExitOutcome::Signal(signal),
            (None, None, None, Some(reason)) => ExitOutcome::NotStarted(reason),
            (_, _, _, _) => return Err(AmbiguousExit),
        };
        Ok(Self { outcome, process, stopped, terminated, ended_at, exception, stderr_tail }.bounded())
    }
}

impl From<ExitReport> for ExitReportWire {
    fn from(report: ExitReport) -> Self {
        let ExitReport { outcome, process, stopped, terminated, ended_at, exception, stderr_tail } = report;
        let (code, signal, out_of_memory, not_started) = match outcome {
            ExitOutcome::Code(code) => (Some(code), None, None, None),
            ExitOutcome::Signal(signal) => (None, Some(signal), None, None),
            ExitOutcome::OutOfMemory { limit } => {
                (None, Some(SIGKILL), Some(OutOfMemoryWire { limit_bytes: limit }), None)
            }
            ExitOutcome::NotStarted(reason) => (None, None, None, Some(reason)),
        };
        Self {
            code,
            signal,
            out_of_memory,
            not_started,
            process,
            stopped,
            terminated,
            ended_at,
            exception,
            stderr_tail,
        }
    }
}
