//! What a job does about failures, and how long things may take, as values; and the one function that judges a failure.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::{Failure, Loss, Restarts};
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobSpec, Strategy};
use protocol::run_policy::{BACKOFF_MAX_SECONDS, CleanPods, OnStartTimeout, RunPolicy, SuccessPolicy};

use super::gang::Gang;

/// Time between SIGTERM and SIGKILL when a run is stopped in good order. TensorFlow swallows SIGTERM,
/// so a script that does not ask for it always takes this long.
pub const STOP_GRACE: Duration = Duration::from_secs(2);
/// Time, beyond the grace, after which a pod is deleted that has not said that its run ended, or has not ended itself.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time between SIGTERM and SIGKILL for those whose pods stay. What is left of [`RELEASE_TIMEOUT`] then is for
/// them to end and to be heard of.
pub const LEAVING_GRACE_MAX: Duration = Duration::from_secs(10);
/// Longest pause before a restart that does not count. A job on preemptible machines has many, and none is its fault.
const FREE_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest pause, but for the job's own share of it, before a gang that was given back is asked for again.
const REQUEUE_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The rules of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How long a gang may take to be complete and started. TensorFlow itself waits for a missing peer without limit.
    pub start_timeout: Duration,
    /// See [`STOP_GRACE`].
    pub stop_grace: Duration,
    /// Time between SIGTERM and SIGKILL while the cluster takes one of the gang's pods away: what that pod has, up to
    /// [`LEAVING_GRACE_MAX`].
    pub leaving_grace: Duration,
    /// See [`RELEASE_TIMEOUT`].
    pub release_timeout: Duration,
    /// What must happen for the job to have succeeded.
    pub success: SuccessRule,
    /// How many failed starts are made up for.
    pub max_restarts: u32,
    /// The pause before the first restart.
    pub backoff: Duration,
    /// Exit codes that another start would not change.
    pub no_retry_exit_codes: BTreeSet<u8>,
    /// What follows when a gang is not complete in time.
    pub on_start_timeout: OnStartTimeout,
    /// How long a gang that was given back is not asked for again: each job's own time, for two that give back what
    /// the other needs must not come back together.
    pub requeue_pause: Duration,
    /// When the job must be done, counted as all times here, and how much time that was in all.
    pub deadline: Option<Deadline>,
    /// Which pods go at the end.
    pub clean_pods: CleanPods,
}

/// When a job must be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// Counted from the moment its driver began.
    pub at: Duration,
    /// The time it was given, from the moment it was accepted.
    pub given: Duration,
}

/// What must happen for a job to have succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuccessRule {
    /// Every replica that trains exits with 0.
    AllThatTrain,
    /// This one exits with 0; the others serve it and never end by themselves.
    Decider(ReplicaId),
}

/// What is to be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The gang is started again, after a pause.
    Restart {
        /// Whether that uses up one of the job's restarts.
        budget: Budget,
        /// How long to wait first.
        pause: Duration,
    },
    /// All pods are given back, and asked for again after a pause.
    Requeue {
        /// How long.
        pause: Duration,
    },
    /// The job has failed.
    GiveUp,
}

/// Whether a restart uses up one of those that a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// It does.
    Counted,
    /// It does not.
    Free,
}

impl Policy {
    /// The rules that follow from the spec of a job that has been there for `age`. `share`, from 0 to 255, is the
    /// job's own.
    pub fn of(spec: &JobSpec, age: Duration, share: u8) -> Self {
        let RunPolicy {
            max_restarts,
            backoff_seconds,
            no_retry_exit_codes,
            start_timeout_seconds,
            on_start_timeout,
            deadline_seconds,
            ttl_after_finished_seconds: _, // the driver's, for nothing moves any more by then
            clean_pods,
            success_policy,
        } = &spec.run_policy;
        let start_timeout = seconds(*start_timeout_seconds);
        let deadline = deadline_seconds.map(seconds).map(|given| Deadline { at: given.saturating_sub(age), given });
        Self {
            start_timeout,
            stop_grace: STOP_GRACE,
            leaving_grace: seconds(spec.pod.termination_grace_seconds()).min(LEAVING_GRACE_MAX),
            release_timeout: RELEASE_TIMEOUT,
            success: SuccessRule::of(spec, *success_policy),
            max_restarts: *max_restarts,
            backoff: seconds(*backoff_seconds),
            no_retry_exit_codes: no_retry_exit_codes.clone(),
            on_start_timeout: *on_start_timeout,
            // From half of it to one and a half.
            requeue_pause: start_timeout.min(REQUEUE_PAUSE_MAX) * (128 + u32::from(share)) / 256,
            deadline,
            clean_pods: *clean_pods,
        }
    }

