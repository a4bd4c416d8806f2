//! The job's state machine: one enum, and [`step`], the one function that moves it.
//!
//! ```text
//! Pending ──all joined──▶ Starting(configuring) ──all configured──▶ Starting(launching) ──all run──▶ Running
//!  ▲ │                        │                                         │                              │
//!  │ └── a failure, a time limit, success, a wish to cancel ────────────┴───────────▶ Stopping ◀───────┘
//!  │                                                                                    │ every run is dead
//!  └──lost pods are gone, the pause is over── Restarting ◀──to be made up for───────────┤
//!                                                                                       ▼
//!                                                  Finished ◀──every pod has ended── Releasing
//! ```

mod ending;
mod gathering;

use std::time::Duration;

use protocol::failure::{Failure, Restarts};
use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::{JobResult, JobState};

use self::ending::{Stop, fail, finished, releasing, stop, stopping};
use self::gathering::{Restart, pending, restarting, starting};
use super::gang::Gang;
use super::policy::{Deadline, Policy};

/// Where a job stands. Times are counted from the moment its driver began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// Its pods come up.
    Pending {
        /// What they come together for.
        gathering: Gathering,
        /// Since when.
        since: Duration,
    },
    /// The gang is complete and is being started.
    Starting {
        /// Its number.
        generation: Generation,
        /// How far.
        stage: StartStage,
        /// Since when.
        since: Duration,
    },
    /// Every exec.py has been started.
    Running {
        /// Its number.
        generation: Generation,
    },
    /// How this start ends is decided; every run that is not dead is being stopped.
    Stopping {
        /// The start that is being ended; absent when there was none.
        generation: Option<Generation>,
        /// Runs of older generations are known to have failed, and are history.
        horizon: Option<Generation>,
        /// The number of the next, should there be one.
        next: Generation,
        /// How it ends.
        ending: Ending,
        /// Since when.
        since: Duration,
    },
    /// Another start is to come: pods that cannot serve it go, and a pause is kept.
    Restarting {
        /// The number of that start.
        next: Generation,
        /// The pods that go.
        without: PodSelection,
        /// When the pause is over.
        until: Duration,
        /// When the gang began, or will begin, to come together.
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

/// What a gang comes together for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gathering {
    /// What its next start under this master will be numbered.
    pub next: Generation,
    /// Runs of older generations are known to have failed, and are history.
    pub horizon: Option<Generation>,
    /// Whether there may be pods of such a start that can serve no other, which an earlier master has not removed.
    pub leftovers: Leftovers,
}

/// See [`Gathering::leftovers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// There are none.
    None,
    /// There may be.
    Possible,
}

/// How far a start has come. The two are kept apart, so that no exec.py runs before every member knows the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStage {
    /// Each agent is given its environment.
    Configuring,
    /// Each agent is told to run.
    Launching,
}

/// How a start is about to end.
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
    /// What has failed before.
    pub restarts: &'a Restarts,
    /// How many masters have held the job: the first number of the starts that this one makes.
    pub epoch: u32,
    /// The time since the driver began.
    pub now: Duration,
}

impl Seen<'_> {
    /// Whether an earlier master may have started what this one has not heard of yet.
    fn is_taken_over(&self) -> bool {
        self.epoch > 1
    }
}

/// Some of a job's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSelection {
    /// Those that have not ended; the others hold what `kubectl logs` shows.
    Live,
    /// Those that cannot serve another start.
    Unfit,
    /// Those whose run has not ended, or has not said so.
    Unended,
    /// Those that were never told to run: nothing in them ends by itself.
    Idle,
    /// All.
    All,
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
    /// Stop every run that is not dead and was not told.
    StopRuns {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// Write down that a start has failed for this reason, and that another makes up for it.
    RecordRestart(Failure),
    /// Write how the job ended; it never changes afterwards.
    Conclude(JobResult),
    /// Tell every pod that is still there, and was not told, to end in good order.
    ReleasePods,
    /// Delete these pods.
    DeletePods(PodSelection),
}

/// What is known of a job when a driver begins.
#[derive(Debug, Clone)]
pub struct Known {
    /// What the first start under this master will be numbered.
    pub first: Generation,
    /// The newest start that is known to have failed.
    pub newest_failed: Option<Generation>,
    /// Whether an earlier master may have left pods of a failed start.
    pub leftovers: Leftovers,
    /// How it ended, if it has.
    pub result: Option<JobResult>,
}

