//! Builds the Kubernetes pod for a [`PodSpec`].

mod agent;
mod template;

use std::collections::BTreeMap;

use job::key::JobKey;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMap, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource, EnvVar,
    HostPathVolumeSource, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec as KubePodSpec,
    ResourceRequirements, SeccompProfile, SecretEnvSource, SecurityContext, Toleration as KubeToleration,
    Volume as KubeVolume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use launchers::template::{Allowed, Note, checked};
use protocol::agent::PYTHONS;
use protocol::code::SCRIPT;
use protocol::env::{MUSTER_TERMINATION_GRACE_SECONDS, MUSTER_TOKEN_SHA256};
use protocol::pod::{Amount, MemorySize, PodOptions, PullPolicy, RunAs, SHM_PATH, Toleration, Volume, VolumeSource};
use protocol::routes::AGENT_PORT;

use super::DefaultUser;
use crate::backend::PodSpec;
use crate::kube::api::{APP_COMPONENT, APP_INSTANCE, APP_NAME, JOB, MANAGED_BY, MUSTER};
use crate::kube::record_name;

pub(super) use self::agent::{AGENT_KEY, AgentSource, INSTALLER, NOT_STARTED, PYTHON};
pub(super) use self::template::{RUN_CONTAINER, TF_PORT};

/// The label with the job's uid. It distinguishes the job's pods from those of an earlier job with the same name.
pub(super) const JOB_UID: &str = "muster/job-uid";
/// The label with the replica's role.
pub(super) const ROLE: &str = "muster/role";
/// The label with the replica's index in its role, from 0.
pub(super) const INDEX: &str = "muster/index";
/// The name of the agent's container in a pod without a template.
pub(super) const CONTAINER: &str = "agent";
/// The resource name of GPUs in NVIDIA's device plugin.
const GPU: &str = "nvidia.com/gpu";

/// Builds the pod. The same arguments always give the same pod. If the job brings its code or the pod has a template,
/// the agent comes from `agent`. Otherwise the job's image contains the agent.
pub(super) fn pod(
    spec: &PodSpec,
    agent: Option<&AgentSource>,
    user: DefaultUser,
    allowed: Allowed,
) -> Result<Pod, Vec<Note>> {
    let own = own_pod(spec, agent, user);
    let Some(template) = &spec.template else { return Ok(own) };
    let allowed = Allowed { root: allowed.root || spec.options.allow_root, ..allowed };
    Ok(template::filled(checked(template, allowed)?.pod, template, own))
}

/// Builds the pod without the fields of the template.
fn own_pod(spec: &PodSpec, agent: Option<&AgentSource>, user: DefaultUser) -> Pod {
    let PodSpec {
        job,
        replica,
        image,
        work_dir: _,
        brings_code: _,
        command: _, // see `arguments`
        processes: _,
        template: _,
        labels: of_launcher,
        second_code_folder: _, // see `agent`
        options,
        agent_token_sha256,
    } = spec;
    let labels = [
        (MANAGED_BY, MUSTER.to_owned()),
        (APP_NAME, "muster-job".to_owned()),
        (APP_INSTANCE, job.name.to_string()),
        (APP_COMPONENT, replica.role.to_string()),
        (JOB, job.name.to_string()),
        (JOB_UID, job.uid.clone()),
        (ROLE, replica.role.to_string()),
        (INDEX, replica.index.to_string()),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value));
    let container = Container {
        name: CONTAINER.to_owned(),
        image: image.as_ref().map(ToString::to_string),
        image_pull_policy: options
            .image_pull_policy
            .or(spec.template.is_none().then_some(PullPolicy::IfNotPresent))
            .map(|policy| policy.as_str().to_owned()),
        args: arguments(spec),
        env: Some(vec![
            variable(MUSTER_TOKEN_SHA256, agent_token_sha256.clone()),
            variable(MUSTER_TERMINATION_GRACE_SECONDS, options.termination_grace_seconds().to_string()),
        ]),
        ports: Some(vec![ContainerPort {
            name: Some("agent".to_owned()),
            container_port: AGENT_PORT.into(),
            ..ContainerPort::default()
        }]),
        security_context: Some(restricted()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(spec.name().to_string()),
            labels: Some(of_launcher.clone().into_iter().chain(labels).collect()),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(match agent {
            Some(agent) if spec.needs_agent() => agent::installed(with_options(container, options), agent, user, spec),
            Some(_) | None => with_options(container, options),
        }),
        status: None,
    }
}

/// What the Pod Security Standard `restricted` requires of each container.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), value_from: None }
}

