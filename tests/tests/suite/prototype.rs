//! Tests of the first prototype's master with Muster's agents, and of its client with Muster's master.
//! `tests/prototype` imitates the prototype's programs. Tests with pods are in `kubernetes/prototype.rs`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::processes::output;
use e2e::programs::{built, root};
use e2e::scripts::STUBBORN;
use e2e::{Finished, Master, Scene, within};
use protocol::view::{JobState, JobView};
use serde_json::{Value, json};

/// The argument IMG of the prototype's client for a job without an image. The process back end refuses images.
const NO_IMAGE: &str = "";

/// Returns the path of a file in `tests/prototype`.
fn prototype(file: &str) -> PathBuf {
    root().join("tests/prototype").join(file)
}

/// Creates a folder with the prototype's exec.py, which prints its variables.
fn printing() -> Scene {
    Scene::new(&fs::read_to_string(prototype("exec.py")).expect("cannot read the prototype's exec.py"))
}

/// Returns a command that runs a program of `tests/prototype`.
fn stand_in(file: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python");
    command.arg(prototype(file)).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Muster's agent, without `--supervised`, like an agent in a pod. The agent ends by itself after its run.
struct Agent {
    child: Child,
    address: SocketAddr,
}

impl Agent {
    /// Starts an agent in the scene's folder, on a free port of this address.
    fn start(scene: &Scene, ip: &str) -> Self {
        let log = scene.path().join(format!("{ip}.log"));
        let child = Command::new(built("agent"))
            .args(["--listen", &format!("{ip}:0"), "--linger", "0.2"])
            .current_dir(scene.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("cannot open the log"))
            .spawn()
            .expect("cannot start the agent");
        let address = within("the agent listens", || address_in(&log), || fs::read_to_string(&log).unwrap_or_default());
        Self { child, address }
    }

    /// Waits until the run has succeeded, and returns its output.
    fn printed(self) -> String {
        let output = output(self.child);
        assert_eq!(output.status.code(), Some(0), "wrong exit code of the agent at {}", self.address);
        String::from_utf8(output.stdout).expect("not UTF-8")
    }
}

/// Returns the address in an agent's log, or `None` until the log has the complete address.
fn address_in(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    text.split_once("address=")?.1.split_once(' ')?.0.parse().ok()
}

/// Returns the value of a variable in exec.py's output.
fn value<'a>(printed: &'a str, variable: &str) -> &'a str {
    let of_line = |line: &'a str| line.split_once(variable)?.1.strip_prefix('=');
    printed.lines().find_map(of_line).unwrap_or_else(|| panic!("no {variable} in:\n{printed}"))
}

fn tf_config(printed: &str) -> Value {
    serde_json::from_str(value(printed, "TF_CONFIG")).expect("TF_CONFIG is not JSON")
}

/// Runs three agents with the prototype's master. Returns the output of their runs.
fn driven(options: &[&str]) -> [String; 3] {
    let scene = printing();
    let agents = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|ip| Agent::start(&scene, ip));
    let addresses = agents.each_ref().map(|agent| agent.address.to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    Finished::of(&mut stand_in("master.py", &[options, &addresses].concat())).code(0);
    let printed = agents.map(Agent::printed);
    scene.assert_empty();
    printed
}

#[test]
fn the_prototypes_master_runs_a_job_on_musters_agents_to_its_end() {
    let cluster = json!({"worker": ["127.0.0.2:1234", "127.0.0.3:1234", "127.0.0.4:1234"]});
    for (index, printed) in driven(&[]).iter().enumerate() {
        assert_eq!(value(printed, "NUM_WORKERS"), "3");
        let expected = json!({"cluster": cluster, "task": {"type": "worker", "index": index}});
        assert_eq!(tf_config(printed), expected);
    }
}

#[test]
fn the_prototypes_master_configures_musters_agents_as_parameter_servers() {
    let cluster = json!({"worker": ["127.0.0.3:1234", "127.0.0.4:1234"], "ps": ["127.0.0.2:1234"]});
    let tasks = [("ps", 0), ("worker", 0), ("worker", 1)];
    for (printed, (role, index)) in driven(&["--ps", "1"]).iter().zip(tasks) {
        assert_eq!(value(printed, "NUM_WORKERS"), "2");
        assert_eq!(tf_config(printed), json!({"cluster": cluster, "task": {"type": role, "index": index}}));
    }
}

/// Runs the prototype's client to its end.
fn submit(master: &Master, words: [&str; 5]) -> Finished {
    Finished::of(&mut stand_in("client.py", &[&[master.url.as_str()], words.as_slice()].concat()))
}

/// Waits until the job has finished, and returns its view.
fn finished(scene: &Scene, master: &Master, job: &str) -> JobView {
    scene.run(&["--master", &master.url, "wait", job, "-o", "json"]).view()
}

#[test]
fn the_prototypes_client_submits_a_job_that_succeeds() {
    let scene = printing();
    let master = scene.master();
    let accepted = submit(&master, ["AllReduce", "2", "0", NO_IMAGE, "digits"]).code(0).view();
    assert_eq!((accepted.name.as_str(), accepted.spec.worker_num), ("digits", 2));
    assert_eq!(finished(&scene, &master, "digits").state, JobState::Succeeded);
    let printed = scene.run(&["--master", &master.url, "logs", "digits"]).code(0);
    assert_eq!(printed.lines("NUM_WORKERS="), ["2", "2"]);
}

#[test]
fn a_job_of_the_prototypes_client_with_parameter_servers_has_no_chief() {
    let scene = printing();
    let master = scene.master();
    submit(&master, ["ParameterServer", "2", "1", NO_IMAGE, "digits"]).code(0);
    assert_eq!(finished(&scene, &master, "digits").state, JobState::Succeeded);
    let logs = scene.run(&["--master", &master.url, "logs", "digits"]).code(0).lines("TF_CONFIG=");
    assert!(!logs.is_empty(), "no replica has printed TF_CONFIG");
    for line in logs {
        let cluster = &serde_json::from_str::<Value>(&line).expect("not JSON")["cluster"];
        let members = ["chief", "worker", "ps"].map(|role| cluster[role].as_array().map(Vec::len));
        assert_eq!(members, [None, Some(2), Some(1)], "{line}");
    }
}

#[test]
fn the_prototypes_client_may_repeat_a_submit_but_not_change_the_job() {
    let scene = Scene::new(STUBBORN);
    let master = scene.master();
    let words = ["AllReduce", "1", "0", NO_IMAGE, "digits"];
    for _ in 0..2 {
        submit(&master, words).code(0);
    }
    let [strategy, _, servers, image, name] = words;
    submit(&master, [strategy, "2", servers, image, name]).code(1).says(&["409", "job_exists"]);
}
