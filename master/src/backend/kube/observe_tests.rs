//! Tests of `observe.rs`, as tables of pod statuses from old and new clusters.

use job::observation::{Observation, Presence};
use protocol::agent::ExitOutcome;
use serde_json::{Value, json};

use super::*;

#[path = "observe_installer_tests.rs"]
mod installer;
#[path = "observe_leaving_tests.rs"]
mod leaving;

/// A pod that a master created, with this status.
fn pod(status: &Value) -> Pod {
    from(&json!({
        "metadata": {
            "name": "digits-worker-1",
            "labels": { "muster/job": "digits", "muster/role": "worker", "muster/index": "1" },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "muster-digits", "uid": "u-1", "controller": true },
            ],
        },
        "spec": { "containers": [{ "name": "agent", "image": "registry.local/digits:1" }] },
        "status": status,
    }))
}

fn from(json: &Value) -> Pod {
    serde_json::from_value(json.clone()).unwrap()
}

/// The status of a pod with the agent's container in this state.
fn with(phase: &str, container: &Value) -> Value {
    let container = json!({
        "name": "agent", "image": "registry.local/digits:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": container,
    });
    json!({ "phase": phase, "podIP": "10.244.0.7", "containerStatuses": [container] })
}

fn waiting(reason: &str, message: &str) -> Pod {
    pod(&with("Pending", &json!({ "waiting": { "reason": reason, "message": message } })))
}

fn terminated(phase: &str, exit_code: i32, reason: &str) -> Pod {
    let finished = json!({ "exitCode": exit_code, "reason": reason, "finishedAt": "2026-11-21T12:00:00Z" });
    pod(&with(phase, &json!({ "terminated": finished })))
}

fn deleted(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-21T12:00:00Z")).unwrap();
    pod
}

fn is_pending(reason: Option<&str>) -> PodState {
    PodState::Pending { has_node: false, wait: reason.map(|reason| Wait::Other(reason.to_owned())) }
}

fn is_unusable(reason: &str) -> PodState {
    PodState::Unusable { reason: reason.to_owned() }
}

fn runs_at(ip: &str) -> PodState {
    let ip: IpAddr = ip.parse().unwrap();
    PodState::Running(Addresses { agent: SocketAddr::new(ip, 7896), tensorflow: SocketAddr::new(ip, TENSORFLOW_PORT) })
}

#[test]
fn an_unscheduled_pod_is_pending_with_the_schedulers_reason() {
    let unscheduled = |condition: Value| state(&pod(&json!({ "phase": "Pending", "conditions": [condition] })), None);
    let reason = |message: &str| format!("it cannot be scheduled: {message}");
    let no_room = |message: &str, lacking: &str| {
        let (lacking, reason) = ([lacking.to_owned()].into(), reason(message));
        PodState::Pending { has_node: false, wait: Some(Wait::NoRoom { lacking, reason }) }
    };
    let of_1_20 = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.";
    let of_now = "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.";
    let no_volume = "0/1 nodes are available: 1 node(s) had volume node affinity conflict.";
    let cases = [
        (of_1_20, no_room(of_1_20, "nvidia.com/gpu")),
        (of_now, no_room("0/3 nodes are available: 3 Insufficient memory.", "memory")),
        (no_volume, is_pending(Some(&reason(no_volume)))),
    ];
    for (message, expected) in cases {
        let condition =
            json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message });
        assert_eq!(unscheduled(condition), expected);
    }
    let gated = |message: &str| json!({ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message });
    let message = "Scheduling is blocked due to non-empty scheduling gates";
    for (condition, said) in [(gated(message), message), (gated(""), "SchedulingGated")] {
        assert_eq!(
            unscheduled(condition),
            PodState::Pending { has_node: false, wait: Some(Wait::Gated(reason(said))) }
        );
    }
    let scheduled = json!({ "type": "PodScheduled", "status": "True" });
    assert_eq!(unscheduled(scheduled), is_pending(None));
}

