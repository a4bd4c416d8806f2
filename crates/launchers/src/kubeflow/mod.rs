//! TFJobs, the files of Kubeflow's training operator. Reads a TFJob as a job of Muster, and shows a job as a TFJob.

mod container;
mod document;
mod fields;
mod local;
mod object;
mod policy;
mod programs;
mod roles;
mod same;
mod status;
mod watched;

use std::collections::BTreeMap;

use protocol::error::ErrorCode;
use protocol::ids::Role;
use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use protocol::origin::{Origin, TfJobOrigin, Warning};
use protocol::pod::{PodOptions, RunAs};
use protocol::run_policy::SuccessPolicy;
use protocol::tf_config::TfConfigOptions;
use protocol::tfjob::TfJobRequest;
use serde_json::{Map, Value, json};

use self::container::User;
use self::document::Document;
use self::policy::TfJobPolicy;
use self::roles::ReplicasOfType;
use crate::template::{Findings, Note, listed};

pub use self::object::object;
pub use self::programs::{Programs, Unknown};
pub use self::same::{difference, what_differs};
pub use self::watched::{NextStep, ObjectMemory, Watched};

/// The annotation that lets the containers of a TFJob run as root, if the master honours it.
const ALLOW_ROOT: &str = "muster/allow-root";

/// Maximum refused fields that a sentence names.
const NAMED_MAX: usize = 20;

/// Where a master runs replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaHost {
    /// As processes of the master's machine.
    Processes,
    /// As pods of this namespace.
    Pods {
        /// The namespace.
        namespace: String,
        /// Whether the annotation `muster/allow-root` lets containers run as root.
        honours_root: bool,
    },
}

impl ReplicaHost {
    /// The namespace of the pods, if there are pods.
    pub fn namespace(&self) -> Option<&str> {
        if let Self::Pods { namespace, .. } = self { Some(namespace) } else { None }
    }
}

/// What is known besides the fields of the document: the request's options, the place of the job, and the rights of its
/// containers.
struct Surroundings<'a> {
    request: &'a TfJobRequest,
    place: &'a ReplicaHost,
    /// Whether containers may run as root.
    allow_root: bool,
}

impl<'a> Surroundings<'a> {
    fn new(
        request: &'a TfJobRequest,
        place: &'a ReplicaHost,
        annotations: &BTreeMap<String, String>,
        findings: &mut Findings,
    ) -> Self {
        let is_annotated = annotations.get(ALLOW_ROOT).is_some_and(|value| value == "true");
        let by_annotation = match place {
            ReplicaHost::Processes => false,
            ReplicaHost::Pods { honours_root, .. } => {
                if is_annotated && !honours_root {
                    let why = "it has no effect: the master runs without --watch-tfjobs=allow-root";
                    findings.warn(&format!("metadata.annotations.{ALLOW_ROOT}"), why);
                }
                is_annotated && *honours_root
            }
        };
        Self { request, place, allow_root: request.options.allow_root || by_annotation }
    }
}

/// A TFJob as a job of Muster.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// The job. Its origin contains the warnings.
    pub spec: JobSpec,
    /// Whether the job is suspended.
    pub is_suspended: bool,
}

impl Read {
    /// The fields that have another meaning in Muster, or no effect.
    pub fn warnings(&self) -> &[Warning] {
        if let Some(Origin::TfJob(origin)) = &self.spec.origin { &origin.warnings } else { &[] }
    }
}

