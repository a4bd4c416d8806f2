//! Paths, ports, query parameters and headers of both services.

/// The agent's default port.
pub const AGENT_PORT: u16 = 7896;
/// The master's default port.
pub const MASTER_PORT: u16 = 7897;
/// TensorFlow's default port in a pod that has an address of its own.
pub const TENSORFLOW_PORT: u16 = 1234;
/// Longest wait of a long poll, in seconds.
pub const LONG_POLL_MAX_SECONDS: u64 = 60;

/// Agent: sets the environment of the next run.
pub const AGENT_CONFIG: &str = "/config";
/// Agent: starts the run.
pub const AGENT_RUN: &str = "/run";
/// Agent: answers with a [`crate::agent::RunStatus`].
pub const AGENT_STATUS: &str = "/status";
/// Agent: the output from a byte offset to its end, or to the next bytes that are missing.
pub const AGENT_LOGS: &str = "/logs";
/// Agent: stops the run.
pub const AGENT_STOP: &str = "/stop";
/// Agent: ends the agent.
pub const AGENT_FINISH: &str = "/finish";
/// Both: 200 while alive.
pub const HEALTHZ: &str = "/healthz";

/// Master: 200 when it can serve.
pub const READYZ: &str = "/readyz";
/// Master: submits a job by query parameters.
pub const CREATE: &str = "/create";
/// Master: submits with a body, lists.
pub const JOBS: &str = "/v1/jobs";
/// Master: one job.
pub const JOB: &str = "/v1/jobs/{name}";
/// Master: ends a job.
pub const JOB_CANCEL: &str = "/v1/jobs/{name}/cancel";
/// Master: a job's output.
pub const JOB_LOGS: &str = "/v1/jobs/{name}/logs";
/// Master: answers with a [`crate::view::MasterView`].
pub const MASTER: &str = "/v1/master";
/// Master: the agent's program, for who wraps an image and has none.
pub const AGENT_PROGRAM: &str = "/agent";
/// Master: what it counts, for Prometheus.
pub const METRICS: &str = "/metrics";
/// Master: the description of these routes.
pub const OPENAPI: &str = "/openapi.json";

/// On log answers: the absolute offset of the first byte.
pub const LOG_OFFSET_HEADER: &str = "muster-log-offset";
/// On log answers: the number of bytes that are missing between the requested offset and the first byte.
pub const LOG_DROPPED_HEADER: &str = "muster-log-dropped";