#[test]
fn a_pod_that_is_being_created_is_pending_and_names_the_image_that_its_node_prepares() {
    assert_eq!(state(&from(&json!({ "metadata": {} })), None), is_pending(None));
    assert_eq!(state(&pod(&json!({})), None), is_pending(None));
    assert_eq!(state(&pod(&json!({ "phase": "Pending" })), None), is_pending(None));
    for reason in ["ContainerCreating", "PodInitializing"] {
        let mut status = with("Pending", &json!({ "waiting": { "reason": reason } }));
        status["podIP"] = Value::Null;
        let wait = Some(Wait::Preparing { image: "registry.local/digits:1".to_owned() });
        let mut pod = pod(&status);
        pod.spec.as_mut().unwrap().node_name = Some("node-1".to_owned());
        assert_eq!(state(&pod, None), PodState::Pending { has_node: true, wait });
    }
}

#[test]
fn a_pod_with_a_valid_ip_is_running() {
    let creating = with("Pending", &json!({ "waiting": { "reason": "ContainerCreating" } }));
    assert_eq!(state(&pod(&creating), None), runs_at("10.244.0.7"));
    let running = with("Running", &json!({ "running": { "startedAt": "2026-11-21T12:00:00Z" } }));
    assert_eq!(state(&pod(&running), None), runs_at("10.244.0.7"));
    for ip in ["fd00:10:244::7", "2001:db8::1"] {
        assert_eq!(state(&pod(&json!({ "phase": "Running", "podIP": ip })), None), runs_at(ip));
    }
    for ip in ["", "nonsense", "10.244.0.7:80"] {
        assert_eq!(state(&pod(&json!({ "phase": "Running", "podIP": ip })), None), is_pending(None));
    }
}

#[test]
fn a_container_that_cannot_start_makes_its_pod_unusable() {
    let image = "image \"registry.local/digits:1\": ";
    let cases = [
        (
            "ErrImageNeverPull",
            "Container image \"registry.local/digits:1\" is not present with pull policy of Never",
            "",
        ),
        ("InvalidImageName", "Failed to apply default image tag \"Digits\": couldn't parse image reference", image),
        ("CreateContainerConfigError", "secret \"s3-keys\" not found", ""),
        ("RunContainerError", "failed to start container \"4f\": exec: \"/muster/agent\": no such file", ""),
        ("ImageInspectError", "Failed to inspect image", image),
    ];
    for (reason, message, before) in cases {
        assert_eq!(state(&waiting(reason, message), None), is_unusable(&format!("{before}{reason}: {message}")));
    }
}

#[test]
fn a_kubelet_that_is_late_to_read_a_secret_leaves_the_pod_pending() {
    let (reason, message) =
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition");
    let pending = format!("{reason}: {message}");
    assert_eq!(state(&waiting(reason, message), None), is_pending(Some(&pending)));
}

#[test]
fn a_create_container_error_leaves_the_pod_pending() {
    let message = "Error response from daemon: no space left on device";
    let cause = format!("CreateContainerError: {message}");
    assert_eq!(state(&waiting("CreateContainerError", message), None), is_pending(Some(&cause)));
}

#[test]
fn a_back_off_keeps_the_cause_of_the_failed_pull() {
    let denied = "rpc error: code = Unknown desc = Error response from daemon: pull access denied for digits";
    let failed = state(&waiting("ErrImagePull", denied), None);
    let cause = format!("image \"registry.local/digits:1\": ErrImagePull: {denied}");
    assert_eq!(failed, is_pending(Some(&cause)), "wrong state after the first failed pull");
    let back_off = waiting("ImagePullBackOff", "Back-off pulling image \"registry.local/digits:1\"");
    let given_up = state(&back_off, Some(&failed));
    assert_eq!(given_up, is_unusable(&cause));
    assert_eq!(state(&back_off, Some(&given_up)), is_unusable(&cause), "wrong state after the second back-off");
    let alone = "ImagePullBackOff: Back-off pulling image \"registry.local/digits:1\"";
    assert_eq!(state(&back_off, None), is_pending(Some(alone)), "wrong state of a pod without a previous state");
    assert_eq!(state(&back_off, Some(&is_pending(Some("it cannot be scheduled")))), is_pending(Some(alone)));
    let newer = format!("Back-off pulling image \"registry.local/digits:1\": ErrImagePull: {denied}");
    let cause = format!("ImagePullBackOff: {newer}");
    assert_eq!(state(&waiting("ImagePullBackOff", &newer), None), is_unusable(&cause));
}

