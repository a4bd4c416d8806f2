//! The job's state machine: the enum [`JobPhase`], and [`step`], the only function that changes the phase.
//!
//! ```text
//! Pending ──all joined──▶ Starting(configuring) ──all configured──▶ Starting(launching) ──all run──▶ Running
//!  ▲ │                        │                                         │                              │
//!  │ └── a failure, a time limit, success, a wish to cancel ────────────┴───────────▶ Stopping ◀───────┘
//!  │                                                                                    │ every run is dead
//!  └──lost pods are gone, the pause is over── Restarting ◀──the job may restart─────────┤
//!                                                                                       ▼
//!                                                  Finished ◀──every pod has ended── Releasing
//! ```
//!
//! If a gang and an earlier gang both lack room, the later gang moves from `Pending` to `Queued`, which deletes all its
//! pods. When its turn comes, it moves to `Pending` again. If a user suspends the job, `Stopping` leads to `Suspended`,
//! which deletes all pods. When the user resumes the job, `Suspended` leads to `Restarting`. A job can wait for new
//! code after its script has failed: then `Stopping` leads to `Halted`, which keeps the pods. New code ends the wait:
//! `Restarting` follows. `Restarting` also follows `Starting` if new code arrives before all agents have their
//! environment. If no new code arrives within a time limit, the failure of a halted job is judged in the same way as
//! after `Stopping`.
//!
//! All actions can be repeated. After most failures, runs get no time to end. After a success or a cancel they get 2 s,
//! or the grace of a TFJob's template. Before a new start, and after an eviction, scripts that use the helper get the
//! pods' grace period to save: see `stop.rs`. A pod whose run has not ended 15 s later is deleted. When all runs of a
//! start are dead, [`Policy::verdict`] judges the failure. The driver records the failure before it acts on the
//! verdict, so each failure counts once, even after a takeover. Usable pods stay for the next start.

mod action;
mod ending;
mod evaluator;
mod gathering;
mod halt;
mod look;
mod queue;
mod running;
mod stop;
mod suspension;
mod verdict;

use std::time::Duration;

use protocol::failure::{Failure, Restarts};
use protocol::ids::{Generation, JobName};
use protocol::run_policy::CleanPods;
use protocol::view::{JobResult, JobState};

pub use self::action::{Action, PodSelection};
use self::ending::{finished, releasing, stopping};
pub use self::gathering::Attempt;
use self::gathering::{pending, restarting, starting};
pub use self::halt::Halt;
pub use self::look::next_look;
use self::running::running;
pub use self::stop::Stop;
use self::stop::stop;
pub use self::verdict::Restart;
use super::gang::Gang;
use super::policy::{Deadline, Policy};
use super::turns::Turn;
use super::upkeep::Upkeep;

/// The phase of a job. All times are durations since the job's driver began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// The pods are starting, and not every agent has joined yet.
    Pending {
        /// The start that the gang is gathering for.
        gathering: Gathering,
        /// When the gang began to gather.
        since: Duration,
    },
    /// The gang waits for its turn to gather. The driver deletes the gang's pods.
    Queued {
        /// The start that the gang will gather for.
        gathering: Gathering,
        /// The job that this gang waits for.
        behind: JobName,
    },
    /// The gang is complete and its runs are being started.
    Starting(Attempt),
    /// Every exec.py has been started.
    Running {
        /// The number of this start.
        generation: Generation,
        /// When this master learned that every exec.py runs.
        since: Duration,
    },
    /// The outcome of this start is decided. The driver stops every run that is still alive.
    Stopping(Stop),
    /// The job restarts. The driver replaces pods that cannot serve the next start, and backs off.
    Restarting(Restart),
    /// The script has failed, and every run is dead. The job keeps its pods and waits for new code.
    Halted(Halt),
    /// A user has suspended the job, and every run is dead. The driver deletes the pods.
    Suspended {
        /// The number of the next start.
        next: Generation,
    },
    /// Every run is dead and the result is recorded. The driver shuts the pods down.
    Releasing {
        /// The result of the job.
        result: JobResult,
        /// When releasing began.
        since: Duration,
    },
    /// The job has ended, and none of its runs is alive.
    Finished {
        /// The result of the job.
        result: JobResult,
    },
}

