//! The objects of an installation, from the files in `manifests/`. `kubectl apply -k manifests/` applies the same
//! files, except those for TFJobs and for pull secrets.

use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use protocol::image::ImageRef;
use serde_json::{Value, json};

use crate::cluster::installation::TfJobs;

const ACCOUNT: &str = include_str!("../../../manifests/base/account.yaml");
const MASTER: &str = include_str!("../../../manifests/base/master.yaml");
const SERVICE: &str = include_str!("../../../manifests/base/service.yaml");
const TFJOBS: &str = include_str!("../../../manifests/tfjobs.yaml");
const PULL_SECRETS: &str = include_str!("../../../manifests/pull-secrets.yaml");
/// The path of the names of Secrets in the Role for pull secrets (JSON Pointer).
const SECRET_NAMES: &str = "/rules/0/resourceNames";
/// The path of the master's arguments in the Deployment (JSON Pointer).
const MASTER_ARGS: &str = "/spec/template/spec/containers/0/args";

/// The service account, its rights, and the Deployment with this image of the master, in this order.
pub(super) fn required(image: &ImageRef) -> Vec<DynamicObject> {
    let mut objects = parsed(&[ACCOUNT, MASTER]);
    for object in objects.iter_mut().filter(|object| kind(object) == "Deployment") {
        object.data["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image.to_string());
    }
    objects
}

/// The Deployment of the master.
pub(super) fn deployment() -> DynamicObject {
    parsed(&[MASTER]).remove(0)
}

/// If the object is the Deployment, lets its master run these TFJobs of the namespace.
pub(super) fn watch_tfjobs(object: &mut DynamicObject, tfjobs: TfJobs) {
    add_flag(object, flag_of(tfjobs));
}

/// If the object is the Deployment, tells its master that it may read these pull secrets.
pub(super) fn read_pull_secrets(object: &mut DynamicObject, names: &[String]) {
    add_flag(object, &format!("--pull-secret={}", names.join(",")));
}

fn add_flag(object: &mut DynamicObject, flag: &str) {
    let args = object.data.pointer_mut(MASTER_ARGS).and_then(Value::as_array_mut);
    args.into_iter().for_each(|args| args.push(json!(flag)));
}

/// The master's right to read the pull secrets with these names. `names` must not be empty, because a rule without
/// names allows all Secrets.
pub(super) fn pull_secret_rights(names: &[String]) -> Vec<DynamicObject> {
    let mut objects = parsed(&[PULL_SECRETS]);
    let known = objects.iter_mut().filter_map(|object| object.data.pointer_mut(SECRET_NAMES));
    known.for_each(|known| *known = json!(names));
    objects
}

/// The Role and the RoleBinding for pull secrets, by their names.
pub(super) fn pull_secret_objects() -> Vec<DynamicObject> {
    parsed(&[PULL_SECRETS])
}

/// The names of the pull secrets in this Role.
pub(super) fn pull_secrets(role: &DynamicObject) -> Vec<String> {
    let names = role.data.pointer(SECRET_NAMES).and_then(Value::as_array).into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Which TFJobs of the namespace the master of this Deployment runs, if any.
pub(super) fn watched_tfjobs(deployment: &DynamicObject) -> Option<TfJobs> {
    let args = deployment.data.pointer(MASTER_ARGS)?.as_array()?;
    [TfJobs::True, TfJobs::AllowRoot].into_iter().find(|tfjobs| args.contains(&json!(flag_of(*tfjobs))))
}

fn flag_of(tfjobs: TfJobs) -> &'static str {
    match tfjobs {
        TfJobs::True => "--watch-tfjobs",
        TfJobs::AllowRoot => "--watch-tfjobs=allow-root",
    }
}

/// If the object is the Deployment, removes the user and groups of its pods, so that the cluster chooses them.
pub(super) fn without_user(object: &mut DynamicObject) {
    let context = object.data.pointer_mut("/spec/template/spec/securityContext").and_then(Value::as_object_mut);
    let ids = ["runAsUser", "runAsGroup", "fsGroup"];
    context.into_iter().for_each(|context| context.retain(|name, _| !ids.contains(&name.as_str())));
}

/// The kind TFJob, which belongs to the whole cluster.
pub(super) fn tfjob_kind() -> DynamicObject {
    parsed(&[TFJOBS]).remove(0)
}

/// The master's rights on TFJobs.
pub(super) fn tfjob_rights() -> Vec<DynamicObject> {
    parsed(&[TFJOBS]).split_off(1)
}

/// The Service with a port on every node.
pub(super) fn node_port() -> DynamicObject {
    parsed(&[SERVICE]).remove(0)
}

/// The image that `make images` builds for this version.
pub(super) fn default_image() -> ImageRef {
    concat!("muster-master:", env!("CARGO_PKG_VERSION")).parse().expect("a name and a version make an image")
}

/// The master's image in this Deployment, if its name is valid.
pub(super) fn image(deployment: &DynamicObject) -> Option<ImageRef> {
    deployment.data.pointer("/spec/template/spec/containers/0/image")?.as_str()?.parse().ok()
}

/// The image that replaces `present` in an upgrade to this version: the same repository with the tag of this version. A
/// digest, or a tag that is not a version, stays, because the user has chosen this image.
pub(super) fn upgraded(present: ImageRef) -> ImageRef {
    let name = present.to_string();
    match name.rsplit_once(':') {
        Some((repository, tag)) if repository == present.repository() && is_version(tag) => {
            format!("{repository}:{}", env!("CARGO_PKG_VERSION")).parse().unwrap_or(present)
        }
        Some(_) | None => present,
    }
}

/// Whether the text has the form of Muster's versions, such as `0.1.0`.
fn is_version(text: &str) -> bool {
    let numbers: Vec<&str> = text.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

/// The kind of an object from a manifest.
pub(super) fn kind(object: &DynamicObject) -> &str {
    &type_of(object).kind
}

/// The name of an object from a manifest.
pub(super) fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().expect("manifests have names, which a test checks")
}

/// Whether the object belongs to the whole cluster.
pub(super) fn is_of_cluster(object: &DynamicObject) -> bool {
    kind(object) == "CustomResourceDefinition"
}

/// `kind/name` in the form of kubectl.
pub(super) fn shown(object: &DynamicObject) -> String {
    format!("{}/{}", kind(object).to_ascii_lowercase(), name(object))
}

/// How the API names the objects of this kind.
pub(super) fn resource(object: &DynamicObject) -> ApiResource {
    let types = type_of(object);
    let kind = GroupVersionKind::try_from(types).expect("manifests have a group and a version, which a test checks");
    ApiResource::from_gvk(&kind)
}

fn type_of(object: &DynamicObject) -> &TypeMeta {
    object.types.as_ref().expect("manifests have types, which a test checks")
}

fn parsed(files: &[&str]) -> Vec<DynamicObject> {
    // Kubernetes reads YAML 1.1, in which 0440 is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents = files.iter().flat_map(|text| {
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options.clone())
            .expect("the manifests are YAML, which a test checks");
        documents
    });
    documents
        .map(|object| serde_json::from_value(object).expect("manifests are objects, which a test checks"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{MUSTER, PART_OF, rights};

    fn all() -> Vec<DynamicObject> {
        required(&default_image()).into_iter().chain([node_port()]).collect()
    }

    /// Checks the kind and the label of an object.
    fn check(object: &DynamicObject) {
        rights::on_object("get", kind(object));
        assert_eq!(object.metadata.labels.as_ref().and_then(|labels| labels.get(PART_OF)).unwrap(), MUSTER);
    }

    /// The last argument of the master in a Deployment.
    fn last_arg(deployment: &DynamicObject) -> &Value {
        deployment.data.pointer(MASTER_ARGS).and_then(Value::as_array).unwrap().last().unwrap()
    }

    #[test]
    fn kubectl_applies_the_files_of_an_installation() {
        let list = include_str!("../../../manifests/kustomization.yaml");
        let files: Vec<&str> = list.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
        assert_eq!(files, ["base/account.yaml", "base/master.yaml", "base/service.yaml"]);
    }

    #[test]
    fn every_object_of_an_installation_without_tfjobs_has_a_type_a_known_kind_and_the_label_of_muster() {
        let shown: Vec<String> = all().iter().map(shown).collect();
        let kinds = ["serviceaccount", "role", "rolebinding", "deployment", "service"];
        assert_eq!(shown, kinds.map(|kind| format!("{kind}/muster")));
        for object in all() {
            check(&object);
            assert_eq!(resource(&object).plural, format!("{}s", kind(&object).to_ascii_lowercase()));
        }
    }

    #[test]
    fn tfjobs_need_their_kind_and_rights_and_a_flag_of_the_master() {
        let shown_of = |objects: &[DynamicObject]| objects.iter().map(shown).collect::<Vec<_>>();
        assert_eq!(shown_of(&[tfjob_kind()]), ["customresourcedefinition/tfjobs.kubeflow.org"]);
        assert_eq!(shown_of(&tfjob_rights()), ["role/muster-tfjobs", "rolebinding/muster-tfjobs"]);
        tfjob_rights().iter().chain([&tfjob_kind()]).for_each(check);
        for (tfjobs, flag) in [(TfJobs::True, "--watch-tfjobs"), (TfJobs::AllowRoot, "--watch-tfjobs=allow-root")] {
            let mut deployment = deployment();
            assert_eq!(watched_tfjobs(&deployment), None);
            watch_tfjobs(&mut deployment, tfjobs);
            assert_eq!((watched_tfjobs(&deployment), last_arg(&deployment)), (Some(tfjobs), &json!(flag)));
        }
    }

    #[test]
    fn pull_secrets_need_a_right_for_each_name_and_a_flag_of_the_master() {
        let names = ["team".to_owned(), "hub".to_owned()];
        let rights = pull_secret_rights(&names);
        let shown: Vec<String> = rights.iter().map(shown).collect();
        assert_eq!(shown, ["role/muster-pull-secrets", "rolebinding/muster-pull-secrets"]);
        let rule = json!([{ "apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"] }]);
        assert_eq!(rights[0].data["rules"], rule);
        assert_eq!(pull_secrets(&rights[0]), names);
        let mut deployment = deployment();
        read_pull_secrets(&mut deployment, &names);
        assert_eq!(last_arg(&deployment), "--pull-secret=team,hub");
        rights.iter().for_each(check);
    }

    #[test]
    fn without_user_removes_only_the_user_and_groups_of_the_deployment() {
        let mut objects = required(&default_image());
        let user = |object: &DynamicObject| object.data["spec"]["template"]["spec"]["securityContext"].clone();
        let seccomp = json!({ "type": "RuntimeDefault" });
        let of_manifest = json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": seccomp,
        });
        assert_eq!(user(objects.last().unwrap()), of_manifest);
        objects.iter_mut().for_each(without_user);
        assert_eq!(user(objects.last().unwrap()), json!({ "runAsNonRoot": true, "seccompProfile": seccomp }));
    }

    #[test]
    fn the_deployment_has_the_given_image_and_octal_modes_are_parsed() {
        let image = "registry.example.com/team/muster-master:9".parse().unwrap();
        let deployment = required(&image).pop().unwrap();
        let pod = &deployment.data["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "registry.example.com/team/muster-master:9");
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "IfNotPresent");
        let secret = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "secret").unwrap();
        assert_eq!(secret["secret"]["defaultMode"], 0o440);
    }
}
