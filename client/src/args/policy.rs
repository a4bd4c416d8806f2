//! The flags for what a job does about failures, how long it may take, and what is left of it.

use std::collections::BTreeSet;

use clap::Args;
use protocol::run_policy::{CleanPods, OnStartTimeout, RunPolicy, SuccessPolicy};

use super::values::{exit_code, restarts, seconds};

/// What the job does about failures.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Failures and time limits")]
pub(crate) struct PolicyArgs {
    /// How many failures are made up for by starting all replicas again, where they are; what the cluster takes away
    /// (evicted, preempted, drained or deleted pods) is always made up for, and does not count
    /// [default: 3; 0 with --master local]
    #[arg(long, value_name = "N", value_parser = restarts, allow_negative_numbers = true)]
    pub(crate) max_restarts: Option<u32>,
    /// Pause before the first restart, for example 10s; each further one doubles it, up to 5m [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) backoff: Option<u32>,
    /// Exit codes of exec.py that another start would not change: the job fails at once [default: none]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = exit_code, allow_negative_numbers = true)]
    pub(crate) no_retry_exit_codes: Vec<u8>,
    /// How long the replicas may take to be there and started; then the job fails [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) start_timeout: Option<u32>,
    /// After the start timeout give all pods back and try again later, instead of failing: two jobs that each hold half
    /// of the cluster do not block each other
    #[arg(long)]
    pub(crate) requeue: bool,
    /// How long the job may take in all, from its acceptance on [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) deadline: Option<u32>,
    /// How long the master remembers the job, with its output, after its end [default: until it is deleted]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) ttl_after_finished: Option<u32>,
    /// Which pods go at the end: `running` leaves those that have ended, for kubectl logs; `all` leaves none; `none`
    /// leaves all, with their agents, for 10 minutes, to look into them [default: running]
    #[arg(long, value_name = "WHICH")]
    pub(crate) clean_pods: Option<CleanPods>,
    /// Whose exit with 0 makes the job a success: `all` that train, `chief` or `worker-0`
    /// [default: the chief where there is one; else all with AllReduce, worker-0 with ParameterServer]
    #[arg(long, value_name = "WHO")]
    pub(crate) success_policy: Option<SuccessPolicy>,
}

impl PolicyArgs {
    /// The rules, with so many restarts where none are asked for.
    pub(crate) fn run_policy(self, restarts_by_default: u32) -> RunPolicy {
        let Self {
            max_restarts,
            backoff,
            no_retry_exit_codes,
            start_timeout,
            requeue,
            deadline,
            ttl_after_finished,
            clean_pods,
            success_policy,
        } = self;
        let default = RunPolicy::default();
        RunPolicy {
            max_restarts: max_restarts.unwrap_or(restarts_by_default),
            backoff_seconds: backoff.unwrap_or(default.backoff_seconds),
            no_retry_exit_codes: BTreeSet::from_iter(no_retry_exit_codes),
            start_timeout_seconds: start_timeout.unwrap_or(default.start_timeout_seconds),
            on_start_timeout: if requeue { OnStartTimeout::Requeue } else { OnStartTimeout::Fail },
            deadline_seconds: deadline,
            ttl_after_finished_seconds: ttl_after_finished,
            clean_pods: clean_pods.unwrap_or(default.clean_pods),
            success_policy,
        }
    }
}