/// What a job's driver starts with: the phase, and what is to be done at once.
/// A job whose result is known only has its pods released.
pub fn begin(known: Known, policy: &Policy, now: Duration) -> (JobPhase, Vec<Action>) {
    let Known { first, newest_failed, leftovers, result } = known;
    match result {
        None => {
            let horizon = newest_failed.map(Generation::next);
            let gathering = Gathering { next: first, horizon, leftovers };
            (JobPhase::Pending { gathering, since: now }, vec![Action::CreatePods])
        }
        Some(result) => match policy.clean_pods {
            CleanPods::None => (JobPhase::Releasing { result, since: now }, vec![]),
            CleanPods::Running | CleanPods::All => {
                (JobPhase::Releasing { result, since: now }, vec![Action::ReleasePods])
            }
        },
    }
}

/// Moves a job. Pure and total; an event that changes nothing returns the phase as it was and no action.
pub fn step(phase: JobPhase, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    match (event, phase) {
        (
            JobEvent::CancelWished,
            phase @ (JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Restarting { .. }),
        ) => stop(&phase, Ending::Cancelled, seen),
        (JobEvent::Observed, JobPhase::Pending { gathering, since }) => pending(gathering, since, seen),
        (JobEvent::Observed, JobPhase::Starting { generation, stage, since }) => {
            starting(generation, stage, since, seen)
        }
        (JobEvent::Observed, JobPhase::Running { generation }) => running(generation, seen),
        (JobEvent::Observed, JobPhase::Restarting { next, without, until, since }) => {
            restarting(Restart { next, without, until, since }, seen)
        }
        // How this start ends is decided, so a wish to cancel comes too late for it.
        (_, JobPhase::Stopping { generation, horizon, next, ending, since }) => {
            stopping(Stop { generation, horizon, next, ending, since }, seen)
        }
        (_, JobPhase::Releasing { result, since }) => releasing(result, since, seen),
        (_, JobPhase::Finished { result }) => finished(result, seen),
    }
}

fn running(generation: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let phase = JobPhase::Running { generation };
    if seen.policy.success.is_met(seen.gang) {
        return stop(&phase, Ending::Succeeded, seen);
    }
    match seen.gang.first_failure().or_else(|| overdue(seen)) {
        Some(failure) => fail(&phase, failure, seen),
        None => (phase, vec![]),
    }
}

/// The failure of a job that was not done within its deadline.
fn overdue(seen: Seen<'_>) -> Option<Failure> {
    let Deadline { at, given } = seen.policy.deadline?;
    (seen.now >= at).then_some(Failure::DeadlineExceeded { after_seconds: given.as_secs() })
}

impl JobPhase {
    /// When time alone moves it, or makes it act; the driver then feeds it what it sees.
    pub fn deadline(&self, policy: &Policy) -> Option<Duration> {
        let job = policy.deadline.map(|deadline| deadline.at);
        let earlier = |own: Duration| job.map_or(own, |job| own.min(job));
        match self {
            Self::Pending { since, .. } | Self::Starting { since, .. } => Some(earlier(*since + policy.start_timeout)),
            Self::Restarting { until, .. } => Some(earlier(*until)),
            Self::Stopping { since, .. } => Some(*since + policy.stop_grace + policy.release_timeout),
            Self::Releasing { since, .. } => Some(*since + policy.release_timeout),
            Self::Running { .. } => job,
            Self::Finished { .. } => None,
        }
    }

    /// Whether the job is being stopped because its deadline has passed.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stopping { ending: Ending::Failed(Failure::DeadlineExceeded { .. }), .. })
    }

    /// The gang's current start.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Starting { generation, .. } | Self::Running { generation } => Some(*generation),
            Self::Stopping { generation, .. } => *generation,
            Self::Pending { .. } | Self::Restarting { .. } | Self::Releasing { .. } | Self::Finished { .. } => None,
        }
    }

    /// The oldest generation whose runs count; those before are history.
    pub fn horizon(&self) -> Option<Generation> {
        match self {
            Self::Pending { gathering, .. } => gathering.horizon,
            Self::Restarting { next, .. } => Some(*next),
            Self::Stopping { horizon, .. } => *horizon,
            Self::Starting { .. } | Self::Running { .. } | Self::Releasing { .. } | Self::Finished { .. } => {
                self.generation()
            }
        }
    }

    /// How it is shown.
    pub fn state(&self) -> JobState {
        match self {
            Self::Pending { .. } => JobState::Pending,
            Self::Starting { .. } => JobState::Starting,
            Self::Running { .. } => JobState::Running,
            Self::Stopping { .. } | Self::Releasing { .. } => JobState::Stopping,
            Self::Restarting { .. } => JobState::Restarting,
            Self::Finished { result } => result.state(),
        }
    }
}
