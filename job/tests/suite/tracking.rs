//! Tests of what a master knows of one replica over time.

use job::observation::{AgentState, Enrolled, Pod, PodState, Wait};
use job::tracked::{PodLoss, Tracked};
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState};

use crate::support::{FIRST, pending, reported, running, running_pod, status, stopped};

fn listed(uid: &str) -> Option<Pod> {
    Some(Pod { incarnation: uid.to_owned().into(), state: PodState::Pending { has_node: false, wait: None } })
}

/// A replica whose pod takes part in the first start.
fn member() -> Tracked {
    let mut replica = Tracked::new(false);
    replica.see(listed("a"), &pending());
    let membership = Membership { seat: 0, of: 2, start: 0, pushes: 0 };
    replica.seen.enrolled = Some(Enrolled { generation: FIRST, membership });
    replica
}

#[test]
fn late_reports_about_an_earlier_pod_are_ignored() {
    let mut replica = Tracked::new(false);
    let gone = replica.pod_number();
    replica.hear(gone, AgentState::SeedOnly);
    assert_eq!(replica.seen.agent, AgentState::SeedOnly);
    replica.see(listed("a"), &pending());
    assert_eq!(replica.see(None, &pending()), PodLoss::Pod);
    replica.hear(gone, AgentState::Configured(FIRST));
    assert_eq!(replica.seen.agent, AgentState::Silent);
    replica.hear(replica.pod_number(), AgentState::SeedOnly);
    assert_eq!(replica.seen.agent, AgentState::SeedOnly);
}

#[test]
fn the_end_of_a_run_that_never_began_is_lost_with_its_pod() {
    let after = |outcome| {
        let mut replica = member();
        let exit = Some(ExitReport { outcome, ..stopped(1) });
        replica.seen.agent = reported(status(RunState::Exited, FIRST, exit));
        assert_eq!(replica.see(None, &pending()), PodLoss::Run);
        replica.seen.agent.is_lost()
    };
    assert!(after(ExitOutcome::NotStarted("it was stopped first".to_owned())), "a new pod would count as configured");
    assert!(!after(ExitOutcome::Signal(9)), "the end of the run is forgotten");
}

#[test]
fn a_listed_pod_with_another_uid_replaces_the_pod_of_a_member() {
    let mut replica = member();
    let losses = ["a", "b", "b"].map(|uid| replica.see(listed(uid), &running()));
    assert_eq!(losses, [PodLoss::None, PodLoss::Run, PodLoss::None]);
    // While the gang runs, the agent's reports or the next phase show what the deletion of a pod means.
    let mut replica = member();
    let losses = [None, None, listed("c"), listed("c")].map(|pod| replica.see(pod, &running()));
    assert_eq!(losses, [PodLoss::None, PodLoss::None, PodLoss::Run, PodLoss::None]);
}

#[test]
fn a_reason_to_wait_is_shown_until_the_pod_is_listed_or_its_agent_answers() {
    let pod = || running_pod().pod.map(|state| Pod { incarnation: "a".to_owned().into(), state });
    let mut replica = Tracked::new(false);
    let [quota, code] =
        ["a quota has no room", "its agent receives the job's code"].map(|text| Wait::Other(text.to_owned()));
    replica.wait(replica.pod_number(), quota.clone());
    assert_eq!(replica.seen.waits_for(), Some(&quota));
    replica.see(pod(), &pending());
    assert_eq!(replica.seen.waits_for(), None);
    replica.wait(replica.pod_number(), code.clone());
    replica.see(pod(), &pending());
    assert_eq!(replica.seen.waits_for(), Some(&code));
    replica.hear(replica.pod_number(), AgentState::SeedOnly);
    assert_eq!(replica.seen.waits_for(), None);
}
