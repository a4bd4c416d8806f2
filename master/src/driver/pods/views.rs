//! The views of a job's replicas.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use job::gang::Gang;
use job::observation::{Observation, Presence, Wait};
use job::phase::JobPhase;
use job::replica::ReplicaPhase;
use job::roster::wanted;
use protocol::agent::ExitReport;
use protocol::ids::{Generation, JobName, PodName, ReplicaId, Role};
use protocol::view::{ReplicaState, ReplicaView};

use super::replica::Replica;
use super::table::ReplicaTable;
use crate::driver::machine::Machine;
use crate::store::JobRecord;

/// The views of all replicas of a job before its driver has observed them.
pub(in crate::driver) fn initial(record: &JobRecord) -> Arc<[ReplicaView]> {
    record.replicas().into_iter().map(|id| of_replica(record, id, &Observation::NEW, None)).collect()
}

/// The views of the replicas. If the job has ended, these are the views in its record.
pub(in crate::driver) fn views(replicas: &ReplicaTable, record: &JobRecord, machine: &Machine) -> Arc<[ReplicaView]> {
    if let Some(ended) = &record.ended {
        return Arc::clone(&ended.replicas);
    }
    let view = |(id, replica): (ReplicaId, &Replica)| {
        // The pods of a gang that waits for its turn are being deleted. This is no failure.
        let is_queued = matches!(machine.phase(), JobPhase::Queued { .. });
        let seen = if is_queued { &Observation::NEW } else { &replica.tracked.seen };
        let mut view = of_replica(record, id, seen, machine.horizon());
        if view.state == ReplicaState::Requested && replica.usual_preparation().is_some() {
            view.reason = None;
        }
        if let JobPhase::Stopping(stop) = machine.phase()
            && view.state == ReplicaState::Running
            && id.role == Role::Evaluator
            && stop.evaluates_until > stop.since
        {
            let left = (stop.evaluates_until - stop.since).as_secs();
            view.reason = Some(format!("may go on for {left} s after the success of the training"));
        }
        if matches!(machine.phase(), JobPhase::Pending { .. }) {
            view.reason = why_others_wait(record, &view, &replica.tracked.seen).or(view.reason);
        }
        view
    };
    // A fixed gang wants all replicas.
    let is_fixed = machine.policy().is_fixed();
    let unwanted = if is_fixed { BTreeSet::new() } else { unwanted(&replicas.gang(machine.horizon()), machine) };
    replicas.iter().filter(|(id, _)| !unwanted.contains(id)).map(view).collect()
}

/// The time until users see what the nodes do that prepare pods. `None` if they see it already.
pub(in crate::driver) fn until_unusual(replicas: &ReplicaTable) -> Option<Duration> {
    replicas.iter().filter_map(|(_, replica)| replica.usual_preparation()).min()
}

/// The replicas that have no pod and need none, because enough other replicas have pods.
fn unwanted(gang: &Gang<'_>, machine: &Machine) -> BTreeSet<ReplicaId> {
    let absent = gang.places().iter().filter(|place| place.seen.presence() == Presence::Absent && !gang.has(place));
    let mut unwanted: BTreeSet<ReplicaId> = absent.map(|place| place.id).collect();
    for place in wanted(gang, machine.policy().wishes.workers) {
        unwanted.remove(&place.id);
    }
    unwanted
}

/// Why the next start of a job waits for this replica: exec.py may still run there.
fn why_others_wait(record: &JobRecord, view: &ReplicaView, seen: &Observation) -> Option<String> {
    let known = view.reason.as_ref().map(|reason| format!("{reason}; ")).unwrap_or_default();
    let spec = &record.spec;
    // The advice is for Kubernetes, where pods have an image. With a lease, the start does not wait long.
    let advice = spec.image.as_ref().filter(|_| spec.run_policy.lease().is_none());
    let advice =
        advice.map_or(String::new(), |_| format!("; if the node is dead: kubectl delete pod {} --force", view.pod));
    seen.may_run().then(|| format!("{known}the next start waits, because exec.py may still run here{advice}"))
}

/// The view of one replica. Runs of generations before `horizon` belong to earlier starts.
fn of_replica(record: &JobRecord, id: ReplicaId, seen: &Observation, horizon: Option<Generation>) -> ReplicaView {
    let phase = &ReplicaPhase::of(seen, horizon);
    let status = seen.agent.status();
    ReplicaView {
        replica: id,
        state: phase.state(),
        pod: PodName::new(&record.spec.name, id).to_string(),
        address: seen.addresses().map(|addresses| addresses.tensorflow.to_string()),
        reason: reason(seen, phase).map(|reason| with_hint(reason, &record.spec.name, seen)),
        pid: status.and_then(|status| status.pid),
        started_at: status.and_then(|status| status.started_at),
        exit: phase.exit().map(ExitReport::without_output),
    }
}

/// Adds the way to see what a node lacks that prepares a pod: only the events of the pod say it.
fn with_hint(reason: String, job: &JobName, seen: &Observation) -> String {
    match seen.waits_for() {
        Some(Wait::Preparing { .. }) => {
            format!("{reason}; to see why, in its namespace: kubectl describe pod -l muster/job={job}")
        }
        Some(_) | None => reason,
    }
}

fn reason(seen: &Observation, phase: &ReplicaPhase) -> Option<String> {
    let lost = phase.lost().map(|lost| lost.reason.clone());
    lost.or_else(|| seen.waits_for().map(Wait::to_string))
}
