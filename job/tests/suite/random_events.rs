//! Tests of the job's state machine with random observations in random order.

use std::net::SocketAddr;
use std::time::Duration;

use job::diagnosis::{Evidence, diagnose};
use job::gang::{Gang, Member};
use job::observation::{Addresses, AgentState, DeletedBy, LostRun, Observation, Others, PodState, Presence};
use job::phase::{Action, JobEvent, JobPhase, Known, PodSelection, Seen, StartStage, begin, step};
use job::policy::{Deadline, Policy, SuccessRule};
use job::turns::Turn;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use protocol::agent::{ExitReport, LastWords, RunState, RunStatus};
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::run_policy::{CleanPods, OnStartTimeout};

use crate::support::{FIRST, POLICY, SECOND, cases, exit, id, stopped};

/// One call of `step`.
#[derive(Debug)]
struct Move {
    before: JobPhase,
    after: JobPhase,
    actions: Vec<Action>,
    gang: Gang,
    now: Duration,
    counted: u32,
}

/// The input of a driver at one moment.
#[derive(Debug, Clone)]
struct Moment {
    observations: Vec<Observation>,
    event: JobEvent,
    turn: Turn,
    passed: Duration,
}

/// A job, and what its driver observes.
#[derive(Debug, Clone)]
struct Script {
    members: Vec<ReplicaId>,
    policy: Policy,
    newest_failed: Option<Generation>,
    moments: Vec<Moment>,
}

impl Script {
    /// Passes each moment to `step` as a driver does: repeatedly, until the phase no longer changes.
    fn play(&self) -> Vec<Move> {
        let leftovers = if self.newest_failed.is_some() { Leftovers::Possible } else { Leftovers::None };
        let known = Known { first: SECOND, newest_failed: self.newest_failed, halted: None, result: None };
        let (mut phase, actions) = begin(known, &self.policy, Duration::ZERO);
        let (mut now, mut restarts) = (Duration::ZERO, Restarts::default());
        let (gang, counted) = (Gang::new(vec![]), 0);
        let mut moves = vec![Move { before: phase.clone(), after: phase.clone(), actions, gang, now, counted }];
        for moment in &self.moments {
            now += moment.passed;
            let (mut event, mut observations) = (moment.event, moment.observations.clone());
            for moved in 0.. {
                assert!(moved < 1000, "the phase still changes after 1000 steps: {:?}", &moves[moves.len() - 4..]);
                let gang = self.gang(&observations, phase.horizon());
                let before = phase.clone();
                let seen = Seen {
                    gang: &gang,
                    policy: &self.policy,
                    turn: &moment.turn,
                    restarts: &restarts,
                    epoch: SECOND.epoch,
                    now,
                };
                let (after, actions) = step(phase, event, seen);
                self.note(&actions, &gang, &mut restarts);
                let has_moved = before != after;
                if has_moved && matches!(after, JobPhase::Restarting { .. }) {
                    observations.iter_mut().for_each(let_go);
                }
                phase = after.clone();
                moves.push(Move { before, after, actions, gang, now, counted: restarts.counted });
                event = JobEvent::Observed;
                if !has_moved {
                    break;
                }
            }
        }
        moves
    }

    fn note(&self, actions: &[Action], gang: &Gang, restarts: &mut Restarts) {
        for action in actions {
            if let Action::RecordRestart(failure) = action {
                let budget = self.policy.budget_of(failure, gang.helper_of(failure));
                let evidence = Evidence {
                    generation: None,
                    now: UnixMillis(0),
                    budget,
                    last_lines: vec![],
                    silence: std::collections::BTreeMap::new(),
                };
                restarts.note(diagnose(failure.clone(), gang, evidence));
                restarts.count_restart(UnixMillis(0));
            }
        }
    }

    fn gang(&self, observations: &[Observation], horizon: Option<Generation>) -> Gang {
        let member = |(id, seen): (&ReplicaId, &Observation)| Member::of(*id, seen, horizon);
        Gang::new(self.members.iter().zip(observations).map(member).collect())
    }
}

