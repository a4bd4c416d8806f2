//! A pod in Kubernetes' JSON. An unchanged pod keeps its state. A pod has ended if its phase says so. A pod with a
//! template has also ended if the script's container has terminated, unless the agent reports that the script was
//! stopped. Every other pod has not ended.
#![cfg_attr(fuzzing, no_main)]

use job::observation::PodState;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use master::backend::kube::observed;
use protocol::agent::LastWords;
use protocol::ids::PodName;
use protocol::routes::AGENT_PORT;

/// Whether the script's container has terminated, in a pod with a template, and the script was not stopped.
fn script_ended(pod: &Pod, status: &PodStatus) -> bool {
    let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(name));
    let name = annotation("kubectl.kubernetes.io/default-container").map_or("agent", String::as_str);
    let container = status.container_statuses.iter().flatten().find(|container| container.name == name);
    let terminated = container.and_then(|container| container.state.as_ref()?.terminated.as_ref());
    let words = |text: &str| serde_json::from_str::<LastWords>(text).ok();
    let was_stopped =
        terminated.and_then(|state| words(state.message.as_deref()?)).is_some_and(|words| words.exit.stopped);
    annotation("muster/tf-port").is_some() && terminated.is_some() && !was_stopped
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|json: &[u8]| check(json));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(json: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(json) else { return };
    let (owner, state) = observed(&pod, None);
    assert_eq!(observed(&pod, Some(&state)), (owner.clone(), state.clone()));
    let status = pod.status.as_ref();
    let is_over = |phase: &str| matches!(phase, "Failed" | "Succeeded");
    let has_ended =
        status.is_some_and(|status| status.phase.as_deref().is_some_and(is_over) || script_ended(&pod, status));
    assert_eq!(matches!(state, PodState::Terminated { .. } | PodState::Disrupted { .. }), has_ended);
    if let PodState::Running(addresses) = state {
        assert_eq!(addresses.agent.port(), AGENT_PORT);
        let ip = status.and_then(|status| status.pod_ip.as_deref()).and_then(|ip| ip.parse().ok());
        assert_eq!(ip, Some(addresses.agent.ip()));
    }
    if let Some((job, replica)) = owner {
        assert_eq!(pod.metadata.name, Some(PodName::new(&job.name, replica).to_string()));
    }
}