#[test]
fn a_pull_that_may_succeed_later_leaves_the_pod_pending() {
    for message in [
        "toomanyrequests: You have reached your unauthenticated pull rate limit",
        "dial tcp 10.0.0.5:5000: connect: connection refused",
        "net/http: TLS handshake timeout",
        "pull QPS exceeded",
    ] {
        let failed = state(&waiting("ErrImagePull", message), None);
        let cause = format!("image \"registry.local/digits:1\": ErrImagePull: {message}");
        assert_eq!(failed, is_pending(Some(&cause)));
        let back_off = waiting("ImagePullBackOff", "Back-off pulling image \"registry.local/digits:1\"");
        assert_eq!(state(&back_off, Some(&failed)), is_pending(Some(&cause)));
    }
}

#[test]
fn the_exit_code_of_the_container_shows_how_exec_py_ended() {
    for (phase, code, reason, outcome) in [
        ("Succeeded", 0, "Completed", ExitOutcome::Code(0)),
        ("Failed", 1, "Error", ExitOutcome::Code(1)),
        ("Failed", 128, "Error", ExitOutcome::Code(128)),
        ("Failed", 137, "Error", ExitOutcome::Signal(9)),
        ("Failed", 143, "Error", ExitOutcome::Signal(15)),
        ("Failed", 192, "Error", ExitOutcome::Signal(64)),
        ("Failed", 255, "Error", ExitOutcome::Code(255)),
        ("Failed", 137, "OOMKilled", ExitOutcome::OutOfMemory { limit: None }),
    ] {
        let PodState::Terminated { exit: Some(exit), .. } = state(&terminated(phase, code, reason), None) else {
            panic!("a pod whose container ended with code {code} is not terminated")
        };
        assert_eq!((exit.generation, exit.exit.stopped), (None, false));
        let exit = exit.exit;
        assert_eq!(exit.outcome, outcome);
        assert_eq!(exit.ended_at, UnixMillis(1_795_262_400_000));
    }
}

#[test]
fn the_reason_of_a_killed_container_says_that_the_container_left_no_report() {
    let said_of = |mut pod: Pod| {
        let resources = json!({ "limits": { "memory": "1536Mi" } });
        pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
        let PodState::Terminated { reason, .. } = state(&pod, None) else { panic!("the pod is not terminated") };
        reason
    };
    assert_eq!(
        said_of(terminated("Failed", 137, "OOMKilled")),
        "its container left no report on exec.py (OOMKilled): it was killed because it needed more memory than its limit of 1536 MiB"
    );
    assert_eq!(
        said_of(terminated("Failed", 139, "Error")),
        "its container left no report on exec.py (Error): it was killed by signal 11 (SIGSEGV)"
    );
    let message = "The container could not be located when the pod was terminated";
    let lost = json!({ "terminated": { "exitCode": 137, "reason": "ContainerStatusUnknown", "message": message } });
    assert_eq!(
        said_of(pod(&with("Failed", &lost))),
        format!(
            "its container left no report on exec.py (ContainerStatusUnknown: {message}): it was killed by signal 9 (SIGKILL)"
        )
    );
}

#[test]
fn the_memory_limit_is_reported_in_bytes() {
    for (limit, bytes) in [
        ("512Mi", Some(512 << 20)),
        ("4Gi", Some(4 << 30)),
        ("64Ki", Some(64 << 10)),
        ("1Ti", Some(1 << 40)),
        ("1000000000", Some(1_000_000_000)),
        ("1G", Some(1_000_000_000)),
        ("1.5Gi", Some(1536 << 20)),
        ("99999999999999999Gi", None),
        ("", None),
    ] {
        let mut pod = terminated("Failed", 137, "OOMKilled");
        let resources = json!({ "limits": { "memory": limit } });
        pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
        let PodState::Terminated { exit: Some(exit), .. } = state(&pod, None) else {
            panic!("a pod with memory limit {limit:?} has no exit report")
        };
        assert_eq!(exit.exit.outcome, ExitOutcome::OutOfMemory { limit: bytes }, "{limit}");
    }
}

