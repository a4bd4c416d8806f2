//! What a test needs to run jobs on the cluster in KUBECONFIG: a namespace, an image, and a master outside the cluster.

mod api;
mod fault_proxy;
mod image;
mod namespace;

use std::fmt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

pub use self::fault_proxy::{Fault, FaultProxy, On};
pub use self::image::Image;
pub use self::namespace::Namespace;
use crate::master::Master;
use crate::programs::static_agent;
use crate::scene::Scene;

/// Label selector of all objects that a master creates.
pub const OURS: &str = "app.kubernetes.io/managed-by=muster";

/// A namespace of one test, with a master that creates pods in this namespace.
pub struct Cluster {
    /// The master.
    pub master: Master,
    /// The namespace. Dropping this deletes the namespace.
    pub namespace: Namespace,
    /// The image of the pods.
    pub image: Arc<Image>,
}

impl Cluster {
    /// Creates a namespace, and starts a master in the scene's folder. `args` are additional arguments of the master.
    ///
    /// # Panics
    /// If there is no cluster, or the master does not start.
    pub fn new(scene: &Scene, image: Arc<Image>, args: &[&str]) -> Self {
        Self::with_variables(scene, image, args, &[])
    }

    /// Like [`Self::new`], but the master reaches the API through this proxy.
    ///
    /// # Panics
    /// If there is no cluster, or the master does not start.
    pub fn behind(api: &FaultProxy, scene: &Scene, image: Arc<Image>, args: &[&str]) -> Self {
        Self::with_variables(scene, image, args, &[("KUBECONFIG", api.kubeconfig())])
    }

    /// Like [`Self::new`], but the master has these variables in its environment.
    ///
    /// # Panics
    /// If there is no cluster, or the master does not start.
    pub fn with_variables(scene: &Scene, image: Arc<Image>, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let namespace = Namespace::new();
        let own = master_args(&namespace, args);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Self { master: Master::start(scene.path(), &own, variables), namespace, image }
    }

    /// Starts a new master after the old master was killed.
    ///
    /// # Panics
    /// If the new master ends before it serves.
    pub fn next_master(&mut self, args: &[&str]) {
        let own = master_args(&self.namespace, args);
        self.master.follow_up(&own.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Like [`Self::next_master`], but sets these variables, and the new master may end before it serves.
    ///
    /// # Errors
    /// The new master's exit status, if it ends before it serves.
    pub fn try_next_master(&mut self, args: &[&str], variables: &[(&str, &str)]) -> Result<(), ExitStatus> {
        let own = master_args(&self.namespace, args);
        self.master.try_follow_up(&own.iter().map(String::as_str).collect::<Vec<_>>(), variables)
    }

    /// Returns the names of the pods that have not ended.
    pub fn live_pods(&self) -> Vec<String> {
        self.pods(|phase| !matches!(phase, "Succeeded" | "Failed"))
    }

    /// Returns the names of the pods for whose phase `test` returns true.
    pub fn pods(&self, test: impl Fn(&str) -> bool) -> Vec<String> {
        let phase = |pod: &Value| test(pod["status"]["phase"].as_str().unwrap_or_default());
        self.namespace.created_by_masters("/api/v1", "pods").iter().filter(|pod| phase(pod)).map(name_of).collect()
    }

    /// Returns the pods and the records of jobs in the namespace, as `pod/NAME` and `configmap/NAME`. Leaves out copies
    /// of code, which stay for some minutes after their jobs.
    pub fn objects(&self) -> Vec<String> {
        let maps = self.names("/api/v1", "configmaps", "configmap");
        let records = maps.into_iter().filter(|name| !name.starts_with("configmap/muster-code-"));
        self.names("/api/v1", "pods", "pod").into_iter().chain(records).collect()
    }

    /// Returns the network policies that masters have created in the namespace, as `networkpolicy/NAME`.
    pub fn policies(&self) -> Vec<String> {
        self.names("/apis/networking.k8s.io/v1", "networkpolicies", "networkpolicy")
    }

    fn names(&self, api: &str, plural: &str, kind: &str) -> Vec<String> {
        let objects = self.namespace.created_by_masters(api, plural);
        objects.iter().map(|object| format!("{kind}/{}", name_of(object))).collect()
    }

    /// Kills the first container of a pod with SIGKILL.
    ///
    /// # Panics
    /// If the container does not run, or the node does not use this machine's Docker.
    pub fn kill_container(&self, pod: &str) {
        let id =
            self.namespace.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}"]);
        let id = id.strip_prefix("docker://").expect("the kubelet does not use Docker");
        let killed =
            Command::new("docker").args(["kill", "--signal", "KILL", id]).output().expect("cannot start docker");
        assert!(killed.status.success(), "{}", String::from_utf8_lossy(&killed.stderr));
    }

    /// Evicts a pod, like `kubectl drain`.
    ///
    /// # Panics
    /// If the API refuses the eviction.
    pub fn evict(&self, pod: &str) {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", self.namespace.name());
        let eviction = json!({ "apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": { "name": pod } });
        self.namespace.kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction.to_string());
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("an object has no name").to_owned()
}

fn master_args(namespace: &Namespace, args: &[&str]) -> Vec<String> {
    let agent = static_agent().display().to_string();
    let own = ["--backend", "kubernetes", "--namespace", namespace.name(), "--agent-binary", &agent];
    own.iter().chain(args).map(|arg| (*arg).to_owned()).collect()
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = self.namespace.try_kubectl(&["get", "pods", "-o", "wide"]);
        let events = self.namespace.try_kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
        write!(f, "---- pods\n{pods}\n---- events\n{events}\n---- the master's log\n{}", self.master.log())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            #[expect(clippy::print_stderr, reason = "the test harness shows it with the failed test")]
            {
                eprintln!("{self}");
            }
        }
    }
}
