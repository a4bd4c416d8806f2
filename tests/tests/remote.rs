//! A master that stays: several jobs at once, HTTP by curl, its own death.

use std::collections::BTreeMap;
use std::process::Child;

use e2e::processes::{pids, signal, within};
use e2e::{Finished, Master, Scene};
use protocol::view::{Failure, JobResult, JobState, JobView};
use rustix::process::Signal;
use serde_json::Value;

const STUBBORN: &str =
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').close()\ntime.sleep(600)\n";

#[test]
fn twenty_jobs_at_once_all_succeed_with_no_address_used_twice() {
    // Each worker holds its address until all of its job have theirs, as a TensorFlow server would.
    let exec_py = r#"
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][config["task"]["index"]].rsplit(":", 1)
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", int(port)))
server.listen()
for address in config["cluster"]["worker"]:
    host, port = address.rsplit(":", 1)
    while True:
        try: socket.create_connection((host, int(port))).close(); break
        except ConnectionRefusedError: time.sleep(0.01)
open(f"met-{os.environ['MUSTER_JOB']}-{os.environ['RANK']}", "w").close()
while not all(os.path.exists(f"met-{os.environ['MUSTER_JOB']}-{rank}") for rank in range(4)): time.sleep(0.01)
"#;
    let scene = Scene::new(exec_py);
    let master = scene.master();
    let submit = |n: usize| {
        let name = format!("job-{n}");
        scene.client(&["--master", &master.url, "--task", &name, "--worker-num", "4"]).spawn().expect("it starts")
    };
    let clients: Vec<Child> = (0..20).map(submit).collect();
    for client in clients {
        Finished::after(client).code(0);
    }
    let list: Value = serde_json::from_str(&scene.curl(&[&format!("{}/v1/jobs", master.url)])).expect("a list");
    let states: Vec<&str> = list["jobs"].as_array().expect("jobs").iter().filter_map(|j| j["state"].as_str()).collect();
    assert_eq!(states, ["succeeded"; 20]);
}

#[test]
fn curl_submits_follows_and_deletes() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    let create = format!("{}/create?strategy=AllReduce&n_worker=2&name=curl1", master.url);
    let accepted: JobView = serde_json::from_str(&scene.curl(&[&create])).expect("a view");
    assert_eq!((accepted.name.as_str(), accepted.spec.worker_num), ("curl1", 2));
    let job = format!("{}/v1/jobs/curl1", master.url);
    let lines = scene.curl(&[&format!("{job}/logs?follow=true")]);
    assert_eq!(lines.lines().filter(|line| line.contains("TF_CONFIG")).count(), 2, "{lines}");
    assert_eq!(finished(&scene, &master, "curl1").state, JobState::Succeeded);
    let one = scene.curl(&[&format!("{job}/logs?replica=worker-1&tail=2")]);
    assert!(one.starts_with("role worker index 1 rank 1\nTF_CONFIG "), "{one}");
    assert_eq!(scene.curl(&["-X", "DELETE", "-o", "/dev/null", "-w", "%{http_code}", &job]), "202");
    let gone = || (scene.curl(&["-o", "/dev/null", "-w", "%{http_code}", &job]) == "404").then_some(());
    within("the job is forgotten", gone, || scene.processes());
}

#[test]
fn head_on_create_starts_nothing() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    let create = format!("{}/create?strategy=AllReduce&n_worker=2&name=head", master.url);
    let answer = scene.curl(&["-I", &create]);
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert_eq!(scene.curl(&[&format!("{}/v1/jobs", master.url)]), r#"{"jobs":[]}"#);
}

