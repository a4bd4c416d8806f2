//! Random tests of `observe.rs`: every pod has a state, whatever its status.

use k8s_openapi::api::core::v1::{ContainerStateRunning, ContainerStatus, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

use super::*;

/// A word from Kubernetes, or a random string.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "",
        "agent",
        "Failed",
        "Succeeded",
        "Running",
        "Pending",
        "Unknown",
        "Evicted",
        "OOMKilled",
        "StartError",
        "ErrImagePull",
        "ImagePullBackOff",
        "ContainerCreating",
        "PodScheduled",
        "DisruptionTarget",
        "True",
        "False",
        "muster/job",
        "muster/role",
        "muster/index",
        "digits",
        "worker",
        "0",
        "10.0.0.1",
        "fd00::1",
        "memory",
        "4Gi",
        "18446744073709551615Ti",
        "Mi",
    ];
    prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn time() -> impl Strategy<Value = Time> {
    prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), Just(Timestamp::UNIX_EPOCH)].prop_map(Time)
}

fn container_state() -> impl Strategy<Value = ContainerState> {
    let waiting = (of(word()), of(word())).prop_map(|(reason, message)| ContainerStateWaiting { reason, message });
    let terminated =
        (any::<i32>(), of(word()), of(word()), of(time())).prop_map(|(exit_code, reason, message, finished_at)| {
            ContainerStateTerminated { exit_code, reason, message, finished_at, ..ContainerStateTerminated::default() }
        });
    (of(waiting), of(terminated), any::<bool>()).prop_map(|(waiting, terminated, runs)| ContainerState {
        waiting,
        terminated,
        running: runs.then(ContainerStateRunning::default),
    })
}

fn condition() -> impl Strategy<Value = PodCondition> {
    (word(), word(), of(word()), of(word())).prop_map(|(type_, status, reason, message)| PodCondition {
        type_,
        status,
        reason,
        message,
        ..PodCondition::default()
    })
}

fn status() -> impl Strategy<Value = PodStatus> {
    let container = (word(), of(container_state())).prop_map(|(name, state)| ContainerStatus {
        name,
        state,
        ..ContainerStatus::default()
    });
    let words = (of(word()), of(word()), of(word()), of(word()));
    (words, of(vec(condition(), 0..3)), of(vec(container, 0..3))).prop_map(
        |((phase, reason, message, pod_ip), conditions, container_statuses)| PodStatus {
            phase,
            reason,
            message,
            pod_ip,
            conditions,
            container_statuses,
            ..PodStatus::default()
        },
    )
}

fn spec() -> impl Strategy<Value = PodSpec> {
    let container = (word(), of(word()), of(btree_map(word(), word().prop_map(Quantity), 0..3))).prop_map(
        |(name, image, limits)| Container {
            name,
            image,
            resources: Some(ResourceRequirements { limits, ..ResourceRequirements::default() }),
            ..Container::default()
        },
    );
    vec(container, 0..3).prop_map(|containers| PodSpec { containers, ..PodSpec::default() })
}

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    let owner = (word(), of(any::<bool>())).prop_map(|(uid, controller)| OwnerReference {
        uid,
        controller,
        ..OwnerReference::default()
    });
    (of(word()), of(btree_map(word(), word(), 0..6)), of(vec(owner, 0..3)), of(time())).prop_map(
        |(name, labels, owner_references, deletion_timestamp)| ObjectMeta {
            name,
            labels,
            owner_references,
            deletion_timestamp,
            ..ObjectMeta::default()
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    (metadata(), of(spec()), of(status())).prop_map(|(metadata, spec, status)| Pod { metadata, spec, status })
}

/// Whether this state contradicts the pod's status in Kubernetes.
fn contradicts(state: &PodState, pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let is_over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let is_deleted = pod.metadata.deletion_timestamp.is_some() && pod.status.is_some();
    let containers: Vec<ContainerState> =
        status.container_statuses.into_iter().flatten().filter_map(|container| container.state).collect();
    let ended = containers.iter().filter(|container| container.terminated.is_some()).count();
    match state {
        PodState::Terminated { others: Others::Ended, .. } => !is_over,
        PodState::Terminated { others: Others::Running, .. } => is_over || ended == 0 || ended == containers.len(),
        PodState::Disrupted { .. } => !is_over && ended == 0,
        PodState::Running(addresses) => {
            is_over || is_deleted || status.pod_ip.and_then(|ip| ip.parse().ok()) != Some(addresses.agent.ip())
        }
        PodState::Leaving { .. } => is_over || !is_deleted,
        PodState::Pending { .. } | PodState::Unusable { .. } => is_over || is_deleted,
    }
}

proptest! {
    #[test]
    fn every_pod_has_a_state_that_fits_its_status_and_an_unchanged_pod_keeps_it(
        pod in pod(),
        before in of(super::random_tests::pod()),
    ) {
        whose(&pod);
        let before = before.map(|before| state(&before, None));
        let now = state(&pod, before.as_ref());
        prop_assert_eq!(state(&pod, Some(&now)), now.clone());
        prop_assert!(!contradicts(&now, &pod), "{now:?}");
    }
}