/// The start that a gang gathers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gathering {
    /// The number of the next start under this master.
    pub next: Generation,
    /// The oldest generation whose runs belong to this start. Older runs are ignored, because their starts have ended.
    /// `None`: no run is ignored.
    pub horizon: Option<Generation>,
    /// Since when the gang has enough workers for a start; `None` if it has too few.
    pub ready_since: Option<Duration>,
    /// Whether the gang waits for a decision of others: another program holds one of its pods back, or an earlier gang gets
    /// room first. The start timeout does not apply then.
    pub is_held_back: bool,
}

/// The stage of a start. Because of the two stages, no exec.py runs before every agent has its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStage {
    /// The driver sends each agent its environment.
    Configuring,
    /// The driver asks each agent to run exec.py.
    Launching,
}

/// The outcome of a start that is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The success rule is met.
    Succeeded,
    /// The start failed for this reason. The driver may still find an earlier failure while it stops the runs.
    Failed(Failure),
    /// A user cancelled the job.
    Cancelled,
    /// The gang restarts, and no failure is recorded. The reason is new code, a change of the
    /// members, or a takeover in the middle of a start.
    Regroup,
    /// Nothing failed. A user has suspended the job.
    Suspended,
}

/// An input of [`step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEvent {
    /// A replica or the job's rules have changed, or time has passed.
    Observed,
    /// A user has asked to cancel the job.
    CancelWished,
}

/// What [`step`] reads besides the phase and the event.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The current state of every replica.
    pub gang: &'a Gang<'a>,
    /// The rules of the job.
    pub policy: &'a Policy,
    /// The earlier starts that failed.
    pub restarts: &'a Restarts,
    /// Whether the gang may create pods now.
    pub turn: &'a Turn,
    /// The epoch of the job's record. All starts under this driver have this epoch.
    pub epoch: u32,
    /// The time since the driver began.
    pub now: Duration,
}

impl Seen<'_> {
    /// Whether an earlier master, or an earlier driver of this master, held the job. There may be runs that this
    /// driver has not observed yet.
    fn is_taken_over(&self) -> bool {
        self.epoch > 1
    }

    /// The failure of the job, if the job has exceeded its deadline.
    fn overdue(self) -> Option<Failure> {
        let Deadline { at, given } = self.policy.wishes.deadline?;
        (self.now >= at).then_some(Failure::DeadlineExceeded { after_seconds: given.as_secs() })
    }
}

/// What a driver knows about its job when the driver begins.
#[derive(Debug, Clone)]
pub struct Known {
    /// The number of the first start under this master.
    pub first: Generation,
    /// The newest failed start in the record.
    pub newest_failed: Option<Generation>,
    /// The state of the wait for new code, if an earlier master has halted the job.
    pub halted: Option<Halt>,
    /// The result of the job, if it has ended.
    pub result: Option<JobResult>,
}

/// The first phase of a job under its driver, and the first actions. If the job already has a result, the driver only
/// releases the pods. A halted job continues to wait, even if it has lost its pods.
pub fn begin(known: Known, policy: &Policy, now: Duration) -> (JobPhase, Vec<Action>) {
    let Known { first, newest_failed, halted, result } = known;
    match (result, halted) {
        (None, Some(halt)) => (JobPhase::Halted(halt), vec![]),
        (None, None) => {
            let horizon = newest_failed.map(Generation::next);
            let gathering = Gathering { next: first, horizon, ready_since: None, is_held_back: false };
            (JobPhase::Pending { gathering, since: now }, vec![])
        }
        (Some(result), _) => {
            let keeps_pods = policy.rules.clean_pods == CleanPods::None;
            let actions = if keeps_pods { vec![] } else { vec![Action::ReleasePods] };
            (JobPhase::Releasing { result, since: now }, actions)
        }
    }
}

