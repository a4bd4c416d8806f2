//! Converts a pod from Kubernetes to the state that the driver uses, and writes for users why a pod has no node or failed.
//! Reasons that Kubernetes gives stay in Kubernetes' words.

use std::net::{IpAddr, SocketAddr};

use job::key::JobKey;
use job::observation::{Addresses, Others, PodState, Wait};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, Pod, PodCondition, PodStatus,
};
use protocol::agent::{ExitOutcome, ExitReport, LastWords};
use protocol::ids::{JobName, PodName, ReplicaId, UnixMillis};
use protocol::pod::bytes_of_quantity;
use protocol::routes::{AGENT_PORT, TENSORFLOW_PORT};
use protocol::text::first_sentence;

use super::manifest::{CONTAINER, INDEX, INSTALLER, NOT_STARTED, PYTHON, ROLE, RUN_CONTAINER, TF_PORT};
use super::room::lacking_on_nodes;
use crate::kube::api::JOB;

/// Reasons of a container that waits until a user changes the job or the cluster. CreateContainerError is not in this
/// list. Its cause is a problem of one node, such as a full disk or a busy runtime, and the kubelet retries
/// (`kubernetes/pkg/kubelet/container/sync_result.go`, `pkg/kubelet/images/types.go`).
const HOPELESS: [&str; 6] = [
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerConfigError",
    "RunContainerError",
    CRASH_LOOP_BACK_OFF,
];
/// The container ended several times soon after its start, and the kubelet pauses before the next start.
const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// The kubelet failed to pull the image and will retry later. The kubelet's message no longer gives the cause.
const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// The kubelet has just failed to pull the image. The kubelet's message gives the cause.
const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// Parts of the messages of failed pulls that will fail again: the image does not exist, or this cluster may not read
/// it (Docker's and containerd's messages; `distribution/registry/api/errcode`). All other failed pulls may succeed
/// later, for example after a registry's limit of requests, a restart of the registry, or a time-out.
const LASTING: [&str; 11] = [
    "not found",
    "manifest unknown",
    "does not exist",
    "no match for platform",
    "no matching manifest",
    "unauthorized",
    "authentication required",
    "no basic auth credentials",
    "denied",
    "forbidden",
    "name unknown",
];
/// The beginning of the message of a busy kubelet, such as `failed to sync secret cache: timed out waiting for the
/// condition` (`kubernetes/pkg/kubelet/util/manager/watch_based_manager.go`).
const CACHE_IS_LATE: &str = "failed to sync ";
/// The beginning of a reason about the container that copies the agent.
const NOT_INSTALLED: &str = "the agent cannot be copied into the pod: ";
/// The reasons that Docker and containerd give for a container whose program could not be run (`ContainerCannotRun` in
/// `kubernetes/pkg/kubelet/dockershim`, `StartError` in `containerd/pkg/cri/server`).
const CANNOT_RUN: [&str; 2] = ["ContainerCannotRun", "StartError"];
/// What to do if Python cannot start the agent.
const OTHER_WAY: &str = "; a master with --agent-image starts the agent without Python";
/// The reason of a pod that the scheduler does not consider until another program removes the pod's scheduling gates
/// (core/v1 `PodReasonSchedulingGated`).
const SCHEDULING_GATED: &str = "SchedulingGated";
/// The container ran out of memory.
const OOM_KILLED: &str = "OOMKilled";

/// The job and replica of a pod, from its labels and its owner. `None` if the labels or the owner are invalid, or do
/// not fit the pod's name.
pub(super) fn whose(pod: &Pod) -> Option<(JobKey, ReplicaId)> {
    let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let name: JobName = label(JOB)?.parse().ok()?;
    let replica: ReplicaId = format!("{}-{}", label(ROLE)?, label(INDEX)?).parse().ok()?;
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    // A user's copy of a pod has another name, and is not a replica.
    let is_named_so = pod.metadata.name.as_deref() == Some(PodName::new(&name, replica).to_string().as_str());
    is_named_so.then(|| (JobKey { name, uid: owner.uid.clone() }, replica))
}

