//! The status of a TFJob: its conditions, the newest last, and how many of its replicas are in which state.

use protocol::ids::{Role, UnixMillis};
use protocol::origin::TfJobOrigin;
use protocol::view::{JobResult, JobState, JobView, ReplicaState, ReplicaView};
use serde_json::{Map, Value, json};

use crate::kube::clock::timestamp;

/// The status of a job at this time.
pub(super) fn status(job: &JobView, origin: &TfJobOrigin, now: UnixMillis) -> Value {
    let mut status = json!({
        "conditions": conditions(job, origin),
        "replicaStatuses": replica_statuses(job, origin),
        "lastReconcileTime": timestamp(now),
    });
    let ended = job.times.ended.or(job.times.finished).filter(|_| job.result.is_some());
    for (name, time) in [("startTime", job.times.accepted), ("completionTime", ended)] {
        if let Some(time) = time {
            status[name] = timestamp(time).into();
        }
    }
    status
}

fn conditions(job: &JobView, origin: &TfJobOrigin) -> Vec<Value> {
    let name = &job.name;
    let accepted = job.times.accepted.unwrap_or(UnixMillis(0));
    let warnings: Vec<String> = origin.warnings.iter().map(|warning| format!("; {warning}")).collect();
    let created = ("Created", format!("TFJob {name} is created{}", warnings.concat()), accepted);
    let failed_at = job.restarts.failed_starts.last().map(|failed| failed.at);
    let newest = failed_at.max(job.times.started).unwrap_or(accepted);
    let ran = job.times.started;
    // A failed start is noted when all its runs are dead. Until then, the stop may as well follow a success.
    let restarting_since = failed_at.filter(|_| job.state != JobState::Stopping || ran.is_none());
    let running = format!("TFJob {name} is running");
    let newer = match (&job.result, job.state) {
        (Some(result), _) => {
            let at = job.times.ended.or(job.times.finished).unwrap_or(newest);
            ran.map(|_| stopped(&running, at)).into_iter().chain([ended(name.as_str(), result, at)]).collect()
        }
        (None, JobState::Suspended) => {
            let suspended = condition("Suspended", "Suspended", &format!("TFJob {name} is suspended"), newest);
            ran.map(|_| stopped(&running, newest)).into_iter().chain([suspended]).collect()
        }
        (None, JobState::Running) => vec![condition("Running", "Running", &running, ran.unwrap_or(newest))],
        (None, _) => match (restarting_since, ran) {
            (Some(at), _) => vec![condition("Restarting", "Restarting", &format!("TFJob {name} is restarting"), at)],
            (None, Some(at)) => vec![condition("Running", "Running", &running, at)],
            (None, None) => vec![],
        },
    };
    [condition(created.0, "Created", &created.1, created.2)].into_iter().chain(newer).collect()
}

fn ended(name: &str, result: &JobResult, at: UnixMillis) -> Value {
    match result {
        JobResult::Succeeded => {
            condition("Succeeded", "Succeeded", &format!("TFJob {name} successfully completed"), at)
        }
        JobResult::Failed { failure } => {
            condition("Failed", "Failed", &format!("TFJob {name} has failed: {failure}"), at)
        }
        JobResult::Cancelled => condition("Failed", "Cancelled", &format!("TFJob {name} was cancelled"), at),
    }
}

/// A condition that is true. Its reason begins with `TFJob`, as programs expect.
pub(super) fn condition(kind: &str, reason: &str, message: &str, at: UnixMillis) -> Value {
    let at = timestamp(at);
    json!({
        "type": kind, "status": "True", "reason": format!("TFJob{reason}"), "message": message,
        "lastUpdateTime": at, "lastTransitionTime": at,
    })
}

/// The condition Running of a job that no longer runs.
fn stopped(message: &str, at: UnixMillis) -> Value {
    let mut running = condition("Running", "Running", message, at);
    running["status"] = "False".into();
    running
}

fn replica_statuses(job: &JobView, origin: &TfJobOrigin) -> Map<String, Value> {
    let of_role = |role: Role| {
        let name = origin.replica_type(role).filter(|_| job.spec.count(role) > 0)?;
        let mut counts = Map::new();
        for state in job.replicas.iter().filter(|one| one.replica.role == role).filter_map(|one| counted(job, one)) {
            let count = counts.get(state).and_then(Value::as_u64).unwrap_or(0);
            counts.insert(state.to_owned(), (count + 1).into());
        }
        Some((name.to_owned(), Value::Object(counts)))
    };
    Role::ALL.into_iter().filter_map(of_role).collect()
}

/// The count to which a replica adds. A replica that was stopped after the job's success has succeeded, as in Kubeflow.
fn counted(job: &JobView, one: &ReplicaView) -> Option<&'static str> {
    let has_succeeded = job.result == Some(JobResult::Succeeded);
    match (one.state, &one.exit) {
        (ReplicaState::Exited, Some(exit)) if exit.is_success() => Some("succeeded"),
        (ReplicaState::Exited | ReplicaState::Lost, _) if has_succeeded => Some("succeeded"),
        (ReplicaState::Exited, Some(exit)) if exit.stopped => None,
        (ReplicaState::Exited | ReplicaState::Lost, _) => Some("failed"),
        (ReplicaState::Requested | ReplicaState::Scheduled, _) => None,
        (ReplicaState::Joined | ReplicaState::Configured | ReplicaState::Running, _) => Some("active"),
    }
}
