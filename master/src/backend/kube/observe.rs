//! From a pod as Kubernetes shows it to the state that the driver works with, with reasons in Kubernetes' own words.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, Pod, PodCondition, PodStatus,
};
use protocol::agent::{ExitOutcome, ExitReport, LastWords};
use protocol::ids::{JobName, PodName, ReplicaId, UnixMillis};
use protocol::pod::bytes_of_quantity;
use protocol::routes::{AGENT_PORT, TENSORFLOW_PORT};

use super::manifest::{CONTAINER, INDEX, ROLE};
use crate::job::key::JobKey;
use crate::job::observation::{Addresses, PodState};
use crate::kube::api::JOB;

/// Reasons for which a container waits that no time cures, or only someone who changes the cluster. CreateContainerError is
/// none of them: it is one node's, whose disk is full or whose runtime is busy, and the kubelet tries again
/// (`kubernetes/pkg/kubelet/container/sync_result.go`, `pkg/kubelet/images/types.go`).
const HOPELESS: [&str; 7] = [
    IMAGE_PULL_BACK_OFF,
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerConfigError",
    "RunContainerError",
    "CrashLoopBackOff",
];
/// The kubelet could not pull the image and will try again later. Its message no longer says why.
const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// The kubelet could not pull the image just now. Its message says why.
const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// The container's memory ran out.
const OOM_KILLED: &str = "OOMKilled";

/// Whose pod it is, by its labels and its owner. `None` for a pod that no master has made as it is.
pub(super) fn whose(pod: &Pod) -> Option<(JobKey, ReplicaId)> {
    let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let name: JobName = label(JOB)?.parse().ok()?;
    let replica: ReplicaId = format!("{}-{}", label(ROLE)?, label(INDEX)?).parse().ok()?;
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    // A copy with another name is no replica.
    let is_named_so = pod.metadata.name.as_deref() == Some(PodName::new(&name, replica).to_string().as_str());
    is_named_so.then(|| (JobKey { name, uid: owner.uid.clone() }, replica))
}

/// How a pod stands. `before` is how it stood last, which may know the reason for what is shown now.
pub(super) fn state(pod: &Pod, before: Option<&PodState>) -> PodState {
    let Some(status) = &pod.status else { return PodState::Pending { reason: None } };
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return ended(pod, status, before);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        let reason = disruption(status).unwrap_or_else(|| "its pod is being deleted".to_owned());
        return PodState::Leaving { reason };
    }
    let waiting = container_state(status).and_then(|state| state.waiting.as_ref());
    if let Some(waiting) = waiting
        && is_hopeless(waiting)
    {
        return PodState::Unusable { reason: hopeless(pod, waiting, before) };
    }
    match address(status) {
        Some(addresses) if waiting.is_none_or(|waiting| waiting_reason(pod, waiting).is_none()) => {
            PodState::Running(addresses)
        }
        Some(_) | None => PodState::Pending { reason: pending(pod, status, waiting) },
    }
}

/// The agent's container. A cluster may have put others beside it, before or behind.
fn container(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == CONTAINER)
}

fn container_state(status: &PodStatus) -> Option<&ContainerState> {
    status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER)?.state.as_ref()
}

/// Whether its container has ever been started: the kubelet gives it an id then.
pub(super) fn has_begun(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut ids = status.container_statuses.iter().flatten().filter_map(|container| container.container_id.as_deref());
    status.phase.as_deref() != Some("Pending") || ids.any(|id| !id.is_empty())
}

/// An agent may answer before its pod is marked as running, so the pod's IP is enough.
fn address(status: &PodStatus) -> Option<Addresses> {
    let ip: IpAddr = status.pod_ip.as_deref()?.parse().ok()?;
    Some(Addresses { agent: SocketAddr::new(ip, AGENT_PORT), tensorflow: SocketAddr::new(ip, TENSORFLOW_PORT) })
}

fn condition<'a>(status: &'a PodStatus, kind: &str, value: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == value)
}

/// Why it has no place, or why its container does not start yet.
fn pending(pod: &Pod, status: &PodStatus, waiting: Option<&ContainerStateWaiting>) -> Option<String> {
    if let Some(unscheduled) = condition(status, "PodScheduled", "False") {
        let message = unscheduled.message.as_deref().filter(|message| !message.is_empty());
        let message = message.or(unscheduled.reason.as_deref())?;
        return Some(format!("it cannot be scheduled: {message}"));
    }
    waiting.and_then(|waiting| waiting_reason(pod, waiting))
}

/// What is worth telling of a container that waits: nothing, while it is simply being created.
fn waiting_reason(pod: &Pod, waiting: &ContainerStateWaiting) -> Option<String> {
    let is_ordinary = |reason: &&str| matches!(*reason, "ContainerCreating" | "PodInitializing");
    let reason = waiting.reason.as_deref().filter(|reason| !is_ordinary(reason))?;
    let told = with_message(reason, waiting.message.as_deref());
    let image = container(pod).and_then(|container| container.image.as_deref());
    // The kubelet does not always say which.
    Some(match image.filter(|image| reason.contains("Image") && !told.contains(*image)) {
        Some(image) => format!("image \"{image}\": {told}"),
        None => told,
    })
}

