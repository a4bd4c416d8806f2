//! What `client install` installs.

use clap::{Args, ValueEnum};
use protocol::image::ImageRef;

/// What to install. A setting that is not given stays as it is in the present installation.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Installation {
    /// Image of the master. Nodes that have the image do not pull it [default: the repository of the present
    /// installation with the tag of this version; at first, the muster-master that `make images` builds]
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<ImageRef>,
    /// Way to the master besides --master kube: nodeport opens port 31898 on every node, none closes it
    /// [default: unchanged; a new installation opens no port]
    #[arg(long, value_name = "WAY", hide_possible_values = true)]
    pub(crate) service: Option<Service>,
    /// Run the TFJobs that kubectl apply creates in the namespace, without Kubeflow. With =allow-root, TFJobs with the
    /// annotation muster/allow-root: "true" may run as root. A later `client install` without this flag keeps the
    /// setting
    #[arg(long, value_name = "RULE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide_possible_values = true)]
    pub(crate) tfjobs: Option<TfJobs>,
    /// Pull secret that the master may read. If a TFJob has no command and names this secret, the master uses the
    /// secret to look up what the image runs. Repeatable. A later `client install` without this flag keeps the names
    #[arg(long = "pull-secret", value_name = "NAME", requires = "tfjobs", value_parser = pull_secret)]
    pub(crate) pull_secrets: Vec<String>,
}

/// The name of a pull secret. The master's own Secret has another purpose.
fn pull_secret(text: &str) -> Result<String, String> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges_ok = text.bytes().next().is_some_and(is_word) && text.bytes().last().is_some_and(is_word);
    if !edges_ok || !text.bytes().all(|byte| is_word(byte) || matches!(byte, b'-' | b'.')) {
        return Err("the name of a Secret has lower-case letters, digits, '-' and '.'".to_owned());
    }
    if text == "muster" {
        return Err("the Secret muster contains the master's token, not the login of a registry".to_owned());
    }
    Ok(text.to_owned())
}

/// The Service of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// No Service.
    None,
    /// A port on every node.
    Nodeport,
}

/// Which TFJobs of its namespace a master runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TfJobs {
    /// TFJobs that do not run as root.
    True,
    /// Also TFJobs with the annotation that allows root.
    AllowRoot,
}
