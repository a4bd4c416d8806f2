//! An error on the wire: problem+json (RFC 9457) with a stable code and a sentence for people.

use serde::{Deserialize, Serialize};

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong, for programs. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The body or query does not parse.
    BadRequest,
    /// The job's name is no DNS label.
    BadTask,
    /// The strategy is none of the two.
    BadStrategy,
    /// The number of workers is out of range.
    BadWorkerNum,
    /// The number of parameter servers does not fit the strategy.
    BadPsNum,
    /// The number of chiefs does not fit the strategy.
    BadChiefNum,
    /// The number of evaluators is out of range.
    BadEvaluatorNum,
    /// A variable's name or value cannot be passed to a program, or is Muster's own.
    BadEnv,
    /// An argument for exec.py cannot be passed to a program.
    BadArgs,
    /// The image is missing, malformed, or has no meaning on this back end.
    BadImage,
    /// What the pods shall be given is wrong, has no meaning on this back end, or the cluster refuses it.
    BadPod,
    /// The rules about failures and times do not go together.
    BadRunPolicy,
    /// The working directory is missing, has no meaning on this back end, or holds no exec.py that Python can parse.
    BadWorkDir,
    /// The host has no `python`.
    NoPython,
    /// The host has room for fewer replicas.
    TooManyReplicas,
    /// Another job has this name.
    JobExists,
    /// No job has this name.
    UnknownJob,
    /// The job has no such replica.
    UnknownReplica,
    /// No route has this path.
    UnknownRoute,
    /// The route does not take this method.
    MethodNotAllowed,
    /// The token is missing or wrong.
    Unauthorized,
    /// The request comes from a browser or for another host.
    Forbidden,
    /// The state of the thing does not allow this now.
    Conflict,
    /// The generation is older than the newest seen.
    StaleGeneration,
    /// The body is larger than allowed.
    TooLarge,
    /// An agent could not be reached or did not answer as one.
    AgentUnreachable,
    /// What stands behind the master is down; try again later.
    Unavailable,
    /// A bug of Muster's.
    Internal,
}

/// The body of every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// For programs.
    pub code: ErrorCode,
    /// For people: one sentence that names the thing and says what to do.
    pub detail: String,
}
