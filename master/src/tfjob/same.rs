//! Compares a TFJob that is sent again with the job on record. The code, the warnings, and the number of workers of an
//! elastic job may differ. If another field differs, the two are different jobs.

use protocol::elastic::{JobPatch, Workers};
use protocol::group::Group;
use protocol::ids::Role;
use protocol::job::JobSpec;
use protocol::origin::Origin;
use serde_json::Value;

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

/// The job without the fields that may differ. These include the warnings, because another version of the master may
/// give other warnings.
fn fixed_part(spec: &JobSpec) -> JobSpec {
    let mut spec = JobSpec { code: None, ..spec.clone() };
    let is_elastic = spec.worker_min.is_some();
    if let Some(Origin::TfJob(tfjob)) = &mut spec.origin {
        tfjob.warnings.clear();
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
