//! The flags of a job, for `submit` and `rerun`: everything but its code and its image.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Arg, Args};
use protocol::elastic::WorkerNum;
use protocol::env::{EnvError, EnvName};
use protocol::group::Group;
use protocol::ids::JobName;
use protocol::job::Strategy;
use protocol::processes::NprocPerNode;

use super::values::{Metric, count, group, workers};
use super::{BatchingArgs, PodArgs, PolicyArgs, SUBMITTING};

/// The job, without its code and its image. A flag that is not given has its default value. In a rerun, it has the
/// value of the earlier job.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SUBMITTING)]
pub(crate) struct JobFlags {
    /// Distribution strategy: AllReduce (MultiWorkerMirroredStrategy), or ParameterServer or ps
    /// (ParameterServerStrategy). Case does not matter [default: AllReduce]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<Strategy>,
    /// Number of workers, at least 1. MIN:MAX makes the job elastic: it runs with any number of workers from MIN to MAX
    /// [default: 2]
    #[arg(long, value_name = "N|MIN:MAX", value_parser = workers, allow_negative_numbers = true)]
    pub(crate) worker_num: Option<WorkerNum>,
    /// Workers with resources or batches of their own, such as cpu=6,memory=8Gi:2 for two workers, or
    /// gpus=1,batch=16..32:2 for two workers with 16 to 32 samples in a step. Repeatable; the workers of the first flag
    /// have the lowest indexes. If --worker-num is given too, it must be the sum of all N. Memory and GPUs only with
    /// Kubernetes; CPUs elsewhere only set the first batch sizes
    #[arg(long, value_name = "RESOURCES:N", value_parser = group)]
    pub(crate) worker: Vec<Group>,
    /// Number of parameter servers [default: 1 with ParameterServer, else 0]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) ps_num: Option<u32>,
    /// Number of chiefs, 0 or 1 [default: 1 with ParameterServer, else 0]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) chief_num: Option<u32>,
    /// Number of evaluators, 0 or 1 [default: 0]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) evaluator_num: Option<u32>,
    /// Number of processes of the script in each worker, 1 to 64, or gpu for one process on each GPU. Each process has a
    /// rank of its own, as with torchrun [default: 1]
    #[arg(long, value_name = "N|gpu", allow_negative_numbers = true)]
    pub(crate) nproc_per_node: Option<NprocPerNode>,
    /// Name of the job: 1 to 55 characters of a-z, 0-9 and '-', because names of pods, such as NAME-worker-12, have at
    /// most 63 characters [default: the folder's name and a random suffix]
    #[arg(long, value_name = "NAME")]
    pub(crate) task: Option<JobName>,
    /// Environment variable for every replica. With NAME alone, copies the value from your environment. Repeatable; the
    /// last value wins
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// File of variables, in the format of docker run --env-file: one NAME=VALUE or NAME per line, without quotes around
    /// the value; # starts a comment line. --env wins
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,
    /// Allow a variable of --env or --env-file that can make programs run other code, such as LD_PRELOAD. Repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_env: Vec<EnvName>,
    /// Read a number from the output of the first replica that trains, such as loss='loss: ([0-9.]+)'. The regular
    /// expression has one group. client status shows the newest number. Repeatable
    #[arg(long, value_name = "NAME=REGEX")]
    pub(crate) metric: Vec<Metric>,
    /// Arguments for the script. $(NAME) becomes the value of the replica's variable NAME; write $$(NAME) for the text
    /// $(NAME)
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
    #[command(flatten)]
    pub(crate) batching: BatchingArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) pod: PodArgs,
}

/// The help of a flag for `rerun`, where the values of the earlier job are the defaults.
pub(super) fn as_before(arg: Arg) -> Arg {
    if arg.get_id() == "task" {
        return arg.help("Name of the new job [default: NAME and a random suffix]");
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let Some((help, _)) = help.rsplit_once(" [default: ") else { return arg };
    arg.help(format!("{help} [default: as before]"))
}

/// `NAME=VALUE`, or `NAME` alone, which copies the value from the client's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnvArg {
    /// The variable and its value.
    Set(EnvName, String),
    /// The variable. The value comes from the client's environment.
    PassOn(EnvName),
}

impl FromStr for EnvArg {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) => Ok(Self::Set(name.parse()?, value.to_owned())),
            None => Ok(Self::PassOn(text.parse()?)),
        }
    }
}
