//! The job's state machine: one enum, and [`step`], the one function that moves it.
//!
//! ```text
//! Pending ──all joined──▶ Starting(configuring) ──all configured──▶ Starting(launching) ──all run──▶ Running
//!    │                        │                                         │                              │
//!    └── deadline, a lost pod, a failed run, success, a wish to cancel ─┴───────────▶ Stopping ◀───────┘
//!                                                                                       │ every run is dead
//!                                                  Finished ◀──every pod has ended── Releasing
//! ```

use std::time::Duration;

use protocol::ids::Generation;
use protocol::view::{Failure, JobResult, JobState};

use super::policy::Policy;
use super::replica::{Gang, ReplicaPhase};

/// Where a job stands. Times are counted from the moment its driver began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// Its pods come up; `first` will be the gang's first start under this master.
    Pending {
        /// What the first start will be numbered.
        first: Generation,
        /// Since when.
        since: Duration,
    },
    /// The gang is complete and is being started.
    Starting {
        /// Its number.
        generation: Generation,
        /// How far.
        stage: StartStage,
    },
    /// Every exec.py has been started.
    Running {
        /// Its number.
        generation: Generation,
    },
    /// How it ends is decided; every run that is not dead is being stopped.
    Stopping {
        /// The start that is being ended; absent when there was none.
        generation: Option<Generation>,
        /// How it ends.
        ending: Ending,
        /// Since when.
        since: Duration,
    },
    /// Every run is dead and the result is written; the pods are told to end.
    Releasing {
        /// How it ended.
        result: JobResult,
        /// Since when.
        since: Duration,
    },
    /// Nothing runs any more.
    Finished {
        /// How it ended.
        result: JobResult,
    },
}

/// How far a start has come. The two are kept apart, so that no exec.py runs before every member knows the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStage {
    /// Each agent is given its environment.
    Configuring,
    /// Each agent is told to run.
    Launching,
}

/// How a job is about to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It did what it should.
    Succeeded,
    /// It failed, as far as is known by now for this reason; an earlier failure may still come to light.
    Failed(Failure),
    /// A user wished it.
    Cancelled,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEvent {
    /// A replica has changed, or time has passed.
    Observed,
    /// A user wishes the job to end.
    CancelWished,
}

/// What the job's transitions look at, besides the event.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Every replica, as it is now.
    pub gang: &'a Gang,
    /// The job's rules.
    pub policy: &'a Policy,
    /// The time since the driver began.
    pub now: Duration,
}

/// What the driver shall do. Each may be carried out again without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create every pod that is not there.
    CreatePods,
    /// Give every agent its environment.
    Configure(Generation),
    /// Tell every agent to run.
    Launch(Generation),
    /// Follow every run's status and output.
    Follow(Generation),
    /// Stop every run that is not dead and was not told.
    StopRuns {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// Write how the job ended; it never changes afterwards.
    Conclude(JobResult),
    /// Tell every pod that is still there, and was not told, to end in good order.
    ReleasePods,
    /// Delete every pod that is still there.
    DeletePods,
}

/// What a job's driver starts with: the phase, and what is to be done at once.
/// A job whose result is known only has its pods released.
pub fn begin(first: Generation, result: Option<JobResult>, now: Duration) -> (JobPhase, Vec<Action>) {
    match result {
        None => (JobPhase::Pending { first, since: now }, vec![Action::CreatePods]),
        Some(result) => (JobPhase::Releasing { result, since: now }, vec![Action::ReleasePods]),
    }
}

/// Moves a job. Pure and total; an event that changes nothing returns the phase as it was and no action.
pub fn step(phase: JobPhase, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    match (event, phase) {
        (JobEvent::CancelWished, JobPhase::Pending { .. }) => {
            stop(seen.gang.newest_generation(), Ending::Cancelled, seen.policy.stop_grace, seen.now)
        }
        (JobEvent::CancelWished, JobPhase::Starting { generation, .. } | JobPhase::Running { generation }) => {
            stop(Some(generation), Ending::Cancelled, seen.policy.stop_grace, seen.now)
        }
        (JobEvent::Observed, JobPhase::Pending { first, since }) => pending(first, since, seen),
        (JobEvent::Observed, JobPhase::Starting { generation, stage }) => starting(generation, stage, seen),
        (JobEvent::Observed, JobPhase::Running { generation }) => running(generation, seen),
        // How it ends is decided, so a wish to cancel comes too late and changes nothing.
        (_, JobPhase::Stopping { generation, ending, since }) => stopping(generation, ending, since, seen),
        (_, JobPhase::Releasing { result, since }) => releasing(result, since, seen),
        // A pod that was asked for may come up after the end.
        (_, finished @ JobPhase::Finished { .. }) => {
            let has_pods = seen.gang.any(|member| member.has_live_pod);
            (finished, if has_pods { vec![Action::DeletePods] } else { vec![] })
        }
    }
}

fn stop(generation: Option<Generation>, ending: Ending, grace: Duration, now: Duration) -> (JobPhase, Vec<Action>) {
    let actions = stop_actions(generation, grace);
    (JobPhase::Stopping { generation, ending, since: now }, actions)
}

fn stop_actions(generation: Option<Generation>, grace: Duration) -> Vec<Action> {
    Vec::from_iter(generation.map(Action::Follow).into_iter().chain([Action::StopRuns { grace }]))
}

/// TensorFlow's other members hang or die slowly once one is lost, so there is nothing to wait for.
fn fail(generation: Option<Generation>, failure: Failure, now: Duration) -> (JobPhase, Vec<Action>) {
    stop(generation, Ending::Failed(failure), Duration::ZERO, now)
}

