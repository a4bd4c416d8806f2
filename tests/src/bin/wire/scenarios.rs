//! The scenarios. Each has a master of its own.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use e2e::cluster::Namespace;
use e2e::scripts::UNEQUAL;
use e2e::{Master, Scene, within};
use protocol::view::JobState;
use serde_json::{Value, json};

use crate::setting::{Setting, blank};

/// Exits with the number in the file `code`. Waits until the file exists.
const WAITS: &str = "import os, sys, time\n\
                     print('ready', flush=True)\n\
                     while not os.path.exists('code'): time.sleep(0.05)\n\
                     print('ends', file=sys.stderr)\n\
                     sys.exit(int(open('code').read()))\n";
const PROCESS: [&str; 1] = ["process"];
const JOINED: [&str; 1] = ["joined"];
/// The options by which a job fails at its second failure.
const ONE_RESTART: [&str; 4] = ["--max-restarts", "1", "--backoff", "0s"];

/// Records all scenarios into this folder.
pub(crate) fn record(to: &Path) -> anyhow::Result<()> {
    ends(to)?;
    fails(to)?;
    brings_code(to)?;
    changes_its_size(to)?;
    balances(to)?;
    survives_its_master(to)?;
    runs_in_a_cluster(to)
}

/// A job to its end, every verb that reads, and answers that report errors.
fn ends(to: &Path) -> anyhow::Result<()> {
    let setting = Setting::begin("ends", to, WAITS, &PROCESS)?;
    let submit = ["--task", "ends", "--worker-num", "2", "-d"];
    setting.client(&[&["--dry-run=server"], &submit[..4]].concat());
    setting.client(&submit).code(0);
    setting.until("ends", JobState::Running, |_| true);
    setting.records("runs")?;
    setting.client(&["stacks", "ends"]).code(0);
    setting.client(&["top", "--once"]);
    // The master keeps both jobs.
    setting.client(&["--task", "ends", "--worker-num", "3", "-d"]);
    setting.client(&["scale", "ends", "--worker-num", "1"]);
    setting.client(&["push", "nothing"]);
    setting.client(&["status", "nothing"]);
    fs::write(setting.scene.path().join("code"), "0")?;
    setting.client(&["wait", "ends"]).code(0);
    setting.until("ends", JobState::Succeeded, |view| view.times.finished.is_some());
    setting.records("ended")?;
    for verb in [&["list"][..], &["status", "ends"], &["timeline", "ends"], &["why", "ends"], &["logs", "ends"]] {
        setting.client(verb);
    }
    setting.client(&["logs", "ends", "--tail", "1", "-o", "json"]);
    setting.client(&["rerun", "ends", "--task", "again"]).code(0);
    setting.client(&["delete", "ends"]).code(0);
    setting.client(&["list", "--all"]);
    setting.client(&["status", "ends"]);
    setting.end()
}

/// A job whose scripts fail twice.
fn fails(to: &Path) -> anyhow::Result<()> {
    let setting = Setting::begin("fails", to, "raise ValueError('no digits')\n", &PROCESS)?;
    setting.client(&[&["--task", "fails", "--worker-num", "2"], &ONE_RESTART[..]].concat()).code(1);
    for verb in [["why", "fails"], ["timeline", "fails"], ["status", "fails"]] {
        setting.client(&verb);
    }
    setting.records("failed")?;
    setting.end()
}

/// A job that brings its code, waits after a failure, and gets new code.
fn brings_code(to: &Path) -> anyhow::Result<()> {
    let setting = Setting::begin("code", to, "", &PROCESS)?;
    let folder = setting.scene.path().join("src");
    fs::create_dir(&folder)?;
    let write = |text: &str| fs::write(folder.join("exec.py"), text);
    write("import time\nprint('one', flush=True)\nwhile True: time.sleep(60)\n")?;
    let flags = ["--task", "code", "--worker-num", "1", "--code", "src", "-d", "--on-failure", "wait"];
    setting.client(&[&flags[..], &["--max-restarts", "0", "src/exec.py"]].concat()).code(0);
    setting.until("code", JobState::Running, |_| true);
    write("raise ValueError('two')\n")?;
    setting.client(&["push", "code", "src"]);
    let halted = |_: &_| setting.client(&["status", "code", "-o", "json"]).stdout.contains("'two'");
    setting.until("code", JobState::Halted, halted);
    setting.records("halted")?;
    write("print('three')\n")?;
    setting.client(&["push", "code", "src"]).code(0);
    setting.until("code", JobState::Succeeded, |view| view.times.finished.is_some());
    setting.records("ended")?;
    setting.end()
}

