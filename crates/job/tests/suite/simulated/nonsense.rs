//! Passes random observations in random order to `step`, whether or not they make sense. The checks of each move hold,
//! and the phase does not change forever.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use job::gang::Gang;
use job::observation::{Addresses, AgentState, Enrolled, LostRun, Observation, Others, PodDeletion, PodState};
use job::phase::{Action, JobEvent, JobPhase, Known, Seen, begin, step};
use job::policy::{GangKind, Policy, SuccessRule};
use job::turns::Turn;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use protocol::agent::{LastWords, Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, Role};

use super::checks::{History, Move, note_restart};
use super::stories::any_policy;
use crate::support::{FIRST, SECOND, cases, changed, exit, found_place, id, stopped};

/// The input of a driver at one moment.
#[derive(Debug, Clone)]
struct Moment {
    observations: Vec<Observation>,
    event: JobEvent,
    turn: Turn,
    is_suspended: bool,
    pushes: u32,
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
    fn play(&self) {
        let known = Known { first: SECOND, newest_failed: self.newest_failed, halted: None, result: None };
        let (mut policy, mut now, mut restarts) = (self.policy.clone(), Duration::ZERO, Restarts::default());
        let (mut phase, _) = begin(known, &policy, now);
        let (mut history, mut seats) = (History::default(), BTreeMap::new());
        for moment in &self.moments {
            now += moment.passed;
            (policy.wishes.is_suspended, policy.wishes.pushes) =
                (moment.is_suspended, policy.wishes.pushes + moment.pushes);
            let (mut event, mut observations) = (moment.event, moment.observations.clone());
            for moves in 0.. {
                assert!(moves < 1000, "the phase still changes after 1000 steps: {phase:?}");
                let gang = self.gang(&observations, &seats, phase.horizon());
                let (turn, epoch) = (&moment.turn, SECOND.epoch);
                let seen = Seen { gang: &gang, policy: &policy, turn, restarts: &restarts, epoch, now };
                let (after, actions) = step(phase.clone(), event, seen);
                history.check(Move { before: &phase, after: &after, actions: &actions, seen });
                for action in actions {
                    if let Action::RecordRestart(failure) = action {
                        note_restart(&mut restarts, (failure, None), &gang, &policy);
                    } else if let Action::Enrol { generation, roster } = action {
                        let (of, pushes) = (roster.len(), policy.wishes.pushes);
                        seats.extend(roster.seats().map(|(id, ReplicaId { index: seat, .. })| {
                            (id, Enrolled { generation, membership: Membership { seat, of, start: 0, pushes } })
                        }));
                    }
                }
                if phase == after {
                    break;
                }
                if matches!(after, JobPhase::Restarting { .. }) {
                    let gone = observations.iter_mut().filter(|seen| seen.pod.is_none());
                    gone.for_each(|seen| *seen = Observation::NEW);
                }
                (phase, event) = (after, JobEvent::Observed);
            }
        }
    }

    /// The gang in these observations. `seats` are the memberships that the master has chosen.
    fn gang(
        &self,
        observations: &[Observation],
        seats: &BTreeMap<ReplicaId, Enrolled>,
        horizon: Option<Generation>,
    ) -> Gang<'static> {
        let of = u32::try_from(self.members.len()).expect("a test has few replicas");
        let member = |(id, seen): (&ReplicaId, &Observation)| {
            let mut seen = Observation { enrolled: seats.get(id).copied(), ..seen.clone() };
            if let AgentState::Status(status) = &mut seen.agent {
                status.membership = Some(Membership { seat: id.index, of, start: 0, pushes: 0 });
            }
            // A driver takes the run of a pod without an address for lost.
            if matches!(seen.pod, None | Some(PodState::Pending { .. })) && seen.agent.has_answered() {
                seen.agent = AgentState::Failed(seen.lost("its pod was deleted"));
            }
            found_place(*id, seen, horizon)
        };
        Gang::new(self.members.iter().zip(observations).map(member).collect(), horizon)
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
        1 => (any_last_words(), select(vec![Others::Ended, Others::Running])).prop_map(move |(exit, others)| {
            Some(PodState::Terminated { exit, reason: reason(), others })
        }),
        1 => Just(Some(PodState::Leaving { reason: reason() })),
        1 => Just(Some(PodState::disrupted(reason()))),
        1 => Just(Some(PodState::Unusable { reason: reason() })),
    ];
    let deletion = prop_oneof![5 => Just(PodDeletion::NotAsked), 1 => Just(PodDeletion::Asked)];
    (pod, any_agent(), deletion, any::<bool>()).prop_map(|(pod, agent, deletion, is_found)| Observation {
        pod,
        agent,
        deletion,
        is_found,
        ..Observation::NEW
    })
}

