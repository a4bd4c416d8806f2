//! The state of pods, computed from their status. Pure.

use k8s_openapi::api::core::v1::{ContainerStateWaiting, ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;
use protocol::text::first_sentence;

/// The kubelet's names for the reasons why a node cannot get a container's image (`pkg/kubelet/images/types.go`).
const IMAGE_REASONS: [&str; 5] =
    ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"];

/// Why a pod is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The node cannot get the image.
    Image(String),
    /// The pod cannot be created, or its container ended after each start.
    Stuck(String),
    /// The pod may still become ready.
    Waits(String),
}

/// The newest pod that is ready and not being deleted.
pub(super) fn newest_ready(pods: &[Pod]) -> Option<&Pod> {
    newest(pods.iter().filter(|pod| is_ready(pod)))
}

/// The newest pod that is not being deleted.
pub(super) fn newest_kept(pods: &[Pod]) -> Option<&Pod> {
    newest(pods.iter().filter(|pod| is_kept(pod)))
}

fn newest<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
    pods.max_by_key(|pod| pod.creation_timestamp())
}

fn is_kept(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

/// Whether the pod is ready and not being deleted.
pub(super) fn is_ready(pod: &Pod) -> bool {
    is_kept(pod) && condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Whether the pod is being deleted and none of its containers runs. The kubelet removes the pod some seconds later.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let runs = |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    !is_kept(pod) && !containers(pod).any(runs)
}

/// Why the pod is not ready.
pub(super) fn trouble(pod: &Pod) -> Trouble {
    let waiting = containers(pod).find_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)));
    if let Some((container, ContainerStateWaiting { reason, message })) = waiting {
        let reason = reason.clone().unwrap_or_default();
        let said = match message {
            Some(message) => format!("{reason}: {message}"),
            None => reason.clone(),
        };
        if IMAGE_REASONS.contains(&reason.as_str()) {
            return Trouble::Image(said);
        }
        if reason == "CrashLoopBackOff" {
            return Trouble::Stuck(last_words(container).unwrap_or(said));
        }
        if reason != "ContainerCreating" {
            return Trouble::Waits(said);
        }
    }
    let unscheduled = condition(pod, "PodScheduled").filter(|scheduled| scheduled.status == "False");
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    Trouble::Waits(match unscheduled.and_then(|condition| condition.message.clone()) {
        Some(message) => format!("it cannot be scheduled: {}", first_sentence(&message)),
        None if phase == "Running" => "it runs, but does not serve yet".to_owned(),
        None => format!("it is {}", phase.to_ascii_lowercase()),
    })
}

/// The name of this pod, and why it is not ready.
pub(super) fn state(pod: &Pod) -> String {
    let (Trouble::Image(said) | Trouble::Stuck(said) | Trouble::Waits(said)) = trouble(pod);
    format!("pod {}: {said}", pod.name_any())
}

/// How the container ended last.
fn last_words(container: &ContainerStatus) -> Option<String> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    let message = ended.message.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let said = message.map(|message| format!(": {message}")).unwrap_or_default();
    Some(format!("it ends with exit code {} after each start{said}", ended.exit_code))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten())
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod with this status. A pod with a larger `second` is newer.
    pub(in crate::cluster) fn pod(name: &str, second: u8, status: &Value) -> Pod {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let pod = json!({"metadata": {"name": name, "creationTimestamp": created}, "status": status});
        serde_json::from_value(pod).expect("the JSON is not a Pod")
    }

    pub(in crate::cluster) fn ready() -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    }

    #[test]
    fn a_deleted_pod_has_ended_when_its_container_has_ended() {
        let state = |state: Value| {
            let container =
                json!({"name": "m", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state});
            pod("a", 1, &json!({"containerStatuses": [container]}))
        };
        let leaving = |mut pod: Pod| {
            pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone();
            pod
        };
        let (running, ended) = (state(json!({"running": {}})), state(json!({"terminated": {"exitCode": 0}})));
        assert!(!has_ended(&running) && !has_ended(&ended), "has_ended is true for a pod that is not being deleted");
        assert!(!has_ended(&leaving(running)) && has_ended(&leaving(ended)));
    }

    fn waiting(reason: &str, message: &str) -> Value {
        let container = json!({
            "name": "master", "ready": false, "restartCount": 0, "image": "", "imageID": "",
            "state": {"waiting": {"reason": reason, "message": message}},
            "lastState": {"terminated": {"exitCode": 2, "message": "error: no agent key\n"}},
        });
        json!({"phase": "Pending", "containerStatuses": [container]})
    }

    #[test]
    fn the_newest_ready_pod_that_is_not_deleted_is_chosen() {
        let mut leaving = pod("c", 3, &ready());
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        let pods = [pod("a", 1, &ready()), pod("b", 2, &ready()), leaving, pod("d", 4, &json!({"phase": "Pending"}))];
        assert_eq!(newest_ready(&pods).map(ResourceExt::name_any).as_deref(), Some("b"));
        assert_eq!(newest_kept(&pods).map(ResourceExt::name_any).as_deref(), Some("d"));
        assert_eq!(newest_ready(&pods[2..]), None);
    }

    #[test]
    fn the_reason_of_a_pod_that_is_not_ready_is_found() {
        let of = |status: &Value| trouble(&pod("a", 1, status));
        let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no nodes"}]});
        for (status, expected) in [
            (
                waiting("ImagePullBackOff", "no such image"),
                Trouble::Image("ImagePullBackOff: no such image".to_owned()),
            ),
            (
                waiting("CrashLoopBackOff", "back-off 10s"),
                Trouble::Stuck("it ends with exit code 2 after each start: error: no agent key".to_owned()),
            ),
            (
                waiting("CreateContainerConfigError", "no secret"),
                Trouble::Waits("CreateContainerConfigError: no secret".to_owned()),
            ),
            (waiting("ContainerCreating", ""), Trouble::Waits("it is pending".to_owned())),
            (unscheduled, Trouble::Waits("it cannot be scheduled: no nodes".to_owned())),
            (json!({"phase": "Running"}), Trouble::Waits("it runs, but does not serve yet".to_owned())),
        ] {
            assert_eq!(of(&status), expected);
        }
    }
}
