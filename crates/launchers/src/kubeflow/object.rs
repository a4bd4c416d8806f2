//! Shows a job as a TFJob, the object that users of Kubeflow know.

use protocol::ids::UnixMillis;
use protocol::job::JobSpec;
use protocol::origin::{Origin, TfJobOrigin, role_of_type};
use protocol::tfjob::TFJOB_KIND;
use protocol::view::{JobState, JobView};
use serde_json::{Map, Value, json};

use crate::timestamp::timestamp;

use super::status::status;

/// The job as a TFJob, at this time. `None` if the job did not come from a TFJob. `namespace` is the master's.
pub fn object(job: &JobView, namespace: Option<&str>, now: UnixMillis) -> Option<Value> {
    let Some(Origin::TfJob(origin)) = &job.spec.origin else { return None };
    let TfJobOrigin { api_version, labels, annotations, spec: _, warnings: _, programs: _, object_uid: _ } = origin;
    let mut metadata = json!({ "name": job.name, "uid": job.uid });
    if let Some(accepted) = job.times.accepted {
        metadata["creationTimestamp"] = timestamp(accepted).into();
    }
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    for (name, map) in [("labels", labels), ("annotations", annotations)] {
        if !map.is_empty() {
            metadata[name] = json!(map);
        }
    }
    Some(json!({
        "apiVersion": api_version,
        "kind": TFJOB_KIND,
        "metadata": metadata,
        "spec": spec(job, origin),
        "status": status(job, origin, now),
    }))
}

/// The `spec` as a user sent it, without `suspend`.
pub(super) fn sent_spec(job: &JobSpec, origin: &TfJobOrigin) -> Map<String, Value> {
    let mut spec = origin.spec.clone();
    let types = spec.get_mut("tfReplicaSpecs").and_then(Value::as_object_mut);
    for (name, of_type) in types.into_iter().flatten() {
        let group = job.groups.iter().find(|group| Some(group.role) == role_of_type(name));
        if let Some(template) = group.and_then(|group| group.template.as_ref()) {
            of_type["template"] = template.pod.clone();
        }
    }
    spec
}

/// The `spec` with the current maximum of workers, and with `suspend` if the job is suspended.
fn spec(job: &JobView, origin: &TfJobOrigin) -> Map<String, Value> {
    let mut spec = sent_spec(&job.spec, origin);
    let types = spec.get_mut("tfReplicaSpecs").and_then(Value::as_object_mut);
    for (name, of_type) in types.into_iter().flatten() {
        if role_of_type(name) == Some(protocol::ids::Role::Worker)
            && let Some(workers) = job.workers
        {
            of_type["replicas"] = workers.max.into();
        }
    }
    if job.state == JobState::Suspended {
        let policy = spec.entry("runPolicy").or_insert_with(|| json!({}));
        policy["suspend"] = true.into();
    }
    spec
}