/// Forgets a deleted pod, as a driver does.
fn let_go(seen: &mut Observation) {
    if seen.pod.is_none() {
        *seen = Observation::NEW;
    }
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let addresses = Addresses { agent: address, tensorflow: address };
    let reason = || "it is gone".to_owned();
    let pod = prop_oneof![
        2 => Just(None),
        1 => Just(Some(PodState::Pending { has_node: false, wait: None })),
        16 => Just(Some(PodState::Running(addresses))),
        1 => (any_last_words(), any_others()).prop_map(move |(exit, others)| {
            Some(PodState::Terminated { exit, reason: reason(), others })
        }),
        1 => Just(Some(PodState::Leaving { reason: reason() })),
        1 => Just(Some(PodState::disrupted(reason()))),
        1 => Just(Some(PodState::Unusable { reason: reason() })),
    ];
    let deleted_by = prop_oneof![5 => Just(DeletedBy::Others), 1 => Just(DeletedBy::ThisMaster)];
    (pod, any_agent(), deleted_by).prop_map(|(pod, agent, deleted_by)| Observation {
        pod,
        agent,
        deleted_by,
        ..Observation::NEW
    })
}

fn any_others() -> impl Strategy<Value = Others> {
    prop_oneof![Just(Others::Ended), Just(Others::Running)]
}

fn any_last_words() -> impl Strategy<Value = Option<LastWords>> {
    let generation = prop_oneof![Just(None), Just(Some(FIRST)), Just(Some(SECOND))];
    let words = generation.prop_map(|generation| LastWords { generation, exit: exit(1, 3), membership: None });
    prop_oneof![Just(None), words.prop_map(Some)]
}

fn any_agent() -> impl Strategy<Value = AgentState> {
    let generation = || prop_oneof![1 => Just(FIRST), 3 => Just(SECOND), 2 => (2..5_u32).prop_map(start)];
    prop_oneof![
        1 => Just(AgentState::Silent),
        1 => Just(AgentState::SeedOnly),
        3 => generation().prop_map(AgentState::Configured),
        3 => generation().prop_map(AgentState::Started),
        1 => any_loss().prop_map(AgentState::Failed),
        12 => (generation(), 0..5_usize, 0..2_i32, 1..9_u64, any::<bool>()).prop_map(|(generation, state, code, at, own)| {
            let state = [RunState::Idle, RunState::Configured, RunState::Running, RunState::Stopping, RunState::Exited][state];
            let report = (state == RunState::Exited).then(|| if own { exit(code, at) } else { stopped(at) });
            AgentState::Status(Box::new(status(state, generation, report)))
        }),
    ]
}

fn start(sequence: u32) -> Generation {
    Generation { sequence, ..SECOND }
}

fn any_loss() -> impl Strategy<Value = LostRun> {
    prop_oneof![
        Just(LostRun::broken("it is broken")),
        Just(LostRun::hopeless("it is hopeless")),
        Just(LostRun::disrupted("it was taken away")),
    ]
}

fn status(state: RunState, generation: Generation, exit: Option<ExitReport>) -> RunStatus {
    let generation = (state != RunState::Idle).then_some(generation);
    RunStatus { state, generation, exit, ..RunStatus::idle("boot") }
}

