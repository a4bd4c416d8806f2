//! A user's request for a job, and the spec that follows from it. Every [`JobSpec`] is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::about::About;
use crate::batching::Batching;
use crate::code::{CodeId, ScriptPath};
use crate::env::EnvName;
use crate::group::{self, Group};
use crate::ids::{JobName, Role};
use crate::image::ImageRef;
use crate::known_fields::keep_fields_of;
use crate::metric::Pattern;
use crate::origin::Origin;
use crate::pod::PodOptions;
use crate::processes::NprocPerNode;
use crate::run_policy::{OnSameFailure, OnUnreachable, RunPolicy};
pub use crate::spec_error::SpecError;
pub use crate::strategy::Strategy;
use crate::tf_config::TfConfigOptions;

/// Default number of workers.
pub const DEFAULT_WORKER_NUM: u32 = 2;

/// A request for a job. Absent fields get defaults, some of which depend on the strategy.
#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "crate::is_default")])]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The job's name.
    #[serde_with(skip_apply)]
    pub name: JobName,
    /// How the replicas train together.
    #[serde_with(skip_apply)]
    pub strategy: Strategy,
    /// Number of workers; default 2. With `worker_min`, the maximum. 0 is allowed only with AllReduce and a chief.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 5457))]
    pub worker_num: Option<u32>,
    /// Minimum number of workers, which makes the job elastic. Absent: the job always runs with `worker_num` workers.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_min: Option<u32>,
    /// Number of parameter servers; default 1 with ParameterServer, else 0.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 5457))]
    pub ps_num: Option<u32>,
    /// Number of chiefs, 0 or 1; default 1 with ParameterServer, else 0.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub chief_num: Option<u32>,
    /// Number of evaluators, 0 or 1; default 0.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub evaluator_num: Option<u32>,
    /// The image. Its working directory contains the script. With `code`, the image only needs Python. Only with
    /// Kubernetes.
    pub image: Option<ImageRef>,
    /// Number of processes of the script in each replica that trains, 1 to 64, or `gpu` for one process on each GPU;
    /// default 1. More than one only with AllReduce.
    pub nproc_per_node: Option<NprocPerNode>,
    /// Absolute path of the folder that contains the script. Only if pods are processes of the master's host.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^/"))]
    pub work_dir: Option<PathBuf>,
    /// The code that the job brings. The master must already have this code. Not with `work_dir`.
    pub code: Option<CodeId>,
    /// Path of the script in the job's folder; default exec.py.
    pub script: Option<ScriptPath>,
    /// Arguments for the script.
    pub args: Vec<String>,
    /// Environment variables for every replica.
    pub env: BTreeMap<EnvName, String>,
    /// Names of variables in `env` that are allowed although they make a program load or run other code, such as
    /// `LD_PRELOAD`.
    pub allow_env: BTreeSet<EnvName>,
    /// Options for the job's pods. Only with Kubernetes.
    pub pod: PodOptions,
    /// Groups of replicas with their own pod options. If a role has groups, they must contain all replicas of the role.
    /// Replicas without a group have the options in `pod`.
    pub groups: Vec<Group>,
    /// How the samples of each step are divided among the workers.
    pub batching: Batching,
    /// How TF_CONFIG differs from the usual form.
    pub tf_config: TfConfigOptions,
    /// Numbers to read from the output of the first replica that trains, by name. At most 8, with names of at most 64
    /// bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub metrics: BTreeMap<String, Pattern>,
    /// The launcher whose file or command described the job. Absent: Muster.
    pub origin: Option<Origin>,
    /// Restarts, time limits and other rules for the run.
    pub run_policy: RunPolicy,
    /// Where the job came from.
    pub about: About,
}

impl JobRequest {
    /// A request with defaults for all other fields.
    pub fn new(name: JobName, strategy: Strategy) -> Self {
        let named = serde_json::json!({ "name": String::from(name), "strategy": strategy });
        serde_json::from_value(named).expect("all other fields have defaults")
    }
}

