//! Errors of a job request, for client and master.

use std::path::PathBuf;

use crate::batching::BadBatching;
use crate::env::{ENTRY_LIMIT, EnvError, EnvName, INPUT_BYTES_MAX};
use crate::error::ErrorCode;
use crate::group::{GROUPS_MAX, WrongVariable};
use crate::ids::{JobName, LABEL_MAX, PodName, Role};
use crate::processes::PROCESSES_MAX;
use crate::progress::{VALUE_NAME_BYTES, VALUES_MAX};
use crate::routes::AGENT_PORT;
use crate::run_policy::{LEASE_SECONDS_MAX, SuccessPolicy};
use crate::warm::MODULES_MAX;

/// Defines [`SpecError`]. After each variant stand its code on the wire, and a hint that names the flag to change.
macro_rules! spec_errors {
    ($(#[$of:meta])* pub enum SpecError {
        $($(#[$about:meta])* $name:ident $(($($one:tt)*))? $({$($fields:tt)*})? => $code:ident, $hint:literal,)*
    }) => {
        $(#[$of])*
        pub enum SpecError { $($(#[$about])* $name $(($($one)*))? $({$($fields)*})?,)* }

        impl SpecError {
            /// The error's code on the wire.
            pub fn code(&self) -> ErrorCode {
                match self { $(Self::$name { .. } => ErrorCode::$code,)* }
            }

            /// What to change on the client's command line. `{train}` stands for a command that names a script.
            pub fn hint(&self) -> &'static str {
                match self { $(Self::$name { .. } => $hint,)* }
            }
        }
    };
}

spec_errors! {
/// The request is not a valid job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The strategy is unknown.
    #[error("strategy \"{0}\" is unknown: use AllReduce or ParameterServer")]
    Strategy(String) => BadStrategy, "give --strategy AllReduce or --strategy ParameterServer",
    /// The job's name leaves no room for the names of its pods.
    #[error("task name \"{name}\" is too long: the pod name {pod} has more than {LABEL_MAX} characters")]
    LongName {
        /// The job's name.
        name: JobName,
        /// The longest name of a pod.
        pod: PodName,
    } => BadTask, "give a shorter --task",
    /// The job has no workers.
    #[error("worker-num is 0: use at least 1")]
    NoWorkers => BadWorkerNum, "give --worker-num 1 or more",
    /// The minimum of workers is above the maximum.
    #[error("the minimum of workers, {min}, is above the maximum, {max}")]
    MinAboveMax {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    } => BadWorkerNum, "give --worker-num MIN:MAX, with the smaller number first",
    /// The job is not elastic, so its number of workers cannot change.
    #[error("the job is not elastic, so its number of workers cannot change: submit the job with --worker-num MIN:MAX")]
    NotElastic => BadWorkerNum, "submit the job with --worker-num MIN:MAX",
    /// The workers make TF_CONFIG too long for an environment variable.
    #[error(
        "worker-num {asked} is too large: TF_CONFIG would exceed Linux's limit for a variable; use at most {fits} workers"
    )]
    TooManyWorkers {
        /// Requested workers.
        asked: u32,
        /// Maximum workers, given the other replicas.
        fits: u32,
    } => BadWorkerNum, "give a smaller --worker-num",
    /// The parameter servers make TF_CONFIG too long for an environment variable.
    #[error(
        "ps-num {asked} is too large: TF_CONFIG would exceed Linux's limit for a variable; use at most {fits} parameter servers"
    )]
    TooManyPs {
        /// Requested parameter servers.
        asked: u32,
        /// Maximum parameter servers, given the other replicas.
        fits: u32,
    } => BadPsNum, "give a smaller --ps-num",
    /// The number of processes is out of range.
    #[error("nproc-per-node is {0}: use 1 to {PROCESSES_MAX}")]
    ProcessCount(u32) => BadNprocPerNode, "give --nproc-per-node 1 to 64",
    /// The job has no GPUs to count, or replicas have different numbers of them.
    #[error("nproc-per-node gpu needs the same number of GPUs in each replica that trains: give a number")]
    NoGpusToCount => BadNprocPerNode, "give --gpus N too, or --nproc-per-node N",
    /// Several processes cannot be parameter servers and their clients.
    #[error("nproc-per-node needs AllReduce: with ParameterServer, each replica has one process")]
    ProcessesWithServers => BadNprocPerNode, "leave out --nproc-per-node, or give --strategy AllReduce",
    /// TensorFlow accepts one chief at most.
    #[error("nproc-per-node does not work with a chief: it would have one process alone")]
    ProcessesWithChief => BadNprocPerNode, "leave out --chief-num: the first worker is the chief",
    /// Batches are divided among replicas, not among their processes.
    #[error("global-batch cannot be divided among several processes of a replica: use one process in each replica")]
    ProcessesWithBatch => BadNprocPerNode, "leave out --global-batch, or --nproc-per-node",
    /// TensorFlow hangs if an AllReduce cluster has a parameter server.
    #[error(
        "ps-num is {0}, but AllReduce has no parameter servers: leave out ps-num, or use --strategy ParameterServer"
    )]
    PsWithAllReduce(u32) => BadPsNum, "leave out --ps-num, or give --strategy ParameterServer",
    /// ParameterServerStrategy needs a parameter server.
    #[error("ps-num is 0: ParameterServer needs at least one parameter server")]
    NoPs => BadPsNum, "give --ps-num 1 or more",
    /// TensorFlow accepts one chief at most.
    #[error("chief-num {0} is not allowed: use 0 or 1")]
    ChiefNum(u32) => BadChiefNum, "give --chief-num 0 or 1",
    /// TensorFlow accepts one evaluator at most.
    #[error("evaluator-num {0} is not allowed: use 0 or 1")]
    EvaluatorNum(u32) => BadEvaluatorNum, "give --evaluator-num 0 or 1",
    /// The groups of a role have more or fewer replicas than the job has in this role.
    #[error(
        "the groups of role {role} have {grouped} replicas, but the job has {replicas} of this role: make both equal"
    )]
    GroupsCount {
        /// The role.
        role: Role,
        /// Replicas in groups.
        grouped: u32,
        /// Replicas of the job.
        replicas: u32,
    } => BadGroups, "leave out --worker-num, or set it to the sum of the counts of all --worker flags",
    /// There are more groups than [`GROUPS_MAX`].
    #[error("the job has {0} groups: use at most {GROUPS_MAX}")]
    TooManyGroups(usize) => BadGroups, "give --worker fewer times",
    /// A group has no replicas. Groups are numbered from 1.
    #[error("group {0} has count 0: use at least 1, or leave the group out")]
    EmptyGroup(usize) => BadGroups, "leave out the --worker flag of this group",
    /// A group's port cannot be used.
    #[error("tf_port of group {group} is {port}: use a port from 1 to 65535, but not the agent's port {AGENT_PORT}")]
    GroupPort {
        /// The group's number, from 1.
        group: usize,
        /// The port.
        port: u16,
    } => BadGroups, "give another port",
    /// A group's template has no container or no pod.
    #[error("the template of group {0} needs the name of a container, and a pod as an object with metadata and spec")]
    NoTemplate(usize) => BadGroups, "give a pod with metadata and spec",
    /// A variable of a group's template has no value that can be used.
    #[error("the template of group {group}: {why}")]
    GroupVariable {
        /// The group's number, from 1.
        group: usize,
        /// What is wrong.
        why: WrongVariable,
    } => BadGroups, "put the value in quotation marks, or make it shorter",
    /// The batches are impossible.
    #[error(transparent)]
    Batching(#[from] BadBatching) => BadBatching,
        "change --global-batch, --min-batch, --max-batch, --batch-multiple or the batches of --worker",
    /// There are more metrics than [`VALUES_MAX`].
    #[error("the job reads {0} metrics from its output: use at most {VALUES_MAX}")]
    TooManyMetrics(usize) => BadMetrics, "give --metric fewer times",
    /// A metric has no usable name.
    #[error("invalid name of a metric {0:?}: use 1 to {VALUE_NAME_BYTES} bytes without control characters")]
    MetricName(String) => BadMetrics, "give --metric NAME=REGEX, such as loss='loss: ([0-9.]+)'",
    /// A time limit is 0.
    #[error("{0} is 0: use at least 1 s")]
    NoTime(&'static str) => BadRunPolicy, "leave out the flag, or give a longer time, such as 10m",
    /// The chief decides about success, but the job has no chief.
    #[error("success-policy chief needs a chief: the job has none")]
    NoChiefToDecide => BadRunPolicy, "give --chief-num 1, or --success-policy worker-0",
    /// Workers decide about success, but they are servers that never end.
    #[error(
        "success-policy {0} does not work in a ParameterServer job with a chief: its workers are servers, which never end"
    )]
    ServersNeverEnd(SuccessPolicy) => BadRunPolicy, "leave out --success-policy, or give --chief-num 0",
    /// The job would wait for new code in vain, because its code is in its image.
    #[error(
        "on-failure wait needs a job that brings its code or runs in a folder: the code of this job is in its image, \
         so the job cannot receive new code"
    )]
    WaitWithoutCode => BadRunPolicy, "name the script, as in {train}, or leave out --on-failure",
    /// The lease is too long.
    #[error("lease is {0} s: use at most {LEASE_SECONDS_MAX} s")]
    LongLease(u32) => BadRunPolicy, "give a shorter --lease",
    /// Too many modules are named.
    #[error("preload names {0} modules: name at most {MODULES_MAX}")]
    TooManyModules(usize) => BadRunPolicy,
        "give fewer modules to --preload; modules that these modules import need no entry",
    /// The variable is reserved for Muster.
    #[error("{0} is set by Muster itself and cannot be set by a job")]
    ReservedEnv(EnvName) => BadEnv, "leave the variable out of --env and --env-file",
    /// The variable runs code that the command does not name.
    #[error(
        "{0} makes a program load or run code that its command does not name: remove it, or allow it with allow_env \
         (--allow-env {0})"
    )]
    RefusedEnv(EnvName) => BadEnv, "if the script needs this variable, also give --allow-env NAME",
    /// A variable cannot be passed to a program.
    #[error(transparent)]
    Env(#[from] EnvError) => BadEnv, "change the variable in --env or --env-file",
    /// An argument of the script, or a word of a group's command, cannot be passed to a program. Arguments and words
    /// are numbered from 1.
    #[error("argument {0} contains a NUL byte")]
    NulInArgument(usize) => BadArgs, "change the arguments after --",
    /// An argument of the script, or a word of a group's command, is longer than Linux allows.
    #[error("an argument is {bytes} bytes long: use fewer than {ENTRY_LIMIT}, and put large input into a file")]
    LongArgument {
        /// The length of the argument.
        bytes: usize,
    } => BadArgs, "put the data into a file that the script reads",
    /// Arguments and variables together are too long.
    #[error(
        "arguments and variables take {bytes} bytes as JSON: use at most {INPUT_BYTES_MAX} in total, and put large input \
         into a file"
    )]
    TooMuchInput {
        /// The total length of arguments and variables as JSON, names included.
        bytes: usize,
    } => BadArgs, "put the data into a file that the script reads",
    /// The job sets a key of TF_CONFIG that Muster computes.
    #[error("tf_config.extra must not have the key \"{0}\": Muster computes it")]
    ComputedKey(&'static str) => BadGroups, "leave out this key",
    /// The groups, with their templates, leave too little room in the job's record.
    #[error("groups, arguments and variables take {bytes} bytes as JSON: use at most {INPUT_BYTES_MAX} in total")]
    GroupsTooLarge {
        /// The total length of groups, arguments and variables as JSON.
        bytes: usize,
    } => BadGroups, "shorten the pod templates",
    /// The folder on the master's host is not an absolute path.
    #[error("work_dir \"{0}\" is not an absolute path")]
    RelativeWorkDir(PathBuf) => BadWorkDir, "run client in a folder with an absolute path",
    /// The request has both `code` and `work_dir`.
    #[error("code and work_dir cannot be combined: the script comes from only one of them")]
    CodeAndWorkDir => BadCode, "leave out work_dir",
}
}
