//! A namespace that goes with its test.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::processes::within;

/// A namespace of one test's own. It is deleted, with all that is in it, when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

/// A name that nobody else has.
pub(super) fn unique_name() -> String {
    // The keys of the hasher are random.
    format!("muster-e2e-{:016x}", RandomState::new().build_hasher().finish())
}

impl Namespace {
    /// Creates one, and waits until pods can be created in it.
    ///
    /// # Panics
    /// When KUBECONFIG names no cluster, or there is no kubectl.
    #[expect(clippy::new_without_default, reason = "nobody expects a default to ask a cluster")]
    pub fn new() -> Self {
        let namespace = Self { name: unique_name() };
        let created = kubectl(&["create", "namespace", &namespace.name], "");
        assert!(created.status.success(), "is KUBECONFIG set? {}", String::from_utf8_lossy(&created.stderr));
        let has_account = || {
            let account = kubectl(&["-n", &namespace.name, "get", "serviceaccount", "default"], "");
            account.status.success().then_some(())
        };
        within("the namespace has its service account", has_account, String::new);
        namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A kubeconfig whose context names it, as `kubectl config set-context --current --namespace` does.
    ///
    /// # Panics
    /// When kubectl has none.
    pub fn kubeconfig(&self) -> Value {
        let config = self.kubectl(&["config", "view", "--minify", "--flatten", "-o", "json"]);
        let mut config: Value = serde_json::from_str(&config).expect("a kubeconfig");
        config["contexts"][0]["context"]["namespace"] = self.name.as_str().into();
        config
    }

    /// What kubectl prints, asked for something in this namespace.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    /// The same, with this on its stdin.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], stdin: &str) -> String {
        let output = kubectl(&[&["-n", &self.name], args].concat(), stdin);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What kubectl prints, whether it fails or not.
    pub fn try_kubectl(&self, args: &[&str]) -> String {
        let output = kubectl(&[&["-n", &self.name], args].concat(), "");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The namespace's own end gives each pod 30 seconds; that it fails is seen by what is left.
        kubectl(&["-n", &self.name, "delete", "pods", "--all", "--grace-period=1", "--wait=false"], "");
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
        .expect("kubectl is on the path");
    child.stdin.take().expect("it was piped").write_all(stdin.as_bytes()).expect("kubectl reads");
    child.wait_with_output().expect("a child can be waited for")
}