/// A job that is scaled, suspended, resumed and cancelled.
fn changes_its_size(to: &Path) -> anyhow::Result<()> {
    let setting = Setting::begin("size", to, WAITS, &PROCESS)?;
    setting.client(&["--task", "size", "--worker-num", "1:2", "-d"]).code(0);
    setting.until("size", JobState::Running, |view| view.roster.len() == 2);
    setting.client(&["scale", "size", "--worker-num", "1"]).code(0);
    setting.until("size", JobState::Running, |view| view.roster.len() == 1);
    setting.records("scaled")?;
    setting.client(&["suspend", "size"]).code(0);
    setting.until("size", JobState::Suspended, |_| true);
    setting.records("suspended")?;
    setting.client(&["resume", "size"]).code(0);
    setting.until("size", JobState::Running, |_| true);
    setting.client(&["cancel", "size"]).code(0);
    setting.until("size", JobState::Cancelled, |view| view.times.finished.is_some());
    setting.records("cancelled")?;
    setting.end()
}

/// A job whose batch sizes change.
fn balances(to: &Path) -> anyhow::Result<()> {
    let setting = Setting::begin("batches", to, UNEQUAL, &PROCESS)?;
    setting.client(&["--task", "batches", "--worker-num", "2", "--global-batch", "128", "-d"]).code(0);
    setting.client(&["wait", "batches"]).code(0);
    setting.records("ended")?;
    setting.client(&["top", "batches", "--once"]);
    setting.end()
}

/// A job on two machines whose master is killed, and which fails later.
fn survives_its_master(to: &Path) -> anyhow::Result<()> {
    let mut setting = Setting::begin("machines", to, WAITS, &JOINED)?;
    let rules = ["--on-unreachable", "replace", "--lease", "20s", "--max-restarts", "0"];
    setting.client(&[&["--task", "machines", "--worker-num", "2", "-d"], &rules[..]].concat()).code(0);
    let first = setting.machine("machines", "words-0")?;
    // So that the first machine is asked whether it reaches the second.
    first.until_said("joined the job as");
    let agents = [first, setting.machine("machines", "words-1")?];
    setting.until("machines", JobState::Running, |_| true);
    setting.records("runs")?;
    setting.take_over();
    setting.until("machines", JobState::Running, |view| view.replicas.iter().all(|one| one.pid.is_some()));
    setting.records("taken-over")?;
    fs::write(setting.scene.path().join("code"), "3")?;
    for agent in agents {
        agent.ended();
    }
    setting.until("machines", JobState::Failed, |view| view.times.finished.is_some());
    setting.records("failed")?;
    for words in ["words-0", "words-1"] {
        setting.copy(words, &format!("last-words/{words}.json"))?;
    }
    setting.end()
}

/// The objects of a job in the cluster that KUBECONFIG names. The job's image does not exist, so no agent answers.
fn runs_in_a_cluster(to: &Path) -> anyhow::Result<()> {
    let (namespace, scene) = (Namespace::new(), Scene::new(""));
    let args = ["--backend", "kubernetes", "--namespace", namespace.name(), "--state-dir", "state"];
    let master = Master::start(scene.path(), &args, &[]);
    let job = json!({ "name": "pods", "strategy": "AllReduce", "worker_num": 1, "image": "localhost:5000/digits:1" });
    scene.curl(&["--json", &job.to_string(), &format!("{}/v1/jobs", master.url)]);
    for (kind, file) in [("configmap/muster-pods", "record.json"), ("pod/pods-worker-0", "pod.json")] {
        let get = || {
            let text = namespace.try_kubectl(&["get", kind, "-o", "json"]);
            serde_json::from_str::<Value>(&text).ok()
        };
        let mut object = within(&format!("{kind} exists"), get, || master.log());
        let metadata = object["metadata"].as_object_mut().context("no metadata")?;
        metadata.remove("managedFields");
        object.as_object_mut().context("not an object")?.remove("status");
        blank(&mut object);
        let text = format!("{object:#}\n").replace(namespace.name(), "digits");
        fs::create_dir_all(to.join("kubernetes"))?;
        fs::write(to.join("kubernetes").join(file), text)?;
    }
    scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/pods", master.url)]);
    Ok(())
}
