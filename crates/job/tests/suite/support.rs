//! Helpers of these tests: replicas in any phase, gangs, and calls of `step`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use job::gang::{Gang, Place};
use job::observation::{Addresses, AgentState, Enrolled, LostRun, Observation, Others, PodState, Presence};
use job::phase::{
    Action, Attempt, Ending, Gathering, JobEvent, JobPhase, Known, Restart, Seen, StartStage, Stop, begin,
};
use job::policy::{GangKind, Graces, Policy, Retries, Rules, STOP_GRACE, SuccessRule, Wishes};
use job::replica::ReplicaPhase;
use job::roster::{Choice, choose};
use job::turns::Turn;
use job::upkeep::Upkeep;
use proptest::prelude::ProptestConfig;
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::failure::{Failure, Loss, Restarts};
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::progress::Progress;
use protocol::run_policy::{CleanPods, OnSameFailure, OnStartTimeout};
use protocol::view::JobResult;

/// The first start of a job under its first master.
pub(crate) const FIRST: Generation = Generation { epoch: 1, sequence: 1 };
/// The first start of a job under its second master.
pub(crate) const SECOND: Generation = Generation { epoch: 2, sequence: 1 };
/// The `since` of the phases that the tests begin with.
pub(crate) const SINCE: Duration = Duration::from_secs(100);
/// One second after [`SINCE`].
pub(crate) const SOON: Duration = Duration::from_secs(101);

/// The policy of the tests: all replicas that train must succeed, and a failure is final. All times differ, except that
/// the grace after a success is [`STOP_GRACE`].
pub(crate) const POLICY: Policy = with_restarts(0);

/// [`POLICY`] with this number of restarts.
pub(crate) const fn with_restarts(max_restarts: u32) -> Policy {
    let graces = Graces {
        cancel: Duration::from_secs(4),
        success: STOP_GRACE,
        leaving: Duration::from_secs(12),
        saving: Duration::from_secs(40),
        evaluator: Duration::ZERO,
    };
    let retries = Retries {
        max_restarts,
        backoff: Duration::from_secs(5),
        no_retry_exit_codes: BTreeSet::new(),
        restart: BTreeMap::new(),
        halt: None,
        on_same_failure: OnSameFailure::Stop,
        on_start_timeout: OnStartTimeout::Fail,
        requeue_pause: Duration::from_secs(50),
    };
    let rules = Rules {
        start_timeout: Duration::from_secs(600),
        graces,
        retries,
        success: SuccessRule::AllThatTrain,
        clean_pods: CleanPods::Running,
        kind: GangKind::Fixed,
        grow_interval: None,
        evaluators_return: true,
        lease: None,
    };
    let workers = Workers { min: 2, max: 2 };
    Policy { rules, wishes: Wishes { workers, pushes: 0, is_suspended: false, deadline: None } }
}

/// The policy after this change.
pub(crate) fn changed(mut policy: Policy, change: impl FnOnce(&mut Policy)) -> Policy {
    change(&mut policy);
    policy
}

/// The restarts of a job in which no start has failed.
pub(crate) static NO_RESTARTS: Restarts = Restarts {
    counted: 0,
    uncounted: 0,
    forgiven: 0,
    last_counted_at: None,
    failed_starts: vec![],
    batch_limits: BTreeMap::new(),
};

pub(crate) fn id(text: &str) -> ReplicaId {
    text.parse().expect("the tests write replicas as role-index")
}

/// A gang of workers in these phases, worker-0 first.
pub(crate) fn workers(phases: &[ReplicaPhase]) -> Gang<'static> {
    let names: Vec<String> = (0..phases.len()).map(|index| format!("worker-{index}")).collect();
    let members: Vec<(&str, ReplicaPhase)> = names.iter().map(String::as_str).zip(phases.iter().cloned()).collect();
    gang(&members)
}

/// A gang in which the pods of lost replicas have ended and all other pods are live.
pub(crate) fn gang(members: &[(&str, ReplicaPhase)]) -> Gang<'static> {
    let pod = |phase: &ReplicaPhase| if phase.is_lost() { Presence::Ended } else { Presence::Live };
    gang_of(members.iter().map(|(name, phase)| (id(name), phase.clone(), pod(phase))).collect())
}

