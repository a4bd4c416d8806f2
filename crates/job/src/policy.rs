//! The rules of a job, as values: its time limits, its restarts, and the function that judges a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::elastic::Workers;
use protocol::failure::{Failure, Fingerprint, Loss, Restarts};
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobSpec, Strategy};
use protocol::lease::Lease;
use protocol::pause::doubled;
use protocol::run_policy::{
    BACKOFF_MAX_SECONDS, CleanPods, EVALUATOR_GRACE_SECONDS, HALT_SECONDS, OnFailure, OnSameFailure, OnStartTimeout,
    RestartRule, RunPolicy, SuccessPolicy,
};

use super::gang::{Gang, HelperUse, has_left, was_stopped};

/// Time between SIGTERM and SIGKILL when a run is stopped without a failure, unless the scripts need time to save.
/// TensorFlow ignores SIGTERM, so a script that does not handle SIGTERM always takes this long.
pub const STOP_GRACE: Duration = Duration::from_secs(2);
/// Default of [`Graces::cancel`] on machines without Kubernetes, where a script may save its state after Ctrl-C.
pub const CANCEL_GRACE: Duration = Duration::from_secs(10);
/// Time beyond the grace period for a pod to end or to report the end of its run. After that, the driver deletes the
/// pod.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum of [`Graces::leaving`].
pub const LEAVING_GRACE_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a gang with enough workers waits for more workers. It applies to the job's first start, and to the
/// first start after all pods were deleted.
pub(super) const GATHER: Duration = Duration::from_secs(10);
/// Maximum time that a gang with enough workers waits for more workers before a later start.
pub(super) const SETTLE: Duration = Duration::from_millis(200);
/// Maximum pause before a restart that does not count against `max_restarts`. A job with a longer `backoff` always
/// pauses for its `backoff`. A job on preemptible machines has many of these restarts.
const FREE_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum of [`Retries::requeue_pause`] before [`Policy::of`] multiplies it by a factor from 0.5 to 1.5.
const REQUEUE_PAUSE_MAX: Duration = Duration::from_secs(300);

/// After this time without a counted failure, an elastic job's earlier restarts do not use up `max_restarts` any more.
pub const FORGIVE_AFTER: Duration = Duration::from_secs(600);

/// The lowest exit code after which TFJob's restart policy `ExitCode` restarts a replica. If a signal ends a container,
/// the exit code is 128 plus the signal's number.
const FIRST_RETRYABLE: i32 = 128;

/// The rules of one job, and what its users may change later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The rules, which never change.
    pub rules: Rules,
    /// The present wishes of users.
    pub wishes: Wishes,
}

/// The rules that follow from the job's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Maximum time for a gang to gather and start. TensorFlow itself waits for a missing peer without limit.
    pub start_timeout: Duration,
    /// How long runs may go on after they were asked to end.
    pub graces: Graces,
    /// Which failures the job survives, and its pauses after them.
    pub retries: Retries,
    /// The condition of success.
    pub success: SuccessRule,
    /// Which pods are deleted at the end.
    pub clean_pods: CleanPods,
    /// Whether the number of workers may change.
    pub kind: GangKind,
    /// The user's choice for [`super::roster::grow_interval`].
    pub grow_interval: Option<Duration>,
    /// Whether an evaluator that fails starts again alone. Not on machines that join: a machine stays with its agent, and
    /// an agent runs each start only once.
    pub evaluators_return: bool,
    /// How long a replica may be silent; `None` if only the back end reports which pods are dead.
    pub lease: Option<Lease>,
}

/// The times from the first signal to SIGKILL, besides [`STOP_GRACE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graces {
    /// When a user cancels the job: the grace period of the job's pods if it is given.
    pub cancel: Duration,
    /// After a success, for replicas that may still save or export a model. If the job has templates, this is the grace
    /// period of its pods.
    pub success: Duration,
    /// While the cluster evicts one of the gang's pods. It is the grace period of the job's pods, at most
    /// [`LEAVING_GRACE_MAX`].
    pub leaving: Duration,
    /// When a gang has time to save, and all its scripts use the helper `muster.py`. These scripts save their state and
    /// end by themselves, so they may have the whole grace period of the job's pods.
    pub saving: Duration,
    /// How long an evaluator may go on after a success. Zero if the job has none.
    pub evaluator: Duration,
}