/// The state of a pod. `before` is the pod's previous state. The reason in `before` may explain the new state better.
pub(super) fn state(pod: &Pod, before: Option<&PodState>) -> PodState {
    let Some(status) = &pod.status else { return PodState::Pending { has_node: false, wait: None } };
    if has_ended(status) || ended_among_others(pod, status) {
        return ended(pod, status, before);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        let reason = disruption(status).unwrap_or_else(|| "its pod is being deleted".to_owned());
        return PodState::Leaving { reason };
    }
    let waiting = waiting(pod, status);
    let cause = waiting.and_then(|waiting| waiting.cause(before));
    match (cause, address(pod, status)) {
        (Some(reason), _) if waiting.is_some_and(|waiting| waiting.is_hopeless(&reason)) => {
            PodState::Unusable { reason }
        }
        (None, Some(addresses)) => PodState::Running(addresses),
        (cause, _) => {
            let wait = unscheduled(status).or(cause.map(Wait::Other)).or_else(|| waiting?.preparing(pod));
            PodState::Pending { has_node: has_node(pod), wait }
        }
    }
}

fn has_ended(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
}

/// Whether the agent's container has ended, and another container of the pod has not. A template or the cluster may add
/// such containers, and the pod's phase stays `Running` while they run. Returns false if the script was stopped
/// together with its pod: the cause may be an eviction, which the phase will show later.
fn ended_among_others(pod: &Pod, status: &PodStatus) -> bool {
    let terminated = container_state(pod, status).and_then(|state| state.terminated.as_ref());
    let is_by_itself = |state| last_words(state).is_none_or(|words| !words.exit.terminated);
    others(status) == Others::Running && terminated.is_some_and(is_by_itself)
}

/// Whether a container of the pod may still run. After the phase shows the pod's end, no container runs.
fn others(status: &PodStatus) -> Others {
    let mut states = status.container_statuses.iter().flatten().filter_map(|container| container.state.as_ref());
    if !has_ended(status) && states.any(|state| state.terminated.is_none()) { Others::Running } else { Others::Ended }
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The name of the agent's container. Only a pod with a template has the name in an annotation.
fn container_name(pod: &Pod) -> &str {
    annotation(pod, RUN_CONTAINER).filter(|_| annotation(pod, TF_PORT).is_some()).unwrap_or(CONTAINER)
}

/// The agent's container. A cluster or a template may add other containers, even before the agent's container.
fn container(pod: &Pod) -> Option<&Container> {
    let name = container_name(pod);
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == name)
}

fn container_state<'a>(pod: &Pod, status: &'a PodStatus) -> Option<&'a ContainerState> {
    let name = container_name(pod);
    status.container_statuses.iter().flatten().find(|container| container.name == name)?.state.as_ref()
}

fn init_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    pod.spec.as_ref()?.init_containers.iter().flatten().find(|container| container.name == name)
}

/// The state of the container that copies the agent.
fn installer_state(status: &PodStatus) -> Option<&ContainerState> {
    status.init_container_statuses.iter().flatten().find(|container| container.name == INSTALLER)?.state.as_ref()
}

/// Whether a container of the pod, except init containers, was ever started. The kubelet gives a started container an
/// id.
pub(super) fn has_begun(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut ids = status.container_statuses.iter().flatten().filter_map(|container| container.container_id.as_deref());
    status.phase.as_deref() != Some("Pending") || ids.any(|id| !id.is_empty())
}

/// The addresses of a pod with an IP. The agent may answer before Kubernetes marks the pod as Running.
fn address(pod: &Pod, status: &PodStatus) -> Option<Addresses> {
    let ip: IpAddr = status.pod_ip.as_deref()?.parse().ok()?;
    let port = annotation(pod, TF_PORT).and_then(|port| port.parse().ok()).unwrap_or(TENSORFLOW_PORT);
    Some(Addresses { agent: SocketAddr::new(ip, AGENT_PORT), tensorflow: SocketAddr::new(ip, port) })
}

fn condition<'a>(status: &'a PodStatus, kind: &str, value: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == value)
}

fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()))
}