/// The gang of replicas in these phases and with these pods. All replicas take part in the newest start of a phase.
fn gang_of(replicas: Vec<(ReplicaId, ReplicaPhase, Presence)>) -> Gang<'static> {
    fixed(replicas.into_iter().map(|(id, phase, pod)| place_of(id, phase, pod)).collect())
}

/// A replica that no master has deleted, and that takes part in no start. Its agent has not answered.
pub(crate) fn place(name: &str, phase: ReplicaPhase, pod: Presence) -> Place<'static> {
    place_of(id(name), phase, pod)
}

fn place_of(id: ReplicaId, phase: ReplicaPhase, pod: Presence) -> Place<'static> {
    let ended = |others| PodState::Terminated { exit: None, reason: String::new(), others };
    let pod = match pod {
        Presence::Absent => None,
        Presence::Live if phase == ReplicaPhase::Requested => Some(PodState::Pending { has_node: false, wait: None }),
        Presence::Live => running_pod().pod,
        Presence::Occupied => Some(ended(Others::Running)),
        Presence::Ended => Some(ended(Others::Ended)),
    };
    Place { phase, ..found_place(id, Observation { pod, ..Observation::NEW }, None) }
}

/// A replica that is observed like this. The observation lives as long as the tests.
pub(crate) fn found_place(id: ReplicaId, seen: Observation, horizon: Option<Generation>) -> Place<'static> {
    Place::of(id, Box::leak(Box::new(seen)), horizon)
}

/// The replica in the same phase after a change of what is observed.
pub(crate) fn observed(place: &Place<'_>, change: impl FnOnce(&mut Observation)) -> Place<'static> {
    let mut seen = place.seen.clone();
    change(&mut seen);
    let Place { id, phase, create_at, failed_alone, seen: _ } = place.clone();
    Place { phase, create_at, failed_alone, ..found_place(id, seen, None) }
}

/// The replica, whose script has reported this with the helper. The agent's answer says nothing else.
pub(crate) fn with_progress(place: &Place<'_>, progress: Progress) -> Place<'static> {
    let status = RunStatus { helper: Some(progress), ..RunStatus::idle("boot") };
    observed(place, |seen| seen.agent = reported(status))
}

/// The gang of a fixed job. All replicas take part in the newest start of a phase, if the test does not say otherwise.
pub(crate) fn fixed(mut places: Vec<Place<'static>>) -> Gang<'static> {
    let of = u32::try_from(places.len()).expect("a test has few replicas");
    if let Some(generation) = places.iter().filter_map(|place| place.phase.generation()).max() {
        for place in places.iter_mut().filter(|place| place.seen.enrolment().is_none()) {
            let membership = Membership { seat: place.id.index, of, start: 0, pushes: 0 };
            *place = observed(place, |seen| seen.enrolled = Some(Enrolled { generation, membership }));
        }
    }
    Gang::new(places, None)
}

/// The gang of workers that a new master finds in these phases, worker-0 first. Only an agent with a run of the newest
/// start shows that it is a member.
pub(crate) fn found(phases: &[ReplicaPhase]) -> Gang<'static> {
    let of = u32::try_from(phases.len()).expect("a test has few replicas");
    let found = |(seat, phase): (u32, &ReplicaPhase)| {
        let membership = Membership { seat, of, start: 0, pushes: 0 };
        let may_run = matches!(phase, ReplicaPhase::Scheduled | ReplicaPhase::Running(_));
        let pod = if phase.is_lost() { Presence::Ended } else { Presence::Live };
        observed(&place(&format!("worker-{seat}"), phase.clone(), pod), |seen| {
            seen.is_found = true;
            seen.enrolled = phase.generation().map(|generation| Enrolled { generation, membership });
            seen.agent = if may_run { AgentState::Silent } else { reported(RunStatus::idle("boot")) };
        })
    };
    Gang::new((0..).zip(phases).map(found).collect(), None)
}

/// One step of a job. A fixed job has as many workers as the gang.
pub(crate) fn step(phase: JobPhase, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let workers = seen.gang.places().iter().filter(|place| place.id.role == Role::Worker).count();
    let count = u32::try_from(workers).expect("a test has few replicas");
    let sized = changed(seen.policy.clone(), |policy| policy.wishes.workers = Workers { min: count, max: count });
    let policy = if seen.policy.is_fixed() { &sized } else { seen.policy };
    job::phase::step(phase, event, Seen { policy, ..seen })
}

/// A gang of workers in these phases and with these pods, worker-0 first.
pub(crate) fn with_pods(members: &[(ReplicaPhase, Presence)]) -> Gang<'static> {
    let replicas = members.iter().enumerate();
    gang_of(replicas.map(|(index, (phase, pod))| (id(&format!("worker-{index}")), phase.clone(), *pod)).collect())
}

/// A gang of this many workers without pods.
pub(crate) fn absent(workers: usize) -> Gang<'static> {
    with_pods(&vec![(ReplicaPhase::Requested, Presence::Absent); workers])
}