/// What a job does after a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Maximum restarts after failures. Evictions do not count.
    pub max_restarts: u32,
    /// Pause before the first restart.
    pub backoff: Duration,
    /// Exit codes for which a restart is useless.
    pub no_retry_exit_codes: BTreeSet<u8>,
    /// The restart rules of roles. If a role has no rule, its failed replicas lead to a restart of the job.
    pub restart: BTreeMap<Role, RestartRule>,
    /// How long the job waits for new code when its script has failed; `None` if it does not wait.
    pub halt: Option<Duration>,
    /// What to do when the script fails a second time in the same way.
    pub on_same_failure: OnSameFailure,
    /// What to do when a gang does not gather in time.
    pub on_start_timeout: OnStartTimeout,
    /// Pause before the pods of a requeued gang are created again. The pause differs between jobs, so that two jobs
    /// that need the same resources do not create their pods at the same time.
    pub requeue_pause: Duration,
}

/// What users may change while the job exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// The minimum and the maximum number of workers. They are equal in a fixed gang.
    pub workers: Workers,
    /// How often users have pushed new code, by the record that the driver applied last. The store may already have a
    /// record with more pushes.
    pub pushes: u32,
    /// Whether a user has suspended the job.
    pub is_suspended: bool,
    /// The deadline of the job, if it has one. A suspension moves it.
    pub deadline: Option<Deadline>,
}

/// Whether the number of workers of a gang may change.
///
/// A fixed gang gathers, runs and restarts like an elastic gang with equal minimum and maximum. Decision 26 lists where
/// the two differ. For example, the index of a replica in a fixed gang is its seat, and the job's record keeps each
/// start that ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangKind {
    /// The gang always has the same members.
    Fixed,
    /// Workers come and go.
    Elastic,
}

/// The deadline of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When the deadline passes, as the time since the driver began.
    pub at: Duration,
    /// The time limit of the job, counted from its acceptance, without suspensions.
    pub given: Duration,
}

impl Deadline {
    /// The deadline of a job with the time limit `given`. When the driver has run for `elapsed`, the job has used
    /// `active` of this limit.
    pub fn of(given: Duration, active: Duration, elapsed: Duration) -> Self {
        Self { at: (elapsed + given).saturating_sub(active), given }
    }
}

/// Which replicas must succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuccessRule {
    /// Every training replica exits with 0.
    AllThatTrain,
    /// This replica exits with 0. The other replicas may still run.
    Decider(ReplicaId),
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Restart the gang after a pause.
    Restart {
        /// Whether the restart counts.
        budget: Budget,
        /// Time to wait before the restart.
        pause: Duration,
    },
    /// Delete all pods, and create them again after a pause.
    Requeue {
        /// Time to wait before the pods are created again.
        pause: Duration,
    },
    /// Let the job fail.
    GiveUp,
}

/// Whether a restart counts. A restart that counts uses up one of the job's restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The restart counts.
    Counted,
    /// The restart does not count.
    Free,
}

impl Graces {
    fn of(spec: &JobSpec, evaluator_seconds: Option<u32>) -> Self {
        let grace = seconds(spec.pod.termination_grace_seconds());
        let cancel = if spec.is_on_machines() { CANCEL_GRACE } else { STOP_GRACE };
        let evaluator = seconds(evaluator_seconds.unwrap_or(EVALUATOR_GRACE_SECONDS));
        Self {
            cancel: spec.pod.termination_grace_seconds.map_or(cancel, |given| seconds(given.get())),
            success: if has_templates(spec) { grace } else { STOP_GRACE },
            leaving: grace.min(LEAVING_GRACE_MAX),
            saving: grace,
            evaluator: if spec.evaluator_num == 0 { Duration::ZERO } else { evaluator },
        }
    }
}