/// Reads a TFJob for a master whose replicas run in `place`.
///
/// # Errors
/// Returns the refused fields, each with its path.
pub fn read(request: &TfJobRequest, place: &ReplicaHost) -> Result<Read, Vec<Note>> {
    let mut findings = Findings::default();
    let Some(document) = Document::parse(&request.document, &mut findings) else { return Err(findings.refused) };
    let Document { api_version, name, namespace, labels, annotations, mut spec } = document;
    check_namespace(request.options.namespace.as_ref().or(namespace.as_ref()), place, &mut findings);
    let kept_spec = without_templates(spec.to_map());
    let given = Surroundings::new(request, place, &annotations, &mut findings);
    let policy = policy::read(&mut spec, &mut findings);
    let types = spec.object("tfReplicaSpecs", &mut findings);
    let replicas = roles::read(types, &given, policy.priority_class.as_deref(), &mut findings);
    let plan = Plan::read(&mut spec, replicas, policy, &mut findings);
    spec.end(&mut findings);
    let Some(name) = name.filter(|_| findings.refused.is_empty()) else { return Err(findings.refused) };
    let is_suspended = plan.policy.is_suspended;
    let origin = TfJobOrigin {
        api_version,
        labels,
        annotations,
        spec: kept_spec,
        warnings: vec![],
        programs: BTreeMap::new(),
        object_uid: None,
    };
    let mut job = plan.job(JobRequest::new(name, Strategy::AllReduce), &given, &mut findings);
    let warnings = findings.warnings.into_iter().map(|Note { path, why }| Warning { path, sentence: why }).collect();
    job.origin = Some(Origin::TfJob(TfJobOrigin { warnings, ..origin }));
    let spec = JobSpec::try_from(job).map_err(|error| vec![of_field(&error)])?;
    Ok(Read { spec, is_suspended })
}

/// The sentence about a TFJob that is refused because of these fields.
pub fn refusal(notes: &[Note]) -> String {
    let more = match notes.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("the TFJob is refused: {}{more}", listed(&notes[..notes.len().min(NAMED_MAX)]))
}

/// Refuses a namespace that is not the master's: a master runs jobs only in its own namespace.
fn check_namespace(asked: Option<&String>, place: &ReplicaHost, findings: &mut Findings) {
    let ReplicaHost::Pods { namespace, .. } = place else { return };
    if let Some(asked) = asked.filter(|asked| *asked != namespace) {
        let why = format!(
            "\"{asked}\" is not the namespace of this master, \"{namespace}\": add -n {namespace}, or ask the master of \
             namespace {asked} with --master kube:{asked}"
        );
        findings.refuse("metadata.namespace", why);
    }
}

/// The `spec` without the templates and without `suspend`. The templates are in the job's groups, and `suspend` is in
/// the job's record.
fn without_templates(spec: Map<String, Value>) -> Map<String, Value> {
    let mut spec = spec;
    let specs = spec.get_mut("tfReplicaSpecs").and_then(Value::as_object_mut);
    for of_role in specs.into_iter().flatten().filter_map(|(_, value)| value.as_object_mut()) {
        of_role.remove("template");
    }
    if let Some(policy) = spec.get_mut("runPolicy").and_then(Value::as_object_mut) {
        policy.remove("suspend");
        if policy.is_empty() {
            spec.remove("runPolicy");
        }
    }
    spec
}

/// The contents of `spec`.
struct Plan {
    policy: TfJobPolicy,
    replicas: Vec<ReplicasOfType>,
    wants_all: bool,
    is_dynamic: bool,
}

impl Plan {
    fn read(
        spec: &mut fields::Fields,
        replicas: Vec<ReplicasOfType>,
        policy: TfJobPolicy,
        findings: &mut Findings,
    ) -> Self {
        let success_path = spec.path("successPolicy");
        let wants_all = match spec.text("successPolicy", findings).as_deref() {
            None | Some("" | "Default") => false,
            Some("AllWorkers") => true,
            Some(_) => {
                findings.refuse(
                    &success_path,
                    "use AllWorkers, or remove the field: then the chief decides, or worker 0 of a job without a chief",
                );
                false
            }
        };
        let is_dynamic = spec.flag("enableDynamicWorker", findings);
        let plan = Self { policy, replicas, wants_all, is_dynamic };
        if wants_all && plan.count(Role::Chief) > 0 {
            findings.warn(&success_path, "it has no effect: the success of the chief decides");
        }
        if plan.count(Role::Chief) + plan.count(Role::Worker) == 0 {
            findings.refuse("spec.tfReplicaSpecs", "no replica trains: a job needs a Chief or a Worker");
        }
        plan.policy.check_available(plan.replicas.iter().map(|of_role| of_role.count).sum(), findings);
        plan
    }

