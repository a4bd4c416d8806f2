//! The flag for checking without creating anything.

use clap::{Args, ValueEnum};

/// Whether a job is only checked.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRunArgs {
    /// Check the job and print what would be created as YAML, but create, delete, build, push and upload nothing.
    /// =client checks on this machine, and asks the master only for its back end. It prints the request to the master.
    /// `client apply` also checks the TFJobs by the master's rules.
    /// =server also lets the master check everything, such as names, quotas and admission. In Kubernetes, it prints the
    /// pods: one of each kind, with the number of pods. An image that would be built is named by its tag
    #[arg(long, value_name = "client|server", require_equals = true, hide_possible_values = true)]
    pub(crate) dry_run: Option<Checker>,
}

/// Who checks a job in a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checker {
    /// This machine.
    Client,
    /// The master.
    Server,
}
