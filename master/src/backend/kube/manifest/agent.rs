//! A pod that runs an unmodified image, and that gets the agent at its start. Either Python of that image unpacks the
//! agent from a ConfigMap, or an init container copies the agent from another image.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EmptyDirVolumeSource, PodSecurityContext, PodSpec as KubePodSpec,
    ResourceRequirements, Volume, VolumeMount,
};
use protocol::image::ImageRef;
use protocol::pod::PullPolicy;

use super::{DefaultUser, restricted, variable};
use crate::backend::PodSpec;

/// The name of the container that copies the agent.
pub(in crate::backend::kube) const INSTALLER: &str = "install-agent";
/// The path of the agent in the master's image and in the agent's image (see images/).
const AGENT_IN_IMAGE: &str = "/muster/agent";
/// The path to which the agent is copied.
const AGENT: &str = "/muster/bin/agent";
/// The program that unpacks the agent. It knows [`AGENT`], [`PACKED`] and [`AGENT_KEY`].
const START_AGENT: &str = include_str!("start_agent.py");
/// The beginning of the termination message of [`START_AGENT`] if it cannot start the agent.
pub(in crate::backend::kube) const NOT_STARTED: &str = "cannot start the agent: ";
/// The mount path of the ConfigMap with the packed agent.
const PACKED: &str = "/muster/agent";
/// The key of the packed agent in the ConfigMap, which is also its file name.
pub(in crate::backend::kube) const AGENT_KEY: &str = "agent.gz";
/// The program in the job's image that runs [`START_AGENT`]. Images whose only Python has another name are rare.
pub(in crate::backend::kube) const PYTHON: &str = "python3";
const WORK_DIR: &str = "/muster/work";
/// The name of the volume at [`WORK_DIR`].
const WORK: &str = "muster-work";
const HOME: &str = "/muster/home";
const TMP: &str = "/tmp";
/// Empty folders of the pod: for each folder its mount path, and the name of its volume.
const FOLDERS: [(&str, &str); 4] =
    [("/muster/bin", "muster-bin"), (WORK_DIR, WORK), (HOME, "muster-home"), (TMP, "muster-tmp")];
/// The default user and group of the pod's processes. The master's image uses the same numbers.
const USER: i64 = 65532;
/// The name of [`USER`]. Most images define no name for this user, and Python's `getpass.getuser` fails without a name.
const USER_NAME: &str = "muster";

/// The source of the agent for a pod whose image does not contain the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::kube) enum AgentSource {
    /// An init container copies the agent from this image.
    Image(ImageRef),
    /// Python of the job's image unpacks the agent from the ConfigMap with this name. This saves the start of an init
    /// container, and about one second until the kubelet notices the container's end.
    ConfigMap(String),
}

/// Adds the agent to a pod whose only container runs the job's image.
pub(super) fn installed(pod: KubePodSpec, agent: &AgentSource, user: DefaultUser, spec: &PodSpec) -> KubePodSpec {
    let PodSpec { options, brings_code, second_code_folder, .. } = spec;
    let mut pod = pod;
    // With `--allow-root` or `--run-as`, the job chooses the user.
    let is_default = !options.allow_root && options.run_as.is_none();
    if is_default && user == DefaultUser::Muster {
        let context = pod.security_context.get_or_insert_with(PodSecurityContext::default);
        (context.run_as_user, context.run_as_group) = (Some(USER), Some(USER));
    }
    // The image may have no home folder for a user that the image does not define.
    let needs_home = is_default || pod.security_context.as_ref().is_some_and(|context| context.run_as_user.is_some());
    let own_paths: Vec<&str> = options.volumes.iter().map(|volume| volume.path.as_str()).collect();
    // If the job brings no code, the pod has a template. The template's image may have files in /tmp, so do not mount
    // an empty folder there.
    let is_needed = |path: &str| *brings_code || path != WORK_DIR && path != TMP;
    let folders = FOLDERS.iter().filter(|(path, _)| !own_paths.contains(path) && is_needed(path));
    let (volumes, mut mounts): (Vec<Volume>, Vec<VolumeMount>) = folders.map(|(path, name)| empty(path, name)).unzip();
    mounts.extend(second_code_folder.map(|path| empty(path, WORK).1));
    pod.volumes.get_or_insert_default().extend(volumes);
    for container in &mut pod.containers {
        let arguments = container.args.take().unwrap_or_default();
        container.command = Some(match agent {
            AgentSource::Image(_) => vec![AGENT.to_owned()],
            AgentSource::ConfigMap(_) => [PYTHON, "-I", "-S", "-c", START_AGENT].map(str::to_owned).to_vec(),
        });
        let work_dir: &[&str] = if *brings_code { &["--work-dir", WORK_DIR] } else { &[] };
        container.args = Some(work_dir.iter().map(|word| (*word).to_owned()).chain(arguments).collect());
        container.volume_mounts.get_or_insert_default().extend(mounts.clone());
        if needs_home {
            let variables = [("HOME", HOME), ("USER", USER_NAME), ("LOGNAME", USER_NAME)];
            let variables = variables.map(|(name, value)| variable(name, value.to_owned()));
            container.env.get_or_insert_default().extend(variables);
        }
    }
    match agent {
        AgentSource::Image(image) => {
            pod.init_containers = Some(pod.containers.iter().map(|container| installer(container, image)).collect());
        }
        AgentSource::ConfigMap(name) => mount_packed(&mut pod, name),
    }
    pod
}

/// Mounts the ConfigMap with the packed agent.
fn mount_packed(pod: &mut KubePodSpec, config_map: &str) {
    let name = "muster-agent".to_owned();
    let source = ConfigMapVolumeSource { name: config_map.to_owned(), ..ConfigMapVolumeSource::default() };
    let volume = Volume { name: name.clone(), config_map: Some(source), ..Volume::default() };
    pod.volumes.get_or_insert_default().push(volume);
    for container in &mut pod.containers {
        let mount = VolumeMount { name: name.clone(), mount_path: PACKED.to_owned(), ..VolumeMount::default() };
        container.volume_mounts.get_or_insert_default().push(mount);
    }
}

/// The container that copies the agent. A quota may require resources of each container. So this container has the
/// resources of the job's container, without devices. The pod's total does not grow: the scheduler does not add the
/// resources of the two containers, but uses the maximum.
fn installer(container: &Container, agent: &ImageRef) -> Container {
    Container {
        name: INSTALLER.to_owned(),
        image: Some(agent.to_string()),
        image_pull_policy: Some(PullPolicy::IfNotPresent.as_str().to_owned()),
        command: Some([AGENT_IN_IMAGE, "--install", AGENT].map(str::to_owned).to_vec()),
        resources: without_devices(container.resources.clone()),
        security_context: Some(restricted()),
        // The container's output explains why the container failed. If the container could not be started, the output
        // includes the runtime's message.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![empty(FOLDERS[0].0, FOLDERS[0].1).1]),
        ..Container::default()
    }
}

/// Removes the devices, such as `nvidia.com/gpu`, from a container's resources. Only names of devices contain a slash.
pub(super) fn without_devices(mut resources: Option<ResourceRequirements>) -> Option<ResourceRequirements> {
    if let Some(ResourceRequirements { requests, limits, claims: _ }) = &mut resources {
        for amounts in [requests, limits].into_iter().flatten() {
            amounts.retain(|name, _| !name.contains('/'));
        }
    }
    resources
}

fn empty(path: &str, name: &str) -> (Volume, VolumeMount) {
    let volume =
        Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
    (volume, VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() })
}
