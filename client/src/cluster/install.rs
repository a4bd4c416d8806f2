//! Installs or upgrades the master of a namespace, as `kubectl apply -k manifests/` does. Also creates the Secret.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use master_client::Token;
use protocol::image::ImageRef;
use protocol::pod::OPENSHIFT_GROUP;
use serde_json::{Value, json};

use super::{Cluster, MUSTER, PART_OF, SECRET_KEYS, access, manifests, rights, rollout};
use crate::cluster::installation::{Installation, Service, TfJobs};
use crate::ending::error::{Cause, Error};
use crate::output::Notes;
use crate::output::command_line::command;

/// The settings of the present installation. They stay unless the order names others.
#[derive(Debug, Clone, Default)]
struct Present {
    /// The master's image. `None` if there is no installation.
    image: Option<ImageRef>,
    /// Which TFJobs the master runs. `None` if it has no rights on TFJobs.
    tfjobs: Option<TfJobs>,
    /// The pull secrets that the master may read.
    pull_secrets: Vec<String>,
}

impl Installation {
    /// The master's image. If the present image is in a registry, the local image of `make images` must not replace it,
    /// because the nodes could not pull the local image.
    fn image(&self, present: &Present) -> ImageRef {
        let kept = || present.image.clone().map(manifests::upgraded);
        self.image.clone().or_else(kept).unwrap_or_else(manifests::default_image)
    }

    /// The objects to apply.
    fn objects(&self, present: &Present, user: PodUser) -> Vec<DynamicObject> {
        let image = self.image(present);
        let service = (self.service == Some(Service::Nodeport)).then(manifests::node_port);
        let mut objects = manifests::required(&image);
        if user == PodUser::OfCluster {
            objects.iter_mut().for_each(manifests::without_user);
        }
        if let Some(tfjobs) = self.tfjobs.or(present.tfjobs) {
            objects.iter_mut().for_each(|object| manifests::watch_tfjobs(object, tfjobs));
            objects.splice(0..0, manifests::tfjob_rights());
        }
        let names = if self.pull_secrets.is_empty() { &present.pull_secrets } else { &self.pull_secrets };
        if !names.is_empty() {
            objects.iter_mut().for_each(|object| manifests::read_pull_secrets(object, names));
            objects.splice(0..0, manifests::pull_secret_rights(names));
        }
        let kind = self.tfjobs.map(|_| manifests::tfjob_kind());
        kind.into_iter().chain(objects).chain(service).collect()
    }
}

/// The objects as one list for `kubectl apply -f -`, without the Secret.
pub(crate) fn exported(order: &Installation) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": order.objects(&Present::default(), PodUser::OfManifest)})
}

/// Installs or upgrades the master, and waits until it serves. If an object exists without Muster's label, or if a
/// right is missing, changes nothing.
///
/// # Errors
/// Fails if a check or a call fails, or if the master does not serve in time.
pub(crate) async fn install(cluster: &Cluster, order: &Installation, notes: &Notes) -> Result<(), Error> {
    let of_tfjobs = order.tfjobs.map(|_| rights::to_install_tfjobs()).into_iter().flatten();
    let of_service = (order.service == Some(Service::None)).then(|| rights::on_object("delete", "Service"));
    access::require(cluster, rights::to_install().chain(of_tfjobs).chain(of_service)).await?;
    check_namespace(cluster).await?;
    if order.tfjobs.is_some() && find(cluster, &manifests::tfjob_kind()).await?.is_some_and(|found| !is_ours(&found)) {
        let hint = format!("leave out --tfjobs, and run TFJobs with {}", command("apply -f FILE"));
        let sentence = "another program, such as Kubeflow, has already installed the kind TFJob in the cluster";
        return Err(Error::input(sentence).hint(hint));
    }
    let present = present(cluster).await?;
    let objects = order.objects(&present, user(cluster).await?);
    let before = existing(cluster, &objects).await?;
    let image = order.image(&present);
    if order.image.is_none() && image != manifests::default_image() {
        notes
            .say(&format!("the master's image is {image}, as the present installation has it; --image REF changes it"));
    }
    make_secret(cluster, notes).await?;
    for (object, before) in objects.iter().zip(before) {
        let api = api_of(cluster, object);
        let params = PatchParams::apply(MUSTER).force();
        let right = rights::on_object("patch", manifests::kind(object));
        let after = cluster.call(right, api.patch(manifests::name(object), &params, &Patch::Apply(object))).await?;
        let done = match before {
            None => "created",
            Some(before) if before.metadata.resource_version == after.metadata.resource_version => "unchanged",
            Some(_) => "changed",
        };
        notes.say(&format!("{} {done}", manifests::shown(object)));
    }
    if order.service == Some(Service::None) && delete(cluster, &manifests::node_port()).await? {
        notes.say("service/muster deleted");
    }
    rollout::replace_stuck(cluster).await?;
    rollout::until_done(cluster, notes).await
}

