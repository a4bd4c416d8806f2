//! The rules that a user chooses for a job: restarts, time limits, cleanup and success.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use serde::de::IntoDeserializer;
use serde::de::value::{self, StringDeserializer};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::as_text::names;
use crate::ids::Role;
use crate::lease::Lease;
pub use crate::warm::Preload;

/// Rules of one job. Absent fields have their defaults.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RunPolicy {
    /// Maximum restarts after failures. Each restart starts all replicas again. Restarts do not count if the cluster
    /// removed a pod (evicted, preempted, drained or deleted). A failed evaluator is started again alone, and has the same
    /// number of restarts for itself.
    pub max_restarts: u32,
    /// Pause before the first restart, in seconds. Each further restart doubles the pause, up to 300 s.
    pub backoff_seconds: u32,
    /// Exit codes of exec.py that fail the job without a restart.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub no_retry_exit_codes: BTreeSet<u8>,
    /// What a failure of a replica means, by the replica's role. For a role without an entry, the job restarts while
    /// `max_restarts` allows it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub restart: BTreeMap<Role, RestartRule>,
    /// What happens when the script has failed. `wait` needs a job that brings its code or runs in a folder.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub on_failure: OnFailure,
    /// What happens when the script fails a second time in the same way. This does not apply to TFJobs, whose
    /// `backoffLimit` alone limits their restarts.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub on_same_failure: OnSameFailure,
    /// Maximum time until all replicas have started.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub start_timeout_seconds: u32,
    /// What happens after the start timeout.
    pub on_start_timeout: OnStartTimeout,
    /// Maximum time from acceptance to the end of the job. Absent: no limit.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub deadline_seconds: Option<u32>,
    /// Time after which a finished job is deleted. Absent: never.
    pub ttl_after_finished_seconds: Option<u32>,
    /// Pods to delete when the job has ended.
    pub clean_pods: CleanPods,
    /// Replicas whose exit decides about success. Absent: depends on strategy and roles.
    pub success_policy: Option<SuccessPolicy>,
    /// Minimum time from a start of an elastic job to a restart that takes in new workers. If all workers up to the
    /// maximum are ready, the restart does not wait. Absent: 30 s if the scripts report their steps with `muster.py`,
    /// else 300 s.
    pub grow_interval_seconds: Option<u32>,
    /// How long an evaluator may go on after the training has succeeded, in seconds. If it ends earlier, so does the job.
    /// Absent: 300 s. 0: it is stopped at once.
    pub evaluator_grace_seconds: Option<u32>,
    /// Whether agents keep a warm interpreter, and which modules it imports. Absent: Muster decides.
    pub preload: Option<Preload>,
    /// What a job does about a replica that does not answer, and whose exec.py may still run.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub on_unreachable: OnUnreachable,
    /// With `on_unreachable` `replace`: a replica is lost after this time without an answer of its agent. An agent that
    /// gets no request from a master for three times as long kills exec.py.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3600))]
    #[serde(skip_serializing_if = "is_default_lease")]
    pub lease_seconds: u32,
}

/// Default of [`RunPolicy::grow_interval_seconds`]. At each restart, a script loses its work since its last checkpoint.
pub const GROW_INTERVAL_SECONDS: u32 = 300;
/// Default of [`RunPolicy::grow_interval_seconds`] if the scripts use the helper `muster.py`, with which they save a
/// checkpoint before they stop.
pub const GROW_INTERVAL_OF_HELPER_SECONDS: u32 = 30;

/// Default of [`RunPolicy::evaluator_grace_seconds`]. The last checkpoint is written shortly before the training ends.
pub const EVALUATOR_GRACE_SECONDS: u32 = 300;

/// How long a job with [`OnFailure::Wait`] waits for new code. The default of the agent's flag `--linger` has the same
/// value: after a run, an agent waits this long for a request before it ends.
pub const HALT_SECONDS: u32 = 600;

/// Default of [`RunPolicy::lease_seconds`].
pub const LEASE_SECONDS: u32 = 5;

/// Maximum of [`RunPolicy::lease_seconds`].
pub const LEASE_SECONDS_MAX: u32 = 3600;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_lease(seconds: &u32) -> bool {
    *seconds == LEASE_SECONDS
}

/// The [`RunPolicy::max_restarts`] of a job that restarts without a limit.
pub const NO_RESTART_LIMIT: u32 = u32::MAX;

/// Maximum pause before a restart, as in Kubernetes for containers.
pub const BACKOFF_MAX_SECONDS: u32 = 300;