/// Why the pod has no node.
fn unscheduled(status: &PodStatus) -> Option<Wait> {
    let unscheduled = condition(status, "PodScheduled", "False")?;
    let message = unscheduled.message.as_deref().filter(|message| !message.is_empty());
    let message = message.or(unscheduled.reason.as_deref())?;
    // The scheduler's further sentences are about preemption.
    let reason = format!("it cannot be scheduled: {}", first_sentence(message));
    let lacking = lacking_on_nodes(message);
    Some(match unscheduled.reason.as_deref() {
        Some(SCHEDULING_GATED) => Wait::Gated(reason),
        Some(_) | None if lacking.is_empty() => Wait::Other(reason),
        Some(_) | None => Wait::NoRoom { lacking, reason },
    })
}

/// A container that does not run yet.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    state: &'a ContainerStateWaiting,
    image: Option<&'a str>,
    purpose: Purpose<'a>,
}

/// What a container of the pod is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose<'a> {
    /// It runs the agent.
    Agent,
    /// It copies the agent.
    Installer,
    /// It is another init container, with this name. A template or the cluster has added it.
    Init(&'a str),
}

impl<'a> Purpose<'a> {
    fn of_init(name: &'a str) -> Self {
        if name == INSTALLER { Self::Installer } else { Self::Init(name) }
    }
}

/// The container for which the pod waits: first a container with a problem, then the container that copies the agent, then
/// the agent's container.
fn waiting<'a>(pod: &'a Pod, status: &'a PodStatus) -> Option<Waiting<'a>> {
    let own = container_state(pod, status);
    // An init container may also be a side-car, which can fail while exec.py runs. The pod does not wait for it then.
    let has_started = own.is_some_and(|state| state.running.is_some() || state.terminated.is_some());
    let inits = status.init_container_statuses.iter().flatten().filter(|_| !has_started);
    let mut inits: Vec<Waiting<'_>> = inits
        .filter_map(|container| {
            let state = container.state.as_ref()?.waiting.as_ref()?;
            let image = init_container(pod, &container.name).and_then(|container| container.image.as_deref());
            Some(Waiting { state, image, purpose: Purpose::of_init(&container.name) })
        })
        .collect();
    inits.sort_by_key(|waiting| waiting.purpose != Purpose::Installer);
    let own = own.and_then(|state| state.waiting.as_ref()).map(|state| {
        let image = container(pod).and_then(|container| container.image.as_deref());
        Waiting { state, image, purpose: Purpose::Agent }
    });
    let with_problem = inits.iter().copied().chain(own).find(|waiting| waiting.reason().is_some());
    let installer = inits.first().copied().filter(|waiting| waiting.purpose == Purpose::Installer);
    with_problem.or(installer).or(own)
}

impl Waiting<'_> {
    fn is_ordinary(self) -> bool {
        matches!(self.state.reason.as_deref(), Some("ContainerCreating" | "PodInitializing"))
    }

    /// What the node does while Kubernetes creates the container without a problem. Names the image of the agent's container,
    /// which the user has chosen, also while the node creates the container that copies the agent.
    fn preparing(self, pod: &Pod) -> Option<Wait> {
        let image = container(pod)?.image.clone().filter(|_| self.is_ordinary())?;
        Some(Wait::Preparing { image })
    }

    /// Why the container waits. `None` while Kubernetes creates the container without a problem.
    fn reason(self) -> Option<String> {
        let reason = self.state.reason.as_deref().filter(|_| !self.is_ordinary())?;
        let told = with_message(reason, self.state.message.as_deref());
        if let Purpose::Init(name) = self.purpose {
            return Some(of_init(name, &told));
        }
        // The kubelet does not always name the image.
        let told = match self.image.filter(|image| reason.contains("Image") && !told.contains(*image)) {
            Some(image) => format!("image \"{image}\": {told}"),
            None => told,
        };
        Some(if self.purpose == Purpose::Installer { format!("{NOT_INSTALLED}{told}") } else { told })
    }

    /// Like [`Self::reason`]. While the kubelet pauses between two pulls, returns the cause of the failed pull, if the
    /// cause is known. Newer kubelets repeat the cause in this message. For older kubelets, `before` contains the
    /// cause.
    fn cause(self, before: Option<&PodState>) -> Option<String> {
        let reason = self.reason()?;
        let (
            Some(PodState::Pending { wait: Some(Wait::Other(known)), .. } | PodState::Unusable { reason: known }),
            true,
        ) = (before, self.is_back_off() && !reason.contains(ERR_IMAGE_PULL))
        else {
            return Some(reason);
        };
        Some(if known.contains(ERR_IMAGE_PULL) { known.clone() } else { reason })
    }

    fn is_back_off(self) -> bool {
        self.state.reason.as_deref() == Some(IMAGE_PULL_BACK_OFF)
    }

    fn is_hopeless(self, cause: &str) -> bool {
        // The kubelet was too slow to read a Secret or ConfigMap, and will retry.
        let is_late = self.state.message.as_deref().is_some_and(|message| message.starts_with(CACHE_IS_LATE));
        // A side-car of the cluster may start later, for example when the cluster's mesh works again.
        let may_start =
            matches!(self.purpose, Purpose::Init(_)) && self.state.reason.as_deref() == Some(CRASH_LOOP_BACK_OFF);
        let is_listed = self.state.reason.as_deref().is_some_and(|reason| HOPELESS.contains(&reason));
        let is_listed = is_listed && !is_late && !may_start;
        // Search only the text after `ERR_IMAGE_PULL`: the text before it may contain the image's name.
        let cause = cause.split_once(ERR_IMAGE_PULL).map_or("", |(_, told)| told).to_lowercase();
        is_listed || self.is_back_off() && LASTING.iter().any(|part| cause.contains(part))
    }
}

