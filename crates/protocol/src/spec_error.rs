//! Errors of a job request, for client and master.

use std::path::PathBuf;

use crate::batching::BadBatching;
use crate::env::{ENTRY_LIMIT, EnvError, EnvName, INPUT_BYTES_MAX};
use crate::error::ErrorCode;
use crate::group::{GROUPS_MAX, WrongVariable};
use crate::ids::{JobName, LABEL_MAX, PodName, Role};
use crate::progress::{VALUE_NAME_BYTES, VALUES_MAX};
use crate::routes::AGENT_PORT;
use crate::run_policy::{LEASE_SECONDS_MAX, SuccessPolicy};
use crate::warm::MODULES_MAX;

/// The request is not a valid job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The strategy is unknown.
    #[error("strategy \"{0}\" is unknown: use AllReduce or ParameterServer")]
    Strategy(String),
    /// The job's name leaves no room for the names of its pods.
    #[error("task name \"{name}\" is too long: the pod name {pod} has more than {LABEL_MAX} characters")]
    LongName {
        /// The job's name.
        name: JobName,
        /// The longest name of a pod.
        pod: PodName,
    },
    /// The job has no workers.
    #[error("worker-num is 0: use at least 1")]
    NoWorkers,
    /// The minimum of workers is above the maximum.
    #[error("the minimum of workers, {min}, is above the maximum, {max}")]
    MinAboveMax {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// The job is not elastic, so its number of workers cannot change.
    #[error("the job is not elastic, so its number of workers cannot change: submit the job with --worker-num MIN:MAX")]
    NotElastic,
    /// The workers make TF_CONFIG too long for an environment variable.
    #[error(
        "worker-num {asked} is too large: TF_CONFIG would exceed Linux's limit for a variable; use at most {fits} workers"
    )]
    TooManyWorkers {
        /// Requested workers.
        asked: u32,
        /// Maximum workers, given the other replicas.
        fits: u32,
    },
    /// The parameter servers make TF_CONFIG too long for an environment variable.
    #[error(
        "ps-num {asked} is too large: TF_CONFIG would exceed Linux's limit for a variable; use at most {fits} parameter servers"
    )]
    TooManyPs {
        /// Requested parameter servers.
        asked: u32,
        /// Maximum parameter servers, given the other replicas.
        fits: u32,
    },
    /// TensorFlow hangs if an AllReduce cluster has a parameter server.
    #[error(
        "ps-num is {0}, but AllReduce has no parameter servers: leave out ps-num, or use --strategy ParameterServer"
    )]
    PsWithAllReduce(u32),
    /// ParameterServerStrategy needs a parameter server.
    #[error("ps-num is 0: ParameterServer needs at least one parameter server")]
    NoPs,
    /// TensorFlow accepts one chief at most.
    #[error("chief-num {0} is not allowed: use 0 or 1")]
    ChiefNum(u32),
    /// TensorFlow accepts one evaluator at most.
    #[error("evaluator-num {0} is not allowed: use 0 or 1")]
    EvaluatorNum(u32),
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
    },
    /// There are more groups than [`GROUPS_MAX`].
    #[error("the job has {0} groups: use at most {GROUPS_MAX}")]
    TooManyGroups(usize),
    /// A group has no replicas. Groups are numbered from 1.
    #[error("group {0} has count 0: use at least 1, or leave the group out")]
    EmptyGroup(usize),
    /// A group's port cannot be used.
    #[error("tf_port of group {group} is {port}: use a port from 1 to 65535, but not the agent's port {AGENT_PORT}")]
    GroupPort {
        /// The group's number, from 1.
        group: usize,
        /// The port.
        port: u16,
    },
    /// A group's template has no container or no pod.
    #[error("the template of group {0} needs the name of a container, and a pod as an object with metadata and spec")]
    NoTemplate(usize),
    /// A variable of a group's template has no value that can be used.
    #[error("the template of group {group}: {why}")]
    GroupVariable {
        /// The group's number, from 1.
        group: usize,
        /// What is wrong.
        why: WrongVariable,
    },
    /// The batches are impossible.
    #[error(transparent)]
    Batching(#[from] BadBatching),
    /// There are more metrics than [`VALUES_MAX`].
    #[error("the job reads {0} metrics from its output: use at most {VALUES_MAX}")]
    TooManyMetrics(usize),
    /// A metric has no usable name.
    #[error("invalid name of a metric {0:?}: use 1 to {VALUE_NAME_BYTES} bytes without control characters")]
    MetricName(String),
    /// A time limit is 0.
    #[error("{0} is 0: use at least 1 s")]
    NoTime(&'static str),
    /// The chief decides about success, but the job has no chief.
    #[error("success-policy chief needs a chief: the job has none")]
    NoChiefToDecide,
    /// Workers decide about success, but they are servers that never end.
    #[error(
        "success-policy {0} does not work in a ParameterServer job with a chief: its workers are servers, which never end"
    )]
    ServersNeverEnd(SuccessPolicy),
    /// The job would wait for new code in vain, because its code is in its image.
    #[error(
        "on-failure wait needs a job that brings its code or runs in a folder: the code of this job is in its image, \
         so the job cannot receive new code"
    )]
    WaitWithoutCode,
    /// The lease is too long.
    #[error("lease is {0} s: use at most {LEASE_SECONDS_MAX} s")]
    LongLease(u32),
    /// Too many modules are named.
    #[error("preload names {0} modules: name at most {MODULES_MAX}")]
    TooManyModules(usize),
    /// The variable is reserved for Muster.
    #[error("{0} is set by Muster itself and cannot be set by a job")]
    ReservedEnv(EnvName),
    /// The variable runs code that the command does not name.
    #[error(
        "{0} makes a program load or run code that its command does not name: remove it, or allow it with allow_env \
         (--allow-env {0})"
    )]
    RefusedEnv(EnvName),
    /// A variable cannot be passed to a program.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// An argument of the script, or a word of a group's command, cannot be passed to a program. Arguments and words
    /// are numbered from 1.
    #[error("argument {0} contains a NUL byte")]
    NulInArgument(usize),
    /// An argument of the script, or a word of a group's command, is longer than Linux allows.
    #[error("an argument is {bytes} bytes long: use fewer than {ENTRY_LIMIT}, and put large input into a file")]
    LongArgument {
        /// The length of the argument.
        bytes: usize,
    },
    /// Arguments and variables together are too long.
    #[error(
        "arguments and variables take {bytes} bytes as JSON: use at most {INPUT_BYTES_MAX} in total, and put large input \
         into a file"
    )]
    TooMuchInput {
        /// The total length of arguments and variables as JSON, names included.
        bytes: usize,
    },
    /// The job sets a key of TF_CONFIG that Muster computes.
    #[error("tf_config.extra must not have the key \"{0}\": Muster computes it")]
    ComputedKey(&'static str),
    /// The groups, with their templates, leave too little room in the job's record.
    #[error("groups, arguments and variables take {bytes} bytes as JSON: use at most {INPUT_BYTES_MAX} in total")]
    GroupsTooLarge {
        /// The total length of groups, arguments and variables as JSON.
        bytes: usize,
    },
    /// The folder on the master's host is not an absolute path.
    #[error("work_dir \"{0}\" is not an absolute path")]
    RelativeWorkDir(PathBuf),
    /// The request has both `code` and `work_dir`.
    #[error("code and work_dir cannot be combined: the script comes from only one of them")]
    CodeAndWorkDir,
}

