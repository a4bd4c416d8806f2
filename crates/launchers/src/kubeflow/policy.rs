//! The run policy: deletion of pods and job, time limits, restarts, and scheduling.

use protocol::run_policy::{CleanPods, NO_RESTART_LIMIT, RestartRule, RunPolicy, SuccessPolicy};

use super::fields::Fields;
use super::roles::ReplicasOfType;
use super::{ReplicaHost, Surroundings};
use crate::template::Findings;

/// Fields that were directly under `spec` in early versions, with their names in `runPolicy`.
const ONCE_IN_SPEC: [(&str, &str); 5] = [
    ("cleanPodPolicy", "cleanPodPolicy"),
    ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished"),
    ("ttlSecondsAfterFinishing", "ttlSecondsAfterFinished"),
    ("activeDeadlineSeconds", "activeDeadlineSeconds"),
    ("backoffLimit", "backoffLimit"),
];
/// Fields of early versions that have no effect here. The API server stores each version as v1 without a change.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    ("cleanPodDelay", "it has no effect: pods are stopped at once"),
    ("tfRpcLayer", "it has no effect: TensorFlow uses gRPC"),
];
/// The controller that Muster replaces.
const TRAINING_OPERATOR: &str = "kubeflow.org/training-operator";
const BACKOFF_LIMIT: &str = "spec.runPolicy.backoffLimit";
const AVAILABLE: &str = "spec.runPolicy.schedulingPolicy.minAvailable";

/// The run policy of a TFJob.
#[derive(Debug)]
pub(super) struct TfJobPolicy {
    clean_pods: CleanPods,
    ttl_seconds: Option<u32>,
    deadline_seconds: Option<u32>,
    backoff_limit: Option<u32>,
    pub(super) is_suspended: bool,
    min_available: Option<u32>,
    pub(super) priority_class: Option<String>,
    start_timeout_seconds: Option<u32>,
}

/// Reads the policy of a `spec`.
pub(super) fn read(spec: &mut Fields, findings: &mut Findings) -> TfJobPolicy {
    let mut policy = spec.object("runPolicy", findings);
    for (old, name) in ONCE_IN_SPEC {
        if let Some(value) = spec.take(old) {
            if policy.has(name) {
                findings.refuse(&spec.path(old), format!("the field {} exists too: remove one", policy.path(name)));
            } else {
                findings.warn(&spec.path(old), format!("it is read as {}, its newer name", policy.path(name)));
                policy.put(name, value);
            }
        }
    }
    WITHOUT_EFFECT.into_iter().for_each(|(name, why)| spec.without_effect(name, why, findings));
    let clean_pods = clean_pods(&mut policy, findings);
    check_manager(&mut policy, findings);
    let mut scheduling = policy.object("schedulingPolicy", findings);
    scheduling.without_effect("queue", "it has no effect: the cluster's scheduler has no queues", findings);
    scheduling.without_effect("minResources", "it has no effect: a gang starts when all its pods run", findings);
    let read = TfJobPolicy {
        clean_pods,
        ttl_seconds: policy.number("ttlSecondsAfterFinished", findings),
        deadline_seconds: policy.number("activeDeadlineSeconds", findings),
        backoff_limit: policy.number("backoffLimit", findings),
        is_suspended: policy.flag("suspend", findings),
        min_available: scheduling.number("minAvailable", findings),
        priority_class: scheduling.text("priorityClass", findings),
        start_timeout_seconds: scheduling.number("scheduleTimeoutSeconds", findings),
    };
    scheduling.end(findings);
    policy.end(findings);
    read
}

fn clean_pods(policy: &mut Fields, findings: &mut Findings) -> CleanPods {
    match policy.text("cleanPodPolicy", findings).as_deref() {
        Some("All") => CleanPods::All,
        None | Some("" | "Running") => CleanPods::Running,
        Some("None") => {
            let why = "pods that run at the end are stopped, as with Running, because running pods keep resources";
            findings.warn(&policy.path("cleanPodPolicy"), why);
            CleanPods::Running
        }
        Some(other) => {
            findings.refuse(&policy.path("cleanPodPolicy"), format!("\"{other}\": use All, Running or None"));
            CleanPods::Running
        }
    }
}

fn check_manager(policy: &mut Fields, findings: &mut Findings) {
    let manager = policy.text("managedBy", findings);
    if let Some(other) = manager.filter(|manager| manager != TRAINING_OPERATOR) {
        let why = format!("\"{other}\" names another controller: remove this field to run the job here");
        findings.refuse(&policy.path("managedBy"), why);
    }
}

impl TfJobPolicy {
    /// Checks `minAvailable`. A gang starts as a whole, so a `minAvailable` below the number of replicas has no effect.
    pub(super) fn check_available(&self, replicas: u32, findings: &mut Findings) {
        match self.min_available {
            Some(fewer) if fewer < replicas => {
                findings.warn(AVAILABLE, format!("it has no effect: all {replicas} replicas start together"));
            }
            Some(more) if more > replicas => {
                findings.refuse(AVAILABLE, format!("{more} is more than the job's {replicas} replicas"));
            }
            Some(_) | None => {}
        }
    }

    /// Maximum restarts. Without a cluster, somebody waits for the job, so even a TFJob without a limit has one.
    pub(super) fn max_restarts(
        &self,
        replicas: &[ReplicasOfType],
        given: &Surroundings<'_>,
        findings: &mut Findings,
    ) -> u32 {
        let Surroundings { request, place, allow_root: _ } = given;
        let restarts = |of_role: &ReplicasOfType| of_role.count > 0 && of_role.restart != RestartRule::Never;
        match (request.options.max_restarts.or(self.backoff_limit), place) {
            (Some(limit), _) => limit,
            (None, _) if !replicas.iter().any(restarts) => 0,
            (None, ReplicaHost::Pods { .. }) => NO_RESTART_LIMIT,
            (None, ReplicaHost::Processes) => {
                let limit = RunPolicy::default().max_restarts;
                let why = format!("it is missing: without a cluster, the job then restarts at most {limit} times");
                findings.warn(BACKOFF_LIMIT, format!("{why}. To set another limit, use --max-restarts"));
                limit
            }
        }
    }

    /// The run policy of the job.
    pub(super) fn run_policy(
        &self,
        replicas: &[ReplicasOfType],
        max_restarts: u32,
        success: SuccessPolicy,
    ) -> RunPolicy {
        let default = RunPolicy::default();
        let used = replicas.iter().filter(|of_role| of_role.count > 0);
        RunPolicy {
            max_restarts,
            restart: used.map(|of_role| (of_role.role, of_role.restart)).collect(),
            start_timeout_seconds: self.start_timeout_seconds.unwrap_or(default.start_timeout_seconds),
            deadline_seconds: self.deadline_seconds,
            ttl_after_finished_seconds: self.ttl_seconds,
            clean_pods: self.clean_pods,
            success_policy: Some(success),
            ..default
        }
    }
}
