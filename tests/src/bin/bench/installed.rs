//! A namespace with an installed master, and with further pods that belong to no master. Scripts print the time of
//! their start. If the cluster has several nodes, their clocks must agree.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2e::cluster::{Image, Namespace};
use e2e::processes::within;
use e2e::{Running, Scene};
use serde_json::{Value, json};

/// Image of the scripts.
pub(crate) const BASE: &str = "python:3.11-slim";
/// Name of the job, and of the folder with its code.
pub(crate) const JOB: &str = "bench";
/// Label of the pods without a master.
const BARE: &str = "muster-bench";

/// A master as users install it. Clients reach the master at a port of the node, or through the API server.
pub(crate) struct Installed {
    // Declared before the image, so the pods are deleted first.
    pub(crate) namespace: Namespace,
    master: Image,
    /// A folder with the job's code in [`JOB`].
    pub(crate) scene: Scene,
    pub(crate) url: String,
    pub(crate) token: String,
}

impl Installed {
    /// Installs a master with these flags.
    pub(crate) fn new(flags: &[&str]) -> anyhow::Result<Self> {
        let (scene, namespace, master) = (Scene::new(""), Namespace::new(), Image::of_master());
        fs::create_dir(scene.path().join(JOB))?;
        let (place, image) = (place(&namespace), master.of_nodes());
        scene.run(&[&["install", "--master", &place, "--image", &image], flags].concat()).code(0);
        namespace.kubectl(&["expose", "deployment", "muster", "--type=NodePort", "--name=bench"]);
        let port = namespace.kubectl(&["get", "service", "bench", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
        let address = "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}";
        let node = namespace.kubectl(&["get", "nodes", "-o", address]);
        let token = "go-template={{.data.token | base64decode}}";
        let token = namespace.kubectl(&["get", "secret", "muster", "-o", token]);
        let site = Self { namespace, master, scene, url: format!("http://{node}:{port}"), token };
        site.until_reached();
        Ok(site)
    }

    /// Restarts the master so that an init container of each pod copies the agent from the master's image.
    pub(crate) fn copy_agents(&self) {
        let image = format!("MUSTER_AGENT_IMAGE={}", self.master.of_nodes());
        self.namespace.kubectl(&["set", "env", "deployment/muster", &image]);
        self.namespace.kubectl(&["rollout", "status", "deployment/muster", "--timeout=300s"]);
        self.until_reached();
    }

    fn until_reached(&self) {
        let Self { scene, url, namespace, .. } = self;
        let ready = || (scene.curl(&["--max-time", "2", &format!("{url}/readyz")]) == "OK").then_some(());
        within("the node's port leads to the master", ready, || namespace.try_kubectl(&["describe", "pods"]));
    }

    /// Returns a command of the client, which uses the node's port.
    pub(crate) fn client(&self, args: &[&str]) -> Command {
        let mut client = self.scene.client(&[&["--master", &self.url], args].concat());
        client.env("MUSTER_TOKEN", &self.token);
        client
    }

    /// Returns a command of the client, which uses the API server.
    pub(crate) fn client_by_api(&self, args: &[&str]) -> Command {
        self.scene.client(&[&["--master", &place(&self.namespace)], args].concat())
    }

    /// Writes the job's script, which prints this number.
    pub(crate) fn write(&self, start: usize) -> anyhow::Result<()> {
        Ok(fs::write(self.scene.path().join(JOB).join("exec.py"), script(start))?)
    }

    /// Creates pods with this spec by one command. Each pod's name begins with `name`.
    pub(crate) fn create_bare(&self, name: &str, count: usize, spec: &Value) {
        let pod = |number| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": spec,
                "metadata": { "name": format!("{name}-{number}"), "labels": { BARE: name } },
            })
        };
        let items: Vec<Value> = (0..count).map(pod).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.namespace.kubectl_with(&["apply", "-f", "-"], &list.to_string());
    }

    /// Waits until these pods are ready. Returns their addresses.
    pub(crate) fn until_ready(&self, name: &str) -> Vec<String> {
        let selector = format!("{BARE}={name}");
        self.namespace.kubectl(&["wait", "pods", "-l", &selector, "--for=condition=Ready", "--timeout=300s"]);
        let addresses = "jsonpath={.items[*].status.podIP}";
        let addresses = self.namespace.kubectl(&["get", "pods", "-l", &selector, "-o", addresses]);
        addresses.split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until all scripts of these pods have started. Returns the time at which the last script started.
    pub(crate) fn bare_started(&self, name: &str, start: usize, count: usize) -> SystemTime {
        self.until_ready(name);
        last_start(|| self.namespace.try_kubectl(&["logs", "-l", &format!("{BARE}={name}")]), start, count)
    }

    /// Begins to delete these pods, but does not wait. With an old kubelet, the API lists a pod for up to a minute
    /// after its containers have ended.
    pub(crate) fn delete_bare(&self, name: &str) {
        let selector = format!("{BARE}={name}");
        self.namespace.kubectl(&["delete", "pods", "-l", &selector, "--grace-period=1", "--wait=false"]);
    }

    /// Deletes these pods, and waits until their containers have ended.
    pub(crate) fn end_bare(&self, name: &str) {
        self.delete_bare(name);
        let phases = "jsonpath={.items[*].status.containerStatuses[*].state.running}";
        let running = || self.namespace.kubectl(&["get", "pods", "-l", &format!("{BARE}={name}"), "-o", phases]);
        within("the containers end", || running().is_empty().then_some(()), running);
    }

    /// Deletes the job, and waits until its pods are gone.
    pub(crate) fn delete_job(&self) {
        e2e::Finished::of(&mut self.client(&["delete", JOB])).code(0);
    }
}

/// Starts a client that submits a job and follows its output. Returns the client, and the time until `count`
/// scripts have started that print the number `start`.
pub(crate) fn launch(client: &mut Command, start: usize, count: usize) -> anyhow::Result<(Running, Duration)> {
    let begin = SystemTime::now();
    let client = Running::of(client);
    let started = last_start(|| client.stdout(), start, count);
    Ok((client, started.duration_since(begin)?))
}

/// A program that prints this number and the time, and then waits for SIGTERM. It handles SIGTERM because the kernel
/// ignores the default action of signals for the first process of a container.
pub(crate) fn script(start: usize) -> String {
    format!(
        "import time\nprint('start', {start}, time.time_ns(), flush=True)\n\
         import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit())\nsignal.pause()\n"
    )
}

/// Waits until `count` scripts have printed the number `start`. Returns the latest time that a script has printed.
pub(crate) fn last_start(output: impl Fn() -> String, start: usize, count: usize) -> SystemTime {
    let mark = format!("start {start} ");
    let times = || -> Vec<u64> {
        let text = output();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().filter_map(|line| line.split_once(&mark)?.1.trim().parse().ok()).collect()
    };
    let last = || Some(times()).filter(|times| times.len() >= count)?.into_iter().max();
    UNIX_EPOCH + Duration::from_nanos(within(&format!("{count} times {mark:?}"), last, &output))
}

fn place(namespace: &Namespace) -> String {
    format!("kube:{}", namespace.name())
}
