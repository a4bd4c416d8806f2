//! Whatever is seen in whatever order, the state machine keeps its promises.

use std::net::SocketAddr;
use std::time::Duration;

use master::job::gang::{Gang, Member};
use master::job::phase::{Action, JobEvent, JobPhase, Seen, begin, step};
use master::job::policy::{Policy, SuccessRule};
use master::job::replica::{Addresses, AgentState, Observation, PodState, ReplicaPhase};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use protocol::agent::{LastWords, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId};

use crate::support::{FIRST, POLICY, SECOND, cases, exit, id, stopped};

/// One call of `step`.
#[derive(Debug)]
struct Move {
    before: JobPhase,
    after: JobPhase,
    actions: Vec<Action>,
    gang: Gang,
}

/// What a driver is fed at one moment.
#[derive(Debug, Clone)]
struct Moment {
    observations: Vec<Observation>,
    event: JobEvent,
    passed: Duration,
}

#[derive(Debug, Clone)]
struct Script {
    members: Vec<ReplicaId>,
    success: SuccessRule,
    moments: Vec<Moment>,
}

impl Script {
    /// Feeds each moment as a driver does: again until nothing moves.
    fn play(&self) -> Vec<Move> {
        let policy = Policy { success: self.success, ..POLICY };
        let (mut phase, actions) = begin(SECOND, None, Duration::ZERO);
        let none = Gang::new(vec![]);
        let mut moves = vec![Move { before: phase.clone(), after: phase.clone(), actions, gang: none }];
        let mut now = Duration::ZERO;
        for moment in &self.moments {
            now += moment.passed;
            let mut event = moment.event;
            loop {
                let gang = self.gang(&moment.observations, phase.generation());
                let before = phase.clone();
                let (after, actions) = step(phase, event, Seen { gang: &gang, policy: &policy, now });
                let has_moved = before != after;
                phase = after.clone();
                moves.push(Move { before, after, actions, gang });
                event = JobEvent::Observed;
                assert!(moves.len() < 1000, "it moves for ever");
                if !has_moved {
                    break;
                }
            }
        }
        moves
    }

    fn gang(&self, observations: &[Observation], current: Option<Generation>) -> Gang {
        let member = |(id, seen): (&ReplicaId, &Observation)| Member {
            id: *id,
            phase: ReplicaPhase::of(seen, current),
            has_live_pod: seen.is_live(),
        };
        Gang::new(self.members.iter().zip(observations).map(member).collect())
    }
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let addresses = Addresses { agent: address, tensorflow: address };
    let pod = prop_oneof![
        1 => Just(None),
        1 => Just(Some(PodState::Pending { reason: None })),
        12 => Just(Some(PodState::Running(addresses))),
        1 => any_last_words().prop_map(|told| {
            Some(PodState::Terminated { exit: told, reason: "its node died".to_owned() })
        }),
    ];
    (pod, any_agent()).prop_map(|(pod, agent)| Observation { pod, agent })
}

fn any_last_words() -> impl Strategy<Value = Option<LastWords>> {
    let generation = prop_oneof![Just(None), Just(Some(FIRST)), Just(Some(SECOND))];
    let words = generation.prop_map(|generation| LastWords { generation, exit: exit(1, 3) });
    prop_oneof![Just(None), words.prop_map(Some)]
}

fn any_agent() -> impl Strategy<Value = AgentState> {
    let generation = || prop_oneof![1 => Just(FIRST), 3 => Just(SECOND)];
    prop_oneof![
        1 => Just(AgentState::Silent),
        1 => Just(AgentState::SeedOnly),
        3 => generation().prop_map(AgentState::Configured),
        3 => generation().prop_map(AgentState::Started),
        1 => Just(AgentState::Refused("it is broken".to_owned())),
        12 => (generation(), 0..5_usize, 0..2_i32, 1..9_u64, any::<bool>()).prop_map(|(generation, state, code, at, own)| {
            let state = [RunState::Idle, RunState::Configured, RunState::Running, RunState::Stopping, RunState::Exited][state];
            let report = (state == RunState::Exited).then(|| if own { exit(code, at) } else { stopped(at) });
            AgentState::Status(Box::new(status(state, generation, report)))
        }),
    ]
}

fn status(state: RunState, generation: Generation, exit: Option<protocol::agent::ExitReport>) -> RunStatus {
    let generation = (state != RunState::Idle).then_some(generation);
    RunStatus { seq: 1, boot_id: "boot".to_owned(), state, generation, pid: None, started_at: None, exit }
}