/// A random moment. Sometimes all members have the same observation, so that the later phases are reached.
fn any_moment(members: usize) -> impl Strategy<Value = Moment> {
    let agree = any_observation().prop_map(move |observation| vec![observation; members]);
    let observations = prop_oneof![vec(any_observation(), members), agree];
    let event = prop_oneof![15 => Just(JobEvent::Observed), 1 => Just(JobEvent::CancelWished)];
    let passed = prop_oneof![5 => 0..3_u64, 1 => 0..400_u64].prop_map(Duration::from_secs);
    let queue = Turn::Queue("first".parse().expect("a valid name"));
    let turn = prop_oneof![6 => Just(Turn::Go), 1 => Just(Turn::Minimum), 1 => Just(Turn::Hold), 2 => Just(queue)];
    (observations, event, turn, passed).prop_map(|(observations, event, turn, passed)| Moment {
        observations,
        event,
        turn,
        passed,
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let on_start_timeout = prop_oneof![Just(OnStartTimeout::Fail), Just(OnStartTimeout::Requeue)];
    let clean_pods = prop_oneof![Just(CleanPods::Running), Just(CleanPods::All), Just(CleanPods::None)];
    let rule = prop_oneof![Just(SuccessRule::AllThatTrain), Just(SuccessRule::Decider(id("worker-0")))];
    let times = (option::of(1..900_u64), prop_oneof![Just(0), 1..9_u64], option::of(1..400_u64));
    (0..4_u32, on_start_timeout, clean_pods, rule, times).prop_map(
        |(max_restarts, on_start_timeout, clean_pods, success, (deadline, backoff, halt))| Policy {
            max_restarts,
            on_start_timeout,
            clean_pods,
            success,
            deadline: deadline.map(Duration::from_secs).map(|given| Deadline { at: given, given }),
            backoff: Duration::from_secs(backoff),
            halt: halt.map(Duration::from_secs),
            ..POLICY
        },
    )
}

fn any_script() -> impl Strategy<Value = Script> {
    let members = prop_oneof![
        Just(vec!["worker-0"]),
        Just(vec!["worker-0", "worker-1", "worker-2"]),
        Just(vec!["chief-0", "worker-0", "ps-0", "evaluator-0"]),
    ];
    let newest_failed = prop_oneof![Just(None), Just(Some(FIRST))];
    (members, any_policy(), newest_failed).prop_flat_map(|(members, policy, newest_failed)| {
        let members: Vec<ReplicaId> = members.into_iter().map(id).collect();
        vec(any_moment(members.len()), 1..25).prop_map(move |moments| Script {
            members: members.clone(),
            policy: policy.clone(),
            newest_failed,
            moments,
        })
    })
}

/// Whether a job may change from the phase `before` to the phase `after`. A phase may also stay the same.
fn is_allowed(before: &JobPhase, after: &JobPhase) -> bool {
    use JobPhase::{Finished, Halted, Pending, Queued, Releasing, Restarting, Running, Starting, Stopping, Suspended};
    use StartStage::{Configuring, Launching};
    match (before, after) {
        (
            Pending { .. },
            Pending { .. } | Queued { .. } | Starting { .. } | Running { .. } | Stopping { .. } | Restarting { .. },
        )
        | (Queued { .. }, Queued { .. } | Pending { .. } | Stopping { .. })
        | (Starting { stage: Configuring, .. }, Starting { .. } | Stopping { .. })
        | (Starting { stage: Launching, .. }, Starting { stage: Launching, .. } | Running { .. } | Stopping { .. })
        | (Running { .. }, Running { .. } | Stopping { .. })
        | (Stopping { .. }, Stopping { .. } | Halted { .. } | Restarting { .. } | Releasing { .. } | Finished { .. })
        | (Halted { .. }, Halted { .. } | Stopping { .. } | Restarting { .. } | Releasing { .. })
        | (Restarting { .. }, Restarting { .. } | Pending { .. } | Stopping { .. })
        | (Releasing { .. }, Releasing { .. } | Finished { .. })
        | (Finished { .. }, Finished { .. }) => true,
        (
            Pending { .. }
            | Queued { .. }
            | Starting { .. }
            | Running { .. }
            | Stopping { .. }
            | Restarting { .. }
            | Halted { .. }
            | Suspended { .. }
            | Releasing { .. }
            | Finished { .. },
            _,
        ) => false,
    }
}

/// The expected actions for pods of a finished job.
fn late(clean_pods: CleanPods, gang: &Gang) -> Vec<Action> {
    let has = |presence: Presence| gang.any(|member| member.pod == presence);
    match clean_pods {
        CleanPods::All if gang.any(|member| member.pod != Presence::Absent) => {
            vec![Action::DeletePods(PodSelection::All)]
        }
        CleanPods::Running if has(Presence::Live) || has(Presence::Occupied) => {
            vec![Action::DeletePods(PodSelection::Live)]
        }
        CleanPods::None if gang.any(Member::is_idle) => vec![Action::DeletePods(PodSelection::Idle)],
        CleanPods::All | CleanPods::Running | CleanPods::None => vec![],
    }
}

/// The generations that `choose` finds in the actions, in order.
fn starts(moves: &[Move], choose: impl Fn(&Action) -> Option<Generation>) -> Vec<Generation> {
    moves.iter().flat_map(|moved| &moved.actions).filter_map(choose).collect()
}

fn configured(action: &Action) -> Option<Generation> {
    if let Action::Configure(generation) = action { Some(*generation) } else { None }
}

fn launched(action: &Action) -> Option<Generation> {
    if let Action::Launch(generation) = action { Some(*generation) } else { None }
}

/// Whether the action gathers or starts a gang.
fn begins(action: &Action) -> bool {
    let creates = matches!(action, Action::Keep(upkeep) if !upkeep.create.is_empty());
    creates || configured(action).or(launched(action)).is_some()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_phase_changes_only_to_phases_that_may_follow_it(script in any_script()) {
        for moved in script.play() {
            prop_assert!(is_allowed(&moved.before, &moved.after), "{moved:?}");
        }
    }

    #[test]
    fn a_finished_job_stays_finished_and_only_deletes_the_pods_that_its_policy_names(script in any_script()) {
        for moved in script.play() {
            if matches!(moved.before, JobPhase::Finished { .. }) {
                let expected = late(script.policy.clean_pods, &moved.gang);
                prop_assert_eq!((&moved.after, &moved.actions), (&moved.before, &expected));
            }
        }
    }

    #[test]
    fn a_result_is_concluded_once_and_never_changes(script in any_script()) {
        let moves = script.play();
        let concluded: Vec<_> = moves.iter().flat_map(|moved| &moved.actions).filter_map(|action| match action {
            Action::Conclude(result) => Some(result.clone()),
            Action::Keep(_) | Action::Enrol { .. } | Action::Configure(_) | Action::Launch(_) | Action::StopRuns { .. }
            | Action::RecordRestart(_) | Action::RecordHalt | Action::RecordSuspension | Action::ReleasePods | Action::DeletePods(_) => None,
        }).collect();
        let reached: Vec<_> = moves.iter().filter_map(|moved| moved.after.result()).collect();
        prop_assert_eq!(concluded.len(), usize::from(!reached.is_empty()));
        prop_assert!(
            reached.iter().all(|result| **result == concluded[0]),
            "the result {reached:?} differs from the conclusion {concluded:?}"
        );
    }

    #[test]
    fn a_gang_is_launched_only_when_all_members_were_configured_for_that_start(script in any_script()) {
        for moved in script.play() {
            for generation in moved.actions.iter().filter_map(launched) {
                // A member with a newer generation is harmless, because its agent refuses this launch.
                let ready = |member: &Member| member.phase.generation() >= Some(generation);
                prop_assert!(moved.gang.members().all(ready), "start {generation} is launched for {:?}", moved.gang);
            }
        }
    }

    #[test]
    fn after_a_stop_nothing_is_created_or_started_until_the_job_is_pending_again(script in any_script()) {
        let ends = |phase: &JobPhase| !matches!(
            phase, JobPhase::Pending { .. } | JobPhase::Starting { .. } | JobPhase::Running { .. }
        );
        for moved in script.play() {
            prop_assert!(!(ends(&moved.after) && moved.actions.iter().any(begins)), "{moved:?}");
        }
    }

    #[test]
    fn the_numbers_of_starts_only_increase(script in any_script()) {
        let moves = script.play();
        let configured = starts(&moves, configured);
        prop_assert!(configured.is_sorted_by(|one, other| one < other), "{configured:?}");
        prop_assert!(configured.iter().all(|generation| generation.epoch == SECOND.epoch), "{configured:?}");
        let launched = starts(&moves, launched);
        prop_assert!(launched.is_sorted_by(|one, other| one < other), "{launched:?}");
        let phases: Vec<Generation> = moves.iter().filter_map(|moved| moved.after.generation()).collect();
        prop_assert!(phases.is_sorted(), "{phases:?}");
    }

    #[test]
    fn counted_restarts_never_exceed_the_maximum(script in any_script()) {
        for moved in script.play() {
            prop_assert!(moved.counted <= script.policy.max_restarts, "{moved:?}");
        }
    }

    #[test]
    fn a_restarting_job_is_pending_only_after_its_pause_and_after_unfit_pods_are_deleted(script in any_script()) {
        for moved in script.play() {
            if let (JobPhase::Restarting { without, until, .. }, JobPhase::Pending { .. }) = (&moved.before, &moved.after) {
                let is_gone = |member: &Member| match without {
                    PodSelection::All => member.pod == Presence::Absent,
                    PodSelection::Unfit | PodSelection::Unended | PodSelection::Idle | PodSelection::Live => member.is_fit(),
                };
                prop_assert!(moved.now >= *until && moved.gang.members().all(is_gone), "{moved:?}");
            }
        }
    }

    #[test]
    fn a_restart_or_a_result_is_recorded_only_when_all_runs_are_dead(script in any_script()) {
        for moved in script.play() {
            if moved.actions.iter().any(|action| matches!(action, Action::RecordRestart(_) | Action::Conclude(_))) {
                let may_run = |member: &Member| member.phase.was_configured() && !member.phase.is_dead();
                prop_assert!(!moved.gang.any(may_run), "{moved:?}");
            }
        }
    }
}
