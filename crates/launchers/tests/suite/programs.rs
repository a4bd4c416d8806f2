//! Tests of objects whose containers have no command: which programs the master looks up, and what the object shows
//! until then.

use std::collections::BTreeMap;
use std::time::Duration;

use launchers::kubeflow::{NextStep, ObjectMemory, Programs, ReplicaHost, Unknown, Watched};
use protocol::ids::UnixMillis;
use protocol::image::Entrypoint;
use protocol::origin::Origin;
use serde_json::{Value, json};

use super::watched::{newest, object};
use super::{BEGIN as NOW, NAMESPACE, view_of};

const IMAGE: &str = "mnist:1";

/// An object whose container has no command.
fn without_command(change: impl Fn(&mut Value)) -> Value {
    object(|object| {
        object["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = Value::Null;
        change(object);
    })
}

fn watched(object: &Value, memory: &ObjectMemory) -> Watched {
    let place = ReplicaHost::Pods { namespace: NAMESPACE.to_owned(), honours_root: false };
    Watched::of(object, &place, memory.programs.known())
}

fn python() -> Entrypoint {
    let command = vec!["python".to_owned(), "/mnist.py".to_owned()];
    Entrypoint { command, args: vec![], user: "1000".to_owned() }
}

/// The memory of a master whose look-up of [`IMAGE`] had this outcome.
fn after(outcome: Result<Entrypoint, Unknown>) -> ObjectMemory {
    let mut programs = Programs::default();
    programs.note(vec![(IMAGE.to_owned(), outcome)], NOW);
    ObjectMemory { programs, ..ObjectMemory::default() }
}

fn later(by: Duration) -> UnixMillis {
    UnixMillis(NOW.0 + u64::try_from(by.as_millis()).expect("a short time"))
}

/// The look-up that an object needs: its images with their pull secrets, and the message of the condition.
fn look_up(object: &Value, memory: &ObjectMemory, now: UnixMillis) -> (Value, Option<Value>) {
    let need = watched(object, memory).need(None, memory, now);
    let NextStep::LookUp { images, status } = need else { panic!("{need:?}") };
    (json!(images), status)
}

#[test]
fn a_container_without_a_command_needs_the_program_of_its_image_and_a_condition_says_so() {
    let plain = without_command(|_| {});
    let (images, status) = look_up(&plain, &ObjectMemory::default(), NOW);
    assert_eq!(images, json!({ IMAGE: [] }));
    let condition = &status.expect("no status")["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Created"), &json!("TFJobImageProgram")));
    let message = "TFJob mnist waits for the program of its image; image mnist:1: its registry is asked";
    assert_eq!(condition["message"], message);

    let secrets = without_command(|object| {
        let pod = &mut object["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"];
        pod["imagePullSecrets"] = json!([{ "name": "team" }, { "name": "hub" }]);
    });
    assert_eq!(look_up(&secrets, &ObjectMemory::default(), NOW).0, json!({ IMAGE: ["hub", "team"] }));
}

#[test]
fn a_found_program_becomes_the_command_and_stays_on_record() {
    let (plain, memory) = (without_command(|_| {}), after(Ok(python())));
    let NextStep::Apply(read) = watched(&plain, &memory).need(None, &memory, NOW) else { panic!("no job") };
    assert_eq!(read.spec.groups[0].command, ["python", "/mnist.py"]);
    let Some(Origin::TfJob(origin)) = &read.spec.origin else { panic!("no TFJob") };
    assert_eq!(origin.programs, BTreeMap::from([(IMAGE.to_owned(), python())]));

    // A new master takes the program from the record, although the tag may name another image today.
    let view = view_of(&read.spec, &json!({}));
    let mut new = ObjectMemory::default();
    assert!(new.programs.recall(&view.spec));
    assert!(!new.programs.recall(&view.spec));
    let NextStep::Apply(again) = watched(&plain, &new).need(Some(&view), &new, NOW) else { panic!("no change") };
    assert_eq!(again, read);
}

#[test]
fn a_registry_that_does_not_answer_is_asked_again_until_the_start_timeout() {
    let outage = "registry.example.com did not answer within 10 s";
    let mut memory = after(Err(Unknown::Passing(outage.to_owned())));
    let mut plain = without_command(|object| {
        object["spec"]["runPolicy"] = json!({ "schedulingPolicy": { "scheduleTimeoutSeconds": 60 } });
    });
    let NextStep::Show(status) = watched(&plain, &memory).need(None, &memory, NOW) else { panic!("no status") };
    let message = status["conditions"][0]["message"].as_str().expect("no message");
    assert_eq!(message, format!("TFJob mnist waits for the program of its image; image mnist:1: {outage}"));
    plain["status"] = status;
    assert_eq!(watched(&plain, &memory).need(None, &memory, NOW), NextStep::Wait(Duration::from_secs(5)));

    // The pauses grow.
    let next = later(Duration::from_secs(5));
    assert_eq!(look_up(&plain, &memory, next), (json!({ IMAGE: [] }), None));
    memory.programs.note(vec![(IMAGE.to_owned(), Err(Unknown::Passing(outage.to_owned())))], next);
    assert_eq!(watched(&plain, &memory).need(None, &memory, next), NextStep::Wait(Duration::from_secs(10)));

    // A new master counts from the condition, and asks once.
    let late = later(Duration::from_secs(60));
    assert!(matches!(
        watched(&plain, &ObjectMemory::default()).need(None, &ObjectMemory::default(), late),
        NextStep::LookUp { .. }
    ));
    let shown = newest(&watched(&plain, &memory).need(None, &memory, late));
    assert_eq!(
        shown,
        format!(
            "TFJobFailedValidation: spec.tfReplicaSpecs.Worker.template.spec.containers[0].command: the program of the \
             image is unknown: add the field command to containers[tensorflow] of Worker; image mnist:1: {outage}"
        )
    );
}

#[test]
fn a_refused_look_up_and_an_image_without_a_program_fail_the_object_at_once() {
    let plain = without_command(|_| {});
    let refused = after(Err(Unknown::Final("registry.example.com answered 401".to_owned())));
    let shown = newest(&watched(&plain, &refused).need(None, &refused, NOW));
    assert!(
        shown.starts_with("TFJobFailedValidation: spec.tfReplicaSpecs.Worker.template.spec.containers[0].command: ")
    );
    assert!(shown.ends_with("; image mnist:1: registry.example.com answered 401"), "{shown}");
    let empty = after(Ok(Entrypoint::default()));
    let shown = newest(&watched(&plain, &empty).need(None, &empty, NOW));
    assert!(shown.contains("the image has neither ENTRYPOINT nor CMD: add the field command to"), "{shown}");
}

#[test]
fn an_object_with_another_fault_and_an_object_that_has_ended_need_no_look_up() {
    let broken = without_command(|object| object["spec"]["wrong"] = json!(1));
    let shown = newest(&watched(&broken, &ObjectMemory::default()).need(None, &ObjectMemory::default(), NOW));
    assert!(shown.contains("spec.wrong: this field is not known"), "{shown}");
    let ended = without_command(|object| object["status"] = json!({ "conditions": [{ "type": "Failed" }] }));
    assert_eq!(watched(&ended, &ObjectMemory::default()).need(None, &ObjectMemory::default(), NOW), NextStep::Nothing);
}