/// Moves a job to its next phase. Pure and total: an event that changes nothing returns the same phase and no action.
pub fn step(phase: JobPhase, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let (phase, mut actions) = next(phase, event, seen);
    let upkeep = look::upkeep_in(&phase, seen);
    if upkeep != Upkeep::default() {
        actions.push(Action::Keep(upkeep));
    }
    (phase, actions)
}

fn next(phase: JobPhase, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    match (event, phase) {
        (JobEvent::CancelWished, phase) if !phase.has_decided() => stop(&phase, Ending::Cancelled, seen),
        (_, phase) if seen.policy.wishes.is_suspended && !phase.has_decided() && !phase.is_suspended() => {
            suspension::suspend(&phase, seen)
        }
        (_, JobPhase::Halted(halt)) => halt::halted(halt, seen),
        (_, JobPhase::Suspended { next }) => suspension::suspended(next, seen),
        (_, JobPhase::Pending { gathering, since }) => pending(gathering, since, seen),
        (_, JobPhase::Queued { gathering, behind }) => queue::queued(gathering, behind, seen),
        (_, JobPhase::Starting(attempt)) => starting(attempt, seen),
        (_, JobPhase::Running { generation, since }) => running(generation, since, seen),
        (_, JobPhase::Restarting(restart)) => restarting(restart, seen),
        // The outcome of this start is decided. A request to cancel only ends the grace of an evaluator.
        (event, JobPhase::Stopping(stop)) => stopping(stop, event, seen),
        (_, JobPhase::Releasing { result, since }) => releasing(result, since, seen),
        (_, JobPhase::Finished { result }) => finished(result, seen),
    }
}

impl JobPhase {
    /// Whether the outcome of the start, or of the job, is decided.
    fn has_decided(&self) -> bool {
        matches!(self, Self::Stopping(_) | Self::Releasing { .. } | Self::Finished { .. })
    }

    fn is_suspended(&self) -> bool {
        matches!(self, Self::Suspended { .. })
    }

    /// Whether the job is being stopped because it exceeded its deadline.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stopping(Stop { ending: Ending::Failed(Failure::DeadlineExceeded { .. }), .. }))
    }

    /// The number of the current start.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Starting(Attempt { generation, .. })
            | Self::Running { generation, .. }
            | Self::Halted(Halt { generation, .. }) => Some(*generation),
            Self::Stopping(stop) => stop.generation,
            Self::Pending { .. }
            | Self::Queued { .. }
            | Self::Restarting { .. }
            | Self::Suspended { .. }
            | Self::Releasing { .. }
            | Self::Finished { .. } => None,
        }
    }

    /// The result of the job, if the result is final.
    pub fn result(&self) -> Option<&JobResult> {
        let (Self::Releasing { result, .. } | Self::Finished { result }) = self else { return None };
        Some(result)
    }

    /// The oldest generation whose runs belong to this start. Older runs belong to earlier starts.
    pub fn horizon(&self) -> Option<Generation> {
        match self {
            Self::Pending { gathering, .. } | Self::Queued { gathering, .. } => gathering.horizon,
            Self::Restarting(Restart { next, .. }) | Self::Suspended { next } => Some(*next),
            Self::Stopping(stop) => stop.horizon,
            Self::Starting { .. }
            | Self::Running { .. }
            | Self::Halted { .. }
            | Self::Releasing { .. }
            | Self::Finished { .. } => self.generation(),
        }
    }

    /// The state that users see.
    pub fn state(&self) -> JobState {
        match self {
            Self::Pending { .. } | Self::Queued { .. } => JobState::Pending,
            Self::Starting { .. } => JobState::Starting,
            Self::Running { .. } => JobState::Running,
            Self::Stopping { .. } | Self::Releasing { .. } => JobState::Stopping,
            Self::Restarting { .. } => JobState::Restarting,
            Self::Halted { .. } => JobState::Halted,
            Self::Suspended { .. } => JobState::Suspended,
            Self::Finished { result } => result.state(),
        }
    }
}
