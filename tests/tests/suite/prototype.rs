//! Tests of the first prototype's master with Muster's agents, and of its client with Muster's master.
//! `tests/prototype` imitates the prototype's programs. Tests with pods are in `kubernetes/prototype.rs`.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use e2e::programs::{built, prototype, root};
use e2e::scripts::STUBBORN;
use e2e::{Finished, Master, Running, Scene, within};
use protocol::view::{JobState, JobView};
use serde_json::{Value, json};

/// The argument IMG of the prototype's client for a job without an image. The process back end refuses images.
const NO_IMAGE: &str = "";

/// Creates a folder with the prototype's exec.py, which prints its variables.
fn printing() -> Scene {
    let exec_py = root().join("tests/prototype/exec.py");
    Scene::new(&fs::read_to_string(exec_py).expect("cannot read the prototype's exec.py"))
}

/// Muster's agent, without `--supervised`, like an agent in a pod. The agent ends by itself after its run.
struct Agent {
    running: Running,
    address: SocketAddr,
}

impl Agent {
    /// Starts an agent in the scene's folder, on a free port of this address.
    fn start(scene: &Scene, ip: &str) -> Self {
        let mut command = Command::new(built("agent"));
        command.args(["--listen", &format!("{ip}:0"), "--linger", "0.2"]).current_dir(scene.path());
        let running = Running::of(&mut command);
        let address = within("the agent listens", || address_in(&running.said_so_far()), || running.said_so_far());
        Self { running, address }
    }
}

/// Returns the address in an agent's log, or `None` until the log has the complete address.
fn address_in(log: &str) -> Option<SocketAddr> {
    log.split_once("address=")?.1.split_once(' ')?.0.parse().ok()
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
    Finished::of(&mut prototype("master.py", &[options, &addresses].concat())).code(0);
    let printed = agents.map(|agent| agent.running.ended().code(0).stdout);
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
    Finished::of(&mut prototype("client.py", &[&[master.url.as_str()], words.as_slice()].concat()))
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
