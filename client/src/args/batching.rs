//! The flags for batch sizes, and for what other launchers' scripts expect in TF_CONFIG.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use protocol::batching::{BatchList, Batching};
use protocol::tf_config::TfConfigOptions;
use serde_json::Value;

/// How the samples of a step are divided among the workers.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Batch sizes")]
pub(crate) struct BatchingArgs {
    /// Samples of all workers together in one step. Muster divides them among the workers, at first in proportion to
    /// the GPUs or CPUs that the workers ask for. If the script uses muster.py and measures its computation, the sizes
    /// then follow the measured times [default: the sum, if --worker gives each worker one batch; else the script alone
    /// decides]
    #[arg(long, value_name = "N")]
    pub(crate) global_batch: Option<u32>,
    /// Minimum batch of a worker [default: a quarter of an equal share, but at most 16]
    #[arg(long, value_name = "N")]
    pub(crate) min_batch: Option<u32>,
    /// Maximum batch of a worker, if its memory has no room for more [default: the global batch]
    #[arg(long, value_name = "N")]
    pub(crate) max_batch: Option<u32>,
    /// Make each batch a multiple of N, such as 8 for XLA [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) batch_multiple: Option<u32>,
    /// Form of batch_size_list in TF_CONFIG: text is "[64,32]"; list is [0,64,32], with a 0 for each parameter server
    /// [default: text]
    #[arg(long, value_name = "FORM", hide_possible_values = true)]
    pub(crate) batch_list: Option<ListForm>,
    /// Further key of TF_CONFIG, such as model_dir=/data. VALUE is JSON, or else a text. Repeatable; the last value of
    /// a key wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) tf_config: Vec<TfConfigKey>,
    /// Name of the chief in TF_CONFIG: chief, or master as in TensorFlow 1 [default: chief]
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub(crate) chief_name: Option<ChiefName>,
}

impl BatchingArgs {
    /// The batches in which the given flags replace values of `base`.
    pub(crate) fn batches_over(&self, base: &Batching) -> Batching {
        Batching {
            global_batch: self.global_batch.or(base.global_batch),
            min_batch: self.min_batch.or(base.min_batch),
            max_batch: self.max_batch.or(base.max_batch),
            multiple: self.batch_multiple.or(base.multiple),
            list: match self.batch_list {
                Some(ListForm::List) => BatchList::List,
                Some(ListForm::Text) => BatchList::Text,
                None => base.list,
            },
        }
    }

    /// The TF_CONFIG in which the given flags replace values of `base`.
    pub(crate) fn tf_config_over(self, mut base: TfConfigOptions) -> TfConfigOptions {
        if let Some(name) = self.chief_name {
            base.chief_is_master = name == ChiefName::Master;
        }
        base.extra.extend(self.tf_config.into_iter().map(|TfConfigKey(key, value)| (key, value)));
        base
    }
}

/// A form of `batch_size_list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListForm {
    /// A text.
    Text,
    /// A list of numbers.
    List,
}

/// The chief's name in TF_CONFIG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChiefName {
    /// Its name in TensorFlow 2.
    Chief,
    /// Its name in TensorFlow 1.
    Master,
}

/// A key of TF_CONFIG with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TfConfigKey(String, Value);

impl FromStr for TfConfigKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            None | Some(("", _)) => Err("write KEY=VALUE, such as model_dir=/data"),
            Some((key, value)) => {
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                Ok(Self(key.to_owned(), value))
            }
        }
    }
}
