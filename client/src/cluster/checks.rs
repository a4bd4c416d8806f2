//! Computes the verdicts and hints of `client doctor` from observations. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::ResourceExt;
use protocol::pod::thousandths;

use super::pods::Trouble;
use super::rights::{self, Right};
use crate::ending::error::Error;
use crate::output::command_line::command;
use crate::output::{Check, CheckVerdict};

/// The minor version of the oldest Kubernetes with which Muster is tested: 1.20.
const OLDEST_MINOR: u32 = 20;

/// What was observed in a cluster whose API answers.
#[derive(Debug)]
pub(super) struct Observed {
    /// The Pod Security Standard that the namespace enforces.
    pub(super) pod_security: Result<Option<String>, Error>,
    /// The quotas of the namespace.
    pub(super) quotas: Result<Vec<ResourceQuota>, Error>,
    /// Whether the Secret `muster` has all keys.
    pub(super) secret: Result<(), Error>,
    /// The installed master, or why it could not be observed.
    pub(super) master: Result<Master, Error>,
    /// The version of the master that answers through the port-forward.
    pub(super) answer: Result<String, Error>,
    /// All nodes.
    pub(super) nodes: Result<Vec<Node>, Error>,
    /// The names of all DaemonSets.
    pub(super) daemon_sets: Result<Vec<String>, Error>,
    /// The namespaces that have TFJobs, but no master that runs TFJobs. Empty if no master of the cluster runs TFJobs.
    pub(super) left_alone: Result<BTreeSet<String>, Error>,
}

/// The installed master.
#[derive(Debug)]
pub(super) struct Master {
    /// Why the newest master does not serve, if it does not.
    pub(super) trouble: Option<Trouble>,
    /// The image in the Deployment.
    pub(super) image: String,
}

/// The checks that judge the observations.
pub(super) fn of_cluster(observed: &Observed) -> Vec<Check> {
    let Observed { pod_security: standard, quotas, secret, master, answer, nodes, daemon_sets, left_alone } = observed;
    vec![
        known("Pod Security", standard, |standard| pod_security(standard.as_deref())),
        known("quota", quotas, |quotas| quota(quotas)),
        needed("Secret", secret, |()| Check::passed("Secret", "muster has all keys")),
        needed("rollout", master, |master| rollout(master.trouble.as_ref())),
        needed("port-forward", answer, |version| forward(version)),
        known("image", nodes, |nodes| image(master.as_ref().map_or("", |master| &master.image), nodes.len())),
        known("architecture", nodes, |nodes| architectures(nodes)),
        known("network policies", daemon_sets, |names| network(names, nodes.as_deref().unwrap_or_default())),
        known("TFJobs", left_alone, tfjobs),
    ]
}

/// A check that needs a right which users of jobs need not have. If the observation failed, the verdict is a warning.
fn known<T>(name: &str, found: &Result<T, Error>, judge: impl FnOnce(&T) -> Check) -> Check {
    let unknown = |error| Check::new(name, CheckVerdict::Warn, format!("not checked: {error}"));
    found.as_ref().map_or_else(unknown, judge)
}

/// A check without which no job can run. If the observation failed, so has the check.
fn needed<T>(name: &str, found: &Result<T, Error>, judge: impl FnOnce(&T) -> Check) -> Check {
    found.as_ref().map_or_else(|error| Check::failed(name, error), judge)
}

/// Checks that this version of Kubernetes is not older than the oldest tested version.
pub(super) fn version(major: &str, minor: &str, shown: &str) -> Check {
    // Some providers write the minor version as `27+`.
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    let is_old = major == "1" && digits.parse::<u32>().is_ok_and(|minor| minor < OLDEST_MINOR);
    if is_old {
        let detail = format!("{shown} is older than 1.{OLDEST_MINOR}, the oldest tested version");
        return Check::warned("Kubernetes", detail, "upgrade the cluster");
    }
    Check::passed("Kubernetes", shown)
}

