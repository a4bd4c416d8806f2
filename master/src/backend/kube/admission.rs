//! Checks whether the cluster accepts a job's pods, before anything is created.

use job::key::JobKey;
use job::plan;
use job::wait::Resources;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use launchers::template::{Note, is_masters, is_masters_claim, listed};
use protocol::error::ErrorCode;
use protocol::group::Group;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use protocol::pod::{Volume, VolumeSource};
use serde_json::Value;
use tracing::warn;

use super::error::{NO_AGENT_IMAGE, NO_IMAGE};
use super::room::requested;
use super::{HostVolumes, KubeBackend, quota};
use crate::backend::{PodSpec, Refusal};
use crate::error_chain::error_chain;
use crate::kube::api::{ApiFailure, call};
use crate::kube::own_pod::{OwnUses, Used, used};

impl KubeBackend {
    /// Checks a job before anything exists, in three steps: the checks that need no call, a dry run of each kind of
    /// pod, and the check of the quotas. The dry run finds violated admission rules, unknown priority classes and
    /// unknown service accounts. Returns one pod of each kind, as the cluster would accept it, and the number of pods
    /// of this kind.
    pub(super) async fn admission(&self, spec: &JobSpec) -> Result<Vec<(Pod, usize)>, Refusal> {
        let kinds = plan::kinds(spec);
        if let Some(refusal) = self.refusal(spec, &kinds) {
            return Err(refusal);
        }
        // The API requires a uid of the owner, but does not check that the owner exists.
        let owner = JobKey { name: spec.name.clone(), uid: "00000000-0000-0000-0000-000000000000".to_owned() };
        let (mut trials, mut gang) = (vec![], vec![]);
        for (replica, pods) in kinds {
            trials.push((self.trial(&PodSpec::new(owner.clone(), spec, replica, String::new()))?, pods));
        }
        for (trial, pods) in trials {
            gang.push((self.tried(trial).await?, pods));
        }
        self.admit_gang(&gang, spec).await?;
        Ok(gang)
    }

    /// The names of the resources that the job's pods request. `pods` is always one of them.
    pub(super) fn asked(&self, spec: &JobSpec) -> Resources {
        let owner = JobKey { name: spec.name.clone(), uid: String::new() };
        let pod = |replica| self.manifest(&PodSpec::new(owner.clone(), spec, replica, String::new())).ok();
        plan::kinds(spec).into_iter().filter_map(|(replica, _)| pod(replica)).flat_map(|pod| requested(&pod)).collect()
    }

    /// Makes the checks that need no call to the cluster. Returns the refusal, if any.
    fn refusal(&self, spec: &JobSpec, kinds: &[(ReplicaId, usize)]) -> Option<Refusal> {
        let refuse = |code, sentence: &str| Some(Refusal { code, sentence: sentence.to_owned() });
        let has_own_image = |group: &Group| group.template.is_some();
        if spec.image.is_none() && !kinds.iter().all(|(id, _)| spec.group_of(*id).is_some_and(has_own_image)) {
            return refuse(ErrorCode::BadImage, NO_IMAGE);
        }
        if spec.work_dir.is_some() {
            return refuse(
                ErrorCode::BadWorkDir,
                "work_dir has no meaning here: the script is in the image's working directory",
            );
        }
        if spec.code.is_some() && self.rules.agent_image.is_none() {
            return refuse(ErrorCode::BadCode, NO_AGENT_IMAGE);
        }
        if spec.groups.iter().any(has_own_image) && self.rules.agent_image.is_none() {
            return refuse(ErrorCode::BadGroups, NO_AGENT_IMAGE);
        }
        let mut names = spec.pod.env_secrets.iter().chain(&spec.pod.service_account);
        if let Some(name) = names.find(|name| is_masters(&name.to_string())) {
            return refuse(
                ErrorCode::BadPod,
                &format!("\"{name}\" belongs to the master: use another Secret or service account"),
            );
        }
        let is_host = |volume: &&Volume| matches!(volume.source, VolumeSource::Host(_));
        let folder =
            spec.pod.volumes.iter().find(is_host).filter(|_| self.rules.host_volumes == HostVolumes::Refused)?;
        let sentence = format!(
            "volume \"{folder}\" is a folder of the node, and this master refuses such volumes: to allow them, start \
             the master with --allow-host-volumes"
        );
        refuse(ErrorCode::BadPod, &sentence)
    }

