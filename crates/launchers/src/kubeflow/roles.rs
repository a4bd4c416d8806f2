//! Reads the replicas of each type as a group of one role.

use std::num::NonZeroU32;

use protocol::group::{Group, Template};
use protocol::ids::Role;
use protocol::origin::role_of_type;
use protocol::run_policy::RestartRule;
use protocol::tfjob::TFJOB_CONTAINER;
use serde_json::Value;

use super::container::{self, User};
use super::fields::Fields;
use super::{ReplicaHost, Surroundings, local};
use crate::template::{Allowed, Findings, Note, checked, misread};

/// The replicas of one type.
pub(super) struct ReplicasOfType {
    /// The type, as the TFJob writes it.
    pub(super) name: String,
    pub(super) role: Role,
    /// Whether the TFJob calls its chief Master.
    pub(super) is_master: bool,
    pub(super) count: u32,
    pub(super) restart: RestartRule,
    /// The user of the replicas' processes.
    pub(super) user: User,
    /// Absent if the type has no replicas, or if the program or the template is refused.
    pub(super) group: Option<Group>,
}

impl ReplicasOfType {
    /// The time from SIGTERM to SIGKILL, if the template sets it.
    pub(super) fn grace_seconds(&self) -> Option<NonZeroU32> {
        let template = self.group.as_ref()?.template.as_ref()?;
        let seconds = template.pod["spec"]["terminationGracePeriodSeconds"].as_u64()?;
        // The agent waits at least 1 s.
        NonZeroU32::new(u32::try_from(seconds).ok()?.max(1))
    }
}

/// Reads all types of replicas.
pub(super) fn read(
    types: Fields,
    given: &Surroundings<'_>,
    priority_class: Option<&str>,
    findings: &mut Findings,
) -> Vec<ReplicasOfType> {
    let mut types = types;
    let mut all: Vec<ReplicasOfType> = vec![];
    for name in types.names() {
        let path = types.path(&name);
        let Some(role) = role_of_type(&name) else {
            drop(types.take(&name));
            findings.refuse(&path, "this replica type is not known: use Chief, Master, Worker, PS or Evaluator");
            continue;
        };
        if all.iter().any(|earlier| earlier.role == role) {
            findings.refuse(&path, format!("another type of replicas also means {role}: remove one of the two"));
        }
        let fields = types.object(&name, findings);
        all.push(of_type(fields, (&name, role), given, priority_class, findings));
    }
    all.sort_by_key(|of_role| of_role.role);
    all
}

fn of_type(
    fields: Fields,
    (name, role): (&str, Role),
    given: &Surroundings<'_>,
    priority_class: Option<&str>,
    findings: &mut Findings,
) -> ReplicasOfType {
    let mut fields = fields;
    let path = fields.own_path().to_owned();
    let count = fields.number("replicas", findings).unwrap_or(1);
    if count > 1 && matches!(role, Role::Chief | Role::Evaluator) {
        findings.refuse(&fields.path("replicas"), format!("a job has at most one {role}"));
    }
    let restart = restart(&mut fields, findings);
    let template = fields.take("template").unwrap_or_default();
    let is_master = name.eq_ignore_ascii_case("master") && count > 0;
    if is_master {
        findings.warn(
            &path,
            "in TF_CONFIG, the chief would be called master, which TensorFlow 2 does not accept: use the type Chief",
        );
    }
    if role == Role::Evaluator && count > 0 {
        findings.warn(&path, "TF_CONFIG does not list the evaluator, because TensorFlow would wait for it");
    }
    fields.end(findings);
    let template = with_priority(template, priority_class);
    let (user, group) = match count {
        0 => (User::Named, None),
        _ => of_template(template, (&path, name), given, findings),
    };
    let group = group.map(|(command, template)| Group { command, template: Some(template), ..Group::new(role, count) });
    ReplicasOfType { name: name.to_owned(), role, is_master, count, restart, user, group }
}

type Runnable = (Vec<String>, Template);

/// The user of the replicas' processes, their command and their template.
fn of_template(
    template: Value,
    (path, name): (&str, &str),
    given: &Surroundings<'_>,
    findings: &mut Findings,
) -> (User, Option<Runnable>) {
    let Surroundings { request, place, allow_root } = given;
    let mut template = template;
    let path = format!("{path}.template");
    let Some(position) = container::position(&template) else {
        let why = format!("no container is named \"{TFJOB_CONTAINER}\": give this name to the container that trains");
        findings.refuse(&format!("{path}.spec.containers"), why);
        return (User::Named, None);
    };
    let at = format!("{path}.spec.containers[{position}]");
    let container = &template["spec"]["containers"][position];
    let user = container::user(&template["spec"], container, &request.entrypoints);
    let command = container::command(container, (&at, name), request, findings);
    let tf_port = container::port(container, &at, findings);
    let mut given = template.clone();
    let mut of_variables = Findings::default();
    container::variables(container, &at, &mut of_variables);
    if !of_variables.refused.is_empty() {
        // The reader of the variables names them with their places.
        given["spec"]["containers"][position]["env"] = Value::Null;
    }
    let named = |pod: Value| Template { container: TFJOB_CONTAINER.to_owned(), tf_port, pod };
    match place {
        ReplicaHost::Processes => {
            local::simplify(&mut template, (&path, position), &request.options, findings);
            let command = command.and_then(|command| local::command(command, &at, findings));
            findings.refuse_others(misread(&given).into_iter().map(|note| within(note, &path)));
            (user, command.map(|command| (command, named(template))))
        }
        ReplicaHost::Pods { .. } => {
            container::check_variables(container, &at, findings);
            let template = named(given);
            check(&template, &path, *allow_root, findings);
            (user, command.map(|command| (command, template)))
        }
    }
}

/// Checks the fields of the pod, except for folders of the node: the back end checks these.
fn check(template: &Template, path: &str, root: bool, findings: &mut Findings) {
    match checked(template, Allowed { host_volumes: true, root }) {
        Ok(checked) => findings.warnings.extend(checked.warnings.into_iter().map(|note| within(note, path))),
        Err(refused) => findings.refuse_others(refused.into_iter().map(|note| within(note, path))),
    }
}

/// A note about a field of the template at this path.
fn within(note: Note, path: &str) -> Note {
    match note.path.as_str() {
        "template" => Note { path: path.to_owned(), ..note },
        field => Note { path: format!("{path}.{field}"), why: note.why },
    }
}

/// Adds the job's priority class to a template that names no priority class.
fn with_priority(template: Value, class: Option<&str>) -> Value {
    let mut template = template;
    let spec = template.get_mut("spec").and_then(Value::as_object_mut);
    if let (Some(spec), Some(class)) = (spec, class) {
        spec.entry("priorityClassName").or_insert_with(|| class.into());
    }
    template
}

fn restart(fields: &mut Fields, findings: &mut Findings) -> RestartRule {
    let path = fields.path("restartPolicy");
    match fields.text("restartPolicy", findings).as_deref() {
        None | Some("" | "Never") => RestartRule::Never,
        Some("OnFailure") => RestartRule::OnFailure,
        Some("Always") => {
            findings.warn(&path, "it means OnFailure: a replica that exits with code 0 has succeeded");
            RestartRule::OnFailure
        }
        Some("ExitCode") => RestartRule::ExitCode,
        Some(other) => {
            findings.refuse(&path, format!("\"{other}\": use Always, OnFailure, Never or ExitCode"));
            RestartRule::Never
        }
    }
}
