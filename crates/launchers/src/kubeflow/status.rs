//! The status of a TFJob: its conditions, the newest last, and the number of its replicas in each state.

use protocol::ids::{Role, UnixMillis};
use protocol::origin::TfJobOrigin;
use protocol::view::{JobResult, JobState, JobView, ReplicaState, ReplicaView};
use serde_json::{Map, Value, json};

use crate::timestamp::timestamp;

/// The status of a job at this time.
pub(super) fn status(job: &JobView, origin: &TfJobOrigin, now: UnixMillis) -> Value {
    let mut status = json!({
        "conditions": conditions(job, origin),
        "replicaStatuses": replica_statuses(job, origin),
        "lastReconcileTime": timestamp(now),
    });
    let ended = if job.result.is_some() { job.times.ended.or(job.times.finished) } else { None };
    let begun = job.times.resumed.or(job.times.accepted);
    for (name, time) in [("startTime", begun), ("completionTime", ended)] {
        if let Some(time) = time {
            status[name] = timestamp(time).into();
        }
    }
    status
}

fn conditions(job: &JobView, origin: &TfJobOrigin) -> Vec<Value> {
    let (name, times) = (&job.name, &job.times);
    let accepted = times.accepted.unwrap_or(UnixMillis(0));
    let warnings: Vec<String> = origin.warnings.iter().map(|warning| format!("; {warning}")).collect();
    let created = condition("Created", "Created", &format!("TFJob {name} is created{}", warnings.concat()), accepted);
    let ran = times.restarted.or(times.started);
    let running = |at| condition("Running", "Running", &format!("TFJob {name} is running"), at);
    let resumed_at = if job.state == JobState::Suspended { None } else { times.resumed };
    let resumed =
        resumed_at.map(|at| no_longer(condition("Suspended", "Resumed", &format!("TFJob {name} is resumed"), at)));
    let failed_at = job.restarts.failed_starts.last().map(|failed| failed.at);
    let newer = match (&job.result, job.state) {
        (Some(result), _) => {
            let at = times.ended.or(times.finished).or(ran).unwrap_or(accepted);
            ran.map(|_| no_longer(running(at))).into_iter().chain([ended(name.as_str(), result, at)]).collect()
        }
        (None, JobState::Suspended) => {
            let at = times.suspended.unwrap_or(accepted);
            let because = |kind| condition(kind, "Suspended", &format!("TFJob {name} is suspended"), at);
            ran.map(|_| no_longer(because("Running"))).into_iter().chain([because("Suspended")]).collect()
        }
        (None, JobState::Running) => vec![running(ran.unwrap_or(accepted))],
        // A failed start is recorded when all its runs are dead. Until then, the job may be stopping because it has
        // succeeded, so it is not shown as restarting.
        (None, JobState::Stopping) if ran.is_some() => ran.map(running).into_iter().collect(),
        // The newest event counts: a failure, the run before it, or a resume.
        (None, _) => match (failed_at, ran) {
            (Some(at), _) if failed_at >= times.resumed.max(ran) => {
                vec![condition("Restarting", "Restarting", &format!("TFJob {name} is restarting"), at)]
            }
            (_, Some(at)) if ran >= times.resumed => vec![running(at)],
            (_, _) => vec![],
        },
    };
    [created].into_iter().chain(resumed).chain(newer).collect()
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

/// Marks a condition as no longer true.
fn no_longer(mut condition: Value) -> Value {
    condition["status"] = "False".into();
    condition
}

/// Copies the times of `earlier` conditions with the same type, status and reason, because a new master has only
/// estimates of some times. Copies the time of the last update only if the conditions also have the same message.
pub(super) fn keep_times(conditions: &mut Value, earlier: &Value) {
    let all = |conditions: &Value| conditions.as_array().cloned().unwrap_or_default();
    let earlier = all(earlier);
    for condition in conditions.as_array_mut().into_iter().flatten() {
        let is_same = |other: &&Value, fields: &[&str]| fields.iter().all(|field| other[*field] == condition[*field]);
        let Some(before) = earlier.iter().find(|other| is_same(other, &["type", "status", "reason"])) else { continue };
        let is_repeated = is_same(&before, &["message"]);
        condition["lastTransitionTime"] = before["lastTransitionTime"].clone();
        if is_repeated {
            condition["lastUpdateTime"] = before["lastUpdateTime"].clone();
        }
    }
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

/// The count that includes a replica, or `None` if no count includes the replica. A replica that was stopped after the
/// job's success is included in `succeeded`, as in Kubeflow.
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
