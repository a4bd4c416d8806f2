//! Tests that each random story in the simulated world ends, and that the job's phase and record then have the same
//! result.

use std::time::Duration;

use job::phase::JobPhase;
use job::policy::{Deadline, Policy, SuccessRule};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use protocol::agent::RunState;
use protocol::ids::ReplicaId;
use protocol::run_policy::{CleanPods, OnStartTimeout};
use protocol::view::JobResult;

use crate::support::{FIRST, POLICY, SECOND, cases, id};
use crate::world::{Death, Found, World};
use crate::world_pods::Remains;

/// The next event. The number of a pod is taken modulo the number of pods.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Chance {
    /// All orders are carried out and observed.
    Progress,
    /// The pod carries out its oldest order.
    Obey(usize),
    /// The master observes the pod.
    Look(usize),
    Exit(usize, i32),
    /// The pod's node dies.
    Lose(usize),
    /// The cluster begins to evict the pod.
    Disrupt(usize),
    /// A leaving pod is removed.
    Go(usize, Remains),
    Wait(u64),
    Cancel,
    Die,
    DieAtWrite(Death),
}

/// A job, what its first master finds, and the events that follow.
#[derive(Debug, Clone)]
struct Story {
    policy: Policy,
    epoch: u32,
    found: Vec<(ReplicaId, Found)>,
    chances: Vec<Chance>,
}

impl Story {
    fn play(&self) -> World {
        let mut world = World::new(self.policy.clone(), self.epoch, &self.found);
        let count = self.found.len();
        for chance in &self.chances {
            match *chance {
                Chance::Progress => world.progress(),
                Chance::Obey(place) => world.carry_out(place % count),
                Chance::Look(place) => world.look(place % count),
                Chance::Exit(place, code) => world.exit(place % count, code),
                Chance::Lose(place) => world.pods[place % count].lose(),
                Chance::Disrupt(place) => world.disrupt(place % count),
                Chance::Go(place, remains) => world.pods[place % count].go(remains),
                Chance::Wait(millis) => world.wait(Duration::from_millis(millis)),
                Chance::Cancel => world.cancel(),
                Chance::Die => world.die(),
                Chance::DieAtWrite(death) => world.doom(death),
            }
        }
        world
    }

    /// The story without the unwanted chances.
    fn without(self, is_unwanted: impl Fn(&Chance) -> bool) -> Self {
        Self { chances: self.chances.into_iter().filter(|chance| !is_unwanted(chance)).collect(), ..self }
    }
}

/// A random event. A wait lasts at most `longest_wait` milliseconds.
fn any_chance(longest_wait: u64) -> impl Strategy<Value = Chance> {
    let place = any::<usize>;
    let death = prop_oneof![Just(Death::BeforeWrite), Just(Death::AfterWrite)];
    let remains = prop_oneof![Just(Remains::Nothing), Just(Remains::Listed)];
    prop_oneof![
        12 => Just(Chance::Progress),
        30 => place().prop_map(Chance::Obey),
        30 => place().prop_map(Chance::Look),
        5 => (place(), 0..3_i32).prop_map(|(place, code)| Chance::Exit(place, code)),
        2 => place().prop_map(Chance::Lose),
        2 => place().prop_map(Chance::Disrupt),
        4 => (place(), remains).prop_map(|(place, remains)| Chance::Go(place, remains)),
        6 => (0..=longest_wait).prop_map(Chance::Wait),
        // Cancels are rare, because little can happen in a story after them.
        1 => (0..4_u8).prop_map(|chance| if chance == 0 { Chance::Cancel } else { Chance::Progress }),
        2 => Just(Chance::Die),
        2 => death.prop_map(Chance::DieAtWrite),
    ]
}