    /// What is to be done about a failure, after so many restarts.
    pub fn verdict(&self, failure: &Failure, restarts: &Restarts) -> Verdict {
        match self.budget_of(failure) {
            Some(Budget::Free) => {
                let pause = self.pause_after(restarts.uncounted).min(FREE_PAUSE_MAX.max(self.backoff));
                Verdict::Restart { budget: Budget::Free, pause }
            }
            Some(Budget::Counted) if restarts.counted < self.max_restarts => {
                Verdict::Restart { budget: Budget::Counted, pause: self.pause_after(restarts.counted) }
            }
            Some(Budget::Counted) => Verdict::GiveUp,
            None => match (failure, self.on_start_timeout) {
                (Failure::StartTimeout { .. }, OnStartTimeout::Requeue) => {
                    Verdict::Requeue { pause: self.requeue_pause }
                }
                (_, OnStartTimeout::Requeue | OnStartTimeout::Fail) => Verdict::GiveUp,
            },
        }
    }

    /// What another start would cost; none for a failure that another start would meet again.
    pub fn budget_of(&self, failure: &Failure) -> Option<Budget> {
        match failure {
            Failure::ReplicaExited { exit, .. } => self.budget_of_exit(exit),
            Failure::ReplicaLost { loss: Loss::Disrupted, .. } => Some(Budget::Free),
            Failure::ReplicaLost { loss: Loss::Broken, .. } => Some(Budget::Counted),
            Failure::ReplicaLost { loss: Loss::Hopeless, .. }
            | Failure::StartTimeout { .. }
            | Failure::DeadlineExceeded { .. } => None,
        }
    }

    fn budget_of_exit(&self, exit: &ExitReport) -> Option<Budget> {
        match &exit.outcome {
            ExitOutcome::NotStarted(_) if !exit.stopped => None,
            ExitOutcome::Code(code)
                if u8::try_from(*code).is_ok_and(|code| self.no_retry_exit_codes.contains(&code)) =>
            {
                None
            }
            ExitOutcome::Code(_)
            | ExitOutcome::Signal(_)
            | ExitOutcome::OutOfMemory { .. }
            | ExitOutcome::NotStarted(_) => Some(Budget::Counted),
        }
    }

    /// Twice as long after each restart.
    fn pause_after(&self, restarts: u32) -> Duration {
        let factor = 2_u32.checked_pow(restarts).unwrap_or(u32::MAX);
        self.backoff.saturating_mul(factor).min(seconds(BACKOFF_MAX_SECONDS))
    }
}

impl SuccessRule {
    fn of(spec: &JobSpec, chosen: Option<SuccessPolicy>) -> Self {
        let chief = Self::Decider(ReplicaId { role: Role::Chief, index: 0 });
        let first_worker = Self::Decider(ReplicaId { role: Role::Worker, index: 0 });
        match (chosen, spec.strategy) {
            (Some(SuccessPolicy::All), _) => Self::AllThatTrain,
            (Some(SuccessPolicy::Chief), _) => chief,
            (Some(SuccessPolicy::Worker0), _) => first_worker,
            (None, _) if spec.chief_num > 0 => chief,
            (None, Strategy::AllReduce) => Self::AllThatTrain,
            (None, Strategy::ParameterServer) => first_worker,
        }
    }

    /// Whether the gang has done what it should.
    pub fn is_met(self, gang: &Gang) -> bool {
        match self {
            Self::AllThatTrain => gang
                .members()
                .iter()
                .filter(|member| member.id.role.trains())
                .all(|member| member.phase.has_succeeded()),
            Self::Decider(decider) => gang.any(|member| member.id == decider && member.phase.has_succeeded()),
        }
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}
