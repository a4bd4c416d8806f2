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

/// A pod with these init containers, each with its state. `mesh` is a side-car.
fn initializing(phase: &str, agent: &Value, inits: &[(&str, Value)]) -> Pod {
    let mut status = with(phase, agent);
    let told = |(name, state): &(&str, Value)| json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    status["initContainerStatuses"] = inits.iter().map(told).collect();
    let mut pod = pod(&status);
    let spec = json!([{ "name": "fetch", "image": "fetch:1" }, { "name": "mesh", "image": "mesh:1", "restartPolicy": "Always" }]);
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(spec).unwrap();
    pod
}

#[test]
fn a_pods_reason_names_an_init_container_that_cannot_start() {
    let held = json!({ "waiting": { "reason": "PodInitializing" } });
    let waits = |reason: &str, message: &str| json!({ "waiting": { "reason": reason, "message": message } });
    let of = |name: &str, state: Value| state_of_init(&held, &[(name, state)]);
    for name in ["fetch", "mesh"] {
        let pulls = of(name, waits("ErrImagePull", "manifest unknown"));
        let reason = format!("init container {name}: ErrImagePull: manifest unknown");
        assert_eq!(pulls, is_pending(Some(&reason)));
        let pod = initializing("Pending", &held, &[(name, waits("ImagePullBackOff", "Back-off"))]);
        assert_eq!(state(&pod, Some(&pulls)), is_unusable(&reason));
    }
    let crashed = of("mesh", waits("CrashLoopBackOff", "back-off 10s"));
    assert_eq!(crashed, is_pending(Some("init container mesh: CrashLoopBackOff: back-off 10s")));
    assert_eq!(of("fetch", json!({ "running": {} })), runs_at("10.244.0.7"));
}

/// The state of a pending pod.
fn state_of_init(agent: &Value, inits: &[(&str, Value)]) -> PodState {
    state(&initializing("Pending", agent, inits), None)
}

#[test]
fn a_pods_reason_names_the_init_container_whose_failure_ended_the_pod() {
    let held = json!({ "waiting": { "reason": "PodInitializing" } });
    let exited =
        |code: i32, message: &str| json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message } });
    let ended = |inits: &[(&str, Value)]| state(&initializing("Failed", &held, inits), None);
    let reason = |reason: &str| PodState::ended(None, reason);
    assert_eq!(ended(&[("fetch", exited(1, "no route\n"))]), reason("init container fetch: Error: no route"));
    assert_eq!(ended(&[("fetch", exited(7, ""))]), reason("init container fetch: Error: exit code 7"));
    assert_eq!(ended(&[("mesh", exited(1, "bad key"))]), reason("init container mesh: Error: bad key"));
    // Kubernetes ends the side-car because the other container has failed.
    let both = [("mesh", exited(143, "")), ("fetch", exited(1, "no route"))];
    assert_eq!(ended(&both), reason("init container fetch: Error: no route"));
}

#[test]
fn a_side_car_that_fails_while_the_script_runs_does_not_change_the_pods_state() {
    let running = json!({ "running": {} });
    for failure in [
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } }),
        json!({ "terminated": { "exitCode": 1 } }),
    ] {
        let pod = initializing("Running", &running, &[("mesh", failure)]);
        assert_eq!(state(&pod, None), runs_at("10.244.0.7"));
    }
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