fn has_templates(spec: &JobSpec) -> bool {
    spec.groups.iter().any(|group| group.template.is_some())
}

impl Policy {
    /// The rules of a job. `age` is the time since its acceptance, without suspensions. `share` is a number from 0 to
    /// 255 that differs between jobs, so that their pauses before a new attempt differ too.
    pub fn of(spec: &JobSpec, age: Duration, share: u8) -> Self {
        let RunPolicy {
            max_restarts,
            backoff_seconds,
            no_retry_exit_codes,
            restart,
            on_failure,
            on_same_failure: _, // see `JobSpec::on_same_failure`
            start_timeout_seconds,
            on_start_timeout,
            deadline_seconds,
            ttl_after_finished_seconds: _, // the driver applies it after the last phase change
            clean_pods,
            success_policy,
            grow_interval_seconds,
            evaluator_grace_seconds,
            on_unreachable: _, // see `RunPolicy::lease`
            lease_seconds: _,  // see `RunPolicy::lease`
            preload: _,        // see `job::warm`
        } = &spec.run_policy;
        let start_timeout = seconds(*start_timeout_seconds);
        let retries = Retries {
            max_restarts: *max_restarts,
            backoff: seconds(*backoff_seconds),
            no_retry_exit_codes: no_retry_exit_codes.clone(),
            restart: restart.clone(),
            halt: match on_failure {
                OnFailure::Restart => None,
                OnFailure::Wait => Some(seconds(HALT_SECONDS)),
            },
            on_same_failure: spec.on_same_failure(),
            on_start_timeout: *on_start_timeout,
            // The share gives a factor from 0.5 to 1.5.
            requeue_pause: start_timeout.min(REQUEUE_PAUSE_MAX) * (128 + u32::from(share)) / 256,
        };
        let rules = Rules {
            start_timeout,
            graces: Graces::of(spec, *evaluator_grace_seconds),
            retries,
            success: SuccessRule::of(spec, *success_policy),
            clean_pods: *clean_pods,
            kind: if spec.workers().is_some() { GangKind::Elastic } else { GangKind::Fixed },
            grow_interval: grow_interval_seconds.map(seconds),
            evaluators_return: spec.has_code() || has_templates(spec),
            lease: spec.run_policy.lease(),
        };
        let wishes = Wishes {
            workers: spec.workers().unwrap_or(Workers { min: spec.worker_num, max: spec.worker_num }),
            pushes: 0,
            is_suspended: false,
            deadline: deadline_seconds.map(|given| Deadline::of(seconds(given), age, Duration::ZERO)),
        };
        Self { rules, wishes }
    }

    /// Whether the gang always has the same members.
    pub fn is_fixed(&self) -> bool {
        self.rules.kind == GangKind::Fixed
    }

    /// How long the job waits for new code after this failure; `None` if it does not wait. The job waits only after a
    /// failure of the script itself. If the script has asked for a restart that does not count, the job restarts at
    /// once instead.
    pub fn wait_after(&self, failure: &Failure, helper: HelperUse) -> Option<Duration> {
        let is_of_script = matches!(failure, Failure::ReplicaExited { .. }) && !was_stopped(failure);
        let may_wait = is_of_script && self.budget_of(failure, helper) != Some(Budget::Free);
        if may_wait { self.rules.retries.halt } else { None }
    }

