//! The command line: flags and verbs. The help of a flag names the flag's unit and default, if there are any.
//! `request/` checks whether the values of several flags fit together. `address/config.rs` chooses the master.

mod batching;
mod cluster;
mod code;
mod dry_run;
mod job;
mod kubernetes;
mod mistakes;
mod policy;
mod spawn;
mod tfjob;
mod usage;
mod values;
mod verbs;

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use self::batching::BatchingArgs;
pub(crate) use self::cluster::{DoctorArgs, InstallArgs, UninstallArgs};
pub(crate) use self::code::{CodeArgs, SyntaxArgs};
pub(crate) use self::dry_run::{Checker, DryRunArgs};
pub(crate) use self::job::{EnvArg, JobFlags};
pub(crate) use self::kubernetes::{BuildArgs, ImageArgs, Loader, PodArgs, Registry};
use self::mistakes::{of_another_launcher, refuse_submit_flags_beside_a_verb, typed_with_one_dash, verb_of};
pub(crate) use self::policy::PolicyArgs;
pub(crate) use self::spawn::SpawnArgs;
pub(crate) use self::tfjob::{ApplyArgs, GetArgs, ObjectFormat};
pub(crate) use self::values::Metric;
pub(crate) use self::verbs::{
    CompletionsArgs, EnvArgs, JobArgs, ListArgs, LogsArgs, NameArg, NamesArg, PushArgs, RerunArgs, ScaleArgs, TopArgs,
    UiArgs, WaitArgs, web_address,
};
use crate::address::connection::ConnectionArgs;
use crate::ending::error::Error;
use crate::output::{Format, ShownRanks};

const EXAMPLES: &str = "\
Examples:
  client --worker-num 4                   run ./exec.py with 4 workers on this machine
  client --worker-num 2:8                 run ./exec.py with 2 to 8 workers, which may come and go
  client --env BATCH=64 -- --epochs 3     give exec.py BATCH=64 and the arguments --epochs 3
  client --strategy ps --task digits --master http://127.0.0.1:7897
  client --image digits --memory 2Gi --master http://192.168.49.2:31898
  client train.py --image tensorflow/tensorflow:2.21.0 --master http://192.168.49.2:31898
  client --task digits --replace          delete the old job digits, then submit it again
  client --image digits --dry-run=server  check the job and print its pods; create nothing
  client logs digits -f                   follow the submitted job digits

Other programs:
  client master --help                    run a master, which keeps jobs and their output
  client agent --help                     run an agent, on a machine without Kubernetes

Exit codes:
  0  the job succeeded; for a verb: done
  1  the job failed, was cancelled, or is not known to have succeeded
  2  bad usage or input
  3  the master or the cluster could not be reached, refused the request, or failed
  4  the image could not be found, built, pushed or loaded, or Docker could not be reached
Ctrl-C ends the client by SIGINT, which a shell shows as 130.";

/// Runs a script as one distributed TensorFlow job.
///
/// Without a verb, submits SCRIPT, or ./exec.py, as a job and follows the job to its end.
#[derive(Debug, Parser)]
#[command(name = "client", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Print each request to the master and to Docker on stderr
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) submit: SubmitArgs,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

/// A submit: the job, and what the client does for it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SUBMITTING)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) code: CodeArgs,
    #[command(flatten)]
    pub(crate) job: JobFlags,
    /// Print the job's name and return when the master has accepted the job, instead of following its logs
    #[arg(short, long, conflicts_with = "dry_run", help_heading = SUBMITTING)]
    pub(crate) detach: bool,
    /// Whose lines to show on a terminal, if each worker has several processes: all, first, or ranks such as 0,8. Files
    /// and pipes get all lines [default: all]
    #[arg(long, value_name = "RANKS", default_value = "all", hide_default_value = true, help_heading = SUBMITTING)]
    pub(crate) show: ShownRanks,
    /// First delete an existing job with the name of --task, and wait until it is gone. Before that, the master checks
    /// the new job and gets its code. If the new job is refused, the existing job stays
    #[arg(long, requires = "task", help_heading = SUBMITTING)]
    pub(crate) replace: bool,
    #[command(flatten, next_help_heading = SUBMITTING)]
    pub(crate) dry_run: DryRunArgs,
    #[command(flatten, next_help_heading = SUBMITTING)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
}

/// The heading of the flags of a submit.
const SUBMITTING: &str = "Submitting a job";

