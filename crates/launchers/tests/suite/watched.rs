//! Tests of TFJobs that are objects of the cluster: when an object gets a job, which status the object shows, and when
//! the object is deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use launchers::kubeflow::{NextStep, ObjectMemory, ReplicaHost, Watched};
use protocol::ids::UnixMillis;
use protocol::view::JobView;
use serde_json::{Value, json};

use super::{BEGIN as NOW, NAMESPACE, view_of};

pub(super) fn object(change: impl Fn(&mut Value)) -> Value {
    let container = json!({ "name": "tensorflow", "image": "mnist:1", "command": ["python", "mnist.py"] });
    let worker = json!({ "replicas": 2, "template": { "spec": { "containers": [container] } } });
    let mut object = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob",
        "metadata": {
            "name": "mnist", "namespace": NAMESPACE, "uid": "one", "generation": 1, "finalizers": ["other/one"],
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" },
        },
        "spec": { "tfReplicaSpecs": { "Worker": worker } },
    });
    change(&mut object);
    object
}

fn watched(object: &Value) -> Watched {
    watched_by(false, object)
}

/// The object as a master reads it. `honours_root` says whether this master honours the annotation for root.
fn watched_by(honours_root: bool, object: &Value) -> Watched {
    Watched::of(object, &ReplicaHost::Pods { namespace: NAMESPACE.to_owned(), honours_root }, &BTreeMap::new())
}

/// The job of this object, with these fields of its view.
pub(super) fn job(object: &Value, more: &Value) -> JobView {
    let NextStep::Apply(read) = watched(object).need(None, &ObjectMemory::default(), NOW) else {
        panic!("{object} has no job")
    };
    view_of(&read.spec, more)
}

/// The newest condition of the status to be written, as `REASON: MESSAGE`.
pub(super) fn newest(need: &NextStep) -> String {
    let NextStep::Show(status) = need else { panic!("{need:?}") };
    let newest = status["conditions"].as_array().expect("no conditions").last().expect("no condition");
    format!("{}: {}", newest["reason"].as_str().expect("not text"), newest["message"].as_str().expect("not text"))
}

#[test]
fn an_object_without_a_job_gets_a_job_only_once() {
    let plain = object(|_| {});
    let new = ObjectMemory::default();
    assert!(matches!(watched(&plain).need(None, &new, NOW), NextStep::Apply(_)));
    for ended in ["Succeeded", "Failed"] {
        let ended = object(|object| object["status"] = json!({ "conditions": [{ "type": ended }] }));
        assert_eq!(watched(&ended).need(None, &new, NOW), NextStep::Nothing);
    }
    let begun = object(|object| object["status"] = json!({ "conditions": [{ "type": "Running" }] }));
    assert!(newest(&watched(&begun).need(None, &new, NOW)).starts_with("TFJobCancelled: its job is not on record"));
    let had_job = ObjectMemory { had_job: true, ..ObjectMemory::default() };
    assert_eq!(watched(&begun).need(None, &had_job, NOW), NextStep::Remove);
}

#[test]
fn an_object_that_is_refused_has_failed() {
    let unknown = object(|object| object["spec"]["tfReplicaSpecs"]["Worker"]["replica"] = json!(2));
    let shown = newest(&watched(&unknown).need(None, &ObjectMemory::default(), NOW));
    assert!(shown.starts_with("TFJobFailedValidation: spec.tfReplicaSpecs.Worker."), "{shown}");

    let refused = ObjectMemory {
        refusal: Some("another job has this name".to_owned()),
        applied: Some(1),
        ..ObjectMemory::default()
    };
    let shown = newest(&watched(&object(|_| {})).need(None, &refused, NOW));
    assert_eq!(shown, "TFJobFailedValidation: another job has this name");
}

#[test]
fn an_object_waits_for_the_end_of_the_job_of_its_predecessor() {
    let before = job(&object(|_| {}), &json!({}));
    let created_again = object(|object| object["metadata"]["uid"] = "two".into());
    assert_eq!(watched(&created_again).need(Some(&before), &ObjectMemory::default(), NOW), NextStep::Nothing);
}

