//! Tests of what a master does when it starts.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::json;

use crate::process::harness::{Folders, in_time};

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
async fn the_first_output_after_a_takeover_has_no_remark_on_output_of_an_earlier_master() {
    let waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('hello')\n";
    let folders = Folders::new(waits);
    let mut master = folders.master();
    assert_eq!(master.submit(&json!({"name": "silent", "strategy": "AllReduce", "worker_num": 1})).await.0, 201);
    master.until("silent", |view| view["replicas"][0]["pid"].is_u64()).await;
    master.kill();
    let next = folders.master();
    std::fs::write(folders.work.path().join("go"), "").expect("cannot write the file");
    next.until("silent", |view| view["state"] == "succeeded").await;
    // A second line would not be JSON.
    assert_eq!(next.get("/v1/jobs/silent/logs").await.1["line"], "hello");
}

#[tokio::test]
async fn other_users_can_read_nothing_in_a_state_directory_that_they_may_enter() {
    let folders = Folders::new("print('hello')");
    let state = folders.state.path();
    std::fs::create_dir(state.join("code")).expect("no folder");
    for (path, mode) in [(state.to_owned(), 0o755), (state.join("code"), 0o755)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("cannot change the mode");
    }
    let master = folders.master();
    assert_eq!(master.submit(&json!({"name": "digits", "strategy": "AllReduce", "worker_num": 1})).await.0, 201);
    master.until("digits", |view| view["state"] == "succeeded").await;
    let found = std::fs::read_dir(state).expect("no folder").map(|entry| entry.expect("no entry").path());
    let open: Vec<_> = found.filter(|path| path.metadata().is_ok_and(|found| found.mode() & 0o077 != 0)).collect();
    assert!(open.is_empty(), "{open:?}");
    assert!(state.join("jobs.sqlite-wal").exists(), "the test has seen all files of the records");
}
