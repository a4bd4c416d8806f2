//! What a user asks for: the request as typed, and the spec that follows from it. A [`JobSpec`] that exists is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use crate::env::{ENTRY_LIMIT, EnvName, INPUT_BYTES_MAX};
use crate::ids::{JobName, Role};
use crate::image::ImageRef;
use crate::pod::PodOptions;
use crate::run_policy::{RunPolicy, SuccessPolicy};
pub use crate::spec_error::SpecError;
pub use crate::strategy::Strategy;
use crate::text::json_length;
use crate::tf_config;

/// Workers of a job that does not say how many.
pub const DEFAULT_WORKER_NUM: u32 = 2;

/// A job as asked for. What is absent has a default that may depend on the strategy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The job's name.
    pub name: JobName,
    /// How the replicas train together.
    pub strategy: Strategy,
    /// Workers; 2 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_num: Option<u32>,
    /// Parameter servers; 1 with ParameterServer, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 5457))]
    pub ps_num: Option<u32>,
    /// Chiefs, 0 or 1; 1 with ParameterServer, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub chief_num: Option<u32>,
    /// Evaluators, 0 or 1; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    pub evaluator_num: Option<u32>,
    /// The image whose working directory holds exec.py; only where pods are containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// The folder that holds exec.py, absolute; only where pods are processes of the master's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^/"))]
    pub work_dir: Option<PathBuf>,
    /// Arguments for exec.py.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables for every replica.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<EnvName, String>,
    /// Those of them that may be set although [`EnvName::runs_other_code`] is true of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_env: BTreeSet<EnvName>,
    /// What its pods are given; only where pods are Kubernetes'.
    #[serde(
        default,
        deserialize_with = "PodOptions::deserialize_strictly",
        skip_serializing_if = "PodOptions::is_empty"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::pod::Strict))]
    pub pod: PodOptions,
    /// What it does about failures, and how long it may take.
    #[serde(
        default,
        deserialize_with = "RunPolicy::deserialize_strictly",
        skip_serializing_if = "RunPolicy::is_default"
    )]
    pub run_policy: RunPolicy,
}

impl JobRequest {
    /// A request that leaves everything else to the defaults.
    pub fn new(name: JobName, strategy: Strategy) -> Self {
        Self {
            name,
            strategy,
            worker_num: None,
            ps_num: None,
            chief_num: None,
            evaluator_num: None,
            image: None,
            work_dir: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            allow_env: BTreeSet::new(),
            pod: PodOptions::default(),
            run_policy: RunPolicy::default(),
        }
    }
}

/// A valid job: what was asked for, with every default filled in. It never changes once accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// The job's name.
    pub name: JobName,
    /// How the replicas train together.
    pub strategy: Strategy,
    /// Workers, at least 1.
    pub worker_num: u32,
    /// Parameter servers: 0 with AllReduce, at least 1 with ParameterServer.
    pub ps_num: u32,
    /// Chiefs, 0 or 1.
    pub chief_num: u32,
    /// Evaluators, 0 or 1.
    pub evaluator_num: u32,
    /// As asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// As asked for.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<PathBuf>,
    /// Arguments for exec.py.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables for every replica.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<EnvName, String>,
    /// As asked for.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_env: BTreeSet<EnvName>,
    /// As asked for.
    #[serde(skip_serializing_if = "PodOptions::is_empty")]
    pub pod: PodOptions,
    /// See [`JobRequest::run_policy`].
    #[serde(skip_serializing_if = "RunPolicy::is_default")]
    pub run_policy: RunPolicy,
}