/// Why the agent could not be copied, if this failure ended the pod.
fn not_installed(status: &PodStatus) -> Option<String> {
    let terminated = installer_state(status)?.terminated.as_ref().filter(|terminated| terminated.exit_code != 0)?;
    let why = with_message(terminated.reason.as_deref().unwrap_or("no reason"), terminated.message.as_deref());
    let is_of_another_machine = why.contains("exec format error");
    let hint = if is_of_another_machine { "; the agent's image does not fit this node's processor" } else { "" };
    Some(format!("{NOT_INSTALLED}{why}{hint}"))
}

/// Why an init container failed, if this failure ended the pod. When the pod ends, Kubernetes also ends its side-cars, so
/// their failures count last.
fn failed_init(pod: &Pod, status: &PodStatus) -> Option<String> {
    let failed = status.init_container_statuses.iter().flatten().filter_map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        (terminated.exit_code != 0).then_some((container.name.as_str(), terminated))
    });
    let restarts = |name: &str| init_container(pod, name).and_then(|container| container.restart_policy.as_deref());
    let (name, terminated) = failed.min_by_key(|(name, _)| restarts(name) == Some("Always"))?;
    let exit_code = format!("exit code {}", terminated.exit_code);
    let message = terminated.message.as_deref().filter(|message| !message.trim().is_empty()).unwrap_or(&exit_code);
    Some(of_init(name, &with_message(terminated.reason.as_deref().unwrap_or("no reason"), Some(message))))
}

/// A reason about an init container that a template or the cluster has added.
fn of_init(name: &str, reason: &str) -> String {
    format!("init container {name}: {reason}")
}

/// Why Python in the job's image could not start the agent, if this failure ended the pod. Every pod of this image
/// fails in the same way.
fn not_unpacked(pod: &Pod, terminated: &ContainerStateTerminated) -> Option<String> {
    let runs_python = container(pod)?.command.as_ref()?.first().is_some_and(|program| program == PYTHON);
    let message = terminated.message.as_deref().filter(|_| runs_python)?;
    let is_without_python = terminated.reason.as_deref().is_some_and(|reason| CANNOT_RUN.contains(&reason));
    if is_without_python {
        return Some(format!("{} cannot run {PYTHON}, which starts the agent: {message}{OTHER_WAY}", image_of(pod)));
    }
    message.starts_with(NOT_STARTED).then(|| format!("{message}{OTHER_WAY}"))
}

/// The image of the agent's container, for messages.
fn image_of(pod: &Pod) -> String {
    let image = container(pod).and_then(|container| container.image.as_deref()).unwrap_or_default();
    format!("image \"{image}\"")
}

/// The kind and message of an eviction, a preemption or a drain.
fn disruption(status: &PodStatus) -> Option<String> {
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        return Some(with_message(reason, status.message.as_deref()));
    }
    let condition = condition(status, "DisruptionTarget", "True")?;
    Some(with_message(condition.reason.as_deref()?, condition.message.as_deref()))
}

