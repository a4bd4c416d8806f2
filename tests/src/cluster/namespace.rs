//! A namespace of one test.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::process::{Command, Output, Stdio};

use hyper::Method;
use protocol::pod::thousandths;
use serde_json::{Value, json};

use super::{OURS, api};
use crate::processes::within;
use crate::programs::root;

/// A namespace of one test. Dropping this deletes the namespace with all its objects.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// Returns a random name, so that no two tests have the same name.
pub(super) fn unique_name() -> String {
    // The keys of the hasher are random.
    format!("muster-e2e-{:016x}", RandomState::new().build_hasher().finish())
}

impl Namespace {
    /// Creates a namespace with the service account that each pod needs.
    ///
    /// # Panics
    /// If KUBECONFIG names no cluster, or the API refuses a request.
    #[expect(clippy::new_without_default, reason = "a default value should not call a cluster")]
    pub fn new() -> Self {
        let name = unique_name();
        let space = json!({ "metadata": { "name": name } });
        api::request(Method::POST, "/api/v1/namespaces", Some(&space)).expect("cannot create a namespace");
        let namespace = Self { name };
        let (path, account) =
            (namespace.path("/api/v1", "serviceaccounts"), json!({ "metadata": { "name": "default" } }));
        let created = api::request(Method::POST, &path, Some(&account));
        // The cluster also creates this service account, and may be faster.
        let exists = matches!(&created, Err(kube::Error::Api(status)) if status.code == 409);
        assert!(created.is_ok() || exists, "cannot create a service account: {created:?}");
        namespace
    }

    /// Returns the namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all objects of a kind that masters have created here. `api` is the path of the API group, such as
    /// `/api/v1`.
    pub(super) fn created_by_masters(&self, api: &str, plural: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector={OURS}", self.path(api, plural));
        let mut found = api::request(Method::GET, &path, None).expect("cannot list objects");
        serde_json::from_value(found["items"].take()).expect("not a list")
    }

    /// Returns an amount of CPU for each pod, such as `350m`. With this amount, the cluster's only node has room for
    /// exactly this number of pods.
    ///
    /// # Panics
    /// If the cluster has another number of nodes.
    pub fn cpu_for(&self, pods: u128) -> String {
        let get = |what: &[&str]| -> Value {
            let text = self.kubectl(&[&["get", "-o", "json"], what].concat());
            serde_json::from_str(&text).expect("kubectl prints no JSON")
        };
        let of = |amount: &Value| amount.as_str().and_then(thousandths).unwrap_or_default();
        let nodes = get(&["nodes"]);
        let [node] = nodes["items"].as_array().expect("no list").as_slice() else { panic!("not one node: {nodes}") };
        let others = get(&["pods", "--all-namespaces"]);
        let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let is_live = |pod: &&Value| pod["spec"]["nodeName"].is_string() && !has_ended(pod);
        let live = others["items"].as_array().expect("no list").iter().filter(is_live);
        let containers = live.flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
        let used: u128 = containers.map(|container| of(&container["resources"]["requests"]["cpu"])).sum();
        let free = of(&node["status"]["allocatable"]["cpu"]).saturating_sub(used);
        format!("{}m", free / pods)
    }

    fn path(&self, api: &str, plural: &str) -> String {
        format!("{api}/namespaces/{}/{plural}", self.name)
    }

    /// Returns the current kubeconfig, with this namespace as the namespace of its context.
    ///
    /// # Panics
    /// If kubectl has no kubeconfig.
    pub fn kubeconfig(&self) -> Value {
        let config = self.kubectl(&["config", "view", "--minify", "--flatten", "-o", "json"]);
        let mut config: Value = serde_json::from_str(&config).expect("not a kubeconfig");
        config["contexts"][0]["context"]["namespace"] = self.name.as_str().into();
        config
    }

    /// Runs kubectl in this namespace and returns its stdout.
    ///
    /// # Panics
    /// If kubectl fails.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    /// Like [`Self::kubectl`], with this text on stdin.
    ///
    /// # Panics
    /// If kubectl fails.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], stdin: &str) -> String {
        let output = kubectl(&[&["-n", &self.name], args].concat(), stdin);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Adds the kind TFJob to the cluster, and rights on TFJobs to the namespace. The kind stays for other tests.
    ///
    /// # Panics
    /// If the deadline passes.
    pub fn add_tfjobs(&self) {
        let manifest = root().join("manifests/tfjobs.yaml").display().to_string();
        // If another test creates the kind at the same time, kubectl fails, so repeat the command.
        let apply = || kubectl(&["-n", &self.name, "apply", "-f", &manifest], "").status.success().then_some(());
        within("the cluster has TFJobs", apply, String::new);
        self.kubectl(&["wait", "--for=condition=established", "crd/tfjobs.kubeflow.org", "--timeout=30s"]);
    }

    /// Creates a suspended TFJob, which needs no pods. It has one worker with this pod specification.
    ///
    /// # Panics
    /// If the cluster refuses the TFJob.
    pub fn create_suspended_tfjob(&self, name: &str, pod: &Value) {
        let worker = json!({ "template": { "spec": pod } });
        let tfjob = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": name },
            "spec": { "runPolicy": { "suspend": true }, "tfReplicaSpecs": { "Worker": worker } },
        });
        self.kubectl_with(&["apply", "-f", "-"], &tfjob.to_string());
    }

    /// Runs kubectl in this namespace. Returns kubectl's stdout and stderr, even if kubectl fails.
    pub fn try_kubectl(&self, args: &[&str]) -> String {
        let output = kubectl(&[&["-n", &self.name], args].concat(), "");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A failure is ignored: it only leaves objects behind.
        let _ = api::request(Method::DELETE, &format!("/api/v1/namespaces/{}", self.name), None);
    }
}

fn kubectl(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new("kubectl")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cannot start kubectl");
    child.stdin.take().expect("the stream is not piped").write_all(stdin.as_bytes()).expect("cannot write to kubectl");
    child.wait_with_output().expect("cannot wait for the process")
}