fn any_last_words() -> impl Strategy<Value = Option<LastWords>> {
    let generation = select(vec![None, Some(FIRST), Some(SECOND)]);
    option::of(generation.prop_map(|generation| LastWords { generation, exit: exit(1, 3), membership: None }))
}

fn any_agent() -> impl Strategy<Value = AgentState> {
    use RunState::{Configured, Exited, Idle, Running, Stopping};
    let start = |sequence| Generation { sequence, ..SECOND };
    let generation = move || prop_oneof![1 => Just(FIRST), 3 => Just(SECOND), 2 => (2..5_u32).prop_map(start)];
    let loss = || select(vec![LostRun::broken("broken"), LostRun::hopeless("hopeless"), LostRun::disrupted("taken")]);
    let state = select(vec![Idle, Configured, Running, Stopping, Exited]);
    let report = (0..2_i32, 1..9_u64, any::<bool>());
    let report = report.prop_map(|(code, at, is_own)| if is_own { exit(code, at) } else { stopped(at) });
    prop_oneof![
        1 => Just(AgentState::Silent),
        1 => Just(AgentState::SeedOnly),
        3 => generation().prop_map(AgentState::Configured),
        3 => generation().prop_map(AgentState::Started),
        1 => loss().prop_map(AgentState::Failed),
        1 => (loss(), any::<bool>()).prop_map(|(lost, is_fenced)| AgentState::Unreachable { lost, is_fenced }),
        12 => (generation(), state, report).prop_map(|(generation, state, report)| {
            let generation = (state != Idle).then_some(generation);
            let exit = (state == Exited).then_some(report);
            AgentState::Status(Box::new(RunStatus { state, generation, exit, ..RunStatus::idle("boot") }))
        }),
    ]
}

/// A random moment. Sometimes all members have the same observation, so that the later phases are reached.
fn any_moment(members: usize) -> impl Strategy<Value = Moment> {
    let agree = any_observation().prop_map(move |observation| vec![observation; members]);
    let observations = prop_oneof![vec(any_observation(), members), agree];
    let event = prop_oneof![15 => Just(JobEvent::Observed), 1 => Just(JobEvent::CancelWished)];
    let wishes = (prop_oneof![15 => Just(false), 1 => Just(true)], prop_oneof![9 => Just(0), 1 => Just(1)]);
    let passed = prop_oneof![5 => 0..3_u64, 1 => 0..400_u64].prop_map(Duration::from_secs);
    let queue = Turn::Queue("first".parse().expect("a valid name"));
    let turn =
        prop_oneof![6 => Just(Turn::Go), 1 => Just(Turn::Minimum), 1 => Just(Turn::Hold(None)), 2 => Just(queue)];
    (observations, event, turn, wishes, passed).prop_map(
        |(observations, event, turn, (is_suspended, pushes), passed)| Moment {
            observations,
            event,
            turn,
            is_suspended,
            pushes,
            passed,
        },
    )
}

fn any_script() -> impl Strategy<Value = Script> {
    let members = select(vec![
        vec!["worker-0"],
        vec!["worker-0", "worker-1", "worker-2"],
        vec!["chief-0", "worker-0", "ps-0", "evaluator-0"],
    ]);
    let kind = select(vec![GangKind::Fixed, GangKind::Elastic]);
    let rule = select(vec![SuccessRule::AllThatTrain, SuccessRule::Decider(id("worker-0"))]);
    let newest_failed = select(vec![None, Some(FIRST)]);
    (members, any_policy(), kind, rule, newest_failed).prop_flat_map(
        |(members, policy, kind, success, newest_failed)| {
            let members: Vec<ReplicaId> = members.into_iter().map(id).collect();
            let max = members.iter().filter(|id| id.role == Role::Worker).count() as u32;
            let workers = Workers { min: if kind == GangKind::Fixed { max } else { 1 }, max };
            // Without a pause, a job could restart forever at one moment: an agent may report a start of the future.
            let policy = changed(policy, |policy| {
                policy.rules.kind = kind;
                policy.wishes.workers = workers;
                policy.rules.success = success;
                policy.rules.retries.backoff = Duration::from_secs(1);
            });
            vec(any_moment(members.len()), 1..25).prop_map(move |moments| Script {
                members: members.clone(),
                policy: policy.clone(),
                newest_failed,
                moments,
            })
        },
    )
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn every_move_is_allowed_even_if_the_observations_make_no_sense(script in any_script()) {
        script.play();
    }
}
