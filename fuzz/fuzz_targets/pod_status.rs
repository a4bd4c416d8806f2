//! A pod in Kubernetes' JSON. An unchanged pod keeps its state, and a pod has ended exactly when its phase says so.
#![cfg_attr(fuzzing, no_main)]

use k8s_openapi::api::core::v1::Pod;
use master::backend::kube::observed;
use master::job::observation::PodState;
use protocol::ids::PodName;
use protocol::routes::AGENT_PORT;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|json: &[u8]| check(json));

/// Checks one input.
///
/// # Panics
/// If the input breaks a rule in this file's description.
pub(crate) fn check(json: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(json) else { return };
    let (owner, state) = observed(&pod, None);
    assert_eq!(observed(&pod, Some(&state)), (owner.clone(), state.clone()));
    let status = pod.status.as_ref();
    let is_over = matches!(status.and_then(|status| status.phase.as_deref()), Some("Failed" | "Succeeded"));
    assert_eq!(matches!(state, PodState::Terminated { .. } | PodState::Disrupted { .. }), is_over);
    if let PodState::Running(addresses) = state {
        assert_eq!(addresses.agent.port(), AGENT_PORT);
        let ip = status.and_then(|status| status.pod_ip.as_deref()).and_then(|ip| ip.parse().ok());
        assert_eq!(ip, Some(addresses.agent.ip()));
    }
    if let Some((job, replica)) = owner {
        assert_eq!(pod.metadata.name, Some(PodName::new(&job.name, replica).to_string()));
    }
}
