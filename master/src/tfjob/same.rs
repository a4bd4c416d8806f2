//! Whether a TFJob that is sent again is the job on record. Only its code, and the number of workers of an elastic job, may
//! differ.

use protocol::elastic::{JobPatch, Workers};
use protocol::group::Group;
use protocol::ids::Role;
use protocol::job::JobSpec;
use protocol::origin::Origin;
use serde_json::Value;

/// The change that turns the job on record into the job that was sent. `None` if they are different jobs. `now` is the range
/// of workers that the job on record has at present. If both bring code, the code is not compared: a push changes it.
pub fn difference(on_record: &JobSpec, now: Option<Workers>, sent: &JobSpec) -> Option<JobPatch> {
    if fixed_part(on_record) != fixed_part(sent) || on_record.code.is_some() != sent.code.is_some() {
        return None;
    }
    let max = now.map(|now| now.max).filter(|max| *max != sent.worker_num);
    Some(JobPatch { worker_num: max.map(|_| sent.worker_num), ..JobPatch::default() })
}

/// The job without what may differ. The warnings of an earlier version of the master may differ too.
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
