//! Tests that a master kills an agent that was stopped with SIGSTOP. Neither the agent nor its script ends by itself.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::process::harness::{Folders, descendants, is_dead, parent};

/// A script that starts a process in another process group.
const DETACHES: &str = "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n\
                        print('up', flush=True)\ntime.sleep(600)\n";

#[tokio::test]
async fn a_stopped_agent_is_killed_with_all_its_processes_before_the_gang_starts_again() {
    let folders = Folders::new(DETACHES);
    let master = folders.master();
    let rules = json!({"on_unreachable": "replace", "lease_seconds": 1, "max_restarts": 0});
    let job = json!({
        "name": "stopped", "strategy": "AllReduce", "worker_num": 2, "worker_min": 1, "run_policy": rules,
    });
    assert_eq!(master.submit(&job).await.0, 201);
    let is_up = |view: &Value, roster: Value| {
        let pid = |index: usize| view["replicas"][index]["pid"].is_u64();
        view["state"] == "running" && view["roster"] == roster && pid(0) && (roster == json!(["worker-0"]) || pid(1))
    };
    let view = master.until("stopped", |view| is_up(view, json!(["worker-0", "worker-1"]))).await;
    let run = view["replicas"][1]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("no process id");
    let agent = parent(run).expect("the run has no agent");
    kill_process(Pid::from_raw(agent.try_into().expect("not an id")).expect("no process"), Signal::STOP)
        .expect("the agent does not run");
    let processes = [descendants(agent), vec![agent]].concat();

    let view = master.until("stopped", |view| view["generation"] != "1.1" && view["state"] == "running").await;
    let alive: Vec<&u32> = processes.iter().filter(|id| !is_dead(**id)).collect();
    assert!(alive.is_empty(), "{alive:?} of {processes:?} are alive: {view:#}");
    let is_whole_again = |view: &Value| view["generation"] != "1.1" && is_up(view, json!(["worker-0", "worker-1"]));
    let view = master.until("stopped", is_whole_again).await;
    assert!(view["restarts"].is_null(), "a restart is recorded: {view:#}");
}
