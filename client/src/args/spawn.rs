//! The arguments of `spawn`, spelled as tf-spawner spells them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use master_client::namespace_name;
use protocol::image::ImageRef;

use super::SyntaxArgs;
use super::values::count;

/// If the program has this name, it always runs the verb `spawn`.
pub(super) const TF_SPAWNER: &str = "tf-spawner";

pub(super) const EXAMPLES: &str = "\
Examples:
  client spawn -w 3 -e env -c entrypoint.sh -t run1 train.py
  client spawn -d run1 -y
  ln -s client tf-spawner && ./tf-spawner -w 3 train.py";

/// Arguments of `spawn`.
#[derive(Debug, Args)]
pub(crate) struct SpawnArgs {
    /// Script to run. Pods also find the script at /script/training-script.py. With -d, tag of the training to delete
    #[arg(value_name = "SCRIPT|TAG")]
    pub(crate) script: Option<String>,
    /// Number of workers
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "2", allow_negative_numbers = true)]
    pub(crate) workers: u32,
    /// Namespace of the master in the cluster [default: the namespace of kubectl's context]
    #[arg(short, long, value_name = "NAME", value_parser = namespace_name)]
    pub(crate) namespace: Option<String>,
    /// Port of TensorFlow's server in each pod
    #[arg(short, long, value_name = "PORT", default_value = "1999")]
    pub(crate) port: u16,
    /// File with the commands that each worker runs instead of the script. bash runs them, and stops at the first
    /// failure
    #[arg(short, long, value_name = "FILE")]
    pub(crate) command: Option<PathBuf>,
    /// File that describes the pod of each worker [default: pod.yaml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) pod_file: Option<PathBuf>,
    /// Tag of the training; the job's name comes from the tag [default: tf-spawner]
    #[arg(short, long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Use a random tag
    #[arg(short, long, conflicts_with = "delete")]
    pub(crate) randomize_tag: bool,
    /// File with variables of all workers, one NAME=VALUE per line, without quotes around the value
    #[arg(short, long, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,
    /// Image of the pods [default: the image of the pod file, else tensorflow/tensorflow]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) image: Option<ImageRef>,
    /// Delete the training with this tag, with its pods and output
    #[arg(short, long)]
    pub(crate) delete: bool,
    /// Delete without asking
    #[arg(short, long, requires = "delete")]
    pub(crate) yes: bool,
    /// Follow the training to its end. With a local master, this is the default
    #[arg(long)]
    pub(crate) follow: bool,
    /// Maximum restarts after failures
    #[arg(long, value_name = "N", value_parser = count, default_value = "0", allow_negative_numbers = true)]
    pub(crate) max_restarts: u32,
    #[command(flatten)]
    pub(crate) syntax: SyntaxArgs,
}

/// Adds the verb `spawn` to the command line if the program's name is `tf-spawner`.
pub(super) fn as_verb(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_called_so =
        arguments.first().and_then(|program| Path::new(program).file_name()?.to_str()) == Some(TF_SPAWNER);
    if is_called_so {
        arguments.insert(1, "spawn".into());
    }
    arguments
}
