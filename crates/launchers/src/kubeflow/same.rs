//! Compares a TFJob that is sent again with the job on record. The code, the warnings, and the number of workers of an
//! elastic job may differ. If another field differs, the two are different jobs.

use protocol::elastic::Workers;
use protocol::group::Group;
use protocol::ids::Role;
use protocol::job::JobSpec;
use protocol::origin::{Origin, TfJobOrigin};
use protocol::patch::JobPatch;
use serde_json::{Map, Value, json};

use super::object::sent_spec;

/// The change that turns the job on record into the job that was sent. `None` if they are different jobs. `now` is the
/// current range of workers of the job on record. If both jobs bring code, their code may differ, because a push
/// changes the code.
pub fn difference(on_record: &JobSpec, now: Option<Workers>, sent: &JobSpec) -> Option<JobPatch> {
    if fixed_part(on_record) != fixed_part(sent) || on_record.code.is_some() != sent.code.is_some() {
        return None;
    }
    let max = now.map(|now| now.max).filter(|max| *max != sent.worker_num);
    Some(JobPatch { worker_num: max.map(|_| sent.worker_num), ..JobPatch::default() })
}

/// What differs between two TFJobs for which [`difference`] returns `None`, as a sentence without a full stop. It names
/// the first field of the document that differs, or else the first flag of `client apply` that differs.
pub fn what_differs(on_record: &JobSpec, sent: &JobSpec) -> String {
    let mut parts = parts(&fixed_part(on_record)).into_iter().zip(parts(&fixed_part(sent)));
    let path = parts.find_map(|((path, known), (_, sent))| difference_at(path, &known, &sent));
    let mut flags = flags(on_record).into_iter().zip(flags(sent)).filter(|(known, sent)| known != sent);
    match path.or_else(|| flags.next().map(|((flag, _), _)| flag.to_owned())) {
        Some(place) => format!("{place} differs"),
        None if on_record.object_uid() != sent.object_uid() => {
            "client apply sent one of the two TFJobs, and kubectl apply the other".to_owned()
        }
        None => "this master reads the TFJob differently than the master that accepted the job".to_owned(),
    }
}

/// The parts of the document that a job keeps, by path.
fn parts(job: &JobSpec) -> Vec<(&'static str, Value)> {
    let Some(Origin::TfJob(origin)) = &job.origin else { return vec![] };
    let TfJobOrigin { api_version, labels, annotations, spec: _, warnings: _, programs: _, object_uid: _ } = origin;
    vec![
        ("spec", sent_spec(job, origin).into()),
        ("metadata.labels", json!(labels)),
        ("metadata.annotations", json!(annotations)),
        ("apiVersion", json!(api_version)),
    ]
}

/// The flags of `client apply` that change the job.
fn flags(job: &JobSpec) -> [(&'static str, Value); 7] {
    [
        ("--env", json!(job.env)),
        ("--allow-env", json!(job.allow_env)),
        ("--max-restarts", json!(job.run_policy.max_restarts)),
        ("--evaluator-grace", json!(job.run_policy.evaluator_grace_seconds)),
        ("--allow-root", json!(job.pod.allow_root)),
        ("--code", json!([job.code.is_some(), job.script])),
        ("the folder of the scripts (--code, or the folder of the file)", json!(job.work_dir)),
    ]
}

/// The job without the fields that may differ. These include the warnings, because another version of the master may
/// give other warnings. The programs are left out too, because the commands in the groups contain them.
fn fixed_part(spec: &JobSpec) -> JobSpec {
    let mut spec = JobSpec { code: None, ..spec.clone() };
    let is_elastic = spec.worker_min.is_some();
    if let Some(Origin::TfJob(tfjob)) = &mut spec.origin {
        tfjob.warnings.clear();
        tfjob.programs.clear();
        let worker = tfjob.replica_type(Role::Worker).map(str::to_owned).filter(|_| is_elastic);
        let types = tfjob.spec.get_mut("tfReplicaSpecs").and_then(Value::as_object_mut);
        if let (Some(worker), Some(types)) = (worker, types) {
            types.get_mut(&worker).and_then(Value::as_object_mut).map(|worker| worker.remove("replicas"));
        }
    }
    if is_elastic {
        spec.worker_num = 0;
        let workers = spec.groups.iter_mut().filter(|group| group.role == Role::Worker);
        workers.for_each(|Group { count, .. }| *count = 0);
    }
    spec
}

/// The path of the first difference.
pub(super) fn difference_at(path: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let field = |of: &Map<String, Value>| of.get(name).cloned().unwrap_or_default();
                difference_at(&format!("{path}.{name}"), &field(one), &field(other))
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(place, (one, other))| difference_at(&format!("{path}[{place}]"), one, other))
        }
        _ => (one != other).then(|| path.to_owned()),
    }
}
