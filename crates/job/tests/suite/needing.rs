//! What a gathering gang still needs, and what a gang knows of its members' failures and pods.

use job::gang::{Gang, Place};
use job::need::Need;
use job::observation::{AgentState, Enrolled, LostRun, PodState, Presence};
use job::replica::ReplicaPhase::{self, Exited, Joined, Requested};
use job::wait::{Resources, Wait};
use protocol::agent::{Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::failure::Failure;
use protocol::progress::Progress;

use crate::support::{FIRST, POLICY, changed, exit, fixed, observed, place, reported, status, stopped, with_progress};

/// A pod of this replica that the scheduler has not decided on.
fn pending(name: &str) -> Place<'static> {
    place(name, Requested, Presence::Live)
}

fn on_a_node(name: &str) -> Place<'static> {
    place(name, Joined, Presence::Live)
}

fn waits(name: &str, wait: Wait) -> Place<'static> {
    let waits = PodState::Pending { has_node: false, wait: Some(wait) };
    observed(&pending(name), |seen| seen.pod = Some(waits))
}

fn short(resource: &str) -> Wait {
    Wait::NoRoom { lacking: lacking(&[resource]), reason: format!("Insufficient {resource}") }
}

fn lacking(names: &[&str]) -> Resources {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn need(members: Vec<Place<'static>>, min: u32) -> Need {
    let max = u32::try_from(members.iter().filter(|member| member.id.to_string().starts_with("worker")).count());
    let workers = Workers { min, max: max.expect("a small number") };
    Need::of(&Gang::new(members, None), &changed(POLICY, |policy| policy.wishes.workers = workers))
}

#[test]
fn a_gang_needs_its_minimum_of_workers_and_all_other_replicas_on_nodes() {
    let absent = place("worker-1", Requested, Presence::Absent);
    let of = |is_complete, is_undecided, names: &[&str]| Need {
        is_complete,
        is_undecided,
        is_gated: false,
        lacking: lacking(names),
    };
    for (members, min, expected) in [
        (vec![on_a_node("worker-0"), on_a_node("worker-1")], 2, of(true, false, &[])),
        (vec![on_a_node("worker-0"), pending("worker-1")], 2, of(false, true, &[])),
        (vec![on_a_node("worker-0"), pending("worker-1")], 1, of(true, false, &[])),
        (vec![on_a_node("worker-0"), absent], 2, of(false, true, &[])),
        (vec![on_a_node("worker-0"), waits("worker-1", short("cpu"))], 2, of(false, false, &["cpu"])),
        (vec![on_a_node("worker-0"), waits("worker-1", short("cpu"))], 1, of(true, false, &[])),
        (vec![pending("ps-0"), on_a_node("worker-0")], 1, of(false, true, &[])),
        (
            vec![waits("ps-0", short("memory")), waits("worker-0", short("cpu"))],
            1,
            of(false, false, &["cpu", "memory"]),
        ),
        (vec![waits("worker-0", Wait::Other("the image is pulled".to_owned()))], 1, of(false, false, &[])),
    ] {
        assert_eq!(need(members.clone(), min), expected, "{members:?} of {min}");
    }
    let gated = vec![waits("worker-0", Wait::Gated("a quota program".to_owned())), waits("worker-1", short("cpu"))];
    assert_eq!(need(gated, 2), Need { is_gated: true, ..of(false, false, &[]) });
}

#[test]
fn steps_are_lost_when_the_replica_that_saves_runs_no_more_whatever_the_others_do() {
    let lost = |running: usize| {
        let killed = || Exited(FIRST, stopped(9));
        let progress = Progress { step: Some(61), saved: Some(50), ..Progress::default() };
        let mut places = ["worker-0", "worker-1"]
            .map(|name| with_progress(&place(name, killed(), Presence::Live), progress.clone()));
        let status = status(RunState::Running, FIRST, None);
        let status = RunStatus { helper: Some(progress), ..status };
        places[running] = observed(&places[running], |seen| seen.agent = reported(status));
        fixed(places.to_vec()).lost_steps().map(|lost| (lost.first, lost.last))
    };
    assert_eq!((lost(0), lost(1)), (None, Some((51, 61))));
}

#[test]
fn the_pushes_of_a_failure_are_those_of_the_script_that_failed() {
    let of = |name: &str, phase: ReplicaPhase, pushes| {
        let membership = Membership { seat: 0, of: 2, start: 0, pushes };
        let enrolled = Some(Enrolled { generation: FIRST, membership });
        observed(&place(name, phase, Presence::Live), |seen| seen.enrolled = enrolled)
    };
    let gang = fixed(vec![of("worker-0", Joined, 5), of("worker-1", Exited(FIRST, exit(3, 5)), 7)]);
    let failure = Failure::ReplicaExited { replica: "worker-1".parse().expect("a replica"), exit: exit(3, 5) };
    assert_eq!(
        (gang.pushes_of(&failure), gang.pushes_of(&Failure::DeadlineExceeded { after_seconds: 1 })),
        (Some(7), None)
    );
}

#[test]
fn a_pod_that_is_leaving_ends_by_itself_unless_its_agent_is_fenced() {
    let leaving = |agent| {
        let pod = Some(PodState::Leaving { reason: "drained".to_owned() });
        observed(&on_a_node("worker-0"), |seen| (seen.pod, seen.agent) = (pod, agent)).is_on_its_way()
    };
    let unreachable = |is_fenced| AgentState::Unreachable { lost: LostRun::disrupted("it is silent"), is_fenced };
    let agents = [AgentState::Silent, unreachable(false), unreachable(true)];
    assert_eq!(agents.map(leaving), [true, true, false]);
    assert!(!on_a_node("worker-0").is_on_its_way());
}
