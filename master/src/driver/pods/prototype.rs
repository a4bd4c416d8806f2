//! Replaces the missing reports of agents of the first prototype. These agents report neither a status nor their
//! membership. So this code uses what the record and this master know about their start.

use job::observation::{AgentState, Enrolled, Observation, PodState};
use protocol::agent::Membership;
use protocol::ids::{Generation, ReplicaId};

use crate::store::JobRecord;

/// The start for which an earlier master has asked agents of the first prototype to run exec.py, according to the
/// record.
#[derive(Debug, Clone, Copy)]
struct Launched {
    generation: Generation,
    /// The number of replicas. A job with these agents is fixed, so all are members.
    of: u32,
    /// The number of starts before this start.
    start: u32,
}

impl Launched {
    fn of(record: &JobRecord) -> Option<Self> {
        let (of, start) = (record.spec.replica_num(), record.starts());
        // If this start is over, the agents belong to new pods, or accept another start.
        let newest = record.launched.filter(|start| Some(*start) > record.newest_ended());
        newest.map(|generation| Self { generation, of, start })
    }

    /// The part of this replica in the start. In a fixed job, the index is the seat.
    fn enrolled(self, ReplicaId { index: seat, .. }: ReplicaId) -> Enrolled {
        let Self { generation, of, start } = self;
        Enrolled { generation, membership: Membership { seat, of, start, pushes: 0 } }
    }
}

/// The state of a replica's agent if it reports `agent`. The record may show that a master has already asked the agent
/// to run exec.py. Then the agent counts as started, and this master does not ask it again.
pub(super) fn state_of(seen: &mut Observation, agent: AgentState, record: &JobRecord, id: ReplicaId) -> AgentState {
    match Some(record).filter(|_| agent == AgentState::SeedOnly).and_then(Launched::of) {
        Some(launched) => started_in(seen, launched, id),
        None => agent,
    }
}

/// If the pod has ended and its agent never answered, assumes that exec.py ran in the start on record. The pod's exit
/// status then counts for that start.
pub(super) fn count_as_launched(seen: &mut Observation, record: &JobRecord, id: ReplicaId) {
    let has_ended = matches!(seen.pod, Some(PodState::Terminated { exit: Some(_), .. }));
    if has_ended
        && seen.agent == AgentState::Silent
        && let Some(launched) = Launched::of(record)
    {
        seen.agent = started_in(seen, launched, id);
    }
}

fn started_in(seen: &mut Observation, launched: Launched, id: ReplicaId) -> AgentState {
    seen.enrolled.get_or_insert(launched.enrolled(id));
    AgentState::Started(launched.generation)
}

#[cfg(test)]
mod tests {
    use protocol::failure::{FailedStart, Failure, Loss};
    use protocol::ids::UnixMillis;
    use protocol::job::{JobRequest, JobSpec, Strategy};

    use super::*;

    #[test]
    fn a_launch_that_is_over_says_nothing_about_the_agents_of_the_next_start() {
        let request = JobRequest::new("digits".parse().unwrap(), Strategy::AllReduce);
        let spec = JobSpec::try_from(request).unwrap();
        let mut record = JobRecord::new(spec, "uid".to_owned(), "master".to_owned(), UnixMillis(0));
        record.launched = Some("1.1".parse().unwrap());
        assert!(Launched::of(&record).is_some());
        let replica = "worker-1".parse().unwrap();
        let failure = Failure::ReplicaLost { replica, reason: String::new(), loss: Loss::Broken };
        record.restarts.note(FailedStart::new(record.launched, UnixMillis(1), failure));
        assert!(Launched::of(&record).is_none(), "the agents of new pods would count as started");
    }
}