#[test]
fn verbs_show_cancel_and_delete_a_detached_job() {
    let scene = Scene::new(&format!("print('begun')\n{STUBBORN}"));
    let master = scene.master();
    let verb = |args: &[&str]| scene.run(&[&["--master", &master.url], args].concat());
    verb(&["-d", "--task", "long", "--worker-num", "2"]).code(0);
    scene.until_running(2);
    assert!(verb(&["list"]).code(0).stdout.contains("long"));
    assert!(verb(&["status", "long"]).code(0).stdout.contains("worker-1"));
    assert!(verb(&["wait", "long", "--timeout", "10ms"]).code(1).stderr.contains("long"));
    verb(&["cancel", "long"]).code(0);
    verb(&["wait", "long"]).code(1);
    assert_eq!(scene.runs(), Vec::<u32>::new(), "{}", scene.processes());
    let logs = verb(&["logs", "long"]).code(0).stdout;
    assert_eq!(logs.matches("begun").count(), 2, "output outlives its pods: {logs}");
    verb(&["delete", "long"]).code(0);
    assert!(verb(&["status", "long"]).code(2).stderr.contains("long"));
}

#[test]
fn ctrl_c_leaves_a_job_of_a_master_that_stays_alone() {
    let scene = Scene::new(STUBBORN);
    let master = scene.master();
    let client = scene.client(&["--master", &master.url, "--task", "stays"]).spawn().expect("it starts");
    scene.until_running(2);
    signal(client.id(), Signal::INT);
    let left = Finished::after(client).code(1);
    assert!(left.stderr.contains("logs stays") && left.stderr.contains("cancel stays"), "{}", left.stderr);
    assert_eq!(scene.runs().len(), 2);
}

#[test]
fn after_kill_9_of_the_master_nothing_runs_and_the_next_one_says_what_was_lost() {
    let scene = Scene::new(STUBBORN);
    let master = scene.master();
    scene.run(&["--master", &master.url, "-d", "--task", "lost"]).code(0);
    scene.until_running(2);
    master.kill();
    scene.until_empty();
    let next = scene.master();
    let view = finished(&scene, &next, "lost");
    let lost = matches!(&view.result, Some(JobResult::Failed { failure: Failure::ReplicaLost { .. } }));
    assert!(lost, "{:?}", view.result);
}

#[test]
fn killing_an_agent_ends_its_run_and_fails_the_job_with_that_reason() {
    let scene = Scene::new(STUBBORN);
    let master = scene.master();
    scene.run(&["--master", &master.url, "-d", "--task", "shot"]).code(0);
    scene.until_running(2);
    let agents = pids(scene.path(), "--supervised --listen");
    assert_eq!(agents.len(), 2, "{}", scene.processes());
    signal(agents[0], Signal::KILL);
    let view = finished(&scene, &master, "shot");
    let Some(JobResult::Failed { failure }) = view.result else { panic!("{:?}", view.result) };
    assert!(failure.to_string().contains("SIGKILL"), "{failure}");
    assert_eq!(scene.runs(), Vec::<u32>::new(), "{}", scene.processes());
}

#[test]
fn variables_that_configure_the_master_do_not_configure_its_agents() {
    let scene = Scene::new("import os; print(sorted(name for name in os.environ if name.startswith('MUSTER_')))");
    let mut command = scene.client(&["--worker-num", "1"]);
    let run = Finished::of(command.env("MUSTER_LINGER", "no number").env("MUSTER_GRACE", "none either")).code(0);
    let names =
        ["GENERATION", "INDEX", "JOB", "NO_PROXY", "RESTART_COUNT", "ROLE"].map(|name| format!("'MUSTER_{name}'"));
    assert_eq!(run.stdout, format!("worker-0 │ [{}]\n", names.join(", ")));

    let master = scene.master_with(&[("MUSTER_LINGER", "no number")]);
    scene.run(&["--master", &master.url, "--worker-num", "1"]).code(0);
}

fn finished(scene: &Scene, master: &Master, name: &str) -> JobView {
    let url = format!("{}/v1/jobs/{name}", master.url);
    let look = || serde_json::from_str::<JobView>(&scene.curl(&[&url])).ok().filter(|view| view.state.is_finished());
    within("the job has finished", look, || {
        format!("{}\n{:?}", scene.processes(), BTreeMap::from([(&url, scene.curl(&[&url]))]))
    })
}
