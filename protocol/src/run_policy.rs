//! What a job does about failures, how long it may take, and what is left of it: the rules that its user can choose.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The rules of one job. In records and answers an absent field has its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RunPolicy {
    /// Maximum restarts of all replicas after failures. Pods that the cluster takes away (evicted, preempted, drained or
    /// deleted) do not count.
    pub max_restarts: u32,
    /// The pause before the first restart; each further one doubles it, up to [`BACKOFF_MAX_SECONDS`].
    pub backoff_seconds: u32,
    /// Exit codes of exec.py that another start would not change.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub no_retry_exit_codes: BTreeSet<u8>,
    /// How long the gang may take to be complete and started.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub start_timeout_seconds: u32,
    /// What follows when it takes longer.
    pub on_start_timeout: OnStartTimeout,
    /// How long the job may take in all, from the moment it was accepted; without limit when absent.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u32>,
    /// How long a finished job is remembered; until it is deleted when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished_seconds: Option<u32>,
    /// Which pods go when the job has ended.
    pub clean_pods: CleanPods,
    /// Whose end decides; by strategy and roles when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<SuccessPolicy>,
}

/// The same fields, for requests: an unknown one is refused.
#[derive(Deserialize)]
#[serde(remote = "RunPolicy", deny_unknown_fields, default = "RunPolicy::default")]
struct Strict {
    max_restarts: u32,
    backoff_seconds: u32,
    no_retry_exit_codes: BTreeSet<u8>,
    start_timeout_seconds: u32,
    on_start_timeout: OnStartTimeout,
    deadline_seconds: Option<u32>,
    ttl_after_finished_seconds: Option<u32>,
    clean_pods: CleanPods,
    success_policy: Option<SuccessPolicy>,
}

/// Longest pause between two starts of a gang, as Kubernetes has it between two starts of a container.
pub const BACKOFF_MAX_SECONDS: u32 = 300;

impl Default for RunPolicy {
    fn default() -> Self {
        Self {
            max_restarts: 3,
            backoff_seconds: 1,
            no_retry_exit_codes: BTreeSet::new(),
            start_timeout_seconds: 600,
            on_start_timeout: OnStartTimeout::Fail,
            deadline_seconds: None,
            ttl_after_finished_seconds: None,
            clean_pods: CleanPods::Running,
            success_policy: None,
        }
    }
}

impl RunPolicy {
    /// Whether nothing was chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the rules of a request.
    pub(crate) fn deserialize_strictly<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Strict::deserialize(from)
    }
}

/// What follows when a gang is not complete in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStartTimeout {
    /// The job fails.
    Fail,
    /// It gives back the pods that it has, and asks for all of them again later: two jobs that each hold a part of
    /// what both need do not wait for each other for ever.
    Requeue,
}

/// Which pods go when a job has ended. What still runs in them is stopped in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CleanPods {
    /// Those whose agents still live end; pods that have ended stay, for `kubectl logs`.
    Running,
    /// All are deleted.
    All,
    /// None: the agents stay, so that one can look into their pods, for 10 minutes at most.
    None,
}

/// Whose end decides whether a job has succeeded.
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

/// A text that names none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is none of {choices}")]
pub struct UnknownChoice {
    text: String,
    choices: &'static str,
}

fn choose<T: Copy>(text: &str, known: &[(&str, T)], choices: &'static str) -> Result<T, UnknownChoice> {
    let chosen = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, choice)| *choice);
    chosen.ok_or_else(|| UnknownChoice { text: text.chars().take(80).collect(), choices })
}

impl FromStr for CleanPods {
    type Err = UnknownChoice;

    /// Case does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [("running", Self::Running), ("all", Self::All), ("none", Self::None)];
        choose(text, &known, "running, all and none")
    }
}

impl FromStr for SuccessPolicy {
    type Err = UnknownChoice;

    /// Case does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [("all", Self::All), ("chief", Self::Chief), ("worker-0", Self::Worker0)];
        choose(text, &known, "all, chief and worker-0")
    }
}

impl fmt::Display for SuccessPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Chief => "chief",
            Self::Worker0 => "worker-0",
        })
    }
}
