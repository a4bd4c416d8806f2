//! Error answers: problem+json (RFC 9457) with a stable code and a sentence for people.

use serde::{Deserialize, Serialize};

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The kind of error, for programs. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The body or query does not parse, or has an unknown or wrong parameter.
    BadRequest,
    /// The job's name is not a DNS label, or leaves no room for the names of its pods.
    BadTask,
    /// The strategy is unknown.
    BadStrategy,
    /// The number of workers is out of range.
    BadWorkerNum,
    /// The number of processes of each replica is out of range, or does not fit the job.
    BadNprocPerNode,
    /// The number of parameter servers does not fit the strategy, or is too large.
    BadPsNum,
    /// The number of chiefs does not fit the strategy.
    BadChiefNum,
    /// The number of evaluators is out of range.
    BadEvaluatorNum,
    /// A variable cannot be passed to a program, is reserved for Muster, or needs `allow_env`.
    BadEnv,
    /// An argument for the script cannot be passed to a program, or the arguments and variables together are too long.
    BadArgs,
    /// The image is missing or malformed, or this back end does not use images.
    BadImage,
    /// A pod option is wrong or not supported by this back end, or the cluster refuses the pods.
    BadPod,
    /// The groups do not fit the job's replicas, or a pod template is not allowed.
    BadGroups,
    /// The batches do not fit the global batch, or each other.
    BadBatching,
    /// There are too many metrics, or a metric has a bad name.
    BadMetrics,
    /// A field of the TFJob is not supported. The detail contains the field's path.
    #[serde(rename = "bad_tfjob")]
    BadTfJob,
    /// The run policy contradicts itself or the job.
    BadRunPolicy,
    /// The working directory is missing, has no script that Python can parse, or is not used by this back end.
    BadWorkDir,
    /// The code is not valid: its id, its manifest or the content of a file. Or this job cannot bring code.
    BadCode,
    /// The master does not have the code that the job brings. Send the code, then repeat the request.
    CodeMissing,
    /// The host of the master, or of an agent, has no working Python.
    NoPython,
    /// The master's host does not have room for all replicas.
    TooManyReplicas,
    /// Another job, or an unreadable record, has this name.
    JobExists,
    /// No job has this name.
    UnknownJob,
    /// The job has no such replica.
    UnknownReplica,
    /// No route has this path.
    UnknownRoute,
    /// The route does not support this method.
    MethodNotAllowed,
    /// The token is missing or wrong.
    Unauthorized,
    /// The request comes from a browser, or names another host.
    Forbidden,
    /// The current state does not allow this request.
    Conflict,
    /// The job has ended, so it cannot be changed. Or the number of workers cannot change, because the job is not
    /// elastic.
    CannotScale,
    /// The job cannot receive new code: it did not bring its code and does not run in a folder, or it has ended.
    CannotPush,
    /// An agent did not accept the job's new code. The job continues with its current code.
    CodeNotTaken,
    /// Some agents do not have all of the job's new code yet. Repeat the request to wait for them.
    CodeUnderway,
    /// The generation is older than the newest one that the agent has seen.
    StaleGeneration,
    /// The body is larger than allowed.
    TooLarge,
    /// The master has no room for more code: delete jobs. From an agent: the agent cannot write the code to its disk.
    CodeStoreFull,
    /// An agent could not be reached, or its answer was not valid.
    AgentUnreachable,
    /// The agent cannot join: this master creates its pods itself, the agent's rules differ from the job's rules, or
    /// the job has ended.
    CannotJoin,
    /// The cluster, the store or a file cannot be used now: retry later. From an agent: the agent is shutting down.
    Unavailable,
    /// A bug in Muster.
    Internal,
}

/// The body of an answer that reports an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// One sentence for people: what failed, and what to do.
    pub detail: String,
}
