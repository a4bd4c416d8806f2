//! The rights that the client needs to reach, check, install and uninstall a master.

use std::fmt;

/// One call of the Kubernetes API, as RBAC names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right {
    pub(super) verb: &'static str,
    pub(super) group: &'static str,
    /// The plural of the kind. A subresource follows after a slash.
    pub(super) resource: &'static str,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

const fn right(verb: &'static str, group: &'static str, resource: &'static str) -> Right {
    Right { verb, group, resource }
}

pub(super) const LIST_PODS: Right = right("list", "", "pods");
pub(super) const FORWARD: Right = right("get", "", "pods/portforward");
pub(super) const GET_SECRET: Right = right("get", "", "secrets");
pub(super) const CREATE_SECRET: Right = right("create", "", "secrets");
pub(super) const DELETE_SECRET: Right = right("delete", "", "secrets");
pub(super) const DELETE_POD: Right = right("delete", "", "pods");
pub(super) const DELETE_PODS: Right = right("deletecollection", "", "pods");
pub(super) const WATCH_PODS: Right = right("watch", "", "pods");
pub(super) const GET_DEPLOYMENTS: Right = right("get", "apps", "deployments");
pub(super) const LIST_RECORDS: Right = right("list", "", "configmaps");
pub(super) const DELETE_RECORDS: Right = right("deletecollection", "", "configmaps");
pub(super) const DELETE_POLICIES: Right = right("deletecollection", NETWORKING, "networkpolicies");
pub(super) const ASK_RIGHTS: Right = right("create", "authorization.k8s.io", "selfsubjectaccessreviews");
pub(super) const GET_VERSION: Right = right("get", "", "version");
pub(super) const LIST_GROUPS: Right = right("list", "", "API groups");
pub(super) const GET_NAMESPACE: Right = right("get", "", "namespaces");
pub(super) const LIST_QUOTAS: Right = right("list", "", "resourcequotas");
pub(super) const LIST_NODES: Right = right("list", "", "nodes");
pub(super) const LIST_ROLES: Right = right("list", RBAC, "roles");
pub(super) const LIST_TFJOBS: Right = right("list", "kubeflow.org", "tfjobs");
pub(super) const LIST_DAEMONSETS: Right = right("list", "apps", "daemonsets");

const NETWORKING: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Since Kubernetes 1.35, a port-forward needs this right in addition to [`FORWARD`]
/// (`AuthorizePodWebsocketUpgradeCreatePermission`).
pub(super) const CREATE_FORWARD: Right = right("create", "", "pods/portforward");
/// The rights that a user of `--master kube` needs.
pub(super) const TO_USE: [Right; 4] = [GET_SECRET, LIST_PODS, FORWARD, CREATE_FORWARD];

/// The API group and the plural of each kind in the manifests, without [`OF_CLUSTER`].
const KINDS: [(&str, &str); 5] =
    [("", "serviceaccounts"), (RBAC, "roles"), (RBAC, "rolebindings"), ("apps", "deployments"), ("", "services")];

/// The kind of the object that defines TFJobs for the whole cluster. Only `client install --tfjobs` creates this
/// object.
const OF_CLUSTER: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// The rights that `client install --tfjobs` needs besides [`to_install`].
pub(super) fn to_install_tfjobs() -> impl Iterator<Item = Right> {
    let (group, resource) = OF_CLUSTER;
    ["get", "create", "patch"].into_iter().map(move |verb| right(verb, group, resource))
}

/// The rights that `client install` needs, including [`TO_USE`].
pub(super) fn to_install() -> impl Iterator<Item = Right> {
    let of_kind = |(group, resource)| ["get", "create", "patch"].map(|verb| right(verb, group, resource));
    let of_rollout = ["list", "watch"].map(|verb| right(verb, "apps", "deployments"));
    let kinds = KINDS.into_iter().flat_map(of_kind);
    // `rollout::replace_stuck` needs `DELETE_POD`: it deletes pods whose image is missing.
    TO_USE.into_iter().chain(kinds).chain(of_rollout).chain([WATCH_PODS, CREATE_SECRET, DELETE_POD])
}

/// The rights that `client uninstall` needs.
pub(super) fn to_uninstall() -> impl Iterator<Item = Right> {
    let of_kind = |(group, resource)| ["get", "delete"].map(|verb| right(verb, group, resource));
    let secrets = ["get", "delete"].map(|verb| right(verb, "", "secrets"));
    let of_jobs = [LIST_RECORDS, DELETE_RECORDS, DELETE_POLICIES, DELETE_PODS, LIST_PODS, WATCH_PODS];
    KINDS.into_iter().flat_map(of_kind).chain(secrets).chain(of_jobs)
}

/// The right to make a call on an object of the manifests.
pub(super) fn on_object(verb: &'static str, kind: &str) -> Right {
    let plural = format!("{}s", kind.to_ascii_lowercase());
    let known = KINDS.into_iter().chain([OF_CLUSTER]).find(|(_, resource)| *resource == plural);
    let (group, resource) = known.expect("the manifests contain only these kinds, which a test checks");
    right(verb, group, resource)
}