/// A valid job: the request with every default filled in. It does not change after the job is accepted.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// The job's name.
    pub name: JobName,
    /// How the replicas train together.
    pub strategy: Strategy,
    /// Number of workers. 0 if a chief trains alone, else at least 1. For an elastic job, the maximum in the request.
    pub worker_num: u32,
    /// Minimum number of workers of an elastic job. Absent: the job is not elastic. The minimum is below `worker_num`,
    /// or may be equal if `on_unreachable` is `replace` or a TFJob has `enableDynamicWorker`.
    pub worker_min: Option<u32>,
    /// Number of parameter servers: 0 with AllReduce, at least 1 with ParameterServer.
    pub ps_num: u32,
    /// Number of chiefs, 0 or 1.
    pub chief_num: u32,
    /// Number of evaluators, 0 or 1.
    pub evaluator_num: u32,
    /// Number of processes of the script in each replica that trains. Absent: 1.
    #[serde(skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
    pub nproc_per_node: u32,
    /// The image, with Kubernetes.
    pub image: Option<ImageRef>,
    /// The folder of the script, if pods are processes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub work_dir: Option<PathBuf>,
    /// The code that the job brings. Absent: the script is in the image, or in `work_dir`.
    pub code: Option<CodeId>,
    /// Path of the script in the job's folder. Absent: exec.py.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub script: ScriptPath,
    /// Arguments for the script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables for every replica.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<EnvName, String>,
    /// Names of variables in `env` that are allowed although they make a program load or run other code.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_env: BTreeSet<EnvName>,
    /// Options for the job's pods.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub pod: PodOptions,
    /// Groups of replicas with their own pod options. Replicas without a group have the options in `pod`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// How the samples of each step are divided among the workers.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub batching: Batching,
    /// How TF_CONFIG differs from the usual form.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub tf_config: TfConfigOptions,
    /// Numbers to read from the output of the first replica that trains, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub metrics: BTreeMap<String, Pattern>,
    /// The launcher whose file or command described the job. Absent: Muster.
    pub origin: Option<Origin>,
    /// Restarts, time limits and other rules for the run.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub run_policy: RunPolicy,
    /// Where the job came from.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub about: About,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

impl From<&JobSpec> for JobRequest {
    /// The request in which every default is filled in.
    fn from(spec: &JobSpec) -> Self {
        // A spec is read from the JSON of a request, so the JSON of a spec is also a request.
        let json = serde_json::to_value(spec).expect("specs always serialize");
        serde_json::from_value(json).expect("the JSON of a spec is a request")
    }
}

impl<'de> Deserialize<'de> for JobSpec {
    /// Reads the spec in a record or an answer.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut spec = Value::deserialize(from)?;
        keep_fields_of::<JobRequest>(&mut spec);
        spec.get_mut("pod").map(keep_fields_of::<PodOptions>);
        spec.get_mut("run_policy").map(keep_fields_of::<RunPolicy>);
        spec.get_mut("about").map(keep_fields_of::<About>);
        let request = JobRequest::deserialize(spec).map_err(serde::de::Error::custom)?;
        Self::filled(request).map_err(serde::de::Error::custom)
    }
}

impl TryFrom<JobRequest> for JobSpec {
    type Error = SpecError;

    /// Checks a new request. Variables that need `allow_env` and wrong variables of templates are refused only here, and
    /// not in a record that is read back: an earlier version may have accepted them.
    fn try_from(request: JobRequest) -> Result<Self, Self::Error> {
        let is_refused = |name: &&EnvName| name.runs_other_code() && !request.allow_env.contains(*name);
        match request.env.keys().find(is_refused) {
            Some(name) => Err(SpecError::RefusedEnv(name.clone())),
            None => {
                let spec = Self::filled(request)?;
                spec.check_variables()?;
                Ok(spec)
            }
        }
    }
}

/// The minimum of an elastic job; `None` for other jobs. If minimum and maximum are equal, a job is elastic only in two
/// cases: `on_unreachable` is `replace`, or the job comes from a TFJob with `enableDynamicWorker`.
fn elastic_min(min: Option<u32>, max: u32, rules: &RunPolicy, origin: Option<&Origin>) -> Option<u32> {
    let is_elastic_anyway = rules.on_unreachable == OnUnreachable::Replace || origin.is_some_and(Origin::may_grow);
    min.filter(|min| *min != max || is_elastic_anyway)
}

