//! The flags for a master in Kubernetes: the image, how it gets to the nodes, and the options of pods.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use protocol::image::ImageRef;
use protocol::pod::{
    Amount, BadValue, LabelKey, LabelValue, MemorySize, ObjectName, PodOptions, PullPolicy, RunAs, Toleration, Volume,
};

use super::values::{gpus, seconds, shown};

/// The image, and how it gets to the nodes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "On Kubernetes")]
pub(crate) struct ImageArgs {
    /// Training image with exec.py in its working directory. Pods run REF_pod, which is this image with the agent in an
    /// added layer. With SCRIPT or --code, pods run the image unmodified, and it only needs Python [default: built
    /// from ./Dockerfile]
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<ImageRef>,
    /// Registry to push the image to, HOST[:PORT][/PATH]; pods then name the image by digest
    /// [default: none; the nodes then use the images of the client's Docker engine]
    #[arg(long, value_name = "REGISTRY", conflicts_with = "load")]
    pub(crate) push: Option<Registry>,
    /// Tool that loads the image into a local cluster: minikube, kind or k3d. $MUSTER_LOAD_CLUSTER names the cluster
    /// [default: $MUSTER_LOAD, unless --push is given]
    #[arg(long, value_name = "TOOL", hide_possible_values = true)]
    pub(crate) load: Option<Loader>,
    /// Agent to add to the image, a static Linux program [default: `agent` beside this program, else the master's]
    #[arg(long, value_name = "PATH")]
    pub(crate) agent_binary: Option<PathBuf>,
}

/// How to make an image without submitting a job.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    pub(crate) image: ImageArgs,
    /// Let the agent of this image listen on all addresses even without a token. Everyone who reaches such a pod can
    /// run code in it. Only the master of the first prototype needs this
    #[arg(long)]
    pub(crate) open: bool,
}

impl ImageArgs {
    /// The first of these flags that the user has given, for an error message.
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

    /// The first given flag that applies only if the client adds the agent to the image.
    pub(crate) fn given_for_wrapping(&self) -> Option<&'static str> {
        Self { image: None, ..self.clone() }.given()
    }
}

/// Options of every pod.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "On Kubernetes")]
pub(crate) struct PodArgs {
    /// CPU of each pod, as REQUEST or REQUEST:LIMIT, for example 2 or 500m:2 [default: no request and no limit]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub(crate) cpu: Option<Amount>,
    /// Memory of each pod, as REQUEST or REQUEST:LIMIT, for example 4Gi [default: no request and no limit]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub(crate) memory: Option<Amount>,
    /// GPUs of each pod (nvidia.com/gpu) [default: 0]
    #[arg(long, value_name = "N", value_parser = gpus, allow_negative_numbers = true)]
    pub(crate) gpus: Option<u32>,
    /// Size of /dev/shm in each pod, for example 2Gi; files in /dev/shm count as memory of the pod [default: set by the
    /// node, usually 64Mi. With --gpus, half of the limit of --memory, else 8Gi]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) shm: Option<MemorySize>,
    /// Volume of each pod: pvc:CLAIM:/path, host:/dir:/path or empty:/path; append :ro for read-only. Repeatable
    #[arg(long, value_name = "VOLUME")]
    pub(crate) volume: Vec<Volume>,
    /// Secret whose keys become environment variables of each pod. Repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) env_secret: Vec<ObjectName>,
    /// Label that a node must have to run a pod. Repeatable; the last value of a key wins
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) node_selector: Vec<(LabelKey, LabelValue)>,
    /// Taint that pods tolerate, as KEY[=VALUE][:EFFECT]. Repeatable
    #[arg(long, value_name = "TAINT")]
    pub(crate) toleration: Vec<Toleration>,
    /// PriorityClass of each pod [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    pub(crate) priority_class: Option<ObjectName>,
    /// ServiceAccount of each pod. Pods do not get the account's token [default: the namespace's]
    #[arg(long, value_name = "NAME")]
    pub(crate) service_account: Option<ObjectName>,
    /// When nodes pull the image: IfNotPresent, Always or Never [default: IfNotPresent]
    #[arg(long, value_name = "POLICY")]
    pub(crate) image_pull_policy: Option<PullPolicy>,
    /// Time for each pod to end after SIGTERM, in whole seconds, for example 90s or 5m. With a local master, the time for
    /// the scripts to end after Ctrl-C [default: 30s; 10s after Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = whole_seconds, allow_hyphen_values = true)]
    pub(crate) termination_grace: Option<NonZeroU32>,
    /// Allow an image whose user is root or has a name. Kubernetes cannot verify that a named user is not root
    /// [default: refused]
    #[arg(long)]
    pub(crate) allow_root: bool,
    /// User of each pod: UID, UID:GID, or `image` for the user of the image [default: 65532 if the job brings code,
    /// else image]
    #[arg(long, value_name = "USER")]
    pub(crate) run_as: Option<RunAs>,
}

impl PodArgs {
    /// The options in which the given flags replace values of `base`.
    pub(crate) fn over(self, base: PodOptions) -> PodOptions {
        let Self {
            cpu,
            memory,
            gpus,
            shm,
            volume,
            env_secret,
            node_selector,
            toleration,
            priority_class,
            service_account,
            image_pull_policy,
            termination_grace,
            allow_root,
            run_as,
        } = self;
        PodOptions {
            cpu: cpu.or(base.cpu),
            memory: memory.or(base.memory),
            gpus: gpus.or(base.gpus),
            shm: shm.or(base.shm),
            volumes: given_or(volume, base.volumes),
            env_secrets: given_or(env_secret, base.env_secrets),
            node_selector: base.node_selector.into_iter().chain(node_selector).collect(),
            tolerations: given_or(toleration, base.tolerations),
            priority_class: priority_class.or(base.priority_class),
            service_account: service_account.or(base.service_account),
            image_pull_policy: image_pull_policy.or(base.image_pull_policy),
            termination_grace_seconds: termination_grace.or(base.termination_grace_seconds),
            allow_root: allow_root || base.allow_root,
            run_as: run_as.or(base.run_as),
        }
    }
}

/// The given values of a repeatable flag. If the flag is not given, the values of the base.
fn given_or<T>(given: Vec<T>, base: Vec<T>) -> Vec<T> {
    if given.is_empty() { base } else { given }
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

/// A registry to which images are pushed: `HOST[:PORT][/PATH]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registry(String);

impl Registry {
    /// The registry as the first part of an image's name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Registry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim_end_matches('/');
        // A tag belongs to the image's name, so a registry must not have one.
        let named = format!("{trimmed}/image").parse::<ImageRef>();
        let is_registry = !trimmed.is_empty() && named.is_ok_and(|image| image.tag().is_none());
        if is_registry {
            return Ok(Self(trimmed.to_owned()));
        }
        let shown: String = text.chars().take(80).collect();
        let form = "write HOST[:PORT][/PATH] in lower case, for example registry.example.com/team";
        Err(format!("\"{shown}\" is not a registry: {form}"))
    }
}

fn whole_seconds(text: &str) -> Result<NonZeroU32, String> {
    let none = || format!("invalid duration \"{}\": use at least 1s", shown(text));
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
