//! Why a request is no job, in sentences that know no flags.

use std::path::PathBuf;

use crate::env::{ENTRY_LIMIT, EnvError, EnvName, INPUT_BYTES_MAX};
use crate::error::ErrorCode;
use crate::run_policy::SuccessPolicy;

/// Why a request is no job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such strategy.
    #[error("strategy \"{0}\" is unknown: use AllReduce or ParameterServer")]
    Strategy(String),
    /// No workers.
    #[error("worker-num is 0: a job needs at least one worker")]
    NoWorkers,
    /// TF_CONFIG would not fit into a process's environment.
    #[error(
        "worker-num {asked} is too many: TF_CONFIG would be too long for Linux to pass on; at most {fits} workers fit"
    )]
    TooManyWorkers {
        /// Workers asked for.
        asked: u32,
        /// Workers that fit beside the other replicas asked for.
        fits: u32,
    },
    /// TF_CONFIG would not fit because of the parameter servers.
    #[error(
        "ps-num {asked} is too many: TF_CONFIG would be too long for Linux to pass on; at most {fits} parameter servers fit"
    )]
    TooManyPs {
        /// Parameter servers asked for.
        asked: u32,
        /// Parameter servers that fit beside the other replicas asked for.
        fits: u32,
    },
    /// TensorFlow hangs on a ps in an AllReduce cluster.
    #[error("ps-num {0} does not go with AllReduce: leave it out, or use --strategy ParameterServer")]
    PsWithAllReduce(u32),
    /// ParameterServerStrategy needs one.
    #[error("ps-num is 0: ParameterServer needs at least one parameter server")]
    NoPs,
    /// TensorFlow accepts one chief at most.
    #[error("chief-num {0} is not allowed: use 0 or 1")]
    ChiefNum(u32),
    /// TensorFlow accepts one evaluator at most.
    #[error("evaluator-num {0} is not allowed: use 0 or 1")]
    EvaluatorNum(u32),
    /// A time of no length.
    #[error("{0} is 0: nothing can happen in that time")]
    NoTime(&'static str),
    /// A chief shall decide, and there is none.
    #[error("success-policy chief needs a chief: the job has none")]
    NoChiefToDecide,
    /// What shall end never does.
    #[error(
        "success-policy {0} does not go with a chief in ParameterServer: workers are servers there, which never end"
    )]
    ServersNeverEnd(SuccessPolicy),
    /// The rendezvous sets this variable.
    #[error("{0} is set by Muster itself and cannot be set by a job")]
    ReservedEnv(EnvName),
    /// The variable runs code that nobody sees in the command.
    #[error(
        "{0} makes a program load or run code that its command does not name: leave it out, or name it in allow_env too \
         (--allow-env {0})"
    )]
    RefusedEnv(EnvName),
    /// A variable that cannot be passed on.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// An argument that cannot be passed on.
    #[error("argument {0} for exec.py holds a NUL byte")]
    NulInArgument(usize),
    /// Arguments and variables that a program cannot be started with.
    #[error(
        "arguments and variables are {bytes} bytes long together as JSON: {INPUT_BYTES_MAX} bytes fit, and less than \
         {ENTRY_LIMIT} in one of them; put large input into a file"
    )]
    TooMuchInput {
        /// Their length as JSON, names included.
        bytes: usize,
    },
    /// Its place on the master's host would be unclear.
    #[error("work_dir \"{0}\" is not an absolute path")]
    RelativeWorkDir(PathBuf),
}

impl SpecError {
    /// The code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Strategy(_) => ErrorCode::BadStrategy,
            Self::NoWorkers | Self::TooManyWorkers { .. } => ErrorCode::BadWorkerNum,
            Self::PsWithAllReduce(_) | Self::NoPs | Self::TooManyPs { .. } => ErrorCode::BadPsNum,
            Self::ChiefNum(_) => ErrorCode::BadChiefNum,
            Self::EvaluatorNum(_) => ErrorCode::BadEvaluatorNum,
            Self::NoTime(_) | Self::NoChiefToDecide | Self::ServersNeverEnd(_) => ErrorCode::BadRunPolicy,
            Self::ReservedEnv(_) | Self::RefusedEnv(_) | Self::Env(_) => ErrorCode::BadEnv,
            Self::NulInArgument(_) | Self::TooMuchInput { .. } => ErrorCode::BadArgs,
            Self::RelativeWorkDir(_) => ErrorCode::BadWorkDir,
        }
    }
}