fn pending(first: Generation, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now } = seen;
    if gang.all(ReplicaPhase::has_joined) {
        return resume_or_start(first, seen);
    }
    if let Some(failure) = gang.first_failure() {
        return fail(gang.newest_generation(), failure, now);
    }
    if now >= since + policy.start_timeout {
        let after_seconds = policy.start_timeout.as_secs();
        let failure = Failure::StartTimeout { missing: gang.missing(), after_seconds };
        return fail(gang.newest_generation(), failure, now);
    }
    (JobPhase::Pending { first, since }, vec![])
}

/// The gang is complete. A master that takes over may find it in the middle of a start or a run and goes on from there.
fn resume_or_start(first: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Some(generation) = seen.gang.newest_launch() else {
        let configuring = JobPhase::Starting { generation: first, stage: StartStage::Configuring };
        return (configuring, vec![Action::Configure(first)]);
    };
    // Some were started, so all had been configured; an agent that knows nothing of it has lost its run.
    if let Some(replica) = seen.gang.outside(generation) {
        let reason = format!("its agent knows nothing of start {generation}, in which others run");
        return fail(Some(generation), Failure::ReplicaLost { replica, reason }, seen.now);
    }
    if seen.gang.all(ReplicaPhase::was_launched) {
        return run(generation, seen);
    }
    (JobPhase::Starting { generation, stage: StartStage::Launching }, vec![Action::Launch(generation)])
}

fn starting(generation: Generation, stage: StartStage, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let launched = seen.gang.all(ReplicaPhase::was_launched);
    if let (Some(failure), false) = (seen.gang.first_failure(), launched) {
        return fail(Some(generation), failure, seen.now);
    }
    match stage {
        StartStage::Launching if launched => run(generation, seen),
        StartStage::Configuring if seen.gang.all(ReplicaPhase::was_configured) => {
            (JobPhase::Starting { generation, stage: StartStage::Launching }, vec![Action::Launch(generation)])
        }
        StartStage::Configuring | StartStage::Launching => (JobPhase::Starting { generation, stage }, vec![]),
    }
}

/// Every exec.py has been started; some may have ended already.
fn run(generation: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    match running(generation, seen) {
        (phase @ JobPhase::Running { .. }, _) => (phase, vec![Action::Follow(generation)]),
        ended => ended,
    }
}

fn running(generation: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    if seen.policy.success.is_met(seen.gang) {
        return stop(Some(generation), Ending::Succeeded, seen.policy.stop_grace, seen.now);
    }
    match seen.gang.first_failure() {
        Some(failure) => fail(Some(generation), failure, seen.now),
        None => (JobPhase::Running { generation }, vec![]),
    }
}

fn stopping(
    generation: Option<Generation>,
    ending: Ending,
    since: Duration,
    seen: Seen<'_>,
) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now } = seen;
    // One that is only configured may have been told to run by a request whose answer was lost.
    let may_run = gang.any(|member| member.phase.was_configured() && !member.phase.is_dead());
    // A master that takes over has to hear of every run, for the first failure may be the one it hears of last.
    let is_unheard = generation.is_some() && gang.any(|member| member.phase == ReplicaPhase::Scheduled);
    if may_run || is_unheard {
        let overdue = now >= since + policy.stop_grace + policy.release_timeout;
        // A master that takes over may hear of a run only now.
        let generation = generation.or(gang.newest_generation());
        let grace = if matches!(ending, Ending::Failed(_)) { Duration::ZERO } else { policy.stop_grace };
        let actions = if overdue { vec![Action::DeletePods] } else { stop_actions(generation, grace) };
        return (JobPhase::Stopping { generation, ending, since }, actions);
    }
    let result = match ending {
        Ending::Succeeded => JobResult::Succeeded,
        Ending::Cancelled => JobResult::Cancelled,
        Ending::Failed(known) => JobResult::Failed { failure: gang.cause(known) },
    };
    let actions = vec![Action::Conclude(result.clone()), Action::ReleasePods];
    (JobPhase::Releasing { result, since: now }, actions)
}

fn releasing(result: JobResult, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now } = seen;
    if !gang.any(|member| member.has_live_pod) {
        return (JobPhase::Finished { result }, vec![]);
    }
    let overdue = now >= since + policy.release_timeout;
    // One that was being created may have come up only now.
    let action = if overdue { Action::DeletePods } else { Action::ReleasePods };
    (JobPhase::Releasing { result, since }, vec![action])
}

impl JobPhase {
    /// When time alone moves it, or makes it act; the driver then feeds it what it sees.
    pub fn deadline(&self, policy: &Policy) -> Option<Duration> {
        match self {
            Self::Pending { since, .. } => Some(*since + policy.start_timeout),
            Self::Stopping { since, .. } => Some(*since + policy.stop_grace + policy.release_timeout),
            Self::Releasing { since, .. } => Some(*since + policy.release_timeout),
            Self::Starting { .. } | Self::Running { .. } | Self::Finished { .. } => None,
        }
    }

    /// The gang's current start.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Starting { generation, .. } | Self::Running { generation } => Some(*generation),
            Self::Stopping { generation, .. } => *generation,
            Self::Pending { .. } | Self::Releasing { .. } | Self::Finished { .. } => None,
        }
    }

    /// How it is shown.
    pub fn state(&self) -> JobState {
        match self {
            Self::Pending { .. } => JobState::Pending,
            Self::Starting { .. } => JobState::Starting,
            Self::Running { .. } => JobState::Running,
            Self::Stopping { .. } | Self::Releasing { .. } => JobState::Stopping,
            Self::Finished { result } => result.state(),
        }
    }
}
