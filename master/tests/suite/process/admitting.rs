//! Tests of jobs that the process back end refuses before it creates anything, and of simple jobs that it runs.

use serde_json::{Value, json};

use crate::process::harness::{Folders, Master, descendants};

fn job() -> Value {
    json!({"name": "job", "strategy": "AllReduce", "worker_num": 2})
}

/// Asserts that the job is refused with this code and these texts, and that nothing was created.
async fn refused(master: &Master, job: &Value, code: &str, texts: &[&str]) {
    let (status, problem) = master.submit(job).await;
    assert_eq!((status, problem["code"].as_str()), (422, Some(code)), "{problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    for text in texts {
        assert!(detail.contains(text), "{detail:?} does not contain {text:?}");
    }
    assert_eq!(master.get("/v1/jobs").await.1["jobs"], json!([]));
    assert_eq!(descendants(master.id()), [0; 0], "a process was started");
}

#[tokio::test]
async fn a_folder_without_exec_py_is_refused() {
    let folders = Folders::without_exec_py();
    let master = folders.master();
    let here = folders.work.path().canonicalize().expect("the folder does not exist");
    refused(&master, &job(), "bad_work_dir", &["no exec.py", here.to_str().expect("not text")]).await;
}

#[tokio::test]
async fn the_work_dir_of_the_job_overrides_that_of_the_master() {
    let (folders, other) = (Folders::new("print('hello')"), tempfile::tempdir().expect("no folder"));
    let master = folders.master();
    let mut job = job();
    job["work_dir"] = json!(other.path());
    refused(&master, &job, "bad_work_dir", &["no exec.py", other.path().to_str().expect("not text")]).await;
}

#[tokio::test]
async fn an_exec_py_that_does_not_parse_is_refused_with_its_line() {
    let folders = Folders::new("import os\n\nprint('hello'\n");
    refused(
        &folders.master(),
        &job(),
        "bad_work_dir",
        &["the script does not parse: '(' was never closed (exec.py, line 3)"],
    )
    .await;
}

#[tokio::test]
async fn a_job_with_an_image_is_refused() {
    let master = Folders::new("print('hello')").master();
    let mut job = job();
    job["image"] = json!("ubuntu:24.04");
    refused(&master, &job, "bad_image", &["ubuntu:24.04"]).await;
}

#[tokio::test]
async fn a_job_with_too_many_replicas_for_the_descriptor_limit_is_refused_with_the_maximum() {
    let folders = Folders::new("print('hello')");
    let master = folders.limited_master("ulimit -n 128");
    let mut job = job();
    job["worker_num"] = json!(10);
    refused(&master, &job, "too_many_replicas", &["10 replicas", "at most 8", "limit is 128"]).await;
}

#[tokio::test]
async fn the_soft_limit_of_open_files_applies_to_scripts_but_not_to_the_master_and_no_process_is_left() {
    let folders = Folders::new("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n");
    let master = folders.limited_master("ulimit -S -n 64");
    let mut job = job();
    job["worker_num"] = json!(16);
    assert_eq!(master.submit(&job).await.0, 201);
    let view = master.until("job", |view| view["result"].is_object() && view["times"]["finished"].is_u64()).await;
    assert_eq!(view["result"], json!({"outcome": "succeeded"}), "{view:#}");
    assert_eq!(descendants(master.id()), [0; 0], "a process still runs");
    let printed = master.get("/v1/jobs/job/logs?replica=worker-15&follow=true").await;
    assert_eq!(printed, (200, json!(64)));
}

#[tokio::test]
async fn a_replica_whose_pod_cannot_be_created_fails_as_never_started() {
    let folders = Folders::new("print('hello')");
    let master = folders.master();
    let pods = folders.state.path().join("pods");
    std::fs::create_dir_all(&pods).expect("no folder");
    std::fs::write(pods.join("job"), "in the way of the pods' folders").expect("no file");
    assert_eq!(master.submit(&job()).await.0, 201);
    let view = master.until("job", |view| view["state"] == "failed").await;
    let reason = view["result"]["failure"]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("never started: create pod \"job-worker-0\": create the pod's folder: "), "{view:#}");
}

#[tokio::test]
async fn a_failing_exec_py_fails_the_job_with_its_exit_code_and_stderr() {
    let folders = Folders::new("import sys\nprint('it is over', file=sys.stderr)\nsys.exit(3)\n");
    let master = folders.master();
    let job = json!({"name": "job", "strategy": "AllReduce", "worker_num": 1});
    assert_eq!(master.submit(&job).await.0, 201);
    let view = master.until("job", |view| view["state"] == "failed").await;
    let failure = &view["result"]["failure"];
    assert_eq!((&failure["replica"], &failure["exit"]["code"]), (&json!("worker-0"), &json!(3)), "{view:#}");
    assert_eq!(failure["exit"]["stderr_tail"], "it is over\n");
    let exit = &view["replicas"][0]["exit"];
    assert_eq!((&exit["code"], &exit["stderr_tail"]), (&json!(3), &json!("")), "each replica repeats its stderr");
}
