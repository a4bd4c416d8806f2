//! Tests that each random story in the simulated world ends well: the job runs, and in the end its phase and record have
//! the same result.

use std::time::Duration;

use job::phase::JobPhase;
use job::policy::{Deadline, GangKind, Policy, Rules, SuccessRule};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use protocol::agent::RunState;
use protocol::elastic::Workers;
use protocol::ids::{ReplicaId, Role};
use protocol::lease::Lease;
use protocol::run_policy::{CleanPods, OnStartTimeout};
use protocol::view::JobResult;

use super::pods::{Fate, Pod, Remains};
use super::{Death, World};
use crate::support::{POLICY, cases, changed, id};

/// The next event. If the event happens to one pod, the number is the place of the pod. If the event cannot happen to
/// this pod, it happens to the next pod to which it can.
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
    /// The network of the pod's agent breaks.
    CutOff(usize),
    /// The network works again before the agent's lease has lapsed.
    Reconnect(usize),
    Wait(u64),
    /// A user changes the range of workers. The numbers determine its minimum and its maximum.
    Scale(u32, u32),
    Push,
    Suspend(bool),
    Cancel,
    Die,
    DieAtWrite(Death),
}

/// A job, what its first master finds, and the events that follow.
#[derive(Debug, Clone)]
struct Story {
    policy: Policy,
    replicas: Vec<ReplicaId>,
    found: Vec<RunState>,
    chances: Vec<Chance>,
}

impl Story {
    fn play(&self) -> World {
        let mut world = World::new(self.policy.clone(), &self.replicas, &self.found);
        for chance in &self.chances {
            world.meet(*chance);
        }
        world
    }

    /// The story without the unwanted chances.
    fn without(self, is_unwanted: impl Fn(&Chance) -> bool) -> Self {
        Self { chances: self.chances.into_iter().filter(|chance| !is_unwanted(chance)).collect(), ..self }
    }

    fn with(self, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = self.policy;
        change(&mut policy);
        Self { policy, ..self }
    }
}

impl World {
    fn meet(&mut self, chance: Chance) {
        match chance {
            Chance::Progress => self.progress(),
            Chance::Obey(place) => self.happen(place, Pod::is_busy, Self::carry_out),
            Chance::Look(place) => self.happen(place, |_| true, Self::look),
            Chance::Exit(place, code) => self.happen(place, Pod::runs, |world, place| world.exit(place, code)),
            Chance::Lose(place) => {
                self.happen(place, Pod::can_die, |world, place| world.pods[place].lose());
            }
            Chance::Disrupt(place) => {
                self.happen(place, Pod::can_leave, |world, place| world.pods[place].leave(Fate::Disrupted));
            }
            Chance::Go(place, remains) => {
                self.happen(place, Pod::is_leaving, |world, place| world.pods[place].go(remains));
            }
            Chance::CutOff(_) if self.policy.rules.lease.is_none() => {}
            Chance::CutOff(place) => {
                self.happen(place, Pod::can_be_cut_off, |world, place| world.pods[place].cut_off(world.now));
            }
            Chance::Reconnect(place) => {
                self.happen(place, Pod::can_reconnect, |world, place| world.pods[place].reconnect());
            }
            Chance::Wait(millis) => self.wait(Duration::from_millis(millis)),
            Chance::Scale(min, more) => {
                let places = self.pods.iter().filter(|pod| pod.id.role == Role::Worker).count() as u32;
                let min = 1 + min % places.min(4);
                self.scale(Workers { min, max: (min + more % places).min(places) });
            }
            Chance::Push => self.push(),
            Chance::Suspend(is_suspended) => self.suspend(is_suspended),
            Chance::Cancel => self.cancel(),
            Chance::Die => self.die(),
            Chance::DieAtWrite(death) => self.doom = Some(death),
        }
    }

    fn happen(&mut self, place: usize, can: impl Fn(&Pod) -> bool, happen: impl FnOnce(&mut Self, usize)) {
        if let Some(place) = self.find_pod(place, can) {
            happen(self, place);
        }
    }
}