/// What a master finds: no pods, a gang that was being configured, or a gang that was being launched.
fn any_found(members: usize) -> impl Strategy<Value = Vec<Found>> {
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

fn any_policy() -> impl Strategy<Value = Policy> {
    let on_start_timeout = prop_oneof![Just(OnStartTimeout::Fail), Just(OnStartTimeout::Requeue)];
    let deadline = prop_oneof![3 => Just(None), 1 => (1..2000_u64).prop_map(Some)];
    let clean_pods = prop_oneof![2 => Just(CleanPods::Running), 1 => Just(CleanPods::All), 1 => Just(CleanPods::None)];
    let backoff = prop_oneof![Just(0_u64), Just(5)];
    let no_retry = prop_oneof![3 => Just(None), 1 => Just(Some(2_u8))];
    let choices = (0..4_u32, on_start_timeout, deadline, clean_pods, backoff, no_retry);
    choices.prop_map(|(max_restarts, on_start_timeout, deadline, clean_pods, backoff, no_retry)| Policy {
        max_restarts,
        on_start_timeout,
        deadline: deadline.map(Duration::from_secs).map(|given| Deadline { at: given, given }),
        clean_pods,
        backoff: Duration::from_secs(backoff),
        no_retry_exit_codes: no_retry.into_iter().collect(),
        ..POLICY
    })
}

fn any_story(longest_wait: u64) -> impl Strategy<Value = Story> {
    let gangs = prop_oneof![
        Just((vec!["worker-0", "worker-1", "worker-2"], SuccessRule::AllThatTrain)),
        Just((vec!["worker-0", "evaluator-0"], SuccessRule::AllThatTrain)),
        Just((vec!["chief-0", "worker-0", "ps-0"], SuccessRule::Decider(id("chief-0")))),
        Just((vec!["worker-0", "ps-0"], SuccessRule::Decider(id("worker-0")))),
    ];
    (gangs, any_policy()).prop_flat_map(move |((names, success), policy)| {
        let members: Vec<ReplicaId> = names.into_iter().map(id).collect();
        let chances = vec(any_chance(longest_wait), 0..100);
        (any_found(members.len()), chances).prop_map(move |(found, chances)| {
            let epoch = if found[0].is_some() { SECOND.epoch } else { FIRST.epoch };
            let policy = Policy { success, ..policy.clone() };
            Story { policy, epoch, found: members.iter().copied().zip(found).collect(), chances }
        })
    })
}

fn check(story: &Story) -> Result<World, proptest::test_runner::TestCaseError> {
    let mut world = story.play();
    let has_finished = world.settle();
    prop_assert!(has_finished, "the job does not finish: {:?}\n{:?}\n{:?}", world.phase, world.done, world.pods);
    let JobPhase::Finished { result } = &world.phase else { panic!("not finished: {:?}", world.phase) };
    prop_assert_eq!(world.record.result.as_ref(), Some(result));
    Ok(world)
}

/// The master deletes a pod by force. When the next start begins, the master has not yet observed the end of that pod.
#[test]
fn a_pod_that_the_master_deletes_does_not_count_as_an_eviction_in_the_next_start() {
    let members = ["chief-0", "worker-0", "ps-0"].map(|name| (id(name), None));
    let policy = Policy { max_restarts: 1, success: SuccessRule::Decider(id("chief-0")), ..POLICY };
    let chances = vec![
        Chance::Progress,
        Chance::Lose(0),
        Chance::Obey(1),
        Chance::Obey(0),
        Chance::Wait(23_000),
        Chance::Go(2, Remains::Nothing),
        Chance::Look(1),
        Chance::Wait(5000),
        Chance::Lose(1),
        Chance::Look(0),
        Chance::Obey(1),
        Chance::Look(1),
        Chance::Progress,
    ];
    check(&Story { policy, epoch: FIRST.epoch, found: members.to_vec(), chances })
        .expect("the job does not finish, or its phase and record differ");
}

/// A master withdraws its order to start a replica, and dies. The replica's node dies before the next start.
#[test]
fn a_pod_that_ends_after_its_start_order_was_withdrawn_is_replaced() {
    use Chance::{Die, DieAtWrite, Disrupt, Go, Look, Lose, Obey, Progress};
    let three = ["worker-0", "worker-1", "worker-2"].map(|name| (id(name), None)).to_vec();
    let of_three = vec![
        Progress,
        DieAtWrite(Death::BeforeWrite),
        Progress,
        Disrupt(1),
        Look(1),
        Progress,
        Disrupt(1),
        Go(1, Remains::Nothing),
        Die,
        Look(0),
        Lose(0),
    ];
    let two = ["worker-0", "ps-0"].map(|name| (id(name), None)).to_vec();
    let of_two = vec![
        Progress,
        Progress,
        Lose(1),
        Look(1),
        Die,
        Progress,
        Progress,
        Progress,
        DieAtWrite(Death::BeforeWrite),
        Obey(0),
        Lose(1),
        Progress,
        Progress,
        Progress,
        Progress,
        Die,
        Look(0),
        Lose(0),
    ];
    let policy = |success| Policy { max_restarts: 3, backoff: Duration::ZERO, success, ..POLICY };
    let stories = [(three, of_three, SuccessRule::AllThatTrain), (two, of_two, SuccessRule::Decider(id("worker-0")))];
    for (found, chances, success) in stories {
        check(&Story { policy: policy(success), epoch: FIRST.epoch, found, chances })
            .expect("the job does not finish, or its phase and record differ");
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn every_story_ends_with_the_same_result_in_the_phase_and_the_record(story in any_story(300_000)) {
        check(&story)?;
    }

    #[test]
    fn without_long_delays_no_pod_is_deleted_by_force(story in any_story(150)) {
        let world = check(&story)?;
        prop_assert!(!world.used_force, "{:?}", world.done);
    }

    #[test]
    fn a_master_that_does_not_die_concludes_one_result(story in any_story(300_000)) {
        let story = story.without(|chance| matches!(chance, Chance::Die | Chance::DieAtWrite(_)));
        let world = check(&story)?;
        prop_assert_eq!(world.conclusions().len(), 1);
    }

    #[test]
    fn without_failures_the_job_succeeds_without_a_restart_even_if_masters_die(story in any_story(150)) {
        let story = story.without(|chance| match chance {
            Chance::Exit(_, code) => *code != 0,
            Chance::Lose(_) | Chance::Disrupt(_) | Chance::Cancel => true,
            Chance::Progress | Chance::Obey(_) | Chance::Look(_) | Chance::Go(..) | Chance::Wait(_) => false,
            Chance::Die | Chance::DieAtWrite(_) => false,
        });
        let story = Story { policy: Policy { deadline: None, ..story.policy }, ..story };
        let world = check(&story)?;
        prop_assert_eq!(world.record.result, Some(JobResult::Succeeded));
        prop_assert_eq!(world.record.restarts.total(), 0);
    }

    #[test]
    fn restarts_after_evictions_are_never_counted(story in any_story(150)) {
        let mut left = 4;
        let chances = story.chances.into_iter().filter(|chance| match chance {
            Chance::Exit(_, code) => *code == 0,
            Chance::Lose(_) | Chance::Cancel | Chance::Die | Chance::DieAtWrite(_) => false,
            Chance::Disrupt(_) => { left -= 1; left >= 0 }
            Chance::Progress | Chance::Obey(_) | Chance::Look(_) | Chance::Go(..) | Chance::Wait(_) => true,
        }).collect();
        let world = check(&Story { policy: Policy { deadline: None, ..story.policy }, chances, ..story })?;
        prop_assert_eq!(world.record.result, Some(JobResult::Succeeded));
        prop_assert_eq!(world.record.restarts.counted, 0);
    }
}
