//! An agent's messages about its run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, UnixMillis};
use crate::lease::ClockMillis;
use crate::text;
use crate::warm::WarmState;

/// Names of the Python interpreter, in the order of the search on PATH. A command with the one that is missing runs the other.
pub const PYTHONS: [&str; 2] = ["python", "python3"];

/// Default name of the training script.
pub const SCRIPT: &str = "exec.py";

/// Maximum bytes of stderr in an [`ExitReport`]. The newest bytes are kept.
pub const STDERR_TAIL_BYTES: usize = 4096;

/// Maximum bytes of an [`ExitReport`]'s texts in JSON. Readers cut longer texts.
const STDERR_TAIL_JSON_BYTES: usize = 8192;
const REASON_JSON_BYTES: usize = 4096;
const EXCEPTION_JSON_BYTES: usize = 1024;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The agent waits for the environment.
    Idle,
    /// The agent has the environment and waits for the start.
    Configured,
    /// exec.py runs.
    Running,
    /// exec.py is being stopped, or has ended while some of its child processes still run.
    Stopping,
    /// exec.py and all its descendants have ended.
    Exited,
}

/// The answer of `GET /status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Increases with each change. A long poll waits until it differs from the number in the request.
    pub seq: u64,
    /// Identifies this start of the agent's program.
    pub boot_id: String,
    /// The state of the run.
    pub state: RunState,
    /// The run's generation. Absent when idle, or when the environment named no generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Process id of exec.py while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When exec.py started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<UnixMillis>,
    /// How the run ended. Absent until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitReport>,
    /// The run's membership in its start, as `/config` gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<Membership>,
    /// What this agent supports.
    #[serde(default, skip_serializing_if = "Features::is_none")]
    pub features: Features,
    /// The warm interpreter. Absent until `/warm` asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmState>,
    /// The helper `muster.py`. Absent until the run's script reports that it uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper: Option<HelperStatus>,
    /// The agent's clock at this answer. It is no part of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<ClockMillis>,
}

/// What a script that uses the helper has reported in this run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperStatus {
    /// The last step by the script's own count. Absent before the first one. A new step does not wake a long poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

/// A replica's membership in one start. The master sends it with the environment, and the agent only repeats it. From
/// the agents, a master that takes a job over can learn the members of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The member's index within its role in this start, from 0.
    pub seat: u32,
    /// The number of members of this start, over all roles.
    pub of: u32,
    /// How often the job had restarted before this start, as in `MUSTER_RESTART_COUNT`.
    pub start: u32,
}

/// What an agent supports. Agents of the first versions report nothing, and ignore unknown parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// The agent repeats the membership that `/config` gives it.
    #[serde(default)]
    pub seats: bool,
    /// The agent has the route `/warm`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// The agent keeps a [`Fence`](crate::lease::Fence), and accepts `wait_ms`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fence: bool,
}

impl Features {
    /// Whether the agent supports none of these features.
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// How a run ended (`outcome`), and why (`stopped`, `terminated`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ExitReportWire", into = "ExitReportWire")]
pub struct ExitReport {
    /// How the main process ended.
    pub outcome: ExitOutcome,
    /// Whether the agent was stopping the run when it ended.
    pub stopped: bool,
    /// Whether SIGTERM to the agent caused the stop, and not `/stop`. A preempted, evicted or drained pod gets SIGTERM.
    /// Implies `stopped`.
    pub terminated: bool,
    /// When the run ended, by the agent's clock.
    pub ended_at: UnixMillis,
    /// First line of the exception that ended exec.py: the line after the last traceback's stack. A long message can push
    /// this line out of `stderr_tail`.
    pub exception: Option<String>,
    /// The newest [`STDERR_TAIL_BYTES`] of stderr, with invalid UTF-8 replaced.
    pub stderr_tail: String,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitOutcome {
    /// The process exited with this code, 0 to 255.
    Code(i32),
    /// This signal killed the process.
    Signal(i32),
    /// The process reached its memory limit, and the kernel killed it with signal 9.
    OutOfMemory {
        /// The limit in bytes. `None` when unknown.
        limit: Option<u64>,
    },
    /// No line of exec.py ran, for this reason. A restart would fail in the same way.
    NotStarted(String),
}

/// The termination message of an agent that ends after a run. Kubernetes keeps it with the pod, so a master can read it
/// after the agent has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    /// The run's generation. Absent when the environment named no generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// How the run ended.
    pub exit: ExitReport,
    /// See [`RunStatus::membership`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<Membership>,
}

/// Maximum bytes of [`LastWords`] as JSON: Kubernetes' limit for a container's termination message
/// (`kubernetes/pkg/kubelet/container/runtime.go`, MaxContainerTerminationMessageLength).
pub const LAST_WORDS_BYTES: usize = 4096;

impl ExitReport {
    /// A report of a run that ended by itself and printed nothing.
    pub fn new(outcome: ExitOutcome, ended_at: UnixMillis) -> Self {
        Self { outcome, stopped: false, terminated: false, ended_at, exception: None, stderr_tail: String::new() }
    }