impl SpecError {
    /// The error's code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Strategy(_) => ErrorCode::BadStrategy,
            Self::LongName { .. } => ErrorCode::BadTask,
            Self::NoWorkers | Self::MinAboveMax { .. } | Self::NotElastic | Self::TooManyWorkers { .. } => {
                ErrorCode::BadWorkerNum
            }
            Self::PsWithAllReduce(_) | Self::NoPs | Self::TooManyPs { .. } => ErrorCode::BadPsNum,
            Self::ChiefNum(_) => ErrorCode::BadChiefNum,
            Self::EvaluatorNum(_) => ErrorCode::BadEvaluatorNum,
            Self::GroupsCount { .. }
            | Self::TooManyGroups(_)
            | Self::EmptyGroup(_)
            | Self::GroupPort { .. }
            | Self::NoTemplate(_)
            | Self::GroupVariable { .. }
            | Self::ComputedKey(_)
            | Self::GroupsTooLarge { .. } => ErrorCode::BadGroups,
            Self::Batching(_) => ErrorCode::BadBatching,
            Self::TooManyMetrics(_) | Self::MetricName(_) => ErrorCode::BadMetrics,
            Self::NoTime(_)
            | Self::NoChiefToDecide
            | Self::ServersNeverEnd(_)
            | Self::WaitWithoutCode
            | Self::LongLease(_)
            | Self::TooManyModules(_) => ErrorCode::BadRunPolicy,
            Self::ReservedEnv(_) | Self::RefusedEnv(_) | Self::Env(_) => ErrorCode::BadEnv,
            Self::NulInArgument(_) | Self::LongArgument { .. } | Self::TooMuchInput { .. } => ErrorCode::BadArgs,
            Self::RelativeWorkDir(_) => ErrorCode::BadWorkDir,
            Self::CodeAndWorkDir => ErrorCode::BadCode,
        }
    }
}
