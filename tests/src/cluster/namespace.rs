//! A namespace of one test.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

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
    /// If KUBECONFIG names no cluster, or kubectl is not installed.
    #[expect(clippy::new_without_default, reason = "a default value should not call a cluster")]
    pub fn new() -> Self {
        let namespace = Self { name: unique_name() };
        let [space, account] = [
            ("Namespace", json!({ "name": namespace.name })),
            ("ServiceAccount", json!({ "name": "default", "namespace": namespace.name })),
        ]
        .map(|(kind, metadata)| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata }));
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [space, account] });
        let created = kubectl(&["create", "-f", "-"], &objects.to_string());
        let complaint = String::from_utf8_lossy(&created.stderr);
        // The cluster also creates this service account, and may be faster.
        let has_account = complaint.contains("serviceaccounts \"default\" already exists");
        assert!(created.status.success() || has_account, "cannot create a namespace; is KUBECONFIG set? {complaint}");
        namespace
    }

    /// Returns the namespace's name.
    pub fn name(&self) -> &str {
        &self.name
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

    /// Runs kubectl in this namespace. Returns kubectl's stdout and stderr, even if kubectl fails.
    pub fn try_kubectl(&self, args: &[&str]) -> String {
        let output = kubectl(&[&["-n", &self.name], args].concat(), "");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A failure is ignored: it only leaves objects behind.
        kubectl(&["delete", "namespace", &self.name, "--wait=false"], "");
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
