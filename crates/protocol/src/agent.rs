//! An agent's messages about its run.

mod exit_wire;

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::code::CodeId;
use crate::ids::{Generation, UnixMillis};
use crate::lease::ClockMillis;
use crate::processes::{EndedProcess, without_rank};
use crate::progress::Progress;
use crate::text;
use crate::usage::Usage;
use crate::warm::WarmState;

pub(crate) use self::exit_wire::ExitReportWire;

/// Names of the Python interpreter, in the order of the search on PATH. If only `python3` is installed, a command that
/// begins with `python` runs `python3`.
pub const PYTHONS: [&str; 2] = ["python", "python3"];

/// The Python that a script gets with this variable PATH.
pub fn first_python(path: &OsStr, is_file: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let named = |name: &str| env::split_paths(path).map(|folder| folder.join(name)).find(|python| is_file(python));
    PYTHONS.into_iter().find_map(named)
}

/// Maximum bytes of stderr in an [`ExitReport`]. The newest bytes are kept.
pub const STDERR_TAIL_BYTES: usize = 4096;

// Maximum bytes of the three texts of an [`ExitReport`], as JSON. Longer texts are cut when a report is made or read.
const STDERR_TAIL_JSON_BYTES: usize = 8192;
const REASON_JSON_BYTES: usize = 4096;
const EXCEPTION_JSON_BYTES: usize = 1024;

/// The exit code of a script that asks for a restart (EX_TEMPFAIL of sysexits.h). `muster.py` uses this code.
pub const LEFT: i32 = 75;

/// The first signal to a run that is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSignal {
    /// SIGINT, as after Ctrl-C at a terminal. SIGTERM follows before SIGKILL.
    Int,
    /// SIGTERM.
    Term,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The agent waits for the environment.
    #[default]
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

/// The version of the messages between master and agent that a run of one process needs. Increase this number with every
/// change that an earlier version of the other program would misread.
pub const MESSAGES: u32 = 2;

/// The version that a run of several processes needs: the newest that this program knows.
pub const MESSAGES_OF_SEVERAL: u32 = 3;

/// The version of the messages that a run of this many processes needs.
pub fn messages_for(processes: usize) -> u32 {
    if processes > 1 { MESSAGES_OF_SEVERAL } else { MESSAGES }
}

/// The answer of `GET /status`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Increases with each change. A long poll waits until `seq` differs from the number in the request.
    pub seq: u64,
    /// Identifies the process of the agent. A restarted agent has another id.
    pub boot_id: String,
    /// The state of the run.
    pub state: RunState,
    /// The run's generation. Absent when idle, or when the environment named no generation.
    pub generation: Option<Generation>,
    /// Process id of exec.py while it runs. Of several processes, the one with the lowest rank that runs.
    pub pid: Option<u32>,
    /// The processes of a run with several processes, by their index in the replica. Empty for a run of one process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessStatus>,
    /// When exec.py started.
    pub started_at: Option<UnixMillis>,
    /// How the run ended. Absent until it ends.
    pub exit: Option<ExitReport>,
    /// The run's membership in its start, as received with `/config`.
    pub membership: Option<Membership>,
    /// The code that the agent has.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub code: CodeStatus,
    /// The version of the messages that the agent's run needs, see [`MESSAGES`]. So an earlier master, which does not
    /// know newer versions, can take over a run that needs none of them. 0 if absent.
    #[serde(default)]
    pub messages: u32,
    /// The newest version of the messages that the agent knows. Absent: no newer one than `messages`.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub newest_messages: u32,
    /// The state of the warm interpreter. Absent before the first request to `/warm`.
    pub warm: Option<WarmState>,
    /// The newest report of the helper `muster.py`. Absent until the run's script uses the helper. Of several processes,
    /// it is the report of the process with the lowest rank, and absent until all processes use the helper.
    pub helper: Option<Progress>,
    /// The step and the values that the script has posted without the helper, as Transformers does. Nothing depends on
    /// them: they are only shown. Absent until the run's script posts.
    pub posted: Option<Progress>,
    /// What the run's processes use when the agent answers. New numbers do not increase `seq`. Absent unless the run
    /// lives.
    pub usage: Option<Usage>,
    /// The time of the agent's clock when the agent answers. A new time does not increase `seq`.
    pub clock_ms: Option<ClockMillis>,
    /// Where the agent's output begins in the replica's output. Absent if the agent cannot keep it.
    pub log_base: Option<LogBase>,
}