/// A random event. A wait lasts at most `longest_wait` milliseconds.
fn any_chance(longest_wait: u64) -> impl Strategy<Value = Chance> {
    let place = || 0..16_usize;
    let death = select(vec![Death::BeforeWrite, Death::AfterWrite]);
    let remains = select(vec![Remains::Nothing, Remains::Listed]);
    prop_oneof![
        12 => Just(Chance::Progress),
        30 => place().prop_map(Chance::Obey),
        30 => place().prop_map(Chance::Look),
        5 => (place(), 0..4_i32).prop_map(|(place, code)| Chance::Exit(place, code)),
        2 => place().prop_map(Chance::Lose),
        2 => place().prop_map(Chance::Disrupt),
        6 => (place(), remains).prop_map(|(place, remains)| Chance::Go(place, remains)),
        3 => place().prop_map(Chance::CutOff),
        2 => place().prop_map(Chance::Reconnect),
        6 => (0..=longest_wait).prop_map(Chance::Wait),
        2 => (0..=longest_wait / 20).prop_map(Chance::Wait),
        2 => (0..4_u32, 0..16_u32).prop_map(|(min, more)| Chance::Scale(min, more)),
        1 => Just(Chance::Push),
        2 => any::<bool>().prop_map(Chance::Suspend),
        // Cancels are rare, because little can happen in a story after them.
        1 => (0..6_u8).prop_map(|chance| if chance == 0 { Chance::Cancel } else { Chance::Progress }),
        2 => Just(Chance::Die),
        2 => death.prop_map(Chance::DieAtWrite),
    ]
}

/// The states of the runs that a master finds: no pods, a gang that was being configured, or a gang that was being
/// launched.
fn any_found(members: usize) -> impl Strategy<Value = Vec<RunState>> {
    let of = |states: &[RunState]| vec(select(states.to_vec()), members);
    prop_oneof![
        2 => Just(vec![]),
        1 => of(&[RunState::Idle, RunState::Configured]),
        1 => of(&[RunState::Configured, RunState::Running]),
    ]
}

pub(super) fn any_policy() -> impl Strategy<Value = Policy> {
    let on_start_timeout = select(vec![OnStartTimeout::Fail, OnStartTimeout::Requeue]);
    let clean_pods = select(vec![CleanPods::Running, CleanPods::Running, CleanPods::All, CleanPods::None]);
    let deadline = prop_oneof![3 => Just(None), 1 => (1..2000_u64).prop_map(Some)];
    let backoff = select(vec![0_u64, 5]);
    let no_retry = prop_oneof![3 => Just(None), 1 => Just(Some(2_u8))];
    let times = (
        option::of(Just(Duration::from_secs(20))),
        select(vec![0, 30_u64]),
        option::of(Just(Lease::new(Duration::from_secs(5)))),
    );
    let choices = (0..4_u32, on_start_timeout, deadline, clean_pods, backoff, no_retry, times);
    choices.prop_map(
        |(max_restarts, on_start_timeout, deadline, clean_pods, backoff, no_retry, (halt, evaluator_grace, lease))| {
            changed(POLICY, |policy| {
                policy.rules.retries.max_restarts = max_restarts;
                policy.rules.retries.on_start_timeout = on_start_timeout;
                policy.wishes.deadline = deadline.map(Duration::from_secs).map(|given| Deadline { at: given, given });
                policy.rules.clean_pods = clean_pods;
                policy.rules.retries.backoff = Duration::from_secs(backoff);
                policy.rules.retries.no_retry_exit_codes = no_retry.into_iter().collect();
                policy.rules.retries.halt = halt;
                policy.rules.graces.evaluator = Duration::from_secs(evaluator_grace);
                policy.rules.lease = lease;
            })
        },
    )
}

/// A gang of these workers and others. An elastic job can grow to `places` workers.
fn gang(kind: GangKind, (min, max, places): (u32, u32, u32), others: &[&str]) -> (Policy, Vec<ReplicaId>) {
    let others = others.iter().map(|name| id(name));
    let replicas = others.chain((0..places).map(|index| ReplicaId { role: Role::Worker, index })).collect();
    (
        changed(POLICY, |policy| {
            policy.rules.kind = kind;
            policy.wishes.workers = Workers { min, max };
            policy.rules.grow_interval = Some(Duration::from_secs(60));
        }),
        replicas,
    )
}

fn any_gang() -> impl Strategy<Value = (Policy, Vec<ReplicaId>)> {
    use GangKind::{Elastic, Fixed};
    let decided_by = |name: &str, (policy, replicas)| {
        (changed(policy, |policy| policy.rules.success = SuccessRule::Decider(id(name))), replicas)
    };
    select(vec![
        gang(Fixed, (3, 3, 3), &[]),
        gang(Fixed, (1, 1, 1), &["evaluator-0"]),
        decided_by("chief-0", gang(Fixed, (1, 1, 1), &["chief-0", "ps-0"])),
        decided_by("worker-0", gang(Fixed, (1, 1, 1), &["ps-0"])),
        gang(Fixed, (5, 5, 5), &[]),
        gang(Elastic, (1, 3, 5), &[]),
        gang(Elastic, (2, 4, 6), &["evaluator-0"]),
        gang(Elastic, (2, 12, 16), &[]),
    ])
}