/// Checks that the user has this right, which `--master kube` needs.
pub(super) fn right(right: Right, is_missing: bool) -> Check {
    let name = format!("right to {right}");
    if !is_missing {
        return Check::passed(&name, "granted");
    }
    let hint =
        "ask the cluster's administrator for this right; the guide \"Install on a cluster\" has a Role for users";
    let (verdict, detail) = if right == rights::CREATE_FORWARD {
        (CheckVerdict::Warn, "missing; port-forwards need this right since Kubernetes 1.35")
    } else {
        (CheckVerdict::Fail, "missing")
    };
    Check { hint: Some(hint.to_owned()), ..Check::new(&name, verdict, detail) }
}

fn pod_security(standard: Option<&str>) -> Check {
    match standard {
        Some(standard @ ("restricted" | "baseline")) => {
            let detail =
                format!("the namespace enforces {standard}: --allow-root and volumes of the node may be refused");
            Check::passed("Pod Security", detail)
        }
        Some(standard) => Check::passed("Pod Security", format!("the namespace enforces {standard}")),
        None => Check::passed("Pod Security", "the namespace enforces no standard"),
    }
}

fn quota(quotas: &[ResourceQuota]) -> Check {
    let exhausted: Vec<String> = quotas.iter().flat_map(exhausted).collect();
    match (exhausted.is_empty(), quotas.len()) {
        (true, 0) => Check::passed("quota", "none"),
        (true, _) => Check::passed("quota", quotas.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(", ")),
        (false, _) => Check::warned(
            "quota",
            format!("no room for another pod: {}", exhausted.join(", ")),
            "end jobs, or ask for a larger quota",
        ),
    }
}

fn exhausted(quota: &ResourceQuota) -> Vec<String> {
    let status = quota.status.clone().unwrap_or_default();
    let (hard, used) = (status.hard.unwrap_or_default(), status.used.unwrap_or_default());
    let of_pods = |resource: &str| ["pods", "cpu", "memory"].iter().any(|word| resource.contains(word));
    let full = hard.iter().filter(|(resource, _)| of_pods(resource)).filter_map(|(resource, hard)| {
        let used = used.get(resource)?;
        let is_full = thousandths(&used.0)? >= thousandths(&hard.0)?;
        is_full.then(|| format!("{} of {} {resource} used (quota {})", used.0, hard.0, quota.name_any()))
    });
    full.collect()
}

fn rollout(trouble: Option<&Trouble>) -> Check {
    let (verdict, detail) = match trouble {
        None => return Check::passed("rollout", "the master serves"),
        Some(Trouble::Waits(state)) => (CheckVerdict::Warn, state),
        Some(Trouble::Image(reason) | Trouble::Stuck(reason)) => (CheckVerdict::Fail, reason),
    };
    let hint = format!(
        "kubectl describe pods -l app.kubernetes.io/component=master shows more; to repair the master: {}",
        command("install")
    );
    Check { hint: Some(hint), ..Check::new("rollout", verdict, detail) }
}

fn forward(version: &str) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    if version == own {
        return Check::passed("port-forward", format!("the master answers, version {version}"));
    }
    let detail = format!("the master has version {version}, this client has {own}");
    let hint = format!("to install the version of this client: {}", command("install"));
    Check::warned("port-forward", detail, hint)
}

fn image(image: &str, nodes: usize) -> Check {
    // The first part of an image's name is a registry if it contains a dot or a port, or is localhost.
    let first = image.split_once('/').map_or("", |(first, _)| first);
    let has_registry = first.contains(['.', ':']) || first == "localhost";
    match (image, nodes) {
        ("", _) => Check::new("image", CheckVerdict::Warn, "not checked: the image of the master is not known"),
        (_, nodes) if nodes > 1 && !has_registry => {
            let detail =
                format!("{image} is not from a registry: only nodes that already have the image can run the master");
            let install = command("install --image NAME");
            Check::warned("image", detail, format!("push the image: make images REGISTRY=REGISTRY, then {install}"))
        }
        (image, _) => Check::passed("image", image),
    }
}