/// The form of a [`JobSpec`] in records and answers: a [`JobRequest`] to which a newer program may have added fields.
#[derive(Deserialize)]
#[serde(remote = "JobRequest")]
struct JobSpecWire {
    name: JobName,
    strategy: Strategy,
    worker_num: Option<u32>,
    ps_num: Option<u32>,
    chief_num: Option<u32>,
    evaluator_num: Option<u32>,
    image: Option<ImageRef>,
    work_dir: Option<PathBuf>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<EnvName, String>,
    #[serde(default)]
    allow_env: BTreeSet<EnvName>,
    #[serde(default)]
    pod: PodOptions,
    #[serde(default)]
    run_policy: RunPolicy,
}

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::filled(JobSpecWire::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

impl TryFrom<JobRequest> for JobSpec {
    type Error = SpecError;

    /// Judges a submit. What is on record already was granted, and stays readable when a rule of this kind is added.
    fn try_from(request: JobRequest) -> Result<Self, Self::Error> {
        let is_refused = |name: &&EnvName| name.runs_other_code() && !request.allow_env.contains(*name);
        match request.env.keys().find(is_refused) {
            Some(name) => Err(SpecError::RefusedEnv(name.clone())),
            None => Self::filled(request),
        }
    }
}

impl JobSpec {
    /// The job with every default filled in. It must make sense, but may hold what no submit would be granted any more.
    fn filled(request: JobRequest) -> Result<Self, SpecError> {
        let JobRequest {
            name,
            strategy,
            worker_num,
            ps_num,
            chief_num,
            evaluator_num,
            image,
            work_dir,
            args,
            env,
            allow_env,
            pod,
            run_policy,
        } = request;
        let servers_by_default = match strategy {
            Strategy::AllReduce => 0,
            Strategy::ParameterServer => 1,
        };
        let spec = Self {
            name,
            strategy,
            worker_num: worker_num.unwrap_or(DEFAULT_WORKER_NUM),
            ps_num: ps_num.unwrap_or(servers_by_default),
            chief_num: chief_num.unwrap_or(servers_by_default),
            evaluator_num: evaluator_num.unwrap_or(0),
            image,
            work_dir,
            args,
            env,
            allow_env,
            pod,
            run_policy,
        };
        spec.check_counts()?;
        spec.check_run_policy()?;
        spec.check_inputs()?;
        Ok(spec)
    }

    /// How many replicas of `role` the job has.
    pub fn count(&self, role: Role) -> u32 {
        match role {
            Role::Chief => self.chief_num,
            Role::Worker => self.worker_num,
            Role::Ps => self.ps_num,
            Role::Evaluator => self.evaluator_num,
        }
    }

    fn check_counts(&self) -> Result<(), SpecError> {
        match (self.strategy, self.ps_num) {
            (Strategy::AllReduce, 1..) => return Err(SpecError::PsWithAllReduce(self.ps_num)),
            (Strategy::ParameterServer, 0) => return Err(SpecError::NoPs),
            (Strategy::AllReduce, 0) | (Strategy::ParameterServer, 1..) => {}
        }
        if self.chief_num > 1 {
            return Err(SpecError::ChiefNum(self.chief_num));
        }
        if self.evaluator_num > 1 {
            return Err(SpecError::EvaluatorNum(self.evaluator_num));
        }
        if self.worker_num == 0 {
            return Err(SpecError::NoWorkers);
        }
        self.check_tf_config_fits()
    }

    /// The cluster is named to every member in one variable, so its length bounds the job's size.
    fn check_tf_config_fits(&self) -> Result<(), SpecError> {
        let room = tf_config::MEMBERS_MAX - self.chief_num;
        let most_workers = room - self.ps_num.min(1);
        if self.worker_num > most_workers {
            // Servers that alone leave no room are the next thing to correct, so they do not count here.
            let beside_servers = room.saturating_sub(self.ps_num);
            let fits = if beside_servers == 0 { most_workers } else { beside_servers };
            return Err(SpecError::TooManyWorkers { asked: self.worker_num, fits });
        }
        let fits = room - self.worker_num;
        if self.ps_num > fits {
            return Err(SpecError::TooManyPs { asked: self.ps_num, fits });
        }
        Ok(())
    }

    fn check_run_policy(&self) -> Result<(), SpecError> {
        let RunPolicy { start_timeout_seconds, deadline_seconds, success_policy, .. } = &self.run_policy;
        if *start_timeout_seconds == 0 {
            return Err(SpecError::NoTime("start-timeout"));
        }
        if *deadline_seconds == Some(0) {
            return Err(SpecError::NoTime("deadline"));
        }
        match success_policy {
            Some(SuccessPolicy::Chief) if self.chief_num == 0 => Err(SpecError::NoChiefToDecide),
            // Beside a chief the workers of a ParameterServer job are servers, which never end by themselves.
            Some(policy @ (SuccessPolicy::All | SuccessPolicy::Worker0)) if self.ps_num > 0 && self.chief_num > 0 => {
                Err(SpecError::ServersNeverEnd(*policy))
            }
            Some(SuccessPolicy::All | SuccessPolicy::Chief | SuccessPolicy::Worker0) | None => Ok(()),
        }
    }

    fn check_inputs(&self) -> Result<(), SpecError> {
        for (name, value) in &self.env {
            if name.is_reserved() {
                return Err(SpecError::ReservedEnv(name.clone()));
            }
            name.check_value(value)?;
        }
        if let Some(place) = self.args.iter().position(|arg| arg.contains('\0')) {
            return Err(SpecError::NulInArgument(place + 1));
        }
        // Each has two quotes and a comma, and each variable a colon.
        let of_variables = self.env.iter().map(|(name, value)| json_length(name.as_str()) + json_length(value) + 6);
        let of_arguments = self.args.iter().map(|arg| json_length(arg) + 3);
        let bytes: usize = of_variables.chain(of_arguments).sum();
        // A single argument is bounded as a variable is.
        if bytes > INPUT_BYTES_MAX || self.args.iter().any(|arg| arg.len() >= ENTRY_LIMIT) {
            return Err(SpecError::TooMuchInput { bytes });
        }
        match &self.work_dir {
            Some(dir) if !dir.is_absolute() => Err(SpecError::RelativeWorkDir(dir.clone())),
            Some(_) | None => Ok(()),
        }
    }
}