fn any_story(longest_wait: u64) -> impl Strategy<Value = Story> {
    (any_gang(), any_policy()).prop_flat_map(move |((gang, replicas), policy)| {
        let (Rules { kind, success, grow_interval, .. }, workers) = (gang.rules, gang.wishes.workers);
        let policy = changed(policy, |policy| {
            policy.rules.kind = kind;
            policy.wishes.workers = workers;
            policy.rules.success = success;
            policy.rules.grow_interval = grow_interval;
        });
        let chances = vec(any_chance(longest_wait), 0..150);
        (any_found(replicas.len()), chances).prop_map(move |(found, chances)| Story {
            policy: policy.clone(),
            replicas: replicas.clone(),
            found,
            chances,
        })
    })
}

/// A story without failures of the job's scripts or its pods.
fn any_smooth_story() -> impl Strategy<Value = Story> {
    let is_trouble = |chance: &Chance| match chance {
        Chance::Exit(_, code) => *code != 0,
        Chance::Lose(_) | Chance::Disrupt(_) | Chance::Cancel | Chance::CutOff(_) => true,
        Chance::Progress | Chance::Obey(_) | Chance::Look(_) | Chance::Go(..) | Chance::Wait(_) => false,
        Chance::Reconnect(_) | Chance::Scale(..) | Chance::Push | Chance::Suspend(_) => false,
        Chance::Die | Chance::DieAtWrite(_) => false,
    };
    any_story(150).prop_map(move |story| story.without(is_trouble).with(|policy| policy.wishes.deadline = None))
}

fn finish(mut world: World) -> Result<World, TestCaseError> {
    let has_finished = world.finish();
    prop_assert!(has_finished, "the job does not finish: {:?}\n{:?}", world.phase, world.pods);
    let JobPhase::Finished { result } = &world.phase else { panic!("not finished: {:?}", world.phase) };
    prop_assert_eq!(world.record.result.as_ref(), Some(result));
    Ok(world)
}

/// Plays the story. Checks that the job then runs with the maximum of workers, and that it ends.
fn check_runs(story: &Story) -> Result<(), TestCaseError> {
    let mut world = story.play();
    let runs = world.run_on();
    prop_assert!(runs, "the job does not run in the end: {:?}\n{:?}", world.phase, world.pods);
    finish(world)?;
    Ok(())
}

/// The master deletes a pod by force. When the next start begins, the master has not yet observed the end of that pod.
#[test]
fn a_pod_that_the_master_deletes_does_not_count_as_an_eviction_in_the_next_start() {
    use Chance::{Go, Look, Lose, Obey, Progress, Wait};
    let (policy, replicas) = gang(GangKind::Fixed, (1, 1, 1), &["chief-0", "ps-0"]);
    let policy = changed(policy, |policy| {
        policy.rules.retries.max_restarts = 1;
        policy.rules.success = SuccessRule::Decider(id("chief-0"));
    });
    let begin = [Progress, Lose(0), Obey(2), Obey(0), Wait(23_000), Go(1, Remains::Nothing), Look(2), Wait(5000)];
    let end = [Lose(2), Look(0), Obey(2), Look(2), Progress];
    let chances = [&begin[..], &end[..]].concat();
    finish(Story { policy, replicas, found: vec![], chances }.play())
        .expect("the job does not finish, or its phase and record differ");
}

/// A master withdraws its order to start a replica, and dies. The replica's node dies before the next start.
#[test]
fn a_pod_that_ends_after_its_start_order_was_withdrawn_is_replaced() {
    use Chance::{Die, DieAtWrite, Disrupt, Go, Look, Lose, Obey, Progress};
    let write = DieAtWrite(Death::BeforeWrite);
    let gone = Go(1, Remains::Nothing);
    let of_three =
        vec![Progress, write, Progress, Disrupt(1), Look(1), Progress, Disrupt(1), gone, Die, Look(0), Lose(0)];
    let begin = [Progress, Progress, Lose(0), Look(0), Die, Progress, Progress, Progress, write, Obey(1), Lose(0)];
    let end = [Progress, Progress, Progress, Progress, Die, Look(1), Lose(1)];
    let by_worker = SuccessRule::Decider(id("worker-0"));
    for (gang, success, chances) in [
        (gang(GangKind::Fixed, (3, 3, 3), &[]), SuccessRule::AllThatTrain, of_three),
        (gang(GangKind::Fixed, (1, 1, 1), &["ps-0"]), by_worker, [&begin[..], &end[..]].concat()),
    ] {
        let policy = changed(gang.0, |policy| {
            policy.rules.retries.max_restarts = 3;
            policy.rules.retries.backoff = Duration::ZERO;
            policy.rules.success = success;
        });
        finish(Story { policy, replicas: gang.1, found: vec![], chances }.play())
            .expect("the job does not finish, or its phase and record differ");
    }
}

