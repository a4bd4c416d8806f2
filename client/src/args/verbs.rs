//! The arguments of the verbs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use protocol::elastic::WorkerNum;
use protocol::ids::{JobName, ReplicaId, UnixMillis};
use protocol::view::JobState;
use reqwest::Url;

use super::values::{duration, lines, moment, seconds, state, workers};
use super::{FormatArgs, JobFlags};
use crate::output::ShownRanks;

/// The name of a job.
#[derive(Debug, Clone, Args)]
pub(crate) struct NameArg {
    /// Name of the job
    pub(crate) name: JobName,
}

/// The names of one or more jobs.
#[derive(Debug, Clone, Args)]
pub(crate) struct NamesArg {
    /// Names of the jobs. An error about one job does not stop the others
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<JobName>,
}

/// Arguments of `status`, `why`, `timeline` and `stacks`.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) job: NameArg,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only jobs whose names contain this text
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Only jobs in this state, such as running or failed. Repeatable, or several states with commas
    #[arg(long, value_name = "STATE", value_parser = state, value_delimiter = ',')]
    pub(crate) state: Vec<JobState>,
    /// Only jobs that have not ended, or have ended in the last DURATION, for example 90s, 12h or 2d
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) since: Option<u32>,
    /// Also jobs of the history: those that have ended and are no longer on record
    #[arg(long)]
    pub(crate) all: bool,
    /// After the list, print the line of each job that changes, until Ctrl-C
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) job: NameArg,
    /// Continue until the job has ended; the exit status reflects its result
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the output of this replica, for example worker-1, byte for byte unless --timestamps or -o json is given
    #[arg(long, value_name = "REPLICA")]
    pub(crate) replica: Option<ReplicaId>,
    /// Only the lines of these ranks, for example 11 or 0,8, if each worker has several processes (--nproc-per-node). As
    /// text, the lines of a single rank have no label. --tail counts the lines of all ranks [default: all]
    #[arg(long, value_name = "RANKS", default_value = "all", hide_default_value = true)]
    pub(crate) rank: ShownRanks,
    /// Start with the last N lines of each replica [default: all kept lines]
    #[arg(long, value_name = "N", value_parser = lines, allow_negative_numbers = true)]
    pub(crate) tail: Option<u32>,
    /// Only lines that were complete in the last DURATION, for example 90s, 5m or 2h; also with --tail [default: all
    /// kept lines]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = seconds,
        allow_hyphen_values = true,
        conflicts_with = "since_time"
    )]
    pub(crate) since: Option<u32>,
    /// Only lines that were complete at or after this time by the master's clock, for example 2026-11-24T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub(crate) since_time: Option<UnixMillis>,
    /// Show when each line was complete, by the master's clock, such as 2026-11-24T00:00:00.000Z. A line whose time is
    /// unknown has - instead
    #[arg(long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) jobs: NamesArg,
    /// Give up after this time, for example 90s, 10m or 2h [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Also post a JSON object with job, state and text to this address when a job restarts, waits for new code, or
    /// ends. Other users of this machine can read the arguments of a command: if the address contains a secret, use
    /// --notify-file or $MUSTER_NOTIFY
    #[arg(long, value_name = "URL", value_parser = web_address, conflicts_with = "notify_file")]
    pub(crate) notify: Option<Url>,
    /// File with the address of --notify [default: the address in $MUSTER_NOTIFY]
    #[arg(long, value_name = "FILE")]
    pub(crate) notify_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// An address that a client can post to.
pub(crate) fn web_address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| "use an address that begins with http:// or https://".to_owned())
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Name of the job whose replicas are shown [default: all jobs that have not ended]
    pub(crate) name: Option<JobName>,
    /// Print the numbers once. Otherwise a terminal shows new numbers every 2 seconds until Ctrl-C
    #[arg(long)]
    pub(crate) once: bool,
}

/// Arguments of `rerun`.
#[derive(Debug, Args)]
pub(crate) struct RerunArgs {
    #[command(flatten)]
    pub(crate) job: NameArg,
    /// First delete the existing job, and give its name to the new job
    #[arg(long, conflicts_with = "task")]
    pub(crate) replace: bool,
    /// Print the new job's name and return when the master has accepted the job
    #[arg(short, long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) changes: JobFlags,
}

/// Arguments of `scale`.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    pub(crate) job: NameArg,
    /// Minimum and maximum number of workers. N alone sets the maximum; if the job's minimum is above N, the minimum
    /// becomes N too
    #[arg(long, value_name = "N|MIN:MAX", value_parser = workers, allow_negative_numbers = true)]
    pub(crate) worker_num: WorkerNum,
}

/// Arguments of `env`.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    /// Print the statements that undo `client env`
    #[arg(long)]
    pub(crate) unset: bool,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    #[command(flatten)]
    pub(crate) job: NameArg,
    /// Folder with the new code [default: the current folder]. Ignored for a job that runs in a folder of its master's
    /// machine: the scripts start again with the present files of that folder
    pub(crate) folder: Option<PathBuf>,
    /// Start the scripts again even if the code is the same, and do not check that the script parses
    #[arg(long)]
    pub(crate) force: bool,
    /// Push again after each change of a file, until the job ends. Ctrl-C ends only the client; the job keeps running
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Arguments of `ui`.
#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Only print the address of the page; do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Port of the page on this machine [default: any free port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
}
