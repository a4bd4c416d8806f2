//! The flags for restarts, time limits and clean-up.

use std::collections::BTreeSet;

use clap::Args;
use protocol::run_policy::{
    CleanPods, OnFailure, OnSameFailure, OnStartTimeout, OnUnreachable, RunPolicy, SuccessPolicy,
};
use protocol::warm::{ModuleName, Preload};

use super::values::{exit_code, restarts, seconds};

/// Restarts, time limits and clean-up of a job.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Failures and time limits")]
pub(crate) struct PolicyArgs {
    /// Maximum restarts of all replicas after failures. Evicted, preempted, drained and deleted pods do not count. An
    /// evaluator that fails starts again alone, and its restarts count for itself
    /// [default: 3; 0 with --master local]
    #[arg(long, value_name = "N", value_parser = restarts, allow_negative_numbers = true)]
    pub(crate) max_restarts: Option<u32>,
    /// Pause before the first restart, for example 10s. Each further restart doubles the pause, up to 5m [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) backoff: Option<u32>,
    /// Exit codes of exec.py after which the job fails without a restart, for example 2,3 [default: none]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = exit_code, allow_negative_numbers = true)]
    pub(crate) no_retry_exit_codes: Vec<u8>,
    /// Action after the script fails: `restart`, or `wait`. With `wait`, the pods stay for up to 10 minutes, so that
    /// `client push` can correct the code. The push starts the scripts again. If nobody pushes, the job then behaves as
    /// with `restart` [default: restart]
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_failure: Option<OnFailure>,
    /// Restart although exec.py has failed twice in a row with the same exception, in the same replica and at the same
    /// step that it reported with muster.py. Without this flag, the job then fails
    #[arg(long)]
    pub(crate) retry_same: bool,
    /// Maximum time until all replicas have started. After this time, the job fails [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) start_timeout: Option<u32>,
    /// After the start timeout, delete all pods and try again later instead of failing. So two jobs that each hold half
    /// of a cluster do not block each other forever
    #[arg(long)]
    pub(crate) requeue: bool,
    /// Maximum time from the submit to the end of the job [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) deadline: Option<u32>,
    /// Time from the end of the job until the master deletes the job, its output and the copy of its folder [default: no
    /// limit]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) ttl_after_finished: Option<u32>,
    /// Pods to delete at the end: `all`, `none` or `running`. With `running`, ended pods stay for kubectl logs. With
    /// `none`, all pods stay, and their agents run for up to 10 more minutes, for inspection [default: running]
    #[arg(long, value_name = "WHICH")]
    pub(crate) clean_pods: Option<CleanPods>,
    /// Replicas that must exit with 0 for the job to succeed: `all` (all that train), `chief` or `worker-0`
    /// [default: chief if the job has a chief; else all with AllReduce, worker-0 with ParameterServer]
    #[arg(long, value_name = "WHO")]
    pub(crate) success_policy: Option<SuccessPolicy>,
    /// Minimum time from a start of an elastic job to a restart that adds new workers. If the maximum number of workers
    /// is ready, the job restarts at once [default: 30s if exec.py reports its steps with muster.py; else 5m]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) grow_interval: Option<u32>,
    /// How long an evaluator may go on after the training has succeeded, to evaluate the last checkpoint; 0 stops it at
    /// once. The job ends when the evaluator ends [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) evaluator_grace: Option<u32>,
    /// Action when the master cannot reach a replica whose exec.py may still run: `wait` for the cluster to remove the
    /// pod, or `replace` the pod after the lease [default: wait; replace on machines that join]
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_unreachable: Option<OnUnreachable>,
    /// With --on-unreachable replace: a replica is lost when its agent has not answered for this time. The agent kills
    /// exec.py when the master has sent no request for three times as long [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true, requires = "on_unreachable")]
    pub(crate) lease: Option<u32>,
    /// Keep a warm interpreter in each pod: a Python process that has imported these modules and waits for exec.py.
    /// Restarts are then faster, and pods need more memory. --preload=numpy,keras names the modules. Without MODULES:
    /// exec.py's own imports of tensorflow, numpy and other large modules [default: only for jobs that are elastic or
    /// bring their code]
    #[arg(long, value_name = "MODULES", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    pub(crate) preload: Option<Vec<ModuleName>>,
    /// Start exec.py in a new interpreter each time
    #[arg(long, conflicts_with = "preload")]
    pub(crate) no_preload: bool,
}

impl PolicyArgs {
    /// The policy in which the given flags replace values of `base`.
    pub(crate) fn over(self, base: RunPolicy) -> RunPolicy {
        let Self {
            max_restarts,
            backoff,
            no_retry_exit_codes,
            on_failure,
            retry_same,
            start_timeout,
            requeue,
            deadline,
            ttl_after_finished,
            clean_pods,
            success_policy,
            grow_interval,
            evaluator_grace,
            on_unreachable,
            lease,
            preload,
            no_preload,
        } = self;
        RunPolicy {
            max_restarts: max_restarts.unwrap_or(base.max_restarts),
            backoff_seconds: backoff.unwrap_or(base.backoff_seconds),
            no_retry_exit_codes: match no_retry_exit_codes[..] {
                [] => base.no_retry_exit_codes,
                _ => BTreeSet::from_iter(no_retry_exit_codes),
            },
            restart: base.restart,
            on_failure: on_failure.unwrap_or(base.on_failure),
            on_same_failure: if retry_same { OnSameFailure::Restart } else { base.on_same_failure },
            start_timeout_seconds: start_timeout.unwrap_or(base.start_timeout_seconds),
            on_start_timeout: if requeue { OnStartTimeout::Requeue } else { base.on_start_timeout },
            deadline_seconds: deadline.or(base.deadline_seconds),
            ttl_after_finished_seconds: ttl_after_finished.or(base.ttl_after_finished_seconds),
            clean_pods: clean_pods.unwrap_or(base.clean_pods),
            success_policy: success_policy.or(base.success_policy),
            grow_interval_seconds: grow_interval.or(base.grow_interval_seconds),
            evaluator_grace_seconds: evaluator_grace.or(base.evaluator_grace_seconds),
            on_unreachable: on_unreachable.unwrap_or(base.on_unreachable),
            lease_seconds: lease.unwrap_or(base.lease_seconds),
            preload: preload.map(Preload::Modules).or(no_preload.then_some(Preload::Never)).or(base.preload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, parse};
    use super::*;

    fn parsed(line: &str) -> (Option<Vec<ModuleName>>, Option<String>) {
        let Ok(Parsed::Command(cli)) = parse(line.split(' ').map(Into::into)) else { panic!("{line} does not parse") };
        let script = cli.submit.code.script.map(|script| script.into_string().unwrap());
        (cli.submit.job.policy.preload, script)
    }

    #[test]
    fn the_word_after_preload_is_the_script_and_modules_need_an_equals_sign() {
        let (modules, script) = parsed("client --preload train.py");
        assert_eq!((modules, script.as_deref()), (Some(vec![]), Some("train.py")));
        let (modules, script) = parsed("client --preload=numpy,keras train.py");
        let expected = ["numpy", "keras"].map(|module| module.parse().unwrap()).to_vec();
        assert_eq!((modules, script.as_deref()), (Some(expected), Some("train.py")));
    }
}