/// Whether the kubelet evicted the pod because the pod exceeded its own storage limit. A new pod would exceed the limit
/// too (`kubernetes/pkg/kubelet/eviction/helpers.go`, the messages of the local limits).
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
    let terminated = container_state(pod, status).and_then(|state| state.terminated.as_ref());
    let words = terminated.and_then(last_words);
    // A pod that succeeded, or ended before its deletion, did not end because of the deletion. An agent without a run
    // also succeeds when its pod is deleted, but it leaves no last words.
    let has_succeeded = status.phase.as_deref() == Some("Succeeded") && words.is_some();
    let had_ended = has_succeeded || matches!(before, Some(PodState::Terminated { .. }));
    let is_deleted = pod.metadata.deletion_timestamp.is_some() && !had_ended;
    let known = || match before {
        Some(PodState::Leaving { reason } | PodState::Disrupted { reason, .. }) => Some(reason.clone()),
        Some(
            PodState::Pending { .. }
            | PodState::Running { .. }
            | PodState::Unusable { .. }
            | PodState::Terminated { .. },
        )
        | None => None,
    };
    let deletion = || is_deleted.then(|| known().unwrap_or_else(|| "its pod was deleted".to_owned()));
    let ended = |exit: Option<LastWords>, reason: String| PodState::Terminated { exit, reason, others: others(status) };
    match (disruption(status).or_else(deletion), terminated) {
        (Some(reason), _) if is_own_fault(status) => ended(words, reason),
        // The run ended by itself before the disruption.
        (Some(reason), _) if words.as_ref().is_some_and(|words| !words.exit.stopped) => ended(words, reason),
        // The disruption ended the container, so the container's exit code is not a result of exec.py.
        (Some(reason), _) => PodState::Disrupted { reason, others: others(status) },
        (None, Some(ContainerStateTerminated { exit_code, .. })) if words.is_some() => {
            ended(words, format!("its agent ended with exit code {exit_code}"))
        }
        (None, Some(terminated)) => {
            if let Some(reason) = not_unpacked(pod, terminated) {
                return PodState::Unusable { reason };
            }
            let exit = report(pod, terminated);
            let reason = without_last_words(&exit.outcome, terminated);
            ended(Some(LastWords { generation: None, exit, membership: None }), reason)
        }
        (None, None) => {
            let reason = not_installed(status).or_else(|| failed_init(pod, status));
            let reason = reason.unwrap_or_else(|| "its pod ended without a reason".to_owned());
            ended(None, reason)
        }
    }
}

/// The reason for the end of a container whose agent left no last words. If the container was killed, exec.py may have
/// run before.
fn without_last_words(outcome: &ExitOutcome, terminated: &ContainerStateTerminated) -> String {
    let why = with_message(terminated.reason.as_deref().unwrap_or("no reason"), terminated.message.as_deref());
    match outcome {
        ExitOutcome::Signal(_) | ExitOutcome::OutOfMemory { .. } => {
            format!("its container left no report on exec.py ({why}): it {outcome}")
        }
        ExitOutcome::Code(_) | ExitOutcome::NotStarted(_) => format!(
            "its container ended with exit code {} before its agent ran exec.py ({why}); was the pod's image made by client build?",
            terminated.exit_code
        ),
    }
}

/// The last words that the agent wrote as the container's termination message. `None` for any other message.
fn last_words(terminated: &ContainerStateTerminated) -> Option<LastWords> {
    serde_json::from_str(terminated.message.as_deref()?).ok()
}

/// How exec.py ended. The agent exits with exec.py's exit code, or with 128 plus the number of the signal that killed
/// exec.py.
fn report(pod: &Pod, terminated: &ContainerStateTerminated) -> ExitReport {
    let outcome = match terminated.exit_code {
        _ if terminated.reason.as_deref() == Some(OOM_KILLED) => ExitOutcome::OutOfMemory { limit: memory_limit(pod) },
        code @ 129..=192 => ExitOutcome::Signal(code - 128),
        code => ExitOutcome::Code(code),
    };
    let ended_at = terminated.finished_at.as_ref().map_or(0, |time| time.0.as_millisecond());
    ExitReport::new(outcome, UnixMillis(u64::try_from(ended_at).unwrap_or(0)))
}

/// The memory limit of the agent's container, in bytes.
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
