//! Tests of `client why` in a cluster.

use e2e::cluster::Image;
use e2e::scripts::{STUBBORN, with_peers};
use e2e::{Place, Running, Stage, within};
use protocol::agent::ExitOutcome;
use protocol::failure::Failure;
use protocol::view::{JobResult, JobState};

e2e::journeys_of_causes!(Place::Cluster, #[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]);

/// Returns the output of `why`. Asserts that the output begins with `begins`.
fn says(stage: &Stage, job: &str, begins: &str) -> String {
    let why = stage.verb(&["why", job]).code(0).stdout;
    assert!(why.starts_with(begins), "no {begins:?} at the beginning of:\n{why}");
    why
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn client_why_names_the_replica_that_needed_more_memory_than_its_limit() {
    let stage = Stage::new(
        Place::Cluster,
        &with_peers("if INDEX != 1: serve_stubbornly()\ncall(ALL[0])\nprint('begun', flush=True)\nbytearray(1 << 30)"),
    );
    let how = "worker-1 was killed because it needed more memory than its limit of 64 MiB";
    stage.submit(&["--task", "oom", "--max-restarts", "0", "--memory", "64Mi"]).code(1).says(&[how]);
    let Some(JobResult::Failed { failure: Failure::ReplicaExited { exit, .. } }) = stage.finished("oom").result else {
        panic!("the failure is not an exit of exec.py")
    };
    assert_eq!(exit.outcome, ExitOutcome::OutOfMemory { limit: Some(64 << 20) });
    let why = says(
        &stage,
        "oom",
        &format!("job oom failed: {how}\n\nfirst to fail  worker-1\nhow            {how}\nwhen           "),
    );
    assert!(why.contains("last lines of worker-1:\n  │ begun\n"), "{why}");
    assert!(why.contains("because of it  stopped: worker-0\n"), "{why}");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn client_why_names_the_evicted_replica_and_says_that_the_restart_does_not_count() {
    let stage = Stage::new(Place::Cluster, STUBBORN);
    let client = Running::of(&mut stage.submitting(&["--task", "evicted", "--max-restarts", "0", "--backoff", "0s"]));
    client.until_printed(2, "ready");
    stage.cluster().evict("evicted-worker-1");
    let again = || Some(stage.status("evicted")).filter(|view| view.restarts.total() == 1);
    within("the job has one restart", again, || stage.cluster().to_string());
    client.until_said("worker-1 was lost: ");
    client.until_printed(4, "ready");
    let view = stage.status("evicted");
    assert_eq!((view.state, view.restarts.counted, view.restarts.uncounted), (JobState::Running, 0, 1));
    let failure = view.restarts.failed_starts[0].failure.to_string();
    // Only Kubernetes 1.26 and later write to a pod's status why the pod is deleted.
    assert!(["its pod is being deleted", "EvictionByEvictionAPI"].iter().any(|way| failure.contains(way)), "{failure}");
    let begins = "job evicted is running, after 1 restart, 1 of them not counted\n\nfirst to fail  worker-1\n\
                  how            worker-1 was lost: ";
    says(&stage, "evicted", begins);
    stage.verb(&["cancel", "evicted"]).code(0);
    client.ended().code(1).says(&["cancelled"]);
    says(&stage, "evicted", "job evicted was cancelled, after 1 restart, 1 of them not counted\n");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn after_a_start_timeout_client_why_names_the_first_missing_replica_and_the_reason() {
    let stage = Stage::hello(Place::Cluster);
    stage.submit(&["--task", "big", "--cpu", "1000", "--start-timeout", "15s"]).code(1);
    let how = "2 replicas were not ready within 15 s: worker-0, worker-1 (it cannot be scheduled: 0/";
    let why = says(&stage, "big", &format!("job big failed: {how}"));
    assert!(why.contains(&format!("\n\nfirst missing  worker-0\nhow            {how}")), "{why}");
    assert!(why.contains("Insufficient cpu"), "{why}");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_syntax_error_leads_to_no_restart_and_client_why_names_the_error() {
    let image = Image::of_dockerfile("FROM python:3.11-slim\nWORKDIR /app\nRUN echo 'x = (' >exec.py\nUSER 1000\n");
    let stage = Stage::in_image(&image, "");
    stage.submit(&["--task", "typo"]).code(1);
    let why = stage.verb(&["why", "typo"]).code(0).stdout;
    // Both workers fail at nearly the same time, so either can be the first.
    let named = |worker: &str| why.starts_with(&format!("job typo failed: {worker} was not started: "));
    assert!(named("worker-0") || named("worker-1"), "{why}");
    assert!(why.contains("SyntaxError: '(' was never closed"), "{why}");
}
