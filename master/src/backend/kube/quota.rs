//! Checks whether a whole gang fits into its namespace's quotas: the API server checks each pod alone. Suggests the
//! options that a quota requires.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceQuota};
use protocol::pod::thousandths;

/// Resources whose requests a quota can also name without the prefix `requests.` (core/v1 `ResourceCPU`,
/// `ResourceMemory`).
const PLAIN: [&str; 2] = ["cpu", "memory"];

/// Why a gang cannot fit, even into an empty namespace. `gang` contains each kind of pod with the number of pods
/// of this kind. Skips quotas with a scope, which only the cluster can check.
pub(super) fn shortage(gang: &[(Pod, usize)], quotas: &[ResourceQuota]) -> Option<String> {
    let pods: usize = gang.iter().map(|(_, pods)| pods).sum();
    let unscoped = quotas.iter().filter_map(|quota| {
        let spec = quota.spec.as_ref()?;
        let is_scoped = spec.scopes.is_some() || spec.scope_selector.is_some();
        if is_scoped { None } else { Some((quota.metadata.name.as_deref()?, spec.hard.as_ref()?)) }
    });
    let limits = unscoped.flat_map(|(quota, hard)| hard.iter().map(move |(resource, hard)| (quota, resource, &hard.0)));
    let exceeded = |(quota, resource, hard): (&str, &String, &String)| {
        if matches!(resource.as_str(), "pods" | "count/pods") {
            let too_many = thousandths(hard)? < thousandths(&pods.to_string())?;
            return too_many.then(|| format!("{pods} pods do not fit into quota \"{quota}\", which allows {hard}"));
        }
        let used = gang.iter().map(|(pod, pods)| Some((pods, used_by(pod, resource), u128::try_from(*pods).ok()?)));
        let used: Vec<(&usize, u128, u128)> = used.collect::<Option<_>>()?;
        let all = used.iter().try_fold(0_u128, |sum, (_, each, pods)| sum.checked_add(each.checked_mul(*pods)?))?;
        let kind = |(pods, each, _): &(&usize, u128, u128)| {
            format!("{pods} pods with {resource} of {} each", shown(*each, resource))
        };
        (all > thousandths(hard)?).then(|| {
            let kinds = used.iter().map(kind).collect::<Vec<_>>().join(" and ");
            format!("{kinds} do not fit into quota \"{quota}\", which allows {hard} in all")
        })
    };
    limits.into_iter().find_map(exceeded)
}

/// How much of a resource the pod uses, in thousandths. `resource` is the name in a quota
/// (`pkg/quota/v1/evaluator/core/pods.go`).
fn used_by(pod: &Pod, resource: &str) -> u128 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|container| of_container(container, resource)).sum()
}

fn of_container(container: &Container, resource: &str) -> Option<u128> {
    let resources = container.resources.as_ref()?;
    let limit = |name: &str| resources.limits.as_ref()?.get(name);
    let amount = match (resource.strip_prefix("limits."), resource.strip_prefix("requests.")) {
        (Some(name), _) => limit(name),
        // Without a request, the API server uses the limit as the request.
        (None, request) => {
            let name = request.or(Some(resource).filter(|name| PLAIN.contains(name)))?;
            resources.requests.as_ref().and_then(|requests| requests.get(name)).or_else(|| limit(name))
        }
    };
    thousandths(&amount?.0)
}

/// Formats an amount, given in thousandths, in its usual unit.
fn shown(amount: u128, resource: &str) -> String {
    const MEBIBYTE: u128 = 1000 << 20;
    match amount {
        whole if resource.ends_with("memory") && whole.is_multiple_of(MEBIBYTE) => format!("{}Mi", whole / MEBIBYTE),
        whole if whole.is_multiple_of(1000) => (whole / 1000).to_string(),
        part => format!("{part}m"),
    }
}

/// Suggests the missing options that a quota requires, according to the API server's `message`. Returns the end of a
/// sentence.
pub(super) fn missing_options(message: &str) -> String {
    let Some((_, missing)) = message.split_once("must specify") else { return String::new() };
    let options = [("memory", "--memory 4Gi"), ("cpu", "--cpu 2")];
    let options: Vec<&str> =
        options.iter().filter(|(name, _)| missing.contains(name)).map(|(_, option)| *option).collect();
    if options.is_empty() { String::new() } else { format!("; set the amount, for example with {}", options.join(" ")) }
}