/// One of several processes of a run.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// The newest report of its helper.
    pub helper: Option<Progress>,
    /// What it uses when the agent answers. Absent unless it runs.
    pub usage: Option<Usage>,
}

/// Where an agent's output begins in the replica's output, which earlier agents have begun. A master tells it with
/// [`crate::routes::LOG_BASE_HEADER`], so that a later master without the earlier output knows it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogBase {
    /// No master has told it.
    Unknown,
    /// At this byte.
    At(u64),
}

impl RunStatus {
    /// The first status of an agent without a run.
    pub fn idle(boot_id: impl Into<String>) -> Self {
        let (messages, newest_messages) = (MESSAGES, MESSAGES_OF_SEVERAL);
        Self { seq: 1, boot_id: boot_id.into(), messages, newest_messages, ..Self::default() }
    }

    /// Whether a master with this program's versions of the messages can use this agent for a replica of this many
    /// processes.
    pub fn is_fit_for(&self, processes: u32) -> bool {
        let is_known = (MESSAGES..=MESSAGES_OF_SEVERAL).contains(&self.messages);
        is_known && messages_for(processes as usize) <= self.newest_messages()
    }

    /// The newest version of the messages that the agent knows.
    pub fn newest_messages(&self) -> u32 {
        self.messages.max(self.newest_messages)
    }

    /// The newest step and values of the script: those of the helper, or posted ones if the helper has no step. `None`
    /// before the first step.
    pub fn reported(&self) -> Option<&Progress> {
        [&self.helper, &self.posted].into_iter().flatten().find(|progress| progress.has_stepped())
    }

    /// The process ids of the main processes that run, each with its index in the replica.
    pub fn pids(&self) -> Vec<(usize, u32)> {
        if self.processes.is_empty() {
            return self.pid.map(|pid| (0, pid)).into_iter().collect();
        }
        let with_pid = |(index, process): (usize, &ProcessStatus)| Some((index, process.pid?));
        self.processes.iter().enumerate().filter_map(with_pid).collect()
    }

    /// Whether this status contains news since the earlier status `known`. Usage, posts, the state of single processes and
    /// the log's base are no news. Of a script's reports, only two are news: the first report, and the first report with a
    /// step. Until the run exits, neither the beginning of a stop nor the end of a main process is news. Every other change
    /// is news.
    pub fn is_news_after(&self, known: &Self) -> bool {
        let stage = |status: &Self| status.helper.as_ref().map(Progress::has_stepped);
        let (helper, posted) = (known.helper.clone(), known.posted.clone());
        let (usage, processes) = (known.usage, known.processes.clone());
        let mut now = Self { helper, posted, usage, processes, log_base: known.log_base, ..self.clone() };
        if matches!((known.state, now.state), (RunState::Running | RunState::Stopping, RunState::Stopping)) {
            (now.state, now.pid) = (known.state, known.pid);
        } else if !self.processes.is_empty() && known.pid.is_some() {
            now.pid = known.pid;
        }
        stage(self) != stage(known) || now != *known
    }
}

/// A replica's membership in one start. The master sends the membership with the environment, and the agent's status
/// repeats it. So a master that takes a job over can learn the members of a start from the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The member's index within its role in this start, from 0.
    pub seat: u32,
    /// The number of members of this start, over all roles.
    pub of: u32,
    /// How often the job had restarted before this start, as in `MUSTER_RESTART_COUNT`.
    pub start: u32,
    /// How often a user had pushed new code before this start.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub pushes: u32,
}

