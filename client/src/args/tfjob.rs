//! The arguments of the verbs for TFJobs: `apply` and `get`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use master_client::namespace_name;
use protocol::env::EnvName;
use protocol::ids::JobName;

use super::values::{count, seconds};
use super::{DryRunArgs, EnvArg, SyntaxArgs};

pub(super) const APPLY_EXAMPLES: &str = "\
Examples:
  client apply -f tfjob.yaml                            run it on this machine, without a cluster
  client apply -f tfjob.yaml --master kube:team         run it in namespace team
  client apply -f tfjob.yaml --master kube --code src   run it with the scripts in src
  kustomize build overlay | client apply -f -";

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// File with TFJobs, a folder with such files, or - for stdin. Repeatable. A file may have several documents and
    /// lists. Objects that are not TFJobs are left out; all TFJobs are checked before the first is sent
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Namespace of the TFJobs, instead of the namespace in the file. The client asks the master in this namespace,
    /// except with --master URL or local
    #[arg(short, long, value_name = "NAME", value_parser = namespace_name)]
    pub(crate) namespace: Option<String>,
    /// Allow containers to run as root
    #[arg(long)]
    pub(crate) allow_root: bool,
    /// Environment variable for every replica. With NAME alone, copies the value from your environment. Repeatable
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Allow a variable that can make programs run other code, such as LD_PRELOAD. Repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_env: Vec<EnvName>,
    /// Maximum restarts after failures, instead of the TFJob's backoffLimit
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_restarts: Option<u32>,
    /// How long an evaluator may go on after the training has succeeded; 0 stops it at once [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) evaluator_grace: Option<u32>,
    /// Folder with the scripts. Pods get the files of this folder, so the image need not contain scripts; `client push`
    /// sends changes later. Replicas that are processes run in this folder [default for processes: the folder of the
    /// file]
    #[arg(long, value_name = "DIR")]
    pub(crate) code: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) syntax: SyntaxArgs,
    /// Follow the job to its end. With a local master, this is the default
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Name of a TFJob [default: all]
    pub(crate) name: Option<JobName>,
    /// Output format: a table, or the whole object as yaml or json
    #[arg(short, long, value_name = "FORMAT", default_value = "table", hide_possible_values = true)]
    pub(crate) output: ObjectFormat,
}

/// The format of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    /// A line for each object.
    Table,
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}