    /// Decides what to do about a failure after these restarts. `helper` says whether the failed script used
    /// `muster.py`, and whether it reported a step.
    pub fn verdict(&self, failure: &Failure, helper: HelperUse, restarts: &Restarts) -> Verdict {
        match self.budget_of(failure, helper) {
            Some(Budget::Free) => {
                let pause = self.pause_after(restarts.uncounted).min(FREE_PAUSE_MAX.max(self.rules.retries.backoff));
                Verdict::Restart { budget: Budget::Free, pause }
            }
            Some(Budget::Counted) if restarts.spent() < self.rules.retries.max_restarts => {
                Verdict::Restart { budget: Budget::Counted, pause: self.pause_after(restarts.spent()) }
            }
            Some(Budget::Counted) => Verdict::GiveUp,
            None => match (failure, self.rules.retries.on_start_timeout) {
                (Failure::StartTimeout { .. }, OnStartTimeout::Requeue) => {
                    Verdict::Requeue { pause: self.rules.retries.requeue_pause }
                }
                (_, OnStartTimeout::Requeue | OnStartTimeout::Fail) => Verdict::GiveUp,
            },
        }
    }

    /// Whether the job should stop, because the script has failed twice in the same way. False if the user wants a
    /// restart anyway.
    pub fn would_fail_again(&self, failure: &Fingerprint, restarts: &Restarts) -> bool {
        self.rules.retries.on_same_failure == OnSameFailure::Stop && failure.would_recur(&restarts.failed_starts)
    }

    /// Whether a restart would count; `None` if there must be no restart. A script that has completed a step may ask
    /// for a restart that does not count. The step is required, because otherwise a script that never completes a step
    /// could restart forever.
    pub fn budget_of(&self, failure: &Failure, helper: HelperUse) -> Option<Budget> {
        if failure.replica().is_some_and(|replica| self.ends_job(replica.role, failure)) {
            return None;
        }
        match failure {
            Failure::ReplicaExited { exit, .. } => match self.budget_of_exit(exit) {
                Some(_) if has_left(failure) && helper == HelperUse::Stepped => Some(Budget::Free),
                budget => budget,
            },
            Failure::ReplicaLost { loss: Loss::Disrupted, .. } => Some(Budget::Free),
            Failure::ReplicaLost { loss: Loss::Broken, .. } => Some(Budget::Counted),
            Failure::ReplicaLost { loss: Loss::Hopeless, .. }
            | Failure::StartTimeout { .. }
            | Failure::DeadlineExceeded { .. } => None,
        }
    }

    /// Whether this failure of a replica ends the job, by the restart rule of the replica's role.
    fn ends_job(&self, role: Role, failure: &Failure) -> bool {
        match (self.rules.retries.restart.get(&role), failure) {
            (Some(RestartRule::Never), _) => true,
            (Some(RestartRule::ExitCode), Failure::ReplicaExited { exit, .. }) => match exit.outcome {
                ExitOutcome::Code(code) => code < FIRST_RETRYABLE,
                ExitOutcome::Signal(_) | ExitOutcome::OutOfMemory { .. } | ExitOutcome::NotStarted(_) => false,
            },
            (Some(RestartRule::ExitCode | RestartRule::OnFailure) | None, _) => false,
        }
    }

    fn budget_of_exit(&self, exit: &ExitReport) -> Option<Budget> {
        match &exit.outcome {
            ExitOutcome::NotStarted(_) if !exit.stopped => None,
            ExitOutcome::Code(code)
                if u8::try_from(*code).is_ok_and(|code| self.rules.retries.no_retry_exit_codes.contains(&code)) =>
            {
                None
            }
            ExitOutcome::Code(_)
            | ExitOutcome::Signal(_)
            | ExitOutcome::OutOfMemory { .. }
            | ExitOutcome::NotStarted(_) => Some(Budget::Counted),
        }
    }

    /// The pause before the next restart. The pause doubles after each restart.
    fn pause_after(&self, restarts: u32) -> Duration {
        doubled(self.rules.retries.backoff, restarts, seconds(BACKOFF_MAX_SECONDS))
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

    /// Whether the gang meets this rule.
    pub fn is_met(self, gang: &Gang<'_>) -> bool {
        match self {
            Self::AllThatTrain => {
                let mut training = gang.members().filter(|member| member.id.role.trains());
                gang.is_whole() && training.all(|member| member.phase.has_succeeded())
            }
            Self::Decider(decider) => gang.any(|member| gang.seat(member) == decider && member.phase.has_succeeded()),
        }
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}
