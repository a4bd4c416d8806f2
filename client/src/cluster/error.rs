//! Why a command on a cluster failed, with its hint.

use std::time::Duration;

use kube::config::KubeconfigError;

use super::rights::Right;
use crate::address::kube_place::{BadPlace, KubePlace};
use crate::output::command_line::command;
use crate::output::spelled;

/// Why a command on a cluster failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// There is no kubeconfig, or it cannot be read.
    #[error("there is no usable kubeconfig")]
    NoKubeconfig(#[source] KubeconfigError),
    /// The kubeconfig has no context with this name.
    #[error("the kubeconfig has no context \"{0}\"")]
    NoContext(String),
    /// The context or the name of the namespace is not valid.
    #[error(transparent)]
    Namespace(#[from] BadPlace),
    /// The login is missing, wrong or has expired.
    #[error("the cluster of context {context} refuses your login: {reason}")]
    Login {
        /// The context.
        context: String,
        /// The error text of the cluster or of the login plugin.
        reason: String,
    },
    /// The user lacks a right.
    #[error("you may not {} in namespace {namespace} of context {context}", listed(rights))]
    Forbidden {
        /// The missing rights.
        rights: Vec<Right>,
        /// The context.
        context: String,
        /// The namespace.
        namespace: String,
    },
    /// The API refused a call for another reason.
    #[error("the cluster refused to {right}: {message}")]
    Refused {
        /// The right that the call needs.
        right: Right,
        /// The HTTP status.
        status: u16,
        /// The API's message.
        message: String,
    },
    /// The API cannot be reached.
    #[error("the Kubernetes API at {server} cannot be reached: {reason}")]
    Unreachable {
        /// The API's address.
        server: String,
        /// The system's error text.
        reason: String,
    },
    /// The API did not answer in time.
    #[error("the Kubernetes API at {server} did not answer within {}", spelled(*after))]
    Silent {
        /// The API's address.
        server: String,
        /// The time limit.
        after: Duration,
    },
    /// The namespace has no master.
    #[error("there is no master in namespace {}", .0.namespace())]
    NoMaster(KubePlace),
    /// The master's pod is not ready.
    #[error("the master in namespace {} is not ready: {state}", place.namespace())]
    NotReady {
        /// The master's place.
        place: KubePlace,
        /// The state of the master's newest pod.
        state: String,
    },
    /// The Secret `muster` does not exist.
    #[error("there is no Secret muster in namespace {}, so the master's token is not known", .0.namespace())]
    NoSecret(KubePlace),
    /// The Secret `muster` lacks a key, or the key's value is not a valid token.
    #[error("the Secret muster in namespace {} has no valid {key}", place.namespace())]
    BadSecret {
        /// The master's place.
        place: KubePlace,
        /// The key.
        key: &'static str,
    },
    /// The connection to the master's pod broke.
    #[error("the port-forward to pod {pod} failed: {reason}")]
    Forward {
        /// The pod.
        pod: String,
        /// The cause.
        reason: String,
    },
    /// The socket for the port-forward cannot be created.
    #[error("create a socket for the port-forward")]
    Socket(#[source] std::io::Error),
    /// Objects with names from the manifests exist without Muster's label.
    #[error("namespace {namespace} already has {} without the label app.kubernetes.io/part-of=muster", .objects.join(", "))]
    Foreign {
        /// The objects, as `kind/name`.
        objects: Vec<String>,
        /// The namespace.
        namespace: String,
    },
    /// Another program has installed the kind TFJob.
    #[error("another program, such as Kubeflow, has already installed the kind TFJob in the cluster")]
    Kubeflow,
    /// The namespace does not exist.
    #[error("there is no namespace {0}")]
    NoNamespace(String),
    /// The node cannot get the master's image.
    #[error("the node cannot get the master's image {image}: {reason}")]
    NoImage {
        /// The image.
        image: String,
        /// The kubelet's error text.
        reason: String,
    },
    /// The master's pod cannot be created, or ends after each start.
    #[error("the master does not start: {0}")]
    Stuck(String),
    /// The time limit of a wait has passed.
    #[error("{what} after {}: {state}", spelled(*after))]
    Late {
        /// What has not happened, as the beginning of the sentence.
        what: &'static str,
        /// The state at the end.
        state: String,
        /// The time limit.
        after: Duration,
    },
    /// Jobs have not ended, so nothing is uninstalled.
    #[error("jobs in namespace {namespace} have not ended: {}", .names.join(", "))]
    JobsRun {
        /// The jobs.
        names: Vec<String>,
        /// The namespace.
        namespace: String,
    },
    /// `uninstall` was called without `-y`, and there is no terminal to ask the user.
    #[error("uninstalling needs your consent, and stdin is not a terminal")]
    NoConsent,
}

impl ClusterError {
    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Silent { .. } | Self::NoMaster(_) | Self::NotReady { .. } => true,
            Self::Forward { .. } => true,
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::NoKubeconfig(_) | Self::NoContext(_) | Self::Namespace(_) | Self::Login { .. } => false,
            Self::Forbidden { .. } | Self::NoSecret(_) | Self::BadSecret { .. } | Self::Socket(_) => false,
            Self::Foreign { .. } | Self::Kubeflow | Self::NoNamespace(_) | Self::NoImage { .. } | Self::Stuck(_) => {
                false
            }
            Self::Late { .. } | Self::JobsRun { .. } | Self::NoConsent => false,
        }
    }

    /// Whether the client ends with the exit code for bad input: something that the command needs is missing or
    /// invalid, conflicts with the cluster's objects, or needs the user's confirmation.
    pub(crate) fn is_bad_input(&self) -> bool {
        match self {
            Self::NoKubeconfig(_) | Self::NoContext(_) | Self::Namespace(_) | Self::NoNamespace(_) => true,
            Self::Foreign { .. } | Self::Kubeflow | Self::NoImage { .. } | Self::JobsRun { .. } | Self::NoConsent => {
                true
            }
            Self::Login { .. } | Self::Forbidden { .. } | Self::Refused { .. } | Self::Unreachable { .. } => false,
            Self::Silent { .. } | Self::NoMaster(_) | Self::NotReady { .. } | Self::NoSecret(_) => false,
            Self::BadSecret { .. } | Self::Forward { .. } | Self::Socket(_) | Self::Stuck(_) => false,
            Self::Late { .. } => false,
        }
    }

    /// The next step for the user, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoKubeconfig(_) => "set KUBECONFIG to your cluster's file, and try: kubectl config view".to_owned(),
            Self::NoContext(_) => "kubectl config get-contexts lists the contexts".to_owned(),
            Self::Login { .. } | Self::Unreachable { .. } | Self::Silent { .. } => {
                "to check your access: kubectl get pods".to_owned()
            }
            Self::Forbidden { rights, namespace, .. } => {
                let first = rights.first().map(Right::to_string).unwrap_or_default();
                format!(
                    "ask the cluster's administrator for the right; to check: kubectl auth can-i {first} -n {namespace}"
                )
            }
            Self::NoMaster(place) | Self::NoSecret(place) => {
                format!("to install a master there: client install --master {place}")
            }
            Self::NotReady { place, .. } => format!("client doctor --master {place} checks the installation"),
            Self::BadSecret { place, .. } => {
                let delete = format!("kubectl delete secret muster -n {}", place.namespace());
                format!("to create the Secret again: {delete}; client install --master {place}")
            }
            Self::Kubeflow => {
                format!("leave out --tfjobs, and run TFJobs with {}", command("apply -f FILE"))
            }
            Self::Foreign { .. } => "choose another namespace with -n, or delete these objects".to_owned(),
            Self::NoNamespace(name) => format!("kubectl create namespace {name}"),
            Self::NoImage { .. } => "run `make images`, which builds the image and loads it into a local cluster; or push the image and name it with --image"
                .to_owned(),
            Self::Stuck(_) => "kubectl describe pods -l app.kubernetes.io/component=master shows why".to_owned(),
            Self::JobsRun { names, .. } => {
                let first = names.first().map(String::as_str).unwrap_or_default();
                let cancel = command(&format!("cancel {first}"));
                format!("add --force to stop all jobs, or cancel these jobs, for example: {cancel}")
            }
            Self::NoConsent => "add -y to uninstall without a question".to_owned(),
            Self::Refused { message, .. } if message.contains("provided port is already allocated") => {
                "another master of the cluster uses this port: leave out --service nodeport and use --master kube"
                    .to_owned()
            }
            Self::Namespace(_) | Self::Refused { .. } | Self::Forward { .. } => return None,
            Self::Socket(_) | Self::Late { .. } => return None,
        };
        Some(hint)
    }
}

fn listed(rights: &[Right]) -> String {
    rights.iter().map(Right::to_string).collect::<Vec<_>>().join(", ")
}