#[test]
fn if_the_image_has_no_agent_the_reason_asks_whether_client_build_made_the_image() {
    let message =
        "failed to create containerd task: exec: \"/muster/agent\": stat /muster/agent: no such file or directory";
    let ended = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": message } });
    let PodState::Terminated { exit: Some(exit), reason, .. } = state(&pod(&with("Failed", &ended)), None) else {
        panic!("the pod has no exit report")
    };
    assert_eq!(exit.exit.outcome, ExitOutcome::Code(128));
    assert_eq!(
        reason,
        format!(
            "its container ended with exit code 128 before its agent ran exec.py (StartError: {message}); was the pod's image made by client build?"
        )
    );
}

/// The status of a container whose agent left last words, and these last words.
fn with_last_words(stopped: bool) -> (Value, LastWords) {
    let exit = json!({ "code": 3, "stopped": stopped, "terminated": stopped, "ended_at": 7, "stderr_tail": "no\n" });
    let words = json!({ "generation": "2.1", "exit": exit });
    let ended = json!({ "terminated": { "exitCode": 3, "reason": "Error", "message": words.to_string() } });
    (with("Failed", &ended), serde_json::from_value(words).unwrap())
}

#[test]
fn valid_last_words_are_used_and_other_messages_are_ignored() {
    let (status, words) = with_last_words(false);
    let reason = "its agent ended with exit code 3".to_owned();
    let expected = PodState::ended(Some(words), reason);
    assert_eq!(state(&pod(&status), None), expected);
    for other in ["", "{}", "{\"exit\":", "out of space", "{\"generation\":\"1.1\",\"exit\":{\"ended_at\":1}}"] {
        let mut status = status.clone();
        status["containerStatuses"][0]["state"]["terminated"]["message"] = json!(other);
        let PodState::Terminated { exit: Some(exit), .. } = state(&pod(&status), None) else {
            panic!("a pod with the message {other:?} has no exit report")
        };
        assert_eq!((exit.generation, exit.exit.outcome), (None, ExitOutcome::Code(3)), "{other}");
    }
}

#[test]
fn containers_beside_the_agents_container_are_ignored() {
    let beside = json!({ "name": "a-proxy", "image": "proxy:1", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "terminated": { "exitCode": 7 } } });
    let mut status = with("Running", &json!({ "running": {} }));
    status["containerStatuses"].as_array_mut().unwrap().insert(0, beside);
    let mut both = pod(&status);
    let container = serde_json::from_value(json!({ "name": "a-proxy", "image": "proxy:1" })).unwrap();
    both.spec.as_mut().unwrap().containers.insert(0, container);
    assert_eq!(state(&both, None), runs_at("10.244.0.7"));
}

#[test]
fn a_pod_without_other_containers_is_running_until_its_phase_changes_even_if_its_container_has_ended() {
    // The kubelet reports the container's end first. Whether this was an eviction is known only later, with the pod's
    // phase (`kubernetes/pkg/kubelet/status/status_manager.go`, mergePodStatus).
    assert_eq!(state(&terminated("Running", 137, "Error"), None), runs_at("10.244.0.7"));
}

/// A pod whose agent's container has ended with this state, beside a proxy that runs on.
fn beside_a_proxy(terminated: &Value) -> Pod {
    let mut status = with("Running", &json!({ "terminated": terminated }));
    let proxy = json!({ "name": "istio-proxy", "image": "proxy:1", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "running": {} } });
    status["containerStatuses"].as_array_mut().unwrap().push(proxy);
    pod(&status)
}

