//! What a gathering gang still needs, and what a gang knows of its members' failures and pods.

use job::gang::{Gang, Member};
use job::need::Need;
use job::observation::{Enrolled, Presence};
use job::policy::Policy;
use job::replica::ReplicaPhase::{self, Exited, Joined, Requested};
use job::wait::{Resources, Wait};
use protocol::agent::Membership;
use protocol::elastic::Workers;
use protocol::failure::Failure;
use protocol::lease::Standing;

use crate::support::{FIRST, POLICY, exit, fixed, member, stopped};

/// A pod of this replica that the scheduler has not decided on.
fn pending(name: &str) -> Member {
    member(name, Requested, Presence::Live)
}

fn on_a_node(name: &str) -> Member {
    Member { has_node: true, ..member(name, Joined, Presence::Live) }
}

fn waits(name: &str, wait: Wait) -> Member {
    Member { waits_for: Some(wait), ..pending(name) }
}

fn short(resource: &str) -> Wait {
    Wait::NoRoom { lacking: lacking(&[resource]), reason: format!("Insufficient {resource}") }
}

fn lacking(names: &[&str]) -> Resources {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn need(members: Vec<Member>, min: u32) -> Need {
    let max = u32::try_from(members.iter().filter(|member| member.id.to_string().starts_with("worker")).count());
    let workers = Workers { min, max: max.expect("a small number") };
    Need::of(&Gang::new(members, None), &Policy { workers, ..POLICY })
}

#[test]
fn a_gang_needs_its_minimum_of_workers_and_all_other_replicas_on_nodes() {
    let absent = Member { has_node: true, ..member("worker-1", Requested, Presence::Absent) };
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
        let mut members =
            vec![member("worker-0", killed(), Presence::Live), member("worker-1", killed(), Presence::Live)];
        members[0].unsaved = Some((51, 61));
        members.iter_mut().for_each(|member| member.may_run = false);
        members[running].may_run = true;
        fixed(members).lost_steps().map(|lost| (lost.first, lost.last))
    };
    assert_eq!((lost(0), lost(1)), (None, Some((51, 61))));
}

#[test]
fn the_pushes_of_a_failure_are_those_of_the_script_that_failed() {
    let of = |name: &str, phase: ReplicaPhase, pushes| {
        let membership = Membership { seat: 0, of: 2, start: 0, pushes };
        Member { enrolled: Some(Enrolled { generation: FIRST, membership }), ..member(name, phase, Presence::Live) }
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
    let leaving = |standing| Member { is_leaving: true, standing, ..on_a_node("worker-0") }.is_on_its_way();
    assert_eq!([Standing::Held, Standing::Lapsed, Standing::Fenced].map(leaving), [true, true, false]);
    assert!(!on_a_node("worker-0").is_on_its_way());
}