/// The actions that create the pods of these replicas.
pub(crate) fn create(replicas: &[&str]) -> Vec<Action> {
    let create = replicas.iter().map(|name| id(name)).collect();
    vec![Action::Keep(Upkeep { create, ..Upkeep::default() })]
}

/// The actions that begin this start with this many workers.
pub(crate) fn begin_start(generation: Generation, count: u32) -> Vec<Action> {
    let names = (0..count).map(|index| format!("worker-{index}"));
    let gang = fixed(names.map(|name| place(&name, ReplicaPhase::Joined, Presence::Live)).collect());
    let policy = changed(POLICY, |policy| policy.wishes.workers = Workers { min: count, max: count });
    let Choice::Start(roster) = choose(&gang, &policy, None, SOON) else { panic!("the gang is not complete") };
    vec![Action::Enrol { generation, roster }, Action::Configure(generation)]
}

/// The actions that delete the pods of these replicas.
pub(crate) fn delete(replicas: &[&str]) -> Vec<Action> {
    let delete = replicas.iter().map(|name| id(name)).collect();
    vec![Action::Keep(Upkeep { delete, ..Upkeep::default() })]
}

/// The exit at `ended_at` of a run that was not stopped.
pub(crate) fn exit(code: i32, ended_at: u64) -> ExitReport {
    ExitReport::new(ExitOutcome::Code(code), UnixMillis(ended_at))
}

/// The exit at `ended_at` of a run that was stopped.
pub(crate) fn stopped(ended_at: u64) -> ExitReport {
    ExitReport { outcome: ExitOutcome::Signal(9), stopped: true, ..exit(0, ended_at) }
}

/// A running pod whose agent has not answered.
pub(crate) fn running_pod() -> Observation {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let pod = PodState::Running(Addresses { agent: address, tensorflow: address });
    Observation { pod: Some(pod), ..Observation::NEW }
}

/// An agent whose run of this start is in this state, and has ended with `exit`.
pub(crate) fn status(state: RunState, generation: Generation, exit: Option<ExitReport>) -> RunStatus {
    RunStatus { state, generation: Some(generation), exit, ..RunStatus::idle("boot") }
}

/// The report of an agent with this status.
pub(crate) fn reported(status: RunStatus) -> AgentState {
    AgentState::Status(Box::new(status))
}

pub(crate) fn lost() -> ReplicaPhase {
    ReplicaPhase::Lost(LostRun::broken("its node died"))
}

/// The failure of a replica that exited.
pub(crate) fn exited(replica: &str, exit: ExitReport) -> Failure {
    Failure::ReplicaExited { replica: id(replica), exit }
}

/// The failure of a replica whose pod was lost.
pub(crate) fn was_lost(replica: &str) -> Failure {
    Failure::ReplicaLost { replica: id(replica), reason: "its node died".to_owned(), loss: Loss::Broken }
}

/// The gathering of a gang for its first start.
pub(crate) const GATHERING: Gathering =
    Gathering { next: FIRST, horizon: None, ready_since: None, is_held_back: false };

