//! Tests of a master whose disk is full. It refuses what it cannot write, and keeps what it has accepted.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::process::harness::{Folders, Master};

/// Appends a line to the file `runs`, and waits for the file `go`.
const WAITS: &str = "
import os, time
folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, 'runs'), 'a') as runs: runs.write(os.environ['MUSTER_GENERATION'] + '\\n')
while not os.path.exists(os.path.join(folder, 'go')): time.sleep(0.02)
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Full,
    Free,
}

/// Sets whether the master can write to files. Every write fails, like the writes to a full disk.
fn set_disk(master: &Master, disk: Disk) {
    let pid = Pid::from_raw(master.id().try_into().expect("not an id")).expect("no process");
    let limit = Rlimit { current: (disk == Disk::Full).then_some(0), maximum: None };
    prlimit(Some(pid), Resource::Fsize, limit).expect("cannot limit the master's files");
}

fn job(name: &str) -> Value {
    json!({ "name": name, "strategy": "AllReduce", "worker_num": 1 })
}

#[tokio::test]
async fn a_full_disk_refuses_a_submit_and_delays_a_result_until_both_can_be_written() {
    let folders = Folders::new(WAITS);
    // Without this, the first refused write would end the master.
    let master = folders.limited_master("trap '' XFSZ");
    assert_eq!(master.submit(&job("first")).await.0, 201);
    master.until("first", |view| view["replicas"][0]["pid"].is_u64()).await;
    set_disk(&master, Disk::Full);
    let (status, refusal) = master.submit(&job("second")).await;
    assert_eq!((status, &refusal["code"]), (503, &json!("unavailable")), "{refusal:#}");
    assert!(refusal["detail"].as_str().is_some_and(|detail| detail.contains("disk")), "{refusal:#}");

    std::fs::write(folders.work.path().join("go"), "").expect("cannot write the file");
    let names_the_disk = |view: &Value| view["replicas"][0]["reason"].as_str().is_some_and(|why| why.contains("disk"));
    let view = master.until("first", |view| names_the_disk(view) || view["result"].is_object()).await;
    assert!(view["result"].is_null(), "the result is shown, although it is not on record: {view:#}");
    set_disk(&master, Disk::Free);
    master.until("first", |view| view["state"] == "succeeded").await;
    master.kill();

    let next = folders.master();
    assert_eq!(next.get("/v1/jobs/first").await.1["state"], "succeeded");
    assert_eq!(next.get("/v1/jobs/second").await.0, 404);
    let runs = std::fs::read_to_string(folders.work.path().join("runs")).expect("the script did not run");
    assert_eq!(runs.lines().count(), 1, "the script ran again: {runs}");
}
