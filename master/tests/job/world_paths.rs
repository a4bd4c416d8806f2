//! Every path through the tiny world ends, with the result that the world bears out.

use std::time::Duration;

use master::job::phase::JobPhase;
use master::job::policy::SuccessRule;
use master::job::replica::AgentState;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use protocol::agent::{ExitReport, RunState};
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;

use crate::support::{FIRST, SECOND, cases, id};
use crate::world::World;

/// What happens next, to the pod at a place that is taken modulo their number.
#[derive(Debug, Clone, Copy)]
enum Chance {
    Obey(usize),
    Look(usize),
    Exit(usize, i32),
    Lose(usize),
    Wait(u64),
    Cancel,
}

#[derive(Debug, Clone)]
struct Story {
    success: SuccessRule,
    epoch: u32,
    found: Vec<(ReplicaId, Option<(RunState, Generation)>)>,
    chances: Vec<Chance>,
}

impl Story {
    fn play(&self) -> World {
        let mut world = World::new(self.success, self.epoch, &self.found);
        let count = self.found.len();
        for chance in &self.chances {
            match *chance {
                Chance::Obey(place) => world.obey(place % count),
                Chance::Look(place) => world.look(place % count),
                Chance::Exit(place, code) => world.exit(place % count, code),
                Chance::Lose(place) => world.lose(place % count),
                Chance::Wait(millis) => world.wait(Duration::from_millis(millis)),
                Chance::Cancel => world.cancel(),
            }
        }
        world
    }

    fn has_cancel(&self) -> bool {
        self.chances.iter().any(|chance| matches!(chance, Chance::Cancel))
    }
}

/// Chances, of which the longest wait lasts this many milliseconds.
fn any_chance(longest_wait: u64) -> impl Strategy<Value = Chance> {
    prop_oneof![
        40 => any::<usize>().prop_map(Chance::Obey),
        40 => any::<usize>().prop_map(Chance::Look),
        4 => (any::<usize>(), 0..3_i32).prop_map(|(place, code)| Chance::Exit(place, code)),
        1 => any::<usize>().prop_map(Chance::Lose),
        5 => (0..=longest_wait).prop_map(Chance::Wait),
        1 => Just(Chance::Cancel),
    ]
}

/// What a master finds: nothing, a gang that was being configured, or one that was being launched.
fn any_found(members: usize) -> impl Strategy<Value = Vec<Option<(RunState, Generation)>>> {
    let of = |states: &'static [RunState]| {
        let state = proptest::sample::select(states);
        vec(state.prop_map(|state| Some((state, FIRST))), members)
    };
    prop_oneof![
        2 => Just(vec![None; members]),
        1 => of(&[RunState::Idle, RunState::Configured]),
        1 => of(&[RunState::Configured, RunState::Running]),
    ]
}

fn any_story(longest_wait: u64) -> impl Strategy<Value = Story> {
    let gangs = prop_oneof![
        Just((vec!["worker-0", "worker-1", "worker-2"], SuccessRule::AllThatTrain)),
        Just((vec!["worker-0", "evaluator-0"], SuccessRule::AllThatTrain)),
        Just((vec!["chief-0", "worker-0", "ps-0"], SuccessRule::Decider(id("chief-0")))),
        Just((vec!["worker-0", "ps-0"], SuccessRule::Decider(id("worker-0")))),
    ];
    gangs.prop_flat_map(move |(names, success)| {
        let members: Vec<ReplicaId> = names.into_iter().map(id).collect();
        let chances = vec(any_chance(longest_wait), 0..60);
        (any_found(members.len()), chances).prop_map(move |(found, chances)| {
            let epoch = if found[0].is_some() { SECOND.epoch } else { FIRST.epoch };
            Story { success, epoch, found: members.iter().copied().zip(found).collect(), chances }
        })
    })
}

/// Says what is untrue about a failure.
fn untruth(world: &World, failure: &Failure) -> Option<String> {
    let pod = |replica: &ReplicaId| world.pods.iter().find(|pod| pod.id == *replica);
    match failure {
        Failure::ReplicaExited { replica, exit } => {
            let truly = pod(replica).and_then(|pod| pod.run().exit.as_ref());
            let seen = world.pods.iter().filter_map(|pod| match &pod.seen.agent {
                AgentState::Status(status) => status.exit.as_ref(),
                AgentState::Silent
                | AgentState::SeedOnly
                | AgentState::Configured(_)
                | AgentState::Started(_)
                | AgentState::Refused(_) => None,
            });
            let failed = |exit: &&ExitReport| !exit.is_success() && !exit.stopped;
            let earliest = seen.filter(failed).map(|exit| exit.ended_at).min();
            let is_true = truly == Some(exit) && failed(&exit) && earliest == Some(exit.ended_at);
            (!is_true).then(|| format!("{failure:?}, and truly {truly:?}; the earliest was {earliest:?}"))
        }
        Failure::ReplicaLost { replica, .. } => {
            let is_true = pod(replica).is_some_and(|pod| pod.was_lost);
            (!is_true).then(|| format!("{failure:?}, and it was not"))
        }
        Failure::StartTimeout { missing, .. } => missing.is_empty().then(|| "a timeout misses nobody".to_owned()),
    }
}

fn check(story: &Story) -> Result<World, proptest::test_runner::TestCaseError> {
    let mut world = story.play();
    let has_finished = world.settle();
    prop_assert!(has_finished, "it comes to no end: {:?}\n{:?}\n{:?}", world.phase, world.done, world.pods);
    let JobPhase::Finished { result } = &world.phase else { panic!("it has finished: {:?}", world.phase) };
    prop_assert_eq!(world.conclusions(), vec![result]);
    match result {
        JobResult::Succeeded => {}
        JobResult::Cancelled => prop_assert!(story.has_cancel()),
        JobResult::Failed { failure } => prop_assert_eq!(untruth(&world, failure), None, "{:?}", world.pods),
    }
    Ok(world)
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_path_ends_with_a_result_that_is_true(story in any_story(300_000)) {
        check(&story)?;
    }

    #[test]
    fn where_nothing_is_slow_no_pod_is_deleted_by_force(story in any_story(300)) {
        let world = check(&story)?;
        prop_assert!(!world.used_force, "{:?}", world.done);
    }

    #[test]
    fn where_nothing_fails_and_nobody_cancels_the_job_succeeds(story in any_story(300)) {
        let spoils = |chance: &Chance| matches!(chance, Chance::Exit(..) | Chance::Lose(_) | Chance::Cancel);
        let chances = story.chances.iter().copied().filter(|chance| !spoils(chance)).collect();
        let world = check(&Story { chances, ..story })?;
        prop_assert_eq!(world.conclusions(), vec![&JobResult::Succeeded]);
    }
}