/// The first phase and actions of a master whose first start is `first`.
pub(crate) fn begun(first: Generation, result: Option<JobResult>, now: Duration) -> (JobPhase, Vec<Action>) {
    begin(Known { first, newest_failed: None, halted: None, result }, &POLICY, now)
}

pub(crate) fn pending() -> JobPhase {
    JobPhase::Pending { gathering: GATHERING, since: SINCE }
}

pub(crate) fn starting(stage: StartStage) -> JobPhase {
    JobPhase::Starting(Attempt { generation: FIRST, stage, since: SINCE, pushes: 0 })
}

pub(crate) fn running() -> JobPhase {
    JobPhase::Running { generation: FIRST, since: SOON }
}

/// The phase after the first start has failed. The second start follows after [`job::policy::Retries::backoff`].
pub(crate) fn restarting() -> JobPhase {
    let until = SINCE + POLICY.rules.retries.backoff;
    JobPhase::Restarting(Restart { next: FIRST.next(), is_empty: false, until, since: until })
}

/// The phase after the end was decided at [`SOON`].
pub(crate) fn stopping(ending: Ending) -> JobPhase {
    let (generation, next, grace) = (Some(FIRST), FIRST.next(), grace_of(&ending));
    JobPhase::Stopping(Stop {
        generation,
        horizon: generation,
        next,
        ending,
        since: SOON,
        evaluates_until: SOON,
        grace,
    })
}

/// The phase after the end was decided at [`SOON`], before any start.
pub(crate) fn stopping_unstarted(ending: Ending) -> JobPhase {
    let grace = grace_of(&ending);
    JobPhase::Stopping(Stop {
        generation: None,
        horizon: None,
        next: FIRST,
        ending,
        since: SOON,
        evaluates_until: SOON,
        grace,
    })
}

/// The ending of a phase that stops the runs of a start.
#[track_caller]
pub(crate) fn ending_of(phase: JobPhase) -> Ending {
    let JobPhase::Stopping(Stop { ending, .. }) = phase else { panic!("not stopping: {phase:?}") };
    ending
}

/// The grace of an ending if no pod leaves and no script uses the helper.
pub(crate) fn grace_of(ending: &Ending) -> Duration {
    match ending {
        Ending::Failed(_) => Duration::ZERO,
        Ending::Succeeded => POLICY.rules.graces.success,
        Ending::Cancelled => POLICY.rules.graces.cancel,
        Ending::Regroup | Ending::Suspended => STOP_GRACE,
    }
}

/// The actions of the phase `Stopping`, which gives runs this grace.
pub(crate) fn stop_with(grace: Duration) -> Vec<Action> {
    vec![Action::StopRuns { grace }]
}

/// One step that observes the gang at [`SOON`].
pub(crate) fn look(phase: JobPhase, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    look_at(SOON, phase, gang)
}

/// One step that observes the gang at `now`.
pub(crate) fn look_at(now: Duration, phase: JobPhase, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::Observed, seen(gang, &POLICY, now))
}

/// The input of `step` under the first master of a job. No start of the job has failed yet.
pub(crate) fn seen<'a>(gang: &'a Gang<'a>, policy: &'a Policy, now: Duration) -> Seen<'a> {
    Seen { gang, policy, turn: &Turn::Go, restarts: &NO_RESTARTS, epoch: 1, now }
}

/// The input of `step` under the second master of a job.
pub(crate) fn seen_anew<'a>(gang: &'a Gang<'a>, policy: &'a Policy, now: Duration) -> Seen<'a> {
    Seen { epoch: SECOND.epoch, ..seen(gang, policy, now) }
}

/// One step with a wish to cancel.
pub(crate) fn cancel(phase: JobPhase, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::CancelWished, seen(gang, &POLICY, SOON))
}

/// The number of cases that proptest runs without PROPTEST_CASES.
const DEFAULT_CASES: u32 = 256;

/// `count` random cases, or the number in PROPTEST_CASES. A failure prints its whole input, so no seeds are stored.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if default.cases == DEFAULT_CASES { count } else { default.cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}