#[test]
fn a_status_is_written_only_when_it_changes() {
    let (plain, applied) =
        (object(|_| {}), ObjectMemory { applied: Some(1), had_job: true, ..ObjectMemory::default() });
    let active = json!({ "replicas": [{ "replica": "worker-0", "state": "running", "pod": "mnist-worker-0" }] });
    let NextStep::Show(status) = watched(&plain).need(Some(&job(&plain, &active)), &applied, NOW) else {
        panic!("the new status is not written")
    };
    assert_eq!(status["observedGeneration"], 1);
    let shown = object(|object| object["status"] = status.clone());
    let later = UnixMillis(NOW.0 + 60_000);
    // `observedGeneration` tells a new master that this version of the object was applied.
    assert_eq!(watched(&shown).need(Some(&job(&plain, &active)), &ObjectMemory::default(), later), NextStep::Nothing);

    // A new master may compute other times for the same events. The times in the object then stay.
    let ran = |at: u64| {
        let times = json!({ "accepted": NOW, "started": at });
        job(&plain, &json!({ "state": "running", "times": times }))
    };
    let NextStep::Show(status) = watched(&plain).need(Some(&ran(NOW.0 + 5_000)), &applied, NOW) else {
        panic!("the new status is not written")
    };
    let running = object(|object| object["status"] = status.clone());
    assert_eq!(watched(&running).need(Some(&ran(NOW.0 + 9_000)), &ObjectMemory::default(), later), NextStep::Nothing);

    let NextStep::Show(next) = watched(&shown).need(Some(&job(&plain, &json!({}))), &applied, later) else {
        panic!("the changed status is not written")
    };
    let patch = watched(&shown).patch(&next);
    assert_eq!(patch["status"]["replicaStatuses"], json!({ "Worker": { "active": null } }), "{patch:#}");
    assert_eq!(patch["metadata"], json!({ "uid": "one" }));
}

#[test]
fn if_only_counts_change_the_status_is_written_at_most_every_thirty_seconds() {
    let (plain, applied) =
        (object(|_| {}), ObjectMemory { applied: Some(1), had_job: true, ..ObjectMemory::default() });
    let NextStep::Show(created) = watched(&plain).need(Some(&job(&plain, &json!({}))), &applied, NOW) else {
        panic!("the new status is not written")
    };
    let shown = watched(&object(|object| object["status"] = created.clone()));
    let replicas = json!([{ "replica": "worker-0", "state": "joined", "pod": "mnist-worker-0" }]);
    let joined = job(&plain, &json!({ "replicas": replicas }));
    let after = |seconds: u64| UnixMillis(NOW.0 + 1000 * seconds);
    assert_eq!(shown.need(Some(&joined), &applied, after(3)), NextStep::Wait(Duration::from_secs(27)));
    assert!(matches!(shown.need(Some(&joined), &applied, after(30)), NextStep::Show(_)));
    let mut unheard = watched(&plain);
    unheard.wrote(created);
    assert_eq!(
        unheard.need(Some(&joined), &applied, after(3)),
        NextStep::Wait(Duration::from_secs(27)),
        "the status is written again too early after a write that the watch has not yet reported"
    );
    let running = job(&plain, &json!({ "state": "running", "replicas": replicas }));
    assert_eq!(newest(&shown.need(Some(&running), &applied, after(3))), "TFJobRunning: TFJob mnist is running");
}

