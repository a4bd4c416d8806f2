//! Tests that Muster shows why a job does not start or ends early, in the words of the cluster.

use e2e::scripts::{SAVES, STUBBORN};
use e2e::{Place, Running, Stage, within};
use protocol::view::JobState;
use serde_json::json;

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_whose_image_cannot_be_pulled_waits_and_then_fails_with_the_kubelets_reason() {
    let stage = Stage::hello(Place::Cluster);
    // Nothing listens at this address, so the pull fails at once. The registry may come back.
    let image = "127.0.0.1:1/nosuch:1";
    let request = json!({
        "name": "absent",
        "strategy": "AllReduce",
        "worker_num": 2,
        "image": image,
        "run_policy": { "start_timeout_seconds": 20 },
    });
    stage.curl(&["-H", "content-type: application/json", "-d", &request.to_string()], "/v1/jobs");
    stage.follow("absent").ended().code(1).says(&[image, "ErrImagePull", "connection refused"]);
    let status = stage.verb(&["status", "absent"]).code(0);
    assert!(status.stdout.contains(image) && status.stdout.contains("ErrImagePull"), "{}", status.stdout);
    stage.assert_nothing_runs();
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_with_the_pull_policy_never_and_a_missing_image_fails_with_the_kubelets_reason() {
    let stage = Stage::hello(Place::Cluster);
    let request = json!({
        "name": "unpulled",
        "strategy": "AllReduce",
        "worker_num": 1,
        "image": "nosuch_pod:1",
        "pod": { "image_pull_policy": "Never" },
    });
    stage.curl(&["-H", "content-type: application/json", "-d", &request.to_string()], "/v1/jobs");
    stage.follow("unpulled").ended().code(1).says(&["worker-0 was lost", "nosuch_pod:1", "ErrImageNeverPull"]);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn if_the_image_has_no_agent_the_job_fails_with_a_hint_to_client_build() {
    let stage = Stage::hello(Place::Cluster);
    let unwrapped = stage.cluster().image.name();
    stage.curl(&[], &format!("/create?strategy=AllReduce&n_worker=1&name=bare&img={unwrapped}"));
    let run = stage.follow("bare").ended().code(1);
    run.says(&["its container ended with exit code 0", "before its agent ran exec.py", "client build"]);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_too_big_for_every_node_waits_and_shows_the_reason_and_can_be_cancelled() {
    let stage = Stage::hello(Place::Cluster);
    let client = Running::of(&mut stage.submitting(&["--task", "big", "--worker-num", "2", "--cpu", "1000"]));
    client.until_said("it cannot be scheduled: 0/");
    client.until_said("Insufficient cpu");
    let status = stage.verb(&["status", "big"]).code(0).stdout;
    assert!(status.contains("Insufficient cpu"), "{status}");
    assert_eq!(stage.status("big").state, JobState::Pending);
    stage.verb(&["cancel", "big"]).code(0);
    client.ended().code(1).says(&["cancelled"]);
    let are_gone = || (stage.cluster().objects() == ["configmap/muster-big"]).then_some(());
    within("the pods that never ran are deleted", are_gone, || stage.cluster().to_string());
    stage.verb(&["delete", "big"]).code(0);
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_pod_that_is_deleted_by_hand_is_replaced_and_the_reason_is_shown() {
    let stage = Stage::new(Place::Cluster, STUBBORN);
    let client = Running::of(&mut stage.submitting(&["--task", "short"]));
    client.until_printed(2, "ready");
    stage.cluster().namespace.kubectl(&["delete", "pod", "short-worker-1", "--wait=false"]);
    client.until_said("worker-1 was lost: its pod is being deleted");
    runs_again(&stage, "short");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_replacement_pod_waits_for_a_missing_secret_and_shows_the_reason() {
    let stage = Stage::new(Place::Cluster, SAVES);
    let kubectl = |args: &[&str]| stage.cluster().namespace.kubectl(args);
    kubectl(&["create", "secret", "generic", "rotated"]);
    let client = Running::of(&mut stage.submitting(&["--task", "waits", "--env-secret", "rotated"]));
    client.until_printed(2, "ready");
    kubectl(&["delete", "secret", "rotated"]);
    kubectl(&["delete", "pod", "waits-worker-1", "--wait=false"]);
    let reason = || stage.status("waits").replicas[1].reason.clone().filter(|reason| reason.contains("rotated"));
    within("the status shows the missing Secret", reason, || stage.cluster().to_string());
    assert_eq!(stage.status("waits").state, JobState::Pending);
    kubectl(&["create", "secret", "generic", "rotated"]);
    client.until_printed(4, "ready");
    stage.verb(&["cancel", "waits"]).code(0);
    client.ended().code(1);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn all_replicas_can_save_their_state_when_one_or_all_pods_are_deleted() {
    let stage = Stage::new(Place::Cluster, SAVES);
    let client = Running::of(&mut stage.submitting(&["--task", "drained"]));
    client.until_printed(2, "ready");
    stage.cluster().namespace.kubectl(&["delete", "pod", "drained-worker-1", "--wait=false"]);
    client.until_printed(4, "ready");
    stage.cluster().namespace.kubectl(&["delete", "pod", "drained-worker-0", "drained-worker-1", "--wait=false"]);
    client.until_printed(6, "ready");
    let restarts = stage.status("drained").restarts;
    assert_eq!((restarts.counted, restarts.uncounted), (0, 2));
    client.until_printed(4, "saved");
    stage.verb(&["cancel", "drained"]).code(0);
    client.ended().code(1);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_is_refused_before_it_has_a_record_if_the_cluster_refuses_its_pods() {
    let stage = Stage::hello(Place::Cluster);
    stage.submit(&["--priority-class", "absent"]).code(2).says(&["error: ", "PriorityClass", "absent"]);
    stage.submit(&["--service-account", "nobody"]).code(2).says(&["error: ", "serviceaccount", "nobody"]);
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
    let jobs = stage.curl(&[], "/v1/jobs");
    assert!(jobs.ends_with(r#""jobs":[]}"#), "{jobs}");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_waiting_job_names_its_missing_volume() {
    let stage = Stage::hello(Place::Cluster);
    stage.submit(&["-d", "--task", "unbound", "--worker-num", "1", "--volume", "pvc:absent:/data"]).code(0);
    let reason = || stage.status("unbound").replicas[0].reason.clone();
    let reason = within("the status shows a reason", reason, || stage.cluster().to_string());
    assert!(reason.contains("persistentvolumeclaim \"absent\" not found"), "{reason}");
    stage.verb(&["delete", "unbound"]).code(0);
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
}

/// Waits until the gang runs again, and asserts that its only restart is not counted. Then cancels the job.
fn runs_again(stage: &Stage, job: &str) {
    let again = || Some(stage.status(job)).filter(|view| view.state == JobState::Running && view.restarts.total() > 0);
    let view = within("the gang runs again", again, || stage.cluster().to_string());
    assert_eq!((view.restarts.counted, view.restarts.uncounted), (0, 1));
    stage.verb(&["cancel", job]).code(0);
    stage.verb(&["wait", job]).code(1).says(&["cancelled"]);
    stage.assert_nothing_runs();
}