impl Default for RunPolicy {
    fn default() -> Self {
        Self {
            max_restarts: 3,
            backoff_seconds: 1,
            no_retry_exit_codes: BTreeSet::new(),
            restart: BTreeMap::new(),
            on_failure: OnFailure::Restart,
            on_same_failure: OnSameFailure::Stop,
            start_timeout_seconds: 600,
            on_start_timeout: OnStartTimeout::Fail,
            deadline_seconds: None,
            ttl_after_finished_seconds: None,
            clean_pods: CleanPods::Running,
            success_policy: None,
            grow_interval_seconds: None,
            evaluator_grace_seconds: None,
            preload: None,
            on_unreachable: OnUnreachable::Wait,
            lease_seconds: LEASE_SECONDS,
        }
    }
}

impl RunPolicy {
    /// The lease of the job's agents; `None` if the agents have no lease.
    pub fn lease(&self) -> Option<Lease> {
        match self.on_unreachable {
            OnUnreachable::Wait => None,
            OnUnreachable::Replace => Some(Lease::new(Duration::from_secs(self.lease_seconds.into()))),
        }
    }
}

/// What a failure of a replica means for its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestartRule {
    /// The job fails.
    Never,
    /// The job restarts while `max_restarts` allows it.
    OnFailure,
    /// Like the rule `on_failure` after a signal, an exit code of 128 or more, too much memory or the loss of the pod.
    /// Like the rule `never` after other failures.
    ExitCode,
}

/// What happens when the script of a replica has failed. This does not apply to lost pods and time limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The job restarts while `max_restarts` allows it. Otherwise, the job fails.
    #[default]
    Restart,
    /// The job keeps its pods and waits up to 10 minutes for new code. When a user pushes new code, the job starts
    /// again at once. If nobody does, the job then behaves as with `restart`.
    Wait,
}

/// What happens when the script of a replica fails twice in a row in the same way: with the same exception, in the same
/// seat and at the same step. The script reports its steps with the helper `muster.py`. Both starts must have had the
/// same code, the same number of replicas and the same batch sizes. Failures between them that do not count, such as
/// evictions, do not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnSameFailure {
    /// The job fails, because the next start would fail in the same way.
    #[default]
    Stop,
    /// The job restarts while `max_restarts` allows it.
    Restart,
}

/// What happens when the gang has not started within its time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStartTimeout {
    /// The job fails.
    Fail,
    /// The job deletes its pods and requests all of them again later. Without this, two jobs could wait for each other
    /// for ever, each with a part of the capacity that the other job needs.
    Requeue,
}

/// Pods to delete when a job has ended. Scripts that still run are stopped in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CleanPods {
    /// The agents that still run are shut down, so their pods end. Ended pods stay, for `kubectl logs`.
    Running,
    /// All pods are deleted.
    All,
    /// No pods are deleted. The agents run for up to 10 more minutes, so that you can inspect their pods.
    None,
}

/// What a job does about a replica that does not answer, and whose exec.py may still run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnUnreachable {
    /// The job continues. If it has to start again, it waits until the cluster has removed the replica's pod.
    #[default]
    Wait,
    /// The job waits until the replica's agent must have killed exec.py. Then the job replaces the replica's pod and
    /// starts again. An elastic job may start without this replica.
    Replace,
}

/// Replicas whose exit decides whether a job has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SuccessPolicy {
    /// Every replica that trains exits with 0.
    #[serde(rename = "all")]
    All,
    /// The chief exits with 0.
    #[serde(rename = "chief")]
    Chief,
    /// Worker 0 exits with 0.
    #[serde(rename = "worker-0")]
    Worker0,
}

/// The text is not one of the allowed values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown value \"{text}\": use {choices}")]
pub struct UnknownChoice {
    text: String,
    choices: &'static str,
}

/// Reads a value as users write it, by its name in JSON. Case does not matter.
macro_rules! choices {
    ($($type:ty: $choices:literal;)*) => {$(
        impl FromStr for $type {
            type Err = UnknownChoice;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let name: StringDeserializer<value::Error> = text.to_ascii_lowercase().into_deserializer();
                let unknown = |_| UnknownChoice { text: text.chars().take(80).collect(), choices: $choices };
                Self::deserialize(name).map_err(unknown)
            }
        }
    )*};
}

choices! {
    CleanPods: "running, all or none";
    OnFailure: "restart or wait";
    OnUnreachable: "wait or replace";
    SuccessPolicy: "all, chief or worker-0";
}

names!(SuccessPolicy {
    All => "all",
    Chief => "chief",
    Worker0 => "worker-0",
});
