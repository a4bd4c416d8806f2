//! Tests which objects a job leaves in the cluster after its end, and that it leaves none after its deletion.

use e2e::scripts::STUBBORN;
use e2e::{Place, Running, Stage, within};

/// Returns the objects that an ended job with this name and two workers leaves in the cluster.
fn kept(job: &str) -> Vec<String> {
    vec![format!("pod/{job}-worker-0"), format!("pod/{job}-worker-1"), format!("configmap/muster-{job}")]
}

/// Deletes a job, and asserts that it leaves no object. The cluster may delete the network policy a little later.
fn assert_forgotten(stage: &Stage, job: &str) {
    let policy = format!("networkpolicy/muster-{job}-{}", stage.status(job).uid);
    assert_eq!(stage.cluster().policies(), [policy]);
    stage.verb(&["delete", job]).code(0);
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
    let is_gone = || stage.cluster().policies().is_empty().then_some(());
    within("the network policy is deleted after the job's record", is_gone, || stage.cluster().to_string());
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_whose_record_is_deleted_by_hand_ends_and_leaves_no_pods() {
    let stage = Stage::new(Place::Cluster, STUBBORN);
    let client = Running::of(&mut stage.submitting(&["--task", "struck"]));
    client.until_printed(2, "ready");
    stage.cluster().namespace.kubectl(&["delete", "configmap", "muster-struck"]);
    client.ended().code(1).says(&["error: job struck was deleted before it ended"]);
    let is_gone = || stage.cluster().objects().is_empty().then_some(());
    within("the pods are deleted after the record", is_gone, || stage.cluster().to_string());
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn after_a_success_the_record_and_pods_with_the_output_are_left() {
    let stage = Stage::hello(Place::Cluster);
    stage.submit(&["--task", "done"]).code(0);
    stage.assert_nothing_runs();
    assert_eq!(stage.cluster().objects(), kept("done"));
    assert_eq!(stage.cluster().pods(|phase| phase == "Succeeded").len(), 2);
    let logs = stage.cluster().namespace.kubectl(&["logs", "done-worker-1"]);
    // Ignore the agent's log lines, which may be between the script's lines.
    let lines: Vec<&str> =
        logs.lines().filter(|line| line.starts_with("role ") || line.starts_with("TF_CONFIG ")).collect();
    assert_eq!((lines.len(), lines[0]), (2, "role worker index 1 rank 1"), "{logs}");
    assert_forgotten(&stage, "done");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn after_a_failure_the_record_and_pods_with_the_exit_code_are_left() {
    let exec_py = format!("import os\nif os.environ['RANK'] == '1': raise SystemExit(3)\n{STUBBORN}");
    let stage = Stage::new(Place::Cluster, &exec_py);
    stage.submit(&["--task", "broken", "--max-restarts", "0"]).code(1);
    stage.assert_nothing_runs();
    assert_eq!(stage.cluster().objects(), kept("broken"));
    assert_eq!(stage.cluster().pods(|phase| phase == "Failed").len(), 2);
    let code =
        ["get", "pod", "broken-worker-1", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"];
    assert_eq!(stage.cluster().namespace.kubectl(&code), "3");
    assert_forgotten(&stage, "broken");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn after_a_cancel_the_record_and_ended_pods_are_left() {
    let stage = Stage::new(Place::Cluster, STUBBORN);
    stage.submit(&["-d", "--task", "halted"]).code(0);
    stage.follow("halted").until_printed(2, "ready");
    stage.verb(&["cancel", "halted"]).code(0);
    stage.verb(&["wait", "halted"]).code(1).says(&["cancelled"]);
    stage.assert_nothing_runs();
    assert_eq!(stage.cluster().objects(), kept("halted"));
    assert_forgotten(&stage, "halted");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_that_is_deleted_while_it_runs_leaves_no_objects() {
    let stage = Stage::new(Place::Cluster, STUBBORN);
    stage.submit(&["-d", "--task", "gone"]).code(0);
    stage.follow("gone").until_printed(2, "ready");
    assert_forgotten(&stage, "gone");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn kubectl_shows_the_job_and_the_role_and_the_index_of_a_pod_and_no_service() {
    let stage = Stage::hello(Place::Cluster);
    stage.submit(&["--task", "labels", "--strategy", "ParameterServer", "--worker-num", "1", "--ps-num", "0"]).code(2);
    stage.submit(&["--task", "labels", "--worker-num", "1"]).code(0);
    let labels = ["get", "pods", "-L", "muster/job", "-L", "muster/role", "-L", "muster/index", "--no-headers"];
    let shown = stage.cluster().namespace.kubectl(&labels);
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!((words[0], &words[words.len() - 3..]), ("labels-worker-0", ["labels", "worker", "0"].as_slice()));
    let services = stage.cluster().namespace.kubectl(&["get", "services", "-o", "name"]);
    assert_eq!(services, "", "Muster has created a Service");
}