#[test]
fn a_pod_whose_agent_was_killed_has_ended_even_if_another_container_runs_on() {
    let killed = beside_a_proxy(&json!({ "exitCode": 137, "reason": "OOMKilled" }));
    let ended = state(&killed, None);
    let PodState::Terminated { exit: Some(LastWords { exit, .. }), others: Others::Running, .. } = &ended else {
        panic!("{ended:?}")
    };
    assert_eq!(exit.outcome, ExitOutcome::OutOfMemory { limit: None });
    assert_eq!(state(&deleted(killed), Some(&ended)), ended, "the state has changed at the deletion");
}

#[test]
fn a_pod_whose_agent_left_beside_another_container_has_ended_unless_the_pod_was_told_to_end() {
    let words = |terminated: bool| {
        let exit = json!({ "signal": 9, "stopped": true, "terminated": terminated, "ended_at": 7, "stderr_tail": "" });
        json!({ "generation": "2.1", "exit": exit }).to_string()
    };
    let left = |terminated| state(&beside_a_proxy(&json!({ "exitCode": 137, "message": words(terminated) })), None);
    assert!(matches!(left(false), PodState::Terminated { others: Others::Running, .. }), "{:?}", left(false));
    assert_eq!(left(true), runs_at("10.244.0.7"), "the cause may be an eviction");
}

#[test]
fn a_deleted_pod_whose_agent_was_killed_keeps_its_room_until_its_other_containers_have_ended() {
    let killed = deleted(beside_a_proxy(&json!({ "exitCode": 137, "reason": "Error" })));
    let reason = "its pod was deleted".to_owned();
    assert_eq!(state(&killed, None), PodState::Disrupted { reason, others: Others::Running });
    let seen = Observation { pod: Some(state(&killed, None)), ..Observation::NEW };
    assert_eq!(seen.presence(), Presence::Occupied);
}

#[test]
fn the_observer_reads_the_tensorflow_port_and_the_ending_container_from_annotations() {
    let named = |pod: &Pod| {
        let mut pod = pod.clone();
        let annotations =
            [(RUN_CONTAINER, "agent"), (TF_PORT, "2222")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        pod.metadata.annotations = Some(annotations.into());
        pod
    };
    let running = named(&pod(&with("Running", &json!({ "running": {} }))));
    let PodState::Running(addresses) = state(&running, None) else { panic!("the pod is not running") };
    assert_eq!((addresses.tensorflow.port(), addresses.agent.port()), (2222, AGENT_PORT));
    let ended = state(&named(&terminated("Failed", 137, "Error")), None);
    assert!(matches!(ended, PodState::Terminated { exit: Some(_), .. }), "{ended:?}");
    let mut other = named(&terminated("Failed", 137, "Error"));
    other.metadata.annotations.as_mut().unwrap().insert(RUN_CONTAINER.to_owned(), "tensorflow".to_owned());
    let ended = state(&other, None);
    assert!(matches!(ended, PodState::Terminated { exit: None, .. }), "the report is of another container: {ended:?}");
}

#[test]
fn labels_and_owner_identify_the_job_and_replica_of_a_pod() {
    let replica: ReplicaId = "worker-1".parse().unwrap();
    let job = JobKey { name: "digits".parse().unwrap(), uid: "u-1".to_owned() };
    let whole = pod(&json!({}));
    assert_eq!(whose(&whole), Some((job, replica)));
    for label in ["muster/job", "muster/role", "muster/index"] {
        for other in [None, Some(""), Some("Not A Name"), Some("-1")] {
            let mut pod = whole.clone();
            let labels = pod.metadata.labels.as_mut().unwrap();
            labels.remove(label);
            labels.extend(other.map(|other| (label.to_owned(), other.to_owned())));
            assert_eq!(whose(&pod), None, "{label}: {other:?}");
        }
    }
    let mut orphan = whole.clone();
    orphan.metadata.owner_references.as_mut().unwrap()[0].controller = None;
    assert_eq!(whose(&orphan), None);
    orphan.metadata.owner_references = None;
    assert_eq!(whose(&orphan), None);
    assert_eq!(whose(&from(&json!({ "metadata": { "name": "web-0" } }))), None);
}