/// Moments in which everything is random, and some in which all members agree, so that the later phases are reached.
fn any_moment(members: usize) -> impl Strategy<Value = Moment> {
    let agree = any_observation().prop_map(move |observation| vec![observation; members]);
    let observations = prop_oneof![vec(any_observation(), members), agree];
    let event = prop_oneof![15 => Just(JobEvent::Observed), 1 => Just(JobEvent::CancelWished)];
    let passed = prop_oneof![5 => 0..3_u64, 1 => 0..400_u64].prop_map(Duration::from_secs);
    (observations, event, passed).prop_map(|(observations, event, passed)| Moment { observations, event, passed })
}

fn any_script() -> impl Strategy<Value = Script> {
    let members = prop_oneof![
        Just(vec!["worker-0"]),
        Just(vec!["worker-0", "worker-1", "worker-2"]),
        Just(vec!["chief-0", "worker-0", "ps-0", "evaluator-0"]),
    ];
    let rule = prop_oneof![Just(SuccessRule::AllThatTrain), Just(SuccessRule::Decider(id("worker-0")))];
    (members, rule).prop_flat_map(|(members, success)| {
        let members: Vec<ReplicaId> = members.into_iter().map(id).collect();
        vec(any_moment(members.len()), 1..25).prop_map(move |moments| Script {
            members: members.clone(),
            success,
            moments,
        })
    })
}

fn result_of(phase: &JobPhase) -> Option<&protocol::view::JobResult> {
    match phase {
        JobPhase::Releasing { result, .. } | JobPhase::Finished { result } => Some(result),
        JobPhase::Pending { .. } | JobPhase::Starting { .. } | JobPhase::Running { .. } | JobPhase::Stopping { .. } => {
            None
        }
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn nothing_changes_after_the_end_but_that_late_pods_are_deleted(script in any_script()) {
        for moved in script.play() {
            if matches!(moved.before, JobPhase::Finished { .. }) {
                let late = moved.gang.any(|member| member.has_live_pod);
                let expected = if late { vec![Action::DeletePods(Which::Live)] } else { vec![] };
                prop_assert_eq!((&moved.after, &moved.actions), (&moved.before, &expected));
            }
        }
    }

    #[test]
    fn a_result_is_concluded_once_and_never_changes(script in any_script()) {
        let moves = script.play();
        let concluded: Vec<_> = moves.iter().flat_map(|moved| &moved.actions).filter_map(|action| match action {
            Action::Conclude(result) => Some(result.clone()),
            Action::CreatePods | Action::Configure(_) | Action::Launch(_) | Action::Follow(_)
            | Action::StopRuns { .. } | Action::ReleasePods | Action::DeletePods => None,
        }).collect();
        let reached: Vec<_> = moves.iter().filter_map(|moved| result_of(&moved.after)).collect();
        prop_assert_eq!(concluded.len(), usize::from(!reached.is_empty()));
        prop_assert!(reached.iter().all(|result| **result == concluded[0]), "{reached:?} after {concluded:?}");
    }

    #[test]
    fn a_gang_is_launched_only_when_each_was_configured_for_that_start(script in any_script()) {
        for moved in script.play() {
            for action in &moved.actions {
                if let Action::Launch(generation) = action {
                    // An agent that has seen a newer generation refuses this one; it never goes back.
                    let ready = |member: &Member| member.phase.generation() >= Some(*generation);
                    prop_assert!(moved.gang.members().iter().all(ready), "{action:?} for {:?}", moved.gang);
                }
            }
        }
    }

    #[test]
    fn nothing_is_configured_or_launched_after_the_first_stop(script in any_script()) {
        let moves = script.play();
        let actions = moves.iter().flat_map(|moved| &moved.actions);
        let after_stop = actions.skip_while(|action| !matches!(action, Action::StopRuns { .. }));
        for action in after_stop {
            prop_assert!(!matches!(action, Action::Configure(_) | Action::Launch(_)), "{action:?}");
        }
    }

    #[test]
    fn the_generation_never_decreases(script in any_script()) {
        let seen: Vec<Generation> = script.play().iter().filter_map(|moved| moved.after.generation()).collect();
        prop_assert!(seen.is_sorted(), "{seen:?}");
    }

    #[test]
    fn what_has_been_decided_is_carried_out_in_order(script in any_script()) {
        let place = |phase: &JobPhase| match phase {
            JobPhase::Pending { .. } => 0,
            JobPhase::Starting { .. } => 1,
            JobPhase::Running { .. } => 2,
            JobPhase::Stopping { .. } => 3,
            JobPhase::Releasing { .. } => 4,
            JobPhase::Finished { .. } => 5,
        };
        for moved in script.play() {
            prop_assert!(place(&moved.before) <= place(&moved.after), "{moved:?}");
        }
    }
}
