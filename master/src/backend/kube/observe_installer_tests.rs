//! Tests of `observe.rs` about the container that copies the agent.

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
