//! Tests of `observe.rs` about the ways in which the agent gets into a pod.

use super::*;

/// A pod whose init containers have this state, and whose main container waits for them.
fn installing(phase: &str, container: &Value) -> Pod {
    let mut status = with(phase, &json!({ "waiting": { "reason": "PodInitializing" } }));
    status["initContainerStatuses"] = json!([
        { "name": "istio-init", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": container },
        { "name": "install-agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": container },
    ]);
    let mut pod = pod(&status);
    let own = serde_json::from_value(json!([{ "name": "install-agent", "image": "muster-master:1" }])).unwrap();
    pod.spec.as_mut().unwrap().init_containers = Some(own);
    pod
}

#[test]
fn a_pods_reason_names_a_problem_of_the_container_that_copies_the_agent() {
    let waiting =
        |reason: &str| installing("Pending", &json!({ "waiting": { "reason": reason, "message": "not found" } }));
    let reason = |reason: &str| {
        format!("the agent cannot be copied into the pod: image \"muster-master:1\": {reason}: not found")
    };
    let failing = state(&waiting("ErrImagePull"), None);
    let cause = reason("ErrImagePull");
    assert_eq!(failing, is_pending(Some(&cause)));
    assert_eq!(state(&waiting("ImagePullBackOff"), Some(&failing)), is_unusable(&cause));
    assert_eq!(state(&waiting("InvalidImageName"), None), is_unusable(&reason("InvalidImageName")));
    let running = json!({ "running": { "startedAt": "2026-11-21T12:00:00Z" } });
    for ordinary in
        [running, json!({ "waiting": { "reason": "PodInitializing" } }), json!({ "terminated": { "exitCode": 0 } })]
    {
        assert_eq!(state(&installing("Pending", &ordinary), None), runs_at("10.244.0.7"));
    }
    let message = "standard_init_linux.go:228: exec user process caused: exec format error\n";
    let failed = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message } });
    let reason = "the agent cannot be copied into the pod: Error: standard_init_linux.go:228: exec user process caused: \
                  exec format error; the agent's image does not fit this node's processor";
    let ended = PodState::ended(None, reason);
    assert_eq!(state(&installing("Failed", &failed), None), ended);
}

/// A pod in which Python should start the agent, and whose container ended like this.
fn starting(reason: &str, message: &str) -> PodState {
    let terminated = json!({ "exitCode": 127, "reason": reason, "message": message });
    let mut pod = pod(&with("Failed", &json!({ "terminated": terminated })));
    pod.spec.as_mut().unwrap().containers[0].command = Some(vec!["python3".to_owned(), "-c".to_owned()]);
    state(&pod, None)
}

#[test]
fn a_pod_whose_python_cannot_start_the_agent_is_unusable() {
    let message = "exec: \"python3\": executable file not found in $PATH: unknown";
    let without_python = is_unusable(
        "image \"registry.local/digits:1\" cannot run python3, which starts the agent: exec: \"python3\": executable \
         file not found in $PATH: unknown; a master with --agent-image starts the agent without Python",
    );
    for reason in ["ContainerCannotRun", "StartError"] {
        assert_eq!(starting(reason, message), without_python);
    }
    let foreign = "cannot start the agent: [Errno 8] Exec format error: '/muster/bin/agent'";
    let way = "; a master with --agent-image starts the agent without Python";
    assert_eq!(starting("Error", foreign), is_unusable(&format!("{foreign}{way}")));
    let other = starting("Error", "Killed");
    assert!(matches!(&other, PodState::Terminated { .. }), "{other:?}");
}