/// The format of data on stdout.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct FormatArgs {
    /// Output format: text, or json for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) output: Format,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List all jobs, or those that the filters choose
    #[command(after_help = "Examples:\n  client list\n  client list digits --state failed,cancelled --since 2d\n  \
                            client list -o json | jq '.jobs[].name'")]
    List(ListArgs),
    /// Show one job and its replicas
    #[command(after_help = "Examples:\n  client status digits\n  client status digits -o json | jq .state")]
    Status(JobArgs),
    /// Explain why a job failed or was restarted: which replica failed first, how, and what followed
    #[command(after_help = "Example:\n  client why digits")]
    Why(JobArgs),
    /// Show when each start of a job reached each step, why it began and ended, and how the job's time was spent
    #[command(after_help = "Examples:\n  client timeline digits\n  client timeline digits -o json | jq .spent")]
    Timeline(JobArgs),
    /// Show all jobs in a browser, live: a page for the user who runs this command, on this machine only
    #[command(after_help = "Examples:\n  client ui\n  client ui --no-open --port 8080 --master kube")]
    Ui(UiArgs),
    /// Show where the scripts of a running job are: the Python stacks of all replicas, equal stacks together
    #[command(after_help = "Examples:\n  client stacks digits\n  client stacks digits -o json | jq -r .summary")]
    Stacks(JobArgs),
    /// Show what jobs, or the replicas of a job, do and use: step, time of a step, batch, processor time and memory
    #[command(after_help = "Examples:\n  client top\n  client top digits --once")]
    Top(TopArgs),
    /// Print a job's output, of all replicas or of one
    #[command(after_help = "Examples:\n  client logs digits -f\n  client logs digits --tail 20\n  \
                            client logs digits --timestamps --since 5m\n  \
                            client logs digits --replica worker-1 > worker-1.txt")]
    Logs(LogsArgs),
    /// Submit TFJobs, the files of Kubeflow's training operator; submitting an unchanged file again has no effect
    #[command(after_help = tfjob::APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Start a training as tf-spawner does: one script, in pods of an unmodified image
    #[command(after_help = spawn::EXAMPLES)]
    Spawn(SpawnArgs),
    /// Show jobs as the TFJobs that they came from, with conditions
    #[command(after_help = "Examples:\n  client get\n  client get mnist -o yaml")]
    Get(GetArgs),
    /// Wait until jobs have ended; the exit status reflects the worst result
    #[command(after_help = "Example:\n  client wait digits --timeout 2h && ./evaluate")]
    Wait(WaitArgs),
    /// Submit an earlier job again, and follow the new job. The earlier job may be in the history. Flags change the new
    /// job
    #[command(
        mut_args = job::as_before,
        after_help = "Examples:\n  client rerun digits\n  client rerun digits --memory 8Gi\n  \
                      client rerun digits --task digits-2 --worker-num 2:8 -- --epochs 9"
    )]
    Rerun(Box<RerunArgs>),
    /// Change the number of workers of an elastic job
    #[command(after_help = "Examples:\n  client scale digits --worker-num 3:6\n  client scale digits --worker-num 4")]
    Scale(ScaleArgs),
    /// Give a job new code: its scripts start again with the new code, in the same pods
    #[command(after_help = "Examples:\n  client push digits\n  client push digits ./project --watch")]
    Push(PushArgs),
    /// Stop the scripts of jobs and delete their pods, until `client resume`
    #[command(after_help = "Example:\n  client suspend digits")]
    Suspend(NamesArg),
    /// Start suspended jobs again
    #[command(after_help = "Example:\n  client resume digits")]
    Resume(NamesArg),
    /// Stop jobs and keep their records and output
    #[command(after_help = "Examples:\n  client cancel digits\n  client cancel run-1 run-2")]
    Cancel(NamesArg),
    /// Stop jobs and delete their records and output; returns when their pods are gone
    #[command(after_help = "Examples:\n  client delete digits\n  client delete run-1 run-2 run-3")]
    Delete(NamesArg),
    /// Add the agent to a training image, as a submit does, and print the name of the image that pods run
    #[command(after_help = "Examples:\n  client build\n  client build --image digits --push registry.example.com/team")]
    Build(BuildArgs),
    /// Print shell statements that prepare this shell for the cluster of kubectl's context: eval "$(client env)"
    ///
    /// The statements set MUSTER_MASTER, MUSTER_TOKEN, and how images reach the nodes (MUSTER_LOAD, or minikube's
    /// Docker). They add this program's folder to PATH and, if a proxy is set, the node to no_proxy.
    /// `eval "$(client env --unset)"` undoes these changes.
    Env(EnvArgs),
    /// Install or upgrade the master in a namespace of a cluster
    #[command(after_help = cluster::INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Remove the master of a namespace, with all its jobs and their records
    #[command(after_help = "Examples:\n  client uninstall --dry-run\n  client uninstall -y -n team")]
    Uninstall(UninstallArgs),
    /// Check this machine, the master of --master URL, or a cluster with --master kube; exits with 1 if a check fails
    #[command(after_help = "Examples:\n  client doctor\n  client doctor --master kube:kind-dev/team -o json")]
    Doctor(DoctorArgs),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  client completions bash > ~/.local/share/bash-completion/completions/client")]
    Completions(CompletionsArgs),
}

/// The meaning of a command line without mistakes.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The text of `--help` or `--version`, with styles.
    Help(String),
    /// A command to run.
    Command(Box<Cli>),
}

/// Parses a command line that begins with the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, Error> {
    let arguments = spawn::as_verb(arguments.into_iter().collect());
    let cannot = |report, verb: Option<&str>| {
        let meant = typed_with_one_dash(&arguments, verb);
        let meant = meant.or_else(|| of_another_launcher(usage::unknown(&report), verb));
        usage::from_clap(&report, verb, meant)
    };
    let matches = match Cli::command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(report) if !report.use_stderr() => return Ok(Parsed::Help(report.render().ansi().to_string())),
        Err(report) => {
            let verb = verb_of(&arguments);
            // clap reads a misspelled verb as SCRIPT, and reports an error about a later word. So check SCRIPT first.
            let script = arguments.get(1).filter(|word| verb.is_none() && !word.as_encoded_bytes().starts_with(b"-"));
            CodeArgs { script: script.cloned(), ..CodeArgs::default() }.check()?;
            return Err(cannot(report, verb.as_deref()));
        }
    };
    refuse_submit_flags_beside_a_verb(&matches)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|report| cannot(report, matches.subcommand_name()))?;
    cli.submit.code.check()?;
    Ok(Parsed::Command(Box::new(cli)))
}
