//! Tests that the agents of a master end when the master is killed, and that the next master continues the jobs.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::process::harness::{Folders, descendants, in_time, parent, wait_until_dead};

const SLEEPS: &str =
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)\n";

#[tokio::test]
async fn at_its_start_a_master_removes_the_output_of_jobs_without_a_record_and_keeps_other_folders() {
    let folders = Folders::new("print('hello')");
    let logs = folders.state.path().join("logs");
    let (lost, other) = (logs.join("0d8f1c6e-6f0a-4c8e-9d55-6f9b0a1f6f52"), logs.join("mine"));
    for folder in [&lost, &other] {
        std::fs::create_dir_all(folder).expect("no folder");
        std::fs::write(folder.join("worker-0.log"), "output").expect("no file");
    }
    let _master = folders.master();
    in_time("the folder of the lost job is removed", || !lost.exists());
    assert!(other.exists(), "a folder that no master has made was removed");
}

#[tokio::test]
async fn after_kill_9_no_agent_lives_and_the_next_master_starts_the_job_again() {
    let folders = Folders::new(SLEEPS);
    let master = folders.master();
    let job = json!({"name": "orphaned", "strategy": "AllReduce", "worker_num": 2});
    assert_eq!(master.submit(&job).await.0, 201);
    let running = master.until("orphaned", |view| view["state"] == "running").await;
    let processes = descendants(master.id());
    assert!(processes.len() >= 4, "fewer than two agents and two runs: {processes:?}");
    master.kill();
    wait_until_dead(&processes);

    let next = folders.master();
    let view = next.until("orphaned", |view| view["state"] == "running").await;
    assert_eq!((&view["uid"], &view["generation"]), (&running["uid"], &json!("2.1")));
    assert_eq!(view["restarts"], Value::Null, "a restart is recorded: {view:#}");
    let change = &view["changes"][0];
    assert_eq!((&change["generation"], &change["cause"]["cause"]), (&json!("2.1"), &json!("taken_over")), "{view:#}");
    assert!(descendants(next.id()).len() >= 4, "fewer than two agents and two runs");
}

#[tokio::test]
async fn an_agent_that_gets_sigterm_from_outside_causes_an_uncounted_restart() {
    let folders = Folders::new("import time\nprint('up')\ntime.sleep(600)\n");
    let master = folders.master();
    let job = json!({"name": "beheaded", "strategy": "AllReduce", "worker_num": 2, "run_policy": {"max_restarts": 0}});
    assert_eq!(master.submit(&job).await.0, 201);
    let all_run = |view: &Value| (0..2).all(|index| view["replicas"][index]["pid"].is_u64());
    let view = master.until("beheaded", all_run).await;
    let processes = descendants(master.id());
    let run = view["replicas"][1]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("no process id");
    let agent = parent(run).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("the run has no agent");
    kill_process(agent, Signal::TERM).expect("the agent does not run");

    let view = master.until("beheaded", |view| view["generation"] == "1.2" && all_run(view)).await;
    assert_eq!((&view["restarts"]["counted"], &view["restarts"]["uncounted"]), (&json!(0), &json!(1)));
    assert_eq!(view["restarts"]["failed_starts"][0]["failure"]["replica"], "worker-1", "{view:#}");
    let kept = parent(u32::try_from(view["replicas"][0]["pid"].as_u64().expect("no process id")).expect("not an id"));
    assert!(kept.is_some_and(|agent| processes.contains(&agent)), "worker-0 has another agent");
}

#[tokio::test]
async fn the_next_master_shows_a_finished_job_unchanged() {
    let folders = Folders::new("print('hello')\n");
    let master = folders.master();
    assert_eq!(master.submit(&json!({"name": "done", "strategy": "AllReduce", "worker_num": 1})).await.0, 201);
    let before = master.until("done", |view| view["state"] == "succeeded").await;
    master.kill();
    let after = folders.master().until("done", |view| view["state"] == "succeeded").await;
    for kept in ["result", "uid", "spec", "generation"] {
        assert_eq!(after[kept], before[kept], "{kept}");
    }
    assert_eq!(after["replicas"][0]["exit"], before["replicas"][0]["exit"]);
    assert_eq!(after["replicas"][0]["state"], "exited");
    assert_eq!(after["times"]["ended"], before["times"]["ended"]);
}
