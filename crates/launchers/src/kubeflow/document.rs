//! The document of a TFJob: its format, its version and its metadata.

use std::collections::BTreeMap;

use protocol::ids::JobName;
use protocol::tfjob::{FIRST_TFJOB_GROUP, FIRST_TFJOB_KIND, TFJOB_GROUP, TFJOB_KIND};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::template::Findings;

/// Fields that the API server sets. Files that were read from a cluster contain these fields.
const SET_BY_SERVER: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];

/// A TFJob whose metadata was read.
pub(super) struct Document {
    pub(super) api_version: String,
    /// Absent if the name is missing or refused.
    pub(super) name: Option<JobName>,
    pub(super) namespace: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// In the form of kubeflow.org/v1.
    pub(super) spec: Fields,
}

impl Document {
    /// Reads YAML or JSON. `None` if the text is no TFJob at all.
    pub(super) fn parse(text: &str, findings: &mut Findings) -> Option<Self> {
        let mut fields = match parsed(text) {
            Ok(value @ Value::Object(_)) => Fields::of(Some(value), "", findings),
            Ok(_) => {
                findings.refuse("document", "it must be an object with apiVersion, kind, metadata and spec");
                return None;
            }
            Err(why) => {
                findings.refuse("document", why);
                return None;
            }
        };
        let kind = fields.required_text("kind", &format!("use {TFJOB_KIND}"), findings)?;
        if ![TFJOB_KIND, FIRST_TFJOB_KIND].contains(&kind.as_str()) {
            findings.refuse("kind", format!("\"{kind}\" is not supported: use {TFJOB_KIND}"));
            return None;
        }
        let known = format!("use {TFJOB_GROUP}/v1, or the older v1beta2, v1beta1, v1alpha2 or v1alpha1");
        let api_version = fields.required_text("apiVersion", &known, findings)?;
        let is_oldest = match (kind.as_str(), api_version.split_once('/')) {
            (TFJOB_KIND, Some((TFJOB_GROUP, "v1" | "v1beta2" | "v1beta1" | "v1alpha2"))) => false,
            (TFJOB_KIND, Some((TFJOB_GROUP, "v1alpha1")))
            | (FIRST_TFJOB_KIND, Some((FIRST_TFJOB_GROUP, "v1alpha1"))) => true,
            (FIRST_TFJOB_KIND, Some((TFJOB_GROUP, _))) => {
                findings.refuse("kind", format!("\"{kind}\" is not a kind of {api_version}: use {TFJOB_KIND}"));
                return None;
            }
            _ => {
                findings.refuse("apiVersion", format!("\"{api_version}\" is not supported: {known}"));
                return None;
            }
        };
        // The status is ignored, because a controller writes it.
        drop(fields.take("status"));
        let metadata = fields.object("metadata", findings);
        let spec = fields.object("spec", findings);
        fields.end(findings);
        let version = if is_oldest { format!("{TFJOB_GROUP}/v1") } else { api_version };
        let spec = if is_oldest { modern(spec, findings) } else { spec };
        Some(Self::with_metadata(metadata, version, spec, findings))
    }

    fn with_metadata(metadata: Fields, api_version: String, spec: Fields, findings: &mut Findings) -> Self {
        let mut metadata = metadata;
        let hint = "give the job a name; `client apply` also accepts generateName";
        let name = metadata.required_text("name", hint, findings);
        let name = name.and_then(|name| name.parse().map_err(|error| refuse_name(&error, findings)).ok());
        drop(metadata.take("generateName"));
        let namespace = metadata.text("namespace", findings);
        let (labels, annotations) = (metadata.texts("labels", findings), metadata.texts("annotations", findings));
        for name in ["finalizers", "ownerReferences"] {
            metadata.without_effect(name, "it has no effect: the job is not an object of the cluster", findings);
        }
        SET_BY_SERVER.into_iter().for_each(|name| drop(metadata.take(name)));
        metadata.end(findings);
        Self { api_version, name, namespace, labels, annotations, spec }
    }
}

fn refuse_name(error: &protocol::ids::BadJobName, findings: &mut Findings) {
    findings.refuse("metadata.name", error.to_string());
}

/// Parses a text with one document. The library refuses duplicate keys, and limits the expansion of anchors and
/// aliases.
fn parsed(text: &str) -> Result<Value, String> {
    // Kubernetes reads YAML 1.1, in which 0440 is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        // Remove the library's advice, which is for programmers.
        let reason = error.to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "");
        format!("it is not valid YAML or JSON: {reason}")
    })
}

/// The `spec` of kubeflow.org/v1alpha1 in the form of v1.
fn modern(old: Fields, findings: &mut Findings) -> Fields {
    let mut old = old;
    findings
        .warn("apiVersion", format!("it is read as {TFJOB_GROUP}/v1, where replicaSpecs are called tfReplicaSpecs"));
    let mut specs = Map::new();
    let list = match old.take("replicaSpecs") {
        Some(Value::Array(list)) => list,
        Some(_) | None => {
            findings.refuse("spec.replicaSpecs", "it must be a list");
            vec![]
        }
    };
    for (place, item) in list.into_iter().enumerate() {
        let path = format!("spec.replicaSpecs[{place}]");
        let mut item = Fields::of(Some(item), &path, findings);
        let kind = item.text("tfReplicaType", findings).unwrap_or_else(|| "MASTER".to_owned());
        let mut template = item.take("template").unwrap_or_default();
        let pod = template.get_mut("spec").and_then(Value::as_object_mut);
        let restart = pod.and_then(|pod| pod.remove("restartPolicy"));
        let mut spec = json!({ "template": template });
        let replicas = item.take("replicas").map(|replicas| ("replicas", replicas));
        for (name, value) in replicas.into_iter().chain(restart.map(|restart| ("restartPolicy", restart))) {
            spec[name] = value;
        }
        item.without_effect("tfPort", "it has no effect: give a port of the container the name tfjob-port", findings);
        item.end(findings);
        if specs.insert(type_of(&kind).to_owned(), spec).is_some() {
            findings.refuse(&path, format!("an earlier entry also has the type {kind}: remove one"));
        }
    }
    for (name, why) in [
        ("tfImage", "it has no effect: set the image of the container"),
        ("runtimeId", "it has no effect"),
        ("terminationPolicy", "it has no effect: the chief or worker 0 decides whether the job succeeds"),
    ] {
        old.without_effect(name, why, findings);
    }
    old.put("tfReplicaSpecs", Value::Object(specs));
    old
}

/// The name in v1 of a replica type of v1alpha1.
fn type_of(old: &str) -> &str {
    match old {
        "MASTER" => "Master",
        "WORKER" => "Worker",
        other => other,
    }
}