#[test]
fn a_change_of_an_object_is_applied_or_named_in_the_newest_condition() {
    let (plain, before) = (object(|_| {}), ObjectMemory { applied: Some(1), had_job: true, ..ObjectMemory::default() });
    let job = job(&plain, &json!({}));
    let edited = |path: &str, value: Value| {
        object(|object| {
            object["metadata"]["generation"] = 2.into();
            object["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never".into();
            *object.pointer_mut(path).expect("no field") = value.clone();
        })
    };
    let suspended = object(|object| {
        object["metadata"]["generation"] = 2.into();
        object["spec"]["runPolicy"] = json!({ "suspend": true });
    });
    let NextStep::Apply(read) = watched(&suspended).need(Some(&job), &before, NOW) else {
        panic!("the change is not applied")
    };
    assert!(read.is_suspended);

    let image = "/spec/tfReplicaSpecs/Worker/template/spec/containers/0/image";
    let shown = newest(&watched(&edited(image, "mnist:2".into())).need(Some(&job), &before, NOW));
    assert!(shown.contains("; the change of spec.tfReplicaSpecs.Worker.") && shown.ends_with(" is ignored"), "{shown}");
    let shown = newest(&watched(&edited(image, 7.into())).need(Some(&job), &before, NOW));
    assert!(shown.contains("; the newest change is ignored: "), "{shown}");
}

#[test]
fn a_change_while_no_master_ran_is_applied_or_named_by_the_next_master() {
    let plain = object(|_| {});
    let (job, new) = (job(&plain, &json!({})), ObjectMemory::default());
    let edited = |change: fn(&mut Value)| {
        let status = json!({ "observedGeneration": 1, "conditions": [{ "type": "Created" }] });
        watched(&object(|object| {
            (object["metadata"]["generation"], object["status"]) = (2.into(), status.clone());
            change(object);
        }))
    };
    let NextStep::Apply(read) =
        edited(|object| object["spec"]["runPolicy"] = json!({ "suspend": true })).need(Some(&job), &new, NOW)
    else {
        panic!("the change is not applied")
    };
    assert!(read.is_suspended);
    let more = edited(|object| object["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 3.into());
    let shown = newest(&more.need(Some(&job), &new, NOW));
    assert!(shown.ends_with("; the change of spec.tfReplicaSpecs.Worker.replicas is ignored"), "{shown}");
}

#[test]
fn the_annotation_for_root_has_an_effect_only_if_the_master_honours_it() {
    let wants_root = |object: &mut Value| {
        object["metadata"]["annotations"]["muster/allow-root"] = "true".into();
        object["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["securityContext"] = json!({ "runAsUser": 0 });
    };
    let (annotated, new) = (object(wants_root), ObjectMemory::default());
    let refused = newest(&watched(&annotated).need(None, &new, NOW));
    assert!(
        refused.contains("or the annotation muster/allow-root: \"true\" if the master has --watch-tfjobs=allow-root"),
        "{refused}"
    );
    let NextStep::Apply(read) = watched_by(true, &annotated).need(None, &new, NOW) else {
        panic!("root is not allowed")
    };
    assert!(read.spec.pod.allow_root);
    let without = object(|object| {
        wants_root(object);
        object["metadata"]["annotations"]["muster/allow-root"] = "false".into();
    });
    assert!(newest(&watched_by(true, &without).need(None, &new, NOW)).starts_with("TFJobFailedValidation: "));

    // If the annotation is added after the job was created, it is ignored, and the status names it. The master does not
    // read other annotations.
    let plain = object(|_| {});
    let (job, applied) =
        (job(&plain, &json!({})), ObjectMemory { applied: Some(1), had_job: true, ..ObjectMemory::default() });
    let later = object(|object| object["metadata"]["annotations"]["muster/allow-root"] = "true".into());
    let shown = newest(&watched_by(true, &later).need(Some(&job), &applied, NOW));
    assert!(shown.ends_with("; the change of metadata.annotations.muster/allow-root is ignored"), "{shown}");
    let noted = object(|object| object["metadata"]["annotations"]["note"] = "x".into());
    let shown = newest(&watched_by(true, &noted).need(Some(&job), &applied, NOW));
    assert!(!shown.contains("ignored"), "{shown}");
}

#[test]
fn a_master_that_begins_to_honour_the_annotation_for_root_leaves_the_job_as_it_is() {
    let annotated = object(|object| object["metadata"]["annotations"]["muster/allow-root"] = "true".into());
    let (job, applied) =
        (job(&annotated, &json!({})), ObjectMemory { applied: Some(1), had_job: true, ..ObjectMemory::default() });
    let shown = newest(&watched_by(true, &annotated).need(Some(&job), &applied, NOW));
    let expected = "; this master reads the TFJob differently than the master that created the job: ";
    assert!(shown.ends_with(&format!("{expected}the job is not changed")), "{shown}");
}