fn architectures(nodes: &[Node]) -> Check {
    let of_node = |node: &Node| Some(node.status.as_ref()?.node_info.as_ref()?.architecture.clone());
    let found: BTreeSet<String> = nodes.iter().filter_map(of_node).collect();
    let listed = found.iter().cloned().collect::<Vec<_>>().join(", ");
    match found.len() {
        0 | 1 => Check::passed("architecture", listed),
        _ => {
            let first = found.first().cloned().unwrap_or_default();
            let hint =
                format!("choose an architecture for each job, for example --node-selector kubernetes.io/arch={first}");
            Check::warned(
                "architecture",
                format!("the nodes differ: {listed}; an image may run on only one of these architectures"),
                hint,
            )
        }
    }
}

/// Whether a network enforces NetworkPolicies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enforces {
    Yes,
    /// The network enforces them only if an option of the cluster is set.
    Optionally,
    No,
}

/// The usual networks, by the prefix of their DaemonSets' names. If a cluster has two networks, the first in this order
/// decides. For example, Calico may enforce the policies in a cluster whose pods use the Amazon VPC CNI.
const NETWORKS: [(&str, &str, Enforces); 12] = [
    ("calico-node", "Calico", Enforces::Yes),
    ("canal", "Canal", Enforces::Yes),
    ("cilium", "Cilium", Enforces::Yes),
    ("anetd", "GKE Dataplane V2", Enforces::Yes),
    ("antrea-agent", "Antrea", Enforces::Yes),
    ("azure-npm", "Azure NPM", Enforces::Yes),
    ("kube-router", "kube-router", Enforces::Yes),
    ("ovnkube-node", "OVN-Kubernetes", Enforces::Yes),
    ("weave-net", "Weave Net", Enforces::Yes),
    ("aws-node", "Amazon VPC CNI", Enforces::Optionally),
    ("kindnet", "kindnet", Enforces::Optionally),
    ("kube-flannel", "Flannel", Enforces::No),
];

fn network(daemon_sets: &[String], nodes: &[Node]) -> Check {
    const NAME: &str = "network policies";
    const HINT: &str = "the guide \"Security\" shows how to test whether the network enforces network policies";
    let is_there = |start: &str| daemon_sets.iter().any(|name| name.starts_with(start));
    let of_node = |node: &Node| Some(node.status.as_ref()?.node_info.as_ref()?.kubelet_version.contains("+k3s"));
    let found =
        NETWORKS.into_iter().find(|(start, _, _)| is_there(start)).map(|(_, network, enforces)| (network, enforces));
    // In k3s, the network and the enforcement of policies need no DaemonSet.
    let found = found.or_else(|| nodes.iter().filter_map(of_node).any(|is| is).then_some(("k3s", Enforces::Yes)));
    match found {
        Some((network, Enforces::Yes)) => Check::passed(NAME, format!("{network} enforces them")),
        Some((network, Enforces::Optionally)) => {
            Check::warned(NAME, format!("{network} enforces them only if enabled"), HINT)
        }
        Some((network, Enforces::No)) => Check::warned(
            NAME,
            format!("{network} does not enforce them, so every pod can reach TensorFlow's port"),
            HINT,
        ),
        None => Check::warned(NAME, "the network is not known", HINT),
    }
}

fn tfjobs(left_alone: &BTreeSet<String>) -> Check {
    let Some(first) = left_alone.first() else {
        return Check::passed("TFJobs", "all TFJobs have a master, or no master of the cluster runs TFJobs");
    };
    let listed = left_alone.iter().cloned().collect::<Vec<_>>().join(", ");
    let hint = format!("client install --tfjobs -n {first}, or create the TFJobs in the namespace of a master");
    Check::warned("TFJobs", format!("no master runs the TFJobs in {listed}"), hint)
}

/// Judges whether Docker answers. A failure is only a warning: the client needs Docker only to add the agent to images.
pub(crate) fn docker(answer: Result<(), String>) -> Check {
    match answer {
        Ok(()) => Check::passed("Docker", "answers"),
        Err(error) => Check::warned(
            "Docker",
            error,
            "start Docker, or set DOCKER_HOST; the client needs Docker to add the agent to images",
        ),
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
