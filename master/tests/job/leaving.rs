//! Pods that the cluster takes away, while what runs in them has its grace.

use master::job::gang::Member;
use master::job::replica::Presence::Live;
use master::job::replica::ReplicaPhase::{self, Exited};
use master::job::replica::{AgentState, DeletedBy, LostRun, Observation, PodState};
use protocol::agent::ExitReport;

use crate::support::{FIRST, exit, id, stopped};

#[test]
fn a_pod_that_is_being_taken_away_is_no_pod_for_another_start() {
    let leaving = |agent| Observation {
        pod: Some(PodState::Leaving { reason: "its node is drained".to_owned() }),
        agent,
        deleted_by: DeletedBy::Others,
    };
    for agent in [AgentState::Silent, AgentState::Configured(FIRST), AgentState::Started(FIRST)] {
        let member = Member::of(id("worker-0"), &leaving(agent), None);
        assert_eq!(member.phase, ReplicaPhase::Lost(LostRun::disrupted("its node is drained")));
        assert_eq!((member.pod, member.is_fit()), (Live, false));
    }
}

#[test]
fn a_run_that_ends_because_its_pod_is_taken_away_is_lost_with_it() {
    use protocol::agent::{RunState, RunStatus};
    let phase = |exit: ExitReport, deleted_by| {
        let (boot_id, state, generation) = ("boot".to_owned(), RunState::Exited, Some(FIRST));
        let run = RunStatus { seq: 1, boot_id, state, generation, pid: None, started_at: None, exit: Some(exit) };
        let pod = Some(PodState::Leaving { reason: "its node is drained".to_owned() });
        let seen = Observation { pod, agent: AgentState::Status(Box::new(run)), deleted_by };
        ReplicaPhase::of(&seen, Some(FIRST))
    };
    let drained = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    let with_its_pod = |exit: ExitReport| ExitReport { stopped: true, terminated: true, ..exit };
    assert_eq!(phase(with_its_pod(stopped(9)), DeletedBy::Others), drained);
    assert_eq!(phase(with_its_pod(exit(0, 9)), DeletedBy::Others), drained);
    for by_itself in [exit(3, 9), exit(0, 9), stopped(9)] {
        assert_eq!(phase(by_itself.clone(), DeletedBy::Others), Exited(FIRST, by_itself));
    }
    let by_us = ReplicaPhase::Lost(LostRun::broken("its node is drained"));
    assert_eq!(phase(with_its_pod(stopped(9)), DeletedBy::ThisMaster), by_us);
}