    /// Cuts the report's texts to their limits. Keeps the beginning of a reason or an exception, and the end of stderr.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if let ExitOutcome::NotStarted(reason) = &mut self.outcome {
            reason.truncate(text::beginning(reason, REASON_JSON_BYTES).len());
        }
        if let Some(exception) = &mut self.exception {
            exception.truncate(text::beginning(exception, EXCEPTION_JSON_BYTES).len());
        }
        let surplus = self.stderr_tail.len() - text::end(&self.stderr_tail, STDERR_TAIL_JSON_BYTES).len();
        self.stderr_tail.drain(..surplus);
        self
    }

    /// Clears the texts that the run printed.
    pub fn forget_output(&mut self) {
        self.exception = None;
        self.stderr_tail.clear();
    }

    /// The exception's first line, unless `lines` of the run's output show it.
    pub fn exception_before<'a>(&self, mut lines: impl Iterator<Item = &'a str>) -> Option<&str> {
        let exception = self.exception.as_deref()?;
        // The report may have cut a line that the output shows in full.
        (!lines.any(|line| line.starts_with(exception))).then_some(exception)
    }

    /// Whether the run exited with 0.
    pub fn is_success(&self) -> bool {
        self.outcome == ExitOutcome::Code(0)
    }
}

impl fmt::Display for ExitOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was killed by signal {signal} ({name})"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Self::OutOfMemory { limit: Some(limit) } => {
                write!(f, "was killed because it needed more memory than its limit of {}", mebibytes(*limit))
            }
            Self::OutOfMemory { limit: None } => f.write_str("was killed because memory ran out"),
            Self::NotStarted(reason) => write!(f, "was not started: {reason}"),
        }
    }
}

/// The size in MiB if it is a whole number of MiB, else in bytes.
fn mebibytes(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes.is_multiple_of(MEBIBYTE) { format!("{} MiB", bytes / MEBIBYTE) } else { format!("{bytes} bytes") }
}

/// The names of the signals that end training programs (signal(7), x86 and ARM).
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// How a run ended. Exactly one of `code`, `signal` and `not_started` is present.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub(crate) struct ExitReportWire {
    /// Exit code of exec.py, 0 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    /// The signal that killed exec.py.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Present when the run reached its memory limit. `signal` is then 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    out_of_memory: Option<OutOfMemoryWire>,
    /// Why no line of exec.py ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_started: Option<String>,
    /// Whether Muster stopped the run.
    #[serde(default)]
    stopped: bool,
    /// Whether the run was stopped because its pod was ended: preempted, evicted, drained or deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    terminated: bool,
    /// When the run ended, by the agent's clock.
    ended_at: UnixMillis,
    /// First line of the exception that ended exec.py.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// An exit report with no outcome, or with several.
#[derive(Debug, thiserror::Error)]
#[error("an exit needs exactly one of code, signal and not_started")]
pub(crate) struct AmbiguousExit;

impl TryFrom<ExitReportWire> for ExitReport {
    type Error = AmbiguousExit;

    fn try_from(wire: ExitReportWire) -> Result<Self, Self::Error> {
        let ExitReportWire {
            code,
            signal,
            out_of_memory,
            not_started,
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
        Ok(Self { outcome, stopped, terminated, ended_at, exception, stderr_tail }.bounded())
    }
}

impl From<ExitReport> for ExitReportWire {
    fn from(report: ExitReport) -> Self {
        let ExitReport { outcome, stopped, terminated, ended_at, exception, stderr_tail } = report;
        let (code, signal, out_of_memory, not_started) = match outcome {
            ExitOutcome::Code(code) => (Some(code), None, None, None),
            ExitOutcome::Signal(signal) => (None, Some(signal), None, None),
            ExitOutcome::OutOfMemory { limit } => {
                (None, Some(SIGKILL), Some(OutOfMemoryWire { limit_bytes: limit }), None)
            }
            ExitOutcome::NotStarted(reason) => (None, None, None, Some(reason)),
        };
        Self { code, signal, out_of_memory, not_started, stopped, terminated, ended_at, exception, stderr_tail }
    }
}