    fn count(&self, role: Role) -> u32 {
        self.replicas.iter().find(|of_role| of_role.role == role).map_or(0, |of_role| of_role.count)
    }

    /// The job's request. `empty` is a request with the job's name and no other option.
    fn job(self, empty: JobRequest, given: &Surroundings<'_>, findings: &mut Findings) -> JobRequest {
        let Surroundings { request, place, allow_root } = given;
        let options = &request.options;
        let [chiefs, workers, servers, evaluators] = Role::ALL.map(|role| self.count(role));
        let strategy = if servers > 0 { Strategy::ParameterServer } else { Strategy::AllReduce };
        let success = match (chiefs, self.wants_all) {
            (1.., _) => SuccessPolicy::Chief,
            (0, true) => SuccessPolicy::All,
            (0, false) => SuccessPolicy::Worker0,
        };
        let in_pods = **place != ReplicaHost::Processes;
        let pod = match place {
            ReplicaHost::Processes => PodOptions::default(),
            ReplicaHost::Pods { .. } => self.pod(*allow_root, findings),
        };
        let chief_is_master = self.replicas.iter().any(|of_role| of_role.is_master);
        let extra = json!({ "environment": "cloud" }).as_object().cloned().unwrap_or_default();
        let max_restarts = self.policy.max_restarts(&self.replicas, given, findings);
        let mut run_policy = self.policy.run_policy(&self.replicas, max_restarts, success);
        run_policy.evaluator_grace_seconds = options.evaluator_grace_seconds;
        JobRequest {
            strategy,
            worker_num: Some(workers),
            worker_min: (self.is_dynamic && workers > 0).then_some(1),
            ps_num: Some(servers),
            chief_num: Some(chiefs),
            evaluator_num: Some(evaluators),
            work_dir: if in_pods { None } else { options.work_dir.clone() },
            code: if in_pods { options.code } else { None },
            script: if in_pods { options.script.clone() } else { None },
            env: options.env.clone(),
            allow_env: options.allow_env.clone(),
            pod,
            groups: self.replicas.into_iter().filter_map(|of_role| of_role.group).collect(),
            tf_config: TfConfigOptions { omit_single: true, chief_is_master, extra },
            run_policy,
            ..empty
        }
    }

    /// The options of the pods: the user of the processes, and the grace period.
    fn pod(&self, allow_root: bool, findings: &mut Findings) -> PodOptions {
        let users = |wanted: User| self.replicas.iter().any(|one| one.user == wanted);
        // All pods of a job have the same `run_as`. With `RunAs::Image`, a pod whose image has the user root never
        // starts, and an unknown user may be root.
        let of_image = users(User::OfImage) && !users(User::Unknown);
        let graces = self.replicas.iter().filter_map(ReplicasOfType::grace_seconds);
        let options = PodOptions { termination_grace_seconds: graces.max(), allow_root, ..PodOptions::default() };
        if allow_root {
            return options;
        }
        if users(User::Unknown) {
            let without_name = self.replicas.iter().filter(|one| one.user != User::Named);
            let without_name: Vec<&str> = without_name.map(|one| one.name.as_str()).collect();
            let why = format!(
                "the processes of {} run as user 65532, not as the image's user: name another user in \
                 template.spec.securityContext.runAsUser, or allow root with --allow-root",
                without_name.join(", ")
            );
            findings.warn("spec.tfReplicaSpecs", why);
        }
        PodOptions { run_as: of_image.then_some(RunAs::Image), ..options }
    }
}

/// Converts an error of the job to a refusal of a field.
fn of_field(error: &SpecError) -> Note {
    let fields = [
        (ErrorCode::BadTask, "metadata.name"),
        (ErrorCode::BadWorkerNum, "spec.tfReplicaSpecs.Worker.replicas"),
        (ErrorCode::BadPsNum, "spec.tfReplicaSpecs.PS.replicas"),
        (ErrorCode::BadRunPolicy, "spec.runPolicy"),
    ];
    let path = fields.into_iter().find(|(code, _)| *code == error.code()).map_or("spec", |(_, path)| path);
    Note { path: path.to_owned(), why: error.to_string() }
}