    /// The pod for the dry run. Refuses a pod that could read the master's state or tokens.
    fn trial(&self, spec: &PodSpec) -> Result<Pod, Refusal> {
        let pod = self.manifest(spec).map_err(|refused| refused_template(spec.replica, &refused))?;
        let refused = used(&pod).find_map(|used| self.why_not_used(&used));
        refused.map_or(Ok(pod), |sentence| Err(Refusal { code: ErrorCode::BadPod, sentence }))
    }

    /// Why a job may not use this claim or Secret; `None` if it may.
    fn why_not_used(&self, used: &Used) -> Option<String> {
        let masters = match used {
            Used::Claim(_) => format!("{used} contains the master's state: use another claim"),
            Used::Secret(_) => format!("{used} belongs to the master: use another Secret"),
        };
        if matches!(used, Used::Claim(name) if is_masters_claim(name)) {
            return Some(masters);
        }
        match &self.rules.own_uses {
            OwnUses::Known(own) => own.contains(used).then_some(masters),
            OwnUses::Unknown => Some(format!(
                "{used} is refused, because it may belong to the master: the master does not know what its own pod \
                 uses. In the master's container, set HOSTNAME from the pod's field metadata.name"
            )),
        }
    }

    /// Asks the API in a dry run whether it would accept this pod. Returns the pod with the fields that the namespace
    /// adds, such as the defaults of a LimitRange.
    async fn tried(&self, trial: Pod) -> Result<Pod, Refusal> {
        let dry_run = PostParams { dry_run: true, field_manager: None };
        match call(self.pods.create(&dry_run, &trial)).await {
            Ok(pod) => Ok(pod),
            // Admit the job: other jobs may release their share of the quota, and the driver retries `create`.
            Err(failure) if failure.says_over_quota() => Ok(trial),
            Err(ApiFailure::Refused { status: 400 | 403 | 404 | 422, message, .. }) => {
                let missing = quota::missing_options(&message);
                let sentence = format!("the cluster refuses a pod of this job: {message}{missing}");
                Err(Refusal { code: ErrorCode::BadPod, sentence })
            }
            // If an earlier job's pod still has this name, `create` waits until the name is free. If the API is
            // unavailable, the submit fails when the master creates the record.
            Err(_) => Ok(trial),
        }
    }

    /// Refuses a gang that exceeds a whole quota. If a gang exceeds only the free part of a quota, the gang must wait.
    async fn admit_gang(&self, gang: &[(Pod, usize)], spec: &JobSpec) -> Result<(), Refusal> {
        let quotas = match call(self.quotas.list(&ListParams::default())).await {
            Ok(quotas) => quotas.items,
            Err(error) => {
                warn!(job = %spec.name, error = error_chain(&error), "could not read the quotas");
                return Ok(());
            }
        };
        match quota::shortage(gang, &quotas) {
            Some(sentence) => Err(Refusal { code: ErrorCode::BadPod, sentence }),
            None => Ok(()),
        }
    }
}

/// The pod as JSON, without the fields that only an existing pod has.
pub(super) fn shown(pod: Pod) -> Value {
    let ObjectMeta { name, namespace, labels, annotations, .. } = pod.metadata;
    let metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
    let pod = Pod { metadata, status: None, ..pod };
    serde_json::to_value(pod).expect("objects with names as keys always serialize")
}

fn refused_template(replica: ReplicaId, refused: &[Note]) -> Refusal {
    let sentence = format!("the template of {replica} is refused: {}", listed(refused));
    Refusal { code: ErrorCode::BadGroups, sentence }
}
