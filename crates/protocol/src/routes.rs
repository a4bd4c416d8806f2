//! Paths, ports and headers of master and agent.

use std::ops::Range;

/// The agent's default port.
pub const AGENT_PORT: u16 = 7896;
/// The master's default port.
pub const MASTER_PORT: u16 = 7897;
/// TensorFlow's port in a Kubernetes pod.
pub const TENSORFLOW_PORT: u16 = 1234;
/// TensorFlow's ports outside Kubernetes. By default, Linux itself assigns ports only from 32768 on
/// (`net.ipv4.ip_local_port_range`).
pub const LOCAL_TENSORFLOW_PORTS: Range<u16> = 20_000..32_768;
/// Maximum wait of a long poll, in seconds.
pub const LONG_POLL_MAX_SECONDS: u64 = 60;

/// Agent: sets the environment of the next run.
pub const AGENT_CONFIG: &str = "/config";
/// Agent: starts the run.
pub const AGENT_RUN: &str = "/run";
/// The agent's answer to [`AGENT_RUN`] while the start waits for the warm interpreter. The status shows when the script
/// begins.
pub const START_WAITS: &str = "waiting";
/// Agent: answers with a [`crate::agent::RunStatus`].
pub const AGENT_STATUS: &str = "/status";
/// Agent: the run's output, from a byte offset to the end or to the next gap.
pub const AGENT_LOGS: &str = "/logs";
/// Agent: starts a warm interpreter, which imports modules before the first run. See [`crate::warm::WarmRequest`].
pub const AGENT_WARM: &str = "/warm";
/// Agent: the beginning of a path that ends with the id of code. Receives the [`crate::code::Manifest`] of this code.
/// Answers with [`crate::code::MissingBlobs`]. A GET answers with the code itself, if the agent has it: the manifest's
/// JSON, a line feed, and all blobs, see [`crate::code::BlobReader`].
pub const AGENT_CODE: &str = "/code/";
/// Agent: the end of a path that begins with [`AGENT_CODE`] and the id of code. Receives blobs of this code, see
/// [`crate::code::BlobReader`]. Answers with [`crate::code::MissingBlobs`].
pub const AGENT_CODE_BLOBS: &str = "/blobs";
/// Agent: tries to connect to the address of another agent.
pub const AGENT_REACH: &str = "/reach";
/// Agent: passes a notice to the script's helper, such as new batch sizes: see [`crate::batching::Notice`].
pub const AGENT_NOTICE: &str = "/notice";
/// Agent: answers with the [`crate::stacks::Stacks`] of the run.
pub const AGENT_STACKS: &str = "/stacks";
/// Agent: stops the run.
pub const AGENT_STOP: &str = "/stop";
/// Agent: shuts the agent down.
pub const AGENT_FINISH: &str = "/finish";
/// Master and agent: 200 while the program runs.
pub const HEALTHZ: &str = "/healthz";

/// Master: 200 until the master shuts down.
pub const READYZ: &str = "/readyz";
/// Master: submits a job by query parameters.
pub const CREATE: &str = "/create";
/// Master: submits a job as JSON, or lists all jobs.
pub const JOBS: &str = "/v1/jobs";
/// Master: shows, changes or deletes one job.
pub const JOB: &str = "/v1/jobs/{name}";
/// Master: cancels a job.
pub const JOB_CANCEL: &str = "/v1/jobs/{name}/cancel";
/// Master: receives the [`crate::join::JoinRequest`] of an agent on a bare machine. Answers with
/// [`crate::join::JoinAnswer`].
pub const JOB_MEMBERS: &str = "/v1/jobs/{name}/members";
/// Master: a job's output.
pub const JOB_LOGS: &str = "/v1/jobs/{name}/logs";
/// Master: what a job's scripts have reported; see [`crate::progress::JobSeries`].
pub const JOB_SERIES: &str = "/v1/jobs/{name}/series";
/// Master: where the scripts of a job are now; see [`crate::stacks::JobStacks`].
pub const JOB_STACKS: &str = "/v1/jobs/{name}/stacks";
/// Master: when a job reached each step, and why it started; see [`crate::timeline::Timeline`].
pub const JOB_TIMELINE: &str = "/v1/jobs/{name}/timeline";
/// Master: the jobs that have ended, also those whose records are deleted; see [`crate::history::PastJobs`].
pub const HISTORY: &str = "/v1/history";
/// Master: one job that has ended; see [`crate::history::PastJob`].
pub const PAST_JOB: &str = "/v1/history/{uid}";
/// Master: receives the [`crate::code::Manifest`] of a job's code. Answers with [`crate::code::MissingBlobs`].
pub const CODE: &str = "/v1/code/{id}";
/// Master: receives blobs of a job's code as a stream, see [`crate::code::BlobReader`]. Answers with
/// [`crate::code::MissingBlobs`].
pub const CODE_BLOBS: &str = "/v1/code/{id}/blobs";
/// Master: submits a TFJob, see [`crate::tfjob::TfJobRequest`], or lists all TFJobs.
pub const TFJOBS: &str = "/v1/tfjobs";
/// Master: checks a job as a submit does, and creates nothing. Answers with a [`crate::dry_run::DryRun`]. A master
/// without this route would ignore a parameter of [`JOBS`] and create the job, so this is a route of its own.
pub const JOB_DRY_RUNS: &str = "/v1/dry-runs/jobs";
/// Master: checks a TFJob as a submit does, and creates nothing. Answers with a [`crate::dry_run::DryRun`].
pub const TFJOB_DRY_RUNS: &str = "/v1/dry-runs/tfjobs";
/// Master: shows one job as a TFJob with its status.
pub const JOB_TFJOB: &str = "/v1/jobs/{name}/tfjob";
/// Master: answers with a [`crate::master::MasterView`].
pub const MASTER: &str = "/v1/master";
/// Master: the agent's program, for a client that adds the agent to an image.
pub const AGENT_PROGRAM: &str = "/agent";
/// Master: metrics for Prometheus.
pub const METRICS: &str = "/metrics";
/// Master: the OpenAPI description of its routes.
pub const OPENAPI: &str = "/openapi.json";

/// Media type of an agent's output with ages, see [`crate::aged_output`].
pub const AGED_OUTPUT: &str = "application/vnd.muster.aged-output";
/// Header of log answers: the absolute offset of the first byte.
pub const LOG_OFFSET_HEADER: &str = "muster-log-offset";
/// Header of log answers: the number of bytes missing between the requested offset and the first byte.
pub const LOG_DROPPED_HEADER: &str = "muster-log-dropped";
/// Header of a master's request for an agent's log: where the agent's output begins in the replica's output. The agent
/// repeats it in its status.
pub const LOG_BASE_HEADER: &str = "muster-log-base";
/// Trailer of an agent's log answers: the whole output of the run was sent, because the run has ended. The value is the
/// run's generation, or empty if the run has no generation. An answer without this trailer may lack output.
pub const LOG_COMPLETE_TRAILER: &str = "muster-log-complete";