fn is_hopeless(waiting: &ContainerStateWaiting) -> bool {
    waiting.reason.as_deref().is_some_and(|reason| HOPELESS.contains(&reason))
}

fn hopeless(pod: &Pod, waiting: &ContainerStateWaiting, before: Option<&PodState>) -> String {
    let is_back_off = waiting.reason.as_deref() == Some(IMAGE_PULL_BACK_OFF);
    match before {
        Some(PodState::Pending { reason: Some(cause) } | PodState::Unusable { reason: cause })
            if is_back_off && cause.contains(ERR_IMAGE_PULL) =>
        {
            cause.clone()
        }
        Some(_) | None => waiting_reason(pod, waiting).unwrap_or_default(),
    }
}

/// Evicted, preempted, drained: who ended it, and why.
fn disruption(status: &PodStatus) -> Option<String> {
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        return Some(with_message(reason, status.message.as_deref()));
    }
    let condition = condition(status, "DisruptionTarget", "True")?;
    Some(with_message(condition.reason.as_deref()?, condition.message.as_deref()))
}

/// Whether the kubelet evicted the pod for more storage than it may use, and not for what others use: the next pod would do
/// the same (`kubernetes/pkg/kubelet/eviction/helpers.go`, the messages of the local limits).
fn is_own_fault(status: &PodStatus) -> bool {
    const LIMITS: [&str; 3] = [
        "ephemeral local storage usage exceeds the total limit",
        "exceeded its local ephemeral storage limit",
        "Usage of EmptyDir volume",
    ];
    let message = status.message.as_deref().unwrap_or_default();
    status.reason.as_deref() == Some("Evicted") && LIMITS.iter().any(|limit| message.contains(limit))
}

fn ended(pod: &Pod, status: &PodStatus, before: Option<&PodState>) -> PodState {
    let terminated = container_state(status).and_then(|state| state.terminated.as_ref());
    // One that ended well, or had ended before it was deleted, did not end of that.
    let had_ended = matches!(before, Some(PodState::Terminated { .. })) || status.phase.as_deref() == Some("Succeeded");
    let is_deleted = pod.metadata.deletion_timestamp.is_some() && !had_ended;
    let deletion = || is_deleted.then(|| "its pod was deleted".to_owned());
    let words = terminated.and_then(last_words);
    match (disruption(status).or_else(deletion), terminated) {
        (Some(reason), _) if is_own_fault(status) => PodState::Terminated { exit: words, reason },
        // Its run had ended by itself before.
        (Some(reason), _) if words.as_ref().is_some_and(|words| !words.exit.stopped) => {
            PodState::Terminated { exit: words, reason }
        }
        // Whatever its container's end looks like, it is not how exec.py would have ended.
        (Some(reason), _) => PodState::Disrupted { reason },
        (None, Some(ContainerStateTerminated { exit_code, .. })) if words.is_some() => {
            PodState::Terminated { exit: words, reason: format!("its agent ended with exit code {exit_code}") }
        }
        (None, Some(terminated)) => {
            let exit = report(pod, terminated);
            let reason = without_last_words(&exit.outcome, terminated);
            PodState::Terminated { exit: Some(LastWords { generation: None, exit }), reason }
        }
        (None, None) => PodState::Terminated { exit: None, reason: "its pod ended, and says no reason".to_owned() },
    }
}

/// What there is to say of a container in which no agent has left its last words. One that was killed may have run
/// exec.py, while there was no master to see it.
fn without_last_words(outcome: &ExitOutcome, terminated: &ContainerStateTerminated) -> String {
    let why = with_message(terminated.reason.as_deref().unwrap_or("no reason"), terminated.message.as_deref());
    match outcome {
        ExitOutcome::Signal(_) | ExitOutcome::OutOfMemory { .. } => {
            format!("its container {outcome} and left no word of exec.py ({why})")
        }
        ExitOutcome::Code(_) | ExitOutcome::NotStarted(_) => format!(
            "its container ended with exit code {} before its agent ran exec.py ({why}); is it an image that client build made?",
            terminated.exit_code
        ),
    }
}

/// What an agent of ours has left behind.
fn last_words(terminated: &ContainerStateTerminated) -> Option<LastWords> {
    serde_json::from_str(terminated.message.as_deref()?).ok()
}

/// How the agent ended, which exits as exec.py did: 128 and the signal's number after a signal.
fn report(pod: &Pod, terminated: &ContainerStateTerminated) -> ExitReport {
    let outcome = match terminated.exit_code {
        _ if terminated.reason.as_deref() == Some(OOM_KILLED) => ExitOutcome::OutOfMemory { limit: memory_limit(pod) },
        code @ 129..=192 => ExitOutcome::Signal(code - 128),
        code => ExitOutcome::Code(code),
    };
    let ended_at = terminated.finished_at.as_ref().map_or(0, |time| time.0.as_millisecond());
    ExitReport::new(outcome, UnixMillis(u64::try_from(ended_at).unwrap_or(0)))
}

/// The limit in bytes.
fn memory_limit(pod: &Pod) -> Option<u64> {
    let resources = container(pod)?.resources.as_ref()?;
    bytes_of_quantity(&resources.limits.as_ref()?.get("memory")?.0)
}

fn with_message(reason: &str, message: Option<&str>) -> String {
    match message.map(str::trim).filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "observe_random_tests.rs"]
mod random_tests;
