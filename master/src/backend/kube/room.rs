//! Finds the resources that are short, from the messages of the scheduler and of quotas. Also lists the resources that
//! a pod requests.

use job::wait::Resources;
use k8s_openapi::api::core::v1::Pod;

/// The resources that a pod requests. Every pod also requests `pods`, because each node limits its number of pods.
pub(super) fn requested(pod: &Pod) -> Resources {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let of_container = containers.filter_map(|container| container.resources.as_ref());
    // Without a request, the API server uses the limit as the request.
    let names = of_container.flat_map(|resources| resources.requests.iter().chain(&resources.limits).flatten());
    names.map(|(name, _)| name.clone()).chain([PODS.to_owned()]).collect()
}

/// The resources whose lack keeps a pod from a node, according to the scheduler's message. Empty if another reason
/// keeps the pod from every node, such as a taint or a volume (`kubernetes/pkg/scheduler/framework/types.go`,
/// `plugins/noderesources/fit.go`).
pub(super) fn lacking_on_nodes(message: &str) -> Resources {
    // The rest of the message is about preemption, and not about a lack of resources.
    let nodes = message.split_once("preemption:").map_or(message, |(nodes, _)| nodes);
    let named = nodes.split("Insufficient ").skip(1).filter_map(|rest| rest.split([',', ' ']).next());
    let named = named.map(|name| name.trim_end_matches('.').to_owned()).filter(|name| !name.is_empty());
    named.chain(nodes.contains("Too many pods").then(|| PODS.to_owned())).collect()
}

/// The resources of which a quota has too little left, according to the API server's message
/// (`k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`).
pub(super) fn lacking_in_quota(message: &str) -> Resources {
    let requested = message.split_once("requested: ").and_then(|(_, rest)| rest.split(", ").next()).unwrap_or_default();
    requested.split(',').filter_map(|amount| amount.split_once('=')).map(|(name, _)| resource(name)).collect()
}

/// The number of pods, as a resource.
const PODS: &str = "pods";

/// The resource that a quota limits under this name.
fn resource(name: &str) -> String {
    let prefixes = ["requests.", "limits.", "count/"];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> Resources {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_resources_that_all_nodes_lack_are_read_from_the_messages_of_old_and_new_schedulers() {
        let cases: [(&str, &[&str]); 12] = [
            // Kubernetes 1.20
            ("0/1 nodes are available: 1 Insufficient cpu.", &["cpu"]),
            (
                "0/4 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't \
                 tolerate, 2 Insufficient memory, 3 Insufficient cpu.",
                &["cpu", "memory"],
            ),
            ("0/3 nodes are available: 1 Too many pods, 2 Insufficient nvidia.com/gpu.", &["nvidia.com/gpu", "pods"]),
            ("0/3 nodes are available: 3 node(s) didn't match node selector.", &[]),
            ("0/1 nodes are available: 1 node(s) had taint {gpu: yes}, that the pod didn't tolerate.", &[]),
            ("persistentvolumeclaim \"data\" not found", &[]),
            // Kubernetes 1.24 and later name the preemption too.
            (
                "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption \
                 victims found for incoming pod.",
                &["cpu"],
            ),
            // Kubernetes 1.33
            (
                "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint \
                 {node-role.kubernetes.io/control-plane: }. no new claims to deallocate, preemption: 0/2 nodes are \
                 available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
                &["nvidia.com/gpu"],
            ),
            (
                "0/1 nodes are available: 1 Too many pods. no new claims to deallocate, preemption: not eligible due \
                 to preemptionPolicy=Never.",
                &["pods"],
            ),
            (
                "0/1 nodes are available: 1 Insufficient hugepages-2Mi. no new claims to deallocate, preemption: 0/1 \
                 nodes are available: 1 No preemption victims found for incoming pod.",
                &["hugepages-2Mi"],
            ),
            (
                "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to \
                 deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
                &[],
            ),
            (
                "0/1 nodes are available: 1 node(s) had volume node affinity conflict. preemption: 0/1 nodes are \
                 available: 1 Preemption is not helpful for scheduling.",
                &[],
            ),
        ];
        for (message, lacking) in cases {
            assert_eq!(lacking_on_nodes(message), set(lacking), "{message}");
        }
    }

    #[test]
    fn the_resources_that_a_quota_lacks_are_read_from_the_refusal() {
        let cases: [(&str, &[&str]); 4] = [
            (
                "pods \"digits-worker-1\" is forbidden: exceeded quota: gpu, requested: \
                 requests.cpu=2,requests.nvidia.com/gpu=1, used: requests.cpu=8,requests.nvidia.com/gpu=4, limited: \
                 requests.cpu=8,requests.nvidia.com/gpu=4",
                &["cpu", "nvidia.com/gpu"],
            ),
            ("pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4", &["pods"]),
            ("exceeded quota: q, requested: count/pods=1,limits.memory=4Gi, used: count/pods=9", &["memory", "pods"]),
            ("exceeded quota: q", &[]),
        ];
        for (message, lacking) in cases {
            assert_eq!(lacking_in_quota(message), set(lacking), "{message}");
        }
    }
}
