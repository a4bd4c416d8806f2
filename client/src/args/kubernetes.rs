//! The flags for a master in Kubernetes: the image that pods run, the way it gets to them, and what they are given.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use protocol::image::ImageRef;
use protocol::pod::{Amount, BadValue, LabelKey, LabelValue, ObjectName, PodOptions, PullPolicy, Toleration, Volume};

use super::values::{gpus, seconds, shown};

/// The image, and the way it gets to the nodes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "On Kubernetes")]
pub(crate) struct ImageArgs {
    /// The training image, which holds exec.py in its working directory; pods run it with the agent in a layer on top,
    /// as REF_pod [default: built from ./Dockerfile]
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<ImageRef>,
    /// Push the image that pods run to this registry, HOST[:PORT][/PATH], and name it there by its digest
    /// [default: the nodes share this Docker engine]
    #[arg(long, value_name = "REGISTRY", conflicts_with = "load")]
    pub(crate) push: Option<Registry>,
    /// Load the image that pods run into a local cluster, with minikube's, kind's or k3d's own command; the cluster is
    /// named by $MUSTER_LOAD_CLUSTER [default: $MUSTER_LOAD, unless --push is given]
    #[arg(long, value_name = "TOOL", hide_possible_values = true)]
    pub(crate) load: Option<Loader>,
    /// The agent to put into the image, a static Linux program [default: `agent` beside this program, else the master's]
    #[arg(long, value_name = "PATH")]
    pub(crate) agent_binary: Option<PathBuf>,
}

impl ImageArgs {
    /// The first flag that was given, for who has no use for any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let Self { image, push, load, agent_binary } = self;
        let flags = [
            ("--image", image.is_some()),
            ("--push", push.is_some()),
            ("--load", load.is_some()),
            ("--agent-binary", agent_binary.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }
}

/// What every pod is given.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "On Kubernetes")]
pub(crate) struct PodArgs {
    /// Processors of each pod, for example 2 or 500m, as REQUEST or REQUEST:LIMIT [default: no request and no limit]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub(crate) cpu: Option<Amount>,
    /// Memory of each pod in bytes, for example 4Gi, as REQUEST or REQUEST:LIMIT [default: no request and no limit]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub(crate) memory: Option<Amount>,
    /// GPUs of each pod (nvidia.com/gpu) [default: 0]
    #[arg(long, value_name = "N", value_parser = gpus, allow_negative_numbers = true)]
    pub(crate) gpus: Option<u32>,
    /// Mount pvc:CLAIM:/path, host:/dir:/path or empty:/path into each pod, read-only with :ro behind it; again and again
    #[arg(long, value_name = "VOLUME")]
    pub(crate) volume: Vec<Volume>,
    /// A Secret whose keys become variables of each pod; again and again
    #[arg(long, value_name = "NAME")]
    pub(crate) env_secret: Vec<ObjectName>,
    /// A label that a node must have to get a pod; again and again, the last of a key counts
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) node_selector: Vec<(LabelKey, LabelValue)>,
    /// A taint that a node may have and get a pod all the same, as KEY[=VALUE][:EFFECT]; again and again
    #[arg(long, value_name = "TAINT")]
    pub(crate) toleration: Vec<Toleration>,
    /// The PriorityClass of each pod [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    pub(crate) priority_class: Option<ObjectName>,
    /// The ServiceAccount of each pod; its token is not mounted [default: the namespace's]
    #[arg(long, value_name = "NAME")]
    pub(crate) service_account: Option<ObjectName>,
    /// When a node asks a registry for the image: IfNotPresent, Always or Never [default: IfNotPresent]
    #[arg(long, value_name = "POLICY")]
    pub(crate) image_pull_policy: Option<PullPolicy>,
    /// How long each pod may take to end when the cluster ends it, in whole seconds, for example 90s or 5m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = whole_seconds, allow_negative_numbers = true)]
    pub(crate) termination_grace: Option<NonZeroU32>,
    /// Run an image whose user is root, or a name, which Kubernetes cannot tell from root [default: refused]
    #[arg(long)]
    pub(crate) allow_root: bool,
}

impl From<PodArgs> for PodOptions {
    fn from(args: PodArgs) -> Self {
        let PodArgs {
            cpu,
            memory,
            gpus,
            volume,
            env_secret,
            node_selector,
            toleration,
            priority_class,
            service_account,
            image_pull_policy,
            termination_grace,
            allow_root,
        } = args;
        Self {
            cpu,
            memory,
            gpus,
            volumes: volume,
            env_secrets: env_secret,
            node_selector: node_selector.into_iter().collect(),
            tolerations: toleration,
            priority_class,
            service_account,
            image_pull_policy,
            termination_grace_seconds: termination_grace,
            allow_root,
        }
    }
}

/// A program that puts images into the nodes of a local cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loader {
    /// `minikube image load`
    Minikube,
    /// `kind load docker-image`
    Kind,
    /// `k3d image import`
    K3d,
}

/// Where images are pushed to: `HOST[:PORT][/PATH]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registry(String);

/// Why a text is no [`Registry`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no registry: write HOST[:PORT][/PATH] in lower case, for example registry.example.com/team")]
pub(crate) struct BadRegistry(String);

impl Registry {
    /// As it stands before an image's name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Registry {
    type Err = BadRegistry;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim_end_matches('/');
        // What names an image there has no tag, so one behind the registry would be taken for a part of it.
        let named = format!("{trimmed}/image").parse::<ImageRef>();
        let is_registry = !trimmed.is_empty() && named.is_ok_and(|image| image.tag().is_none());
        if is_registry { Ok(Self(trimmed.to_owned())) } else { Err(BadRegistry(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn whole_seconds(text: &str) -> Result<NonZeroU32, String> {
    let none = || format!("\"{}\" is not a whole number of seconds from 1 on", shown(text));
    NonZeroU32::new(seconds(text)?).ok_or_else(none)
}

fn label(text: &str) -> Result<(LabelKey, LabelValue), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(format!("\"{}\" is not of the form KEY=VALUE", shown(text)));
    };
    let sentence = |error: BadValue| error.to_string();
    Ok((key.parse().map_err(sentence)?, value.parse().map_err(sentence)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_with_or_without_port_and_path() {
        for (text, registry) in [
            ("registry.example.com", "registry.example.com"),
            ("localhost:5000/", "localhost:5000"),
            ("10.0.0.7:5000/team/a", "10.0.0.7:5000/team/a"),
            ("someone", "someone"),
        ] {
            assert_eq!(text.parse::<Registry>().unwrap().as_str(), registry);
        }
        for text in ["", "/", "http://registry.example.com", "host:port", "Team/A", "host/a:1", "host/a@sha256:0"] {
            assert!(text.parse::<Registry>().is_err(), "{text:?}");
        }
    }
}