impl JobSpec {
    /// Whether the job's scripts run on machines without images, such as a laptop.
    pub fn is_on_machines(&self) -> bool {
        let has_template = self.groups.iter().any(|group| group.template.is_some());
        self.image.is_none() && (self.work_dir.is_some() || !has_template)
    }

    /// Whether the spec says what runs. Machines that join a job by its name have their own scripts.
    pub fn has_code(&self) -> bool {
        self.image.is_some() || self.work_dir.is_some() || self.code.is_some()
    }

    /// Fills in every default and checks the result. Does not check `allow_env`.
    fn filled(request: JobRequest) -> Result<Self, SpecError> {
        let JobRequest {
            name,
            strategy,
            worker_num,
            worker_min,
            ps_num,
            chief_num,
            evaluator_num,
            nproc_per_node,
            image,
            work_dir,
            code,
            script,
            args,
            env,
            allow_env,
            pod,
            groups,
            batching,
            tf_config,
            metrics,
            origin,
            run_policy,
            about,
        } = request;
        let counted = |role: Role, given: Option<u32>| given.or_else(|| group::count(&groups, role));
        let worker_num = counted(Role::Worker, worker_num).unwrap_or(DEFAULT_WORKER_NUM);
        let servers_by_default = match strategy {
            Strategy::AllReduce => 0,
            Strategy::ParameterServer => 1,
        };
        let spec = Self {
            name,
            strategy,
            worker_num,
            worker_min: elastic_min(worker_min, worker_num, &run_policy, origin.as_ref()),
            ps_num: counted(Role::Ps, ps_num).unwrap_or(servers_by_default),
            chief_num: counted(Role::Chief, chief_num).unwrap_or(servers_by_default),
            evaluator_num: counted(Role::Evaluator, evaluator_num).unwrap_or(0),
            nproc_per_node: 1,
            image,
            work_dir,
            code,
            script: script.unwrap_or_default(),
            args,
            env,
            allow_env,
            pod,
            groups,
            batching,
            tf_config,
            metrics,
            origin,
            run_policy,
            about,
        };
        spec.with_processes(nproc_per_node)?.checked()
    }

    fn checked(self) -> Result<Self, SpecError> {
        self.check_counts()?;
        self.check_processes()?;
        self.check_groups()?;
        self.check_batching()?;
        self.check_run_policy()?;
        self.check_inputs()?;
        self.check_metrics()?;
        Ok(self)
    }

    /// Whether both ask for the same job.
    pub fn asks_for_the_same(&self, other: &Self) -> bool {
        *self == Self { about: self.about.clone(), ..other.clone() }
    }

    /// Number of replicas of this role.
    pub fn count(&self, role: Role) -> u32 {
        match role {
            Role::Chief => self.chief_num,
            Role::Worker => self.worker_num,
            Role::Ps => self.ps_num,
            Role::Evaluator => self.evaluator_num,
        }
    }

    /// Number of replicas. An elastic job has at most this many.
    pub fn replica_num(&self) -> u32 {
        Role::ALL.into_iter().map(|role| self.count(role)).sum()
    }

    /// The uid of the job's TFJob object in the cluster. `None` if there is no such object.
    pub fn object_uid(&self) -> Option<&str> {
        let Some(Origin::TfJob(tfjob)) = &self.origin else { return None };
        tfjob.object_uid.as_deref()
    }

    /// What to do about a script that has failed twice in the same way. TFJobs always restart.
    pub fn on_same_failure(&self) -> OnSameFailure {
        match self.origin {
            Some(Origin::TfJob(_)) => OnSameFailure::Restart,
            Some(Origin::Spawner { .. }) | None => self.run_policy.on_same_failure,
        }
    }

    /// A second path at which pods mount the folder with the code. Scripts of the job's launcher expect the code there.
    pub fn second_code_folder(&self) -> Option<&'static str> {
        matches!(self.origin, Some(Origin::Spawner { .. })).then_some("/script")
    }
}
