//! Tests of what a master knows of one replica over time.

use std::time::Duration;

use job::observation::{AgentState, Enrolled, LostRun, Pod, PodState, Wait};
use job::tracked::{PodLoss, Tracked};
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState};

use crate::support::{FIRST, id, pending, reported, running, running_pod, status, stopped};

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

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_pod_is_requested_again_only_when_the_last_request_can_have_no_effect_any_more() {
    let [requested, early, late] = [100, 109, 110].map(Duration::from_secs);
    let mut replica = Tracked::new(false);
    assert!(replica.is_to_be_requested(requested, SOON, true), "nothing was requested yet");
    assert_eq!(replica.request(requested), PodLoss::None);
    let is_due = |replica: &Tracked, now, is_in_progress| replica.is_to_be_requested(now, SOON, is_in_progress);
    assert!(!is_due(&replica, early, false));
    assert!(is_due(&replica, late, false));
    assert!(!is_due(&replica, late, true), "the request is in progress");
    replica.see(listed("a"), &pending());
    assert!(is_due(&replica, early, true), "the requested pod was listed");
    replica.request(requested);
    replica.hear(replica.pod_number(), AgentState::Failed(LostRun::broken("the pod was refused")));
    assert!(is_due(&replica, early, false), "the request has failed");
}

#[test]
fn a_requested_pod_may_appear_until_it_is_listed_or_has_no_room_or_the_request_is_given_up() {
    let requested = || {
        let mut replica = Tracked::new(false);
        replica.request(SOON);
        replica
    };
    assert!(!Tracked::new(false).may_appear());
    assert!(requested().may_appear());
    let mut listed_now = requested();
    listed_now.see(listed("a"), &pending());
    let mut without_room = requested();
    without_room.wait(0, Wait::Other("a quota has no room".to_owned()));
    let mut given_up = requested();
    given_up.give_up_request();
    for replica in [listed_now, without_room, given_up] {
        assert!(!replica.may_appear(), "{replica:?}");
    }
}

#[test]
fn each_requested_pod_counts_as_a_replacement_unless_its_request_was_given_up() {
    let create_at = |replica: &Tracked| replica.place(id("worker-0"), None).create_at;
    let replaced = |between: fn(&mut Tracked)| {
        let mut replica = Tracked::new(false);
        for second in [100, 200] {
            replica.request(Duration::from_secs(second));
            between(&mut replica);
            // The pod was listed and is lost again.
            replica.see(listed("a"), &pending());
            replica.see(None, &pending());
        }
        create_at(&replica)
    };
    assert_eq!(create_at(&Tracked::new(false)), Duration::ZERO);
    assert_eq!(replaced(|_| {}), Duration::from_secs(201), "the second replacement has no pause");
    assert_eq!(replaced(Tracked::give_up_request), Duration::ZERO, "a repeated request counts twice");
    let without_request = replaced(|replica| {
        replica.see(listed("b"), &pending());
        replica.give_up_request();
    });
    assert_eq!(without_request, Duration::from_secs(201), "there was no request to give up");
    let mut queued = Tracked::new(false);
    for second in [100, 200] {
        queued.request(Duration::from_secs(second));
    }
    assert_eq!(queued.queue(), PodLoss::Pod);
    assert_eq!(create_at(&queued), Duration::ZERO, "the pods of a queued gang are not lost");
}

#[test]
fn a_lost_pod_leaves_no_trace_in_the_next_one() {
    let mut replica = member();
    replica.is_stopped = true;
    replica.wait(0, Wait::Other("its agent receives the job's code".to_owned()));
    assert!(replica.ask_to_go(SOON, SOON));
    assert!(replica.can_report());
    assert_eq!(replica.see(None, &pending()), PodLoss::Run);
    assert!(!replica.can_report(), "the pod cannot report any more");
    assert_eq!(replica.pod_number(), 1);
    assert!(!replica.was_asked_to_go(), "the deletion was that of the lost pod");
    assert_eq!(replica.begin_again(false), PodLoss::Pod);
    assert_eq!((replica.pod_number(), replica.is_stopped, replica.seen.waits_for()), (2, false, None));
    assert!(replica.can_report() && !replica.is_member(FIRST));
    // A pod that is listed already stays.
    let mut replica = member();
    replica.see(listed("b"), &running());
    assert_eq!(replica.begin_again(false), PodLoss::Pod);
    assert!(replica.seen.pod.is_some(), "the new pod is forgotten");
    assert_eq!(replica.see(listed("b"), &running()), PodLoss::None, "the new pod counts as another one");
    replica.seen.agent = AgentState::Failed(LostRun::broken("its node died"));
    assert!(!replica.can_report(), "the agent is lost");
}

#[test]
fn a_deletion_is_requested_again_after_some_time_or_when_it_may_have_another_effect() {
    let [asked, early, late] = [100, 109, 110].map(Duration::from_secs);
    let mut replica = member();
    assert!(!replica.was_asked_to_go());
    let answers = [asked, early, late, late].map(|now| replica.ask_to_go(now, SOON));
    assert_eq!(answers, [true, false, true, false]);
    assert!(replica.was_asked_to_go());
    replica.hear(0, AgentState::Unreachable { is_fenced: false, lost: LostRun::broken("its node died") });
    assert!(!replica.ask_to_go(late, SOON), "the run may still be alive");
    replica.hear(0, AgentState::Unreachable { is_fenced: true, lost: LostRun::broken("its node died") });
    assert!(replica.ask_to_go(late, SOON), "now the deletion needs no confirmation");
    assert_eq!(replica.begin_again(false), PodLoss::None);
    assert!(!replica.ask_to_go(late, SOON));
    assert_eq!(replica.begin_again(true), PodLoss::None);
    assert!(replica.ask_to_go(late, SOON));
}

#[test]
fn a_pod_that_an_earlier_master_may_have_created_is_found_at_its_first_listing() {
    let mut found = Tracked::new(true);
    assert!(!found.seen.is_found);
    found.see(listed("a"), &pending());
    assert!(found.seen.is_found);
    found.see(listed("b"), &pending());
    assert!(!found.seen.is_found, "this master has created the second pod");
}
