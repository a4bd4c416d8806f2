//! Merges Muster's pod into the template of a group. The fields that Muster sets replace those of the template. All
//! other fields of the template stay.

use std::collections::BTreeMap;

use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use protocol::group::Template;
use protocol::origin::TFJOB_LABELS;

use super::agent::without_devices;
use super::{CONTAINER, INSTALLER, restricted};

/// The annotation that names the script's container. By default, kubectl uses this container.
pub(in crate::backend::kube) const RUN_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The annotation with the port of TensorFlow's server.
pub(in crate::backend::kube) const TF_PORT: &str = "muster/tf-port";
/// Prefixes of labels that only Muster may set. These labels show to which job a pod belongs.
const OUR_LABELS: [&str; 3] = ["muster/", "app.kubernetes.io/", TFJOB_LABELS];

/// Builds a group's pod from Muster's pod `own` and the template `theirs`, whose fields were checked before.
pub(super) fn filled(theirs: PodTemplateSpec, template: &Template, own: Pod) -> Pod {
    let mut pod = Pod { metadata: theirs.metadata.unwrap_or_default(), spec: theirs.spec, status: None };
    if let Some(labels) = &mut pod.metadata.labels {
        labels.retain(|name, _| !OUR_LABELS.iter().any(|prefix| name.starts_with(prefix)));
    }
    let is_user_named = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.run_as_user).is_some();
    restrict(pod.spec.as_mut());
    let later_installers = pod.spec.as_mut().and_then(|spec| spec.init_containers.take());
    let mut own = named(own, template);
    if is_user_named && let Some(context) = own.spec.as_mut().and_then(|spec| spec.security_context.as_mut()) {
        (context.run_as_user, context.run_as_group) = (None, None);
    }
    pod.merge_from(own);
    if let Some(spec) = &mut pod.spec {
        equip_installer(spec, template);
        // The template's init containers run after the copy of the agent, because they may wait for the rest of the
        // gang.
        spec.init_containers.get_or_insert_default().extend(later_installers.unwrap_or_default());
    }
    pod
}

/// Sets the resources of the container that copies the agent to those of the script's container. A quota may require
/// resources of each container.
fn equip_installer(spec: &mut PodSpec, template: &Template) {
    let run = spec.containers.iter().find(|container| container.name == template.container);
    let resources = run.and_then(|run| without_devices(run.resources.clone()));
    for installer in spec.init_containers.iter_mut().flatten().filter(|installer| installer.name == INSTALLER) {
        installer.resources.clone_from(&resources);
    }
}

/// Gives every container of the template what the Pod Security Standard `restricted` requires.
fn restrict(spec: Option<&mut PodSpec>) {
    let Some(spec) = spec else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.security_context.get_or_insert_default().merge_from(restricted());
    }
}

/// Gives the container in Muster's pod the name of the script's container in the template. Adds the annotations that
/// `observe` reads.
fn named(own: Pod, template: &Template) -> Pod {
    let mut own = own;
    let annotations = [(RUN_CONTAINER, template.container.clone()), (TF_PORT, template.tf_port.to_string())];
    own.metadata.annotations =
        Some(annotations.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>());
    for container in own.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        debug_assert_eq!(container.name, CONTAINER, "Muster's own pod has an unexpected container");
        container.name.clone_from(&template.container);
    }
    own
}