#[test]
fn a_job_that_was_suspended_with_an_unreachable_agent_runs_after_a_takeover_and_a_resume() {
    use Chance::{CutOff, Die, Obey, Progress, Scale, Suspend, Wait};
    for (kind, workers) in [(GangKind::Fixed, (1, 1, 1)), (GangKind::Elastic, (2, 12, 16))] {
        let (policy, replicas) = gang(kind, workers, &[]);
        let policy = changed(policy, |policy| policy.rules.lease = Some(Lease::new(Duration::from_secs(5))));
        for steps in 1..6 {
            let begin = [&[Scale(0, 0), Progress, Obey(0)][..], &vec![Progress; steps]].concat();
            let end = [CutOff(0), Suspend(true), Wait(5000), Die];
            let chances = [&begin[..], &end[..]].concat();
            let story = Story { policy: policy.clone(), replicas: replicas.clone(), found: vec![], chances };
            check_runs(&story).expect("the job does not run");
        }
    }
}

#[test]
fn workers_that_arrive_at_the_same_time_cause_only_one_start() {
    for (kind, workers) in [(GangKind::Fixed, (12, 12, 12)), (GangKind::Elastic, (2, 12, 16))] {
        let (policy, replicas) = gang(kind, workers, &[]);
        let mut world = World::new(policy, &replicas, &[]);
        (0..8).for_each(|_| world.progress());
        assert!(matches!(world.phase, JobPhase::Running { .. }), "{:?}", world.phase);
        assert_eq!((&world.roster[..], world.starts), (&replicas[..12], 1));
        world.scale(Workers { min: 2, max: 16 });
        (0..16).for_each(|_| world.progress());
        assert_eq!(world.roster, replicas);
        assert_eq!(world.starts, if kind == GangKind::Fixed { 1 } else { 2 });
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_story_ends_with_the_same_result_in_the_phase_and_the_record(story in any_story(300_000)) {
        finish(story.play())?;
    }

    #[test]
    fn without_long_delays_no_pod_is_deleted_by_force(story in any_story(150)) {
        let story = story.without(|chance| matches!(chance, Chance::CutOff(_)));
        let world = finish(story.play())?;
        prop_assert!(!world.used_force, "{:?}", world.done);
    }

    #[test]
    fn a_master_that_does_not_die_concludes_one_result(story in any_story(300_000)) {
        let story = story.without(|chance| matches!(chance, Chance::Die | Chance::DieAtWrite(_)));
        prop_assert_eq!(finish(story.play())?.conclusions(), 1);
    }

    #[test]
    fn without_failures_the_job_succeeds_without_a_restart_even_if_masters_die(story in any_smooth_story()) {
        let world = finish(story.play())?;
        prop_assert_eq!(world.record.result, Some(JobResult::Succeeded));
        prop_assert_eq!(world.record.restarts.total(), 0);
    }

    #[test]
    fn restarts_after_evictions_are_never_counted(story in any_smooth_story(), evicted in vec((0..150_usize, 0..16_usize), 0..4)) {
        let mut story = story.without(|chance| matches!(chance, Chance::Die | Chance::DieAtWrite(_)));
        for (at, place) in evicted {
            story.chances.insert(at.min(story.chances.len()), Chance::Disrupt(place));
        }
        let world = finish(story.play())?;
        prop_assert_eq!(world.record.result, Some(JobResult::Succeeded));
        prop_assert_eq!(world.record.restarts.counted, 0);
    }

    /// With leases, this includes that no gang starts while an unreachable run may be alive.
    #[test]
    fn a_job_with_enough_restarts_starts_only_after_all_earlier_runs_are_dead_and_runs_in_the_end(story in any_story(60_000)) {
        let ends = |chance: &Chance| matches!(chance, Chance::Cancel | Chance::Exit(_, 0));
        check_runs(&story.without(ends).with(|policy| {
            (policy.rules.retries.max_restarts, policy.wishes.deadline) = (u32::MAX, None);
            policy.rules.retries.no_retry_exit_codes.clear();
            policy.rules.start_timeout = Duration::from_secs(1_000_000);
        }))?;
    }
}