/// The code that an agent has.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeStatus {
    /// The newest code that has arrived as a whole. Absent if no code has arrived.
    pub staged: Option<CodeId>,
    /// The code in the working directory, which runs use.
    pub running: Option<CodeId>,
}

/// How a run ended (`outcome`), and why (`stopped`, `terminated`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ExitReportWire", into = "ExitReportWire")]
pub struct ExitReport {
    /// How the main process ended. Of several processes, the one that failed first.
    pub outcome: ExitOutcome,
    /// This process. `None` for a run of one process.
    pub process: Option<EndedProcess>,
    /// Whether the agent was stopping the run when the run ended.
    pub stopped: bool,
    /// Whether SIGTERM to the agent caused the stop, and not `/stop`. The agent of a preempted, evicted or drained pod
    /// gets SIGTERM. Implies `stopped`.
    pub terminated: bool,
    /// When the run ended, by the agent's clock.
    pub ended_at: UnixMillis,
    /// First line of the exception that ended exec.py, or that exec.py had printed before a signal killed it: the line
    /// after the last traceback's stack. A long message can push this line out of `stderr_tail`.
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

/// The termination message of an agent that ends after a run. Kubernetes stores the message in the pod's status, so a
/// master can read it after the agent has ended.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    /// The run's generation. Absent when the environment named no generation.
    pub generation: Option<Generation>,
    /// How the run ended.
    pub exit: ExitReport,
    /// See [`RunStatus::membership`].
    pub membership: Option<Membership>,
}

/// Maximum bytes of [`LastWords`] as JSON: Kubernetes' limit for a container's termination message
/// (`kubernetes/pkg/kubelet/container/runtime.go`, MaxContainerTerminationMessageLength).
pub const LAST_WORDS_BYTES: usize = 4096;

impl ExitReport {
    /// A report of a run that ended by itself and printed nothing.
    pub fn new(outcome: ExitOutcome, ended_at: UnixMillis) -> Self {
        Self {
            outcome,
            process: None,
            stopped: false,
            terminated: false,
            ended_at,
            exception: None,
            stderr_tail: String::new(),
        }
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

    /// The report without the texts that the run printed.
    #[must_use]
    pub fn without_output(&self) -> Self {
        let Self { outcome, process, stopped, terminated, ended_at, exception: _, stderr_tail: _ } = self;
        let (process, stopped, terminated) = (*process, *stopped, *terminated);
        Self { process, stopped, terminated, ..Self::new(outcome.clone(), *ended_at) }
    }

    /// Clears the texts that the run printed.
    pub fn forget_output(&mut self) {
        self.exception = None;
        self.stderr_tail.clear();
    }

    /// Whether the run ended because memory ran out: the kernel killed it, or its exception says so. The memory may be
    /// that of a GPU.
    pub fn lacks_memory(&self) -> bool {
        let says_so = |exception: &str| {
            let class = exception.split([':', ' ']).next().unwrap_or_default();
            ["MemoryError", "ResourceExhaustedError"].iter().any(|end| class.ends_with(end))
                || exception.contains("RESOURCE_EXHAUSTED")
        };
        matches!(self.outcome, ExitOutcome::OutOfMemory { .. }) || self.exception.as_deref().is_some_and(says_so)
    }

    /// The exception's first line. `None` if there is no exception, or if `lines` of the run's output contain this
    /// line.
    pub fn exception_before<'a>(&self, mut lines: impl Iterator<Item = &'a str>) -> Option<&str> {
        let exception = self.exception.as_deref()?;
        // The report may have shortened the line.
        (!lines.any(|line| without_rank(line).starts_with(exception))).then_some(exception)
    }

    /// Which process of the replica ended, and how: what follows the replica's name.
    pub fn how(&self) -> String {
        let process = self.process.map(|process| process.to_string()).unwrap_or_default();
        format!("{process} {}", self.outcome)
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