/// Checks that the namespace exists. If the user may not read namespaces, a later call reports a missing namespace.
async fn check_namespace(cluster: &Cluster) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    match cluster.call(rights::GET_NAMESPACE, namespaces.get_opt(cluster.namespace())).await {
        Ok(None) => {
            let name = cluster.namespace();
            let hint = format!("kubectl create namespace {name}");
            Err(Error::input(format!("there is no namespace {name}")).hint(hint))
        }
        Ok(Some(_)) | Err(Error { cause: Cause::Forbidden, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the cluster's object with the same type and name for each of these objects, or `None` if there is none.
///
/// # Errors
/// Names all objects that exist without Muster's label.
async fn existing(cluster: &Cluster, objects: &[DynamicObject]) -> Result<Vec<Option<DynamicObject>>, Error> {
    let mut found = vec![];
    for object in objects {
        found.push(find(cluster, object).await?);
    }
    let foreign = |(object, found): (&DynamicObject, &Option<DynamicObject>)| {
        found.as_ref().is_some_and(|found| !is_ours(found)).then(|| manifests::shown(object))
    };
    let foreign: Vec<String> = objects.iter().zip(&found).filter_map(foreign).collect();
    if foreign.is_empty() {
        return Ok(found);
    }
    let (namespace, foreign) = (cluster.namespace(), foreign.join(", "));
    let sentence =
        format!("namespace {namespace} already has {foreign} without the label app.kubernetes.io/part-of=muster");
    Err(Error::input(sentence).hint("choose another namespace with -n, or delete these objects"))
}

/// Finds the cluster's object with the type and name of `object`. `None` if it does not exist.
pub(super) async fn find(cluster: &Cluster, object: &DynamicObject) -> Result<Option<DynamicObject>, Error> {
    let right = rights::on_object("get", manifests::kind(object));
    cluster.call(right, api_of(cluster, object).get_opt(manifests::name(object))).await
}

/// Deletes the cluster's object with the type and name of `object`, if it has Muster's label. Returns whether it was
/// deleted.
pub(super) async fn delete(cluster: &Cluster, object: &DynamicObject) -> Result<bool, Error> {
    if !find(cluster, object).await?.is_some_and(|found| is_ours(&found)) {
        return Ok(false);
    }
    let right = rights::on_object("delete", manifests::kind(object));
    let api = api_of(cluster, object);
    cluster.call(right, api.delete(manifests::name(object), &DeleteParams::background())).await?;
    Ok(true)
}

fn api_of(cluster: &Cluster, object: &DynamicObject) -> Api<DynamicObject> {
    let (client, resource) = (cluster.client().clone(), manifests::resource(object));
    if manifests::is_of_cluster(object) {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, cluster.namespace(), &resource)
    }
}

/// Who chooses the user of the master's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PodUser {
    /// The manifest.
    OfManifest,
    /// The cluster, as OpenShift does.
    OfCluster,
}

async fn user(cluster: &Cluster) -> Result<PodUser, Error> {
    match cluster.call(rights::LIST_GROUPS, cluster.client().list_api_groups()).await {
        Ok(all) if all.groups.iter().any(|group| group.name == OPENSHIFT_GROUP) => Ok(PodUser::OfCluster),
        Ok(_) | Err(Error { cause: Cause::Forbidden, .. }) => Ok(PodUser::OfManifest),
        Err(error) => Err(error),
    }
}

async fn present(cluster: &Cluster) -> Result<Present, Error> {
    let deployment = find(cluster, &manifests::deployment()).await?;
    let watched = || deployment.as_ref().and_then(manifests::watched_tfjobs).unwrap_or(TfJobs::True);
    let role = find(cluster, &manifests::pull_secret_objects()[0]).await?.filter(is_ours);
    Ok(Present {
        pull_secrets: role.as_ref().map(manifests::pull_secrets).unwrap_or_default(),
        tfjobs: has_tfjobs(cluster).await?.then(watched),
        image: deployment.as_ref().and_then(manifests::image),
    })
}

/// Whether the present installation has the rights on TFJobs.
pub(super) async fn has_tfjobs(cluster: &Cluster) -> Result<bool, Error> {
    Ok(find(cluster, &manifests::tfjob_rights()[0]).await?.is_some_and(|found| is_ours(&found)))
}

pub(super) fn is_ours(object: &DynamicObject) -> bool {
    object.metadata.labels.as_ref().and_then(|labels| labels.get(PART_OF)).is_some_and(|value| value == MUSTER)
}

/// If the Secret does not exist, creates it with a new token and a new key. Otherwise, checks its keys.
async fn make_secret(cluster: &Cluster, notes: &Notes) -> Result<(), Error> {
    if let Some(secret) = cluster.secret().await? {
        return cluster.check_keys(&secret);
    }
    let random = || Token::random().text().to_owned();
    let values = SECRET_KEYS.map(|key| (key.to_owned(), random()));
    let labels = [("app.kubernetes.io/name", MUSTER), (PART_OF, MUSTER)];
    let labels: BTreeMap<String, String> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let secret = Secret {
        metadata: ObjectMeta { name: Some(MUSTER.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        string_data: Some(values.into()),
        ..Secret::default()
    };
    let (api, params) = (cluster.api::<Secret>(), PostParams::default());
    cluster.call(rights::CREATE_SECRET, api.create(&params, &secret)).await?;
    notes.say("secret/muster created");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> ImageRef {
        name.parse().unwrap()
    }

    /// The image that an installation without `--image` gets after an installation with this image.
    fn after(present: &str) -> String {
        let order = Installation { image: Some(image(present)), ..Installation::default() };
        let mut objects = order.objects(&Present::default(), PodUser::OfManifest);
        objects.retain(|object| manifests::kind(object) == "Deployment");
        let present = Present { image: manifests::image(&objects[0]), ..Present::default() };
        Installation::default().image(&present).to_string()
    }

    #[test]
    fn without_the_flag_the_present_registry_stays_with_the_tag_of_this_version() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            after("r.example.com:5000/team/muster-master:0.0.1"),
            format!("r.example.com:5000/team/muster-master:{version}")
        );
        assert_eq!(after("muster-master:0.0.1"), manifests::default_image().to_string());
        assert_eq!(Installation::default().image(&Present::default()), manifests::default_image());
        let (present, other) = (Some(image("r.example.com/muster-master:0.0.1")), Some(image("other:1")));
        let order = Installation { image: other, ..Installation::default() };
        assert_eq!(order.image(&Present { image: present, ..Present::default() }), image("other:1"));
    }

    #[test]
    fn an_installation_without_an_image_keeps_a_digest_and_a_tag_that_is_not_a_version() {
        let digest = format!("r.example.com/muster-master@sha256:{}", "0".repeat(64));
        let pinned = format!("r.example.com/muster-master:0.0.1@sha256:{}", "0".repeat(64));
        for present in
            ["r.example.com/muster-master", "r.example.com/muster-master:latest", "r/m:1.2", &digest, &pinned]
        {
            assert_eq!(after(present), present);
        }
    }

    #[test]
    fn an_installation_without_pull_secrets_keeps_the_present_ones_and_otherwise_replaces_them() {
        let names = |asked: &[&str], present: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let order = Installation { pull_secrets: words(asked), ..Installation::default() };
            let present = Present { pull_secrets: words(present), ..Present::default() };
            let objects = order.objects(&present, PodUser::OfManifest);
            let role = objects.iter().find(|object| manifests::shown(object) == "role/muster-pull-secrets");
            role.map(manifests::pull_secrets)
        };
        assert_eq!(names(&[], &[]), None);
        assert_eq!(names(&[], &["team"]), Some(vec!["team".to_owned()]));
        assert_eq!(names(&["hub"], &["team"]), Some(vec!["hub".to_owned()]));
    }
}