/// The job's record, as the owner of the job's other objects. Kubernetes deletes these objects with the record.
pub(super) fn owner(job: &JobKey) -> OwnerReference {
    OwnerReference {
        api_version: ConfigMap::api_version(&()).into_owned(),
        kind: ConfigMap::kind(&()).into_owned(),
        name: record_name(job.name.as_str()),
        uid: job.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The agent's arguments. `None` if the image contains the agent and the command is the agent's default. In this case,
/// the agent may be an agent of the first prototype, which accepts no arguments. Kubernetes and the agent both expand
/// `$(NAME)` and turn `$$` into `$`. This function doubles every `$`, so that Kubernetes expands nothing. The agent
/// then expands the run's variables.
fn arguments(spec: &PodSpec) -> Option<Vec<String>> {
    if spec.command == [PYTHONS[0], SCRIPT] && !spec.needs_agent() {
        return None;
    }
    let words = ["--"].into_iter().chain(spec.command.iter().map(String::as_str));
    Some(words.map(|word| word.replace('$', "$$")).collect())
}

fn with_options(container: Container, options: &PodOptions) -> KubePodSpec {
    let PodOptions {
        cpu,
        memory,
        gpus,
        shm,
        volumes,
        env_secrets,
        node_selector,
        tolerations,
        priority_class,
        service_account,
        image_pull_policy: _, // set on the container
        termination_grace_seconds: _,
        allow_root,
        run_as,
    } = options;
    let user = run_as.and_then(|run_as| match run_as {
        RunAs::Image => None,
        RunAs::User { uid, gid } => Some((uid, gid)),
    });
    let from_secret = |name: String| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    };
    let (volumes, mounts): (Vec<KubeVolume>, Vec<VolumeMount>) = volumes
        .iter()
        .enumerate()
        .map(|(place, volume)| mounted(place, volume))
        .chain(shm.iter().map(in_memory))
        .unzip();
    let container = Container {
        resources: resources(cpu.as_ref(), memory.as_ref(), gpus.unwrap_or(0)),
        env_from: filled(env_secrets.iter().map(ToString::to_string).map(from_secret).collect()),
        volume_mounts: filled(mounts),
        ..container
    };
    KubePodSpec {
        containers: vec![container],
        // The kubelet must not restart a training that has ended: only the master decides about restarts.
        restart_policy: Some("Never".to_owned()),
        // A script in a pod must not use the API.
        automount_service_account_token: Some(false),
        // A variable for each Service of the namespace would clutter the environment of exec.py.
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            // Set only if the job names a user. A user other than the image's may be unable to read the image's files.
            run_as_user: user.map(|(uid, _)| uid.into()),
            run_as_group: user.map(|(_, gid)| gid.into()),
            run_as_non_root: (!allow_root).then_some(true),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(options.termination_grace_seconds().into()),
        volumes: filled(volumes),
        node_selector: (!node_selector.is_empty())
            .then(|| node_selector.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()),
        tolerations: filled(tolerations.iter().map(tolerated).collect()),
        priority_class_name: priority_class.as_ref().map(ToString::to_string),
        service_account_name: service_account.as_ref().map(ToString::to_string),
        ..KubePodSpec::default()
    }
}

/// Returns `None` for an empty list, because an empty list would replace the template's list.
fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn resources(cpu: Option<&Amount>, memory: Option<&Amount>, gpus: u32) -> Option<ResourceRequirements> {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for (name, amount) in [("cpu", cpu), ("memory", memory)] {
        if let Some(Amount { request, limit }) = amount {
            requests.insert(name.to_owned(), Quantity(request.clone()));
            limits.insert(name.to_owned(), Quantity(limit.clone()));
        }
    }
    if gpus > 0 {
        limits.insert(GPU.to_owned(), Quantity(gpus.to_string()));
    }
    // Every amount has a limit, so without limits there are no requests.
    (!limits.is_empty()).then_some(ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        claims: None,
    })
}

fn mounted(place: usize, volume: &Volume) -> (KubeVolume, VolumeMount) {
    let Volume { source, path, read_only } = volume;
    let name = format!("volume-{place}");
    let unmounted = KubeVolume { name: name.clone(), ..KubeVolume::default() };
    let from = match source {
        VolumeSource::Claim(claim) => KubeVolume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_string(),
                read_only: Some(*read_only),
            }),
            ..unmounted
        },
        VolumeSource::Host(dir) => KubeVolume {
            host_path: Some(HostPathVolumeSource { path: dir.clone(), type_: Some("Directory".to_owned()) }),
            ..unmounted
        },
        VolumeSource::Empty => KubeVolume { empty_dir: Some(EmptyDirVolumeSource::default()), ..unmounted },
    };
    let mount = VolumeMount { name, mount_path: path.clone(), read_only: Some(*read_only), ..VolumeMount::default() };
    (from, mount)
}

fn in_memory(size: &MemorySize) -> (KubeVolume, VolumeMount) {
    let name = "shm".to_owned();
    let source =
        EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(Quantity(size.to_string())) };
    let mount = VolumeMount { name: name.clone(), mount_path: SHM_PATH.to_owned(), ..VolumeMount::default() };
    (KubeVolume { name, empty_dir: Some(source), ..KubeVolume::default() }, mount)
}

fn tolerated(toleration: &Toleration) -> KubeToleration {
    let Toleration { key, value, effect } = toleration;
    KubeToleration {
        key: Some(key.to_string()),
        operator: Some(if value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        value: value.as_ref().map(ToString::to_string),
        effect: effect.map(|effect| effect.as_str().to_owned()),
        toleration_seconds: None,
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
