//! Tests of a job as users of Kubeflow see it: conditions, counts of replicas, and the spec that was sent.

use launchers::tfjob::object;
use protocol::ids::UnixMillis;
use protocol::view::JobView;
use serde_json::{Value, json};

use super::read_file;

/// 2026-01-01T00:00:00Z.
const BEGIN: u64 = 1_767_225_600_000;

/// The TFJob object that is shown for the job of the file `name`. `more` contains fields of the job's view.
fn shown(name: &str, more: &Value) -> Value {
    let spec = read_file(name).expect("an invalid TFJob").spec;
    let mut view = json!({
        "name": spec.name, "uid": "u", "seq": 1, "state": "pending", "spec": spec, "replicas": [],
        "times": { "accepted": BEGIN },
    });
    let fields = more.as_object().expect("not an object").clone();
    view.as_object_mut().expect("not an object").extend(fields);
    let view: JobView = serde_json::from_value(view).expect("not a view");
    object(&view, Some("team"), UnixMillis(BEGIN + 60_000)).expect("not a TFJob")
}

/// The conditions as `TYPE STATUS REASON SECONDS`.
fn conditions(object: &Value) -> Vec<String> {
    let of = |condition: &Value| {
        let text = |name: &str| condition[name].as_str().expect("not text").to_owned();
        let second = text("lastTransitionTime");
        let second = second.trim_start_matches("2026-01-01T00:00:").trim_end_matches('Z');
        format!("{} {} {} {second}", text("type"), text("status"), text("reason"))
    };
    object["status"]["conditions"].as_array().expect("no conditions").iter().map(of).collect()
}

fn replica(id: &str, state: &str, exit: &Value) -> Value {
    let mut view = json!({ "replica": id, "state": state, "pod": format!("mnist-{id}") });
    if !exit.is_null() {
        view["exit"] = exit.clone();
    }
    view
}

#[test]
fn the_newest_condition_shows_the_state_of_the_job() {
    let failure = json!({ "cause": "deadline_exceeded", "after_seconds": 9 });
    let failed =
        json!({ "failed_starts": [{ "at": BEGIN + 9_000, "failure": failure, "counted": true }], "counted": 1 });
    let started = json!({ "accepted": BEGIN, "started": BEGIN + 5_000 });
    let ended = json!({ "accepted": BEGIN, "started": BEGIN + 5_000, "ended": BEGIN + 30_000 });
    for (view, expected) in [
        (json!({}), vec!["Created True TFJobCreated 00"]),
        (json!({ "state": "starting" }), vec!["Created True TFJobCreated 00"]),
        (
            json!({ "state": "running", "times": started }),
            vec!["Created True TFJobCreated 00", "Running True TFJobRunning 05"],
        ),
        (
            json!({ "state": "restarting", "times": started, "restarts": failed }),
            vec!["Created True TFJobCreated 00", "Restarting True TFJobRestarting 09"],
        ),
        (
            json!({ "state": "stopping", "times": started, "restarts": failed }),
            vec!["Created True TFJobCreated 00", "Running True TFJobRunning 05"],
        ),
        (
            json!({ "state": "stopping", "times": ended, "result": { "outcome": "succeeded" } }),
            vec!["Created True TFJobCreated 00", "Running False TFJobRunning 30", "Succeeded True TFJobSucceeded 30"],
        ),
        (
            json!({ "state": "failed", "times": ended, "result": { "outcome": "failed", "failure": failure } }),
            vec!["Created True TFJobCreated 00", "Running False TFJobRunning 30", "Failed True TFJobFailed 30"],
        ),
        (
            json!({ "state": "cancelled", "times": { "accepted": BEGIN, "ended": BEGIN + 1_000 }, "result": { "outcome": "cancelled" } }),
            vec!["Created True TFJobCreated 00", "Failed True TFJobCancelled 01"],
        ),
    ] {
        assert_eq!(conditions(&shown("every_role", &view)), expected, "{view}");
    }
}

#[test]
fn a_suspension_and_a_resumption_have_their_times() {
    let failure = json!({ "cause": "deadline_exceeded", "after_seconds": 9 });
    let failed =
        json!({ "failed_starts": [{ "at": BEGIN + 9_000, "failure": failure, "counted": true }], "counted": 1 });
    let resumed = json!({ "accepted": BEGIN, "started": BEGIN + 5_000, "resumed": BEGIN + 12_000 });
    let restarted =
        json!({ "accepted": BEGIN, "started": BEGIN + 5_000, "resumed": BEGIN + 12_000, "restarted": BEGIN + 20_000 });
    for (view, expected) in [
        (
            json!({ "state": "suspended", "times": { "accepted": BEGIN, "started": BEGIN + 5_000, "suspended": BEGIN + 8_000 } }),
            vec!["Created True TFJobCreated 00", "Running False TFJobSuspended 08", "Suspended True TFJobSuspended 08"],
        ),
        (
            json!({ "state": "suspended", "times": { "accepted": BEGIN, "suspended": BEGIN } }),
            vec!["Created True TFJobCreated 00", "Suspended True TFJobSuspended 00"],
        ),
        (
            json!({ "state": "restarting", "times": resumed, "restarts": failed }),
            vec!["Created True TFJobCreated 00", "Suspended False TFJobResumed 12"],
        ),
        (
            json!({ "state": "starting", "times": resumed }),
            vec!["Created True TFJobCreated 00", "Suspended False TFJobResumed 12"],
        ),
        (
            json!({ "state": "running", "times": restarted, "restarts": failed }),
            vec!["Created True TFJobCreated 00", "Suspended False TFJobResumed 12", "Running True TFJobRunning 20"],
        ),
        // The failure is older than the newest start. So this restart has another cause, for example a change of
        // members, and the condition stays Running.
        (
            json!({ "state": "restarting", "times": restarted, "restarts": failed }),
            vec!["Created True TFJobCreated 00", "Suspended False TFJobResumed 12", "Running True TFJobRunning 20"],
        ),
    ] {
        assert_eq!(conditions(&shown("every_role", &view)), expected, "{view}");
    }
}

#[test]
fn the_created_condition_has_the_warnings() {
    let message = &shown("clean_none_suspended", &json!({}))["status"]["conditions"][0]["message"];
    let expected = "TFJob mnist is created; spec.runPolicy.cleanPodPolicy: ";
    assert!(message.as_str().expect("not text").starts_with(expected), "{message}");
}

#[test]
fn replicas_are_counted_by_replica_type_as_the_file_spells_it() {
    let done = json!({ "code": 0, "ended_at": BEGIN, "stopped": false });
    let killed = json!({ "signal": 9, "ended_at": BEGIN, "stopped": true });
    let replicas = json!([
        replica("chief-0", "exited", &done),
        replica("worker-0", "running", &Value::Null),
        replica("ps-0", "requested", &Value::Null),
        replica("ps-1", "exited", &killed),
    ]);
    let counts = |view: &Value| shown("master", view)["status"]["replicaStatuses"].clone();
    assert_eq!(
        counts(&json!({ "state": "running", "replicas": replicas })),
        json!({ "MASTER": { "succeeded": 1 }, "worker": { "active": 1 }, "ps": {} })
    );
    // Replicas that were stopped after the success are counted as succeeded.
    let ended = json!([replica("chief-0", "exited", &done), replica("ps-1", "exited", &killed)]);
    assert_eq!(
        counts(&json!({ "state": "succeeded", "result": { "outcome": "succeeded" }, "replicas": ended })),
        json!({ "MASTER": { "succeeded": 1 }, "worker": {}, "ps": { "succeeded": 1 } })
    );
}

#[test]
fn the_object_is_the_sent_document_with_added_metadata_and_a_status() {
    let ended = json!({
        "state": "succeeded", "result": { "outcome": "succeeded" },
        "times": { "accepted": BEGIN, "started": BEGIN + 5_000, "ended": BEGIN + 30_000 },
    });
    let object = shown("every_role", &ended);
    assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("kubeflow.org/v1"), &json!("TFJob")));
    let metadata = json!({
        "name": "mnist", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": { "team": "vision" }, "annotations": { "note": "nightly" },
    });
    assert_eq!(object["metadata"], metadata);
    let types = &object["spec"]["tfReplicaSpecs"];
    assert_eq!(types["Worker"]["replicas"], 2);
    assert_eq!(
        types["Evaluator"]["template"]["spec"]["containers"][0]["command"],
        json!(["python", "/var/evaluate.py"])
    );
    assert_eq!(object["spec"]["runPolicy"]["backoffLimit"], 4);
    let times = ["startTime", "completionTime", "lastReconcileTime"].map(|name| object["status"][name].clone());
    assert_eq!(times, ["2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"]);
}

#[test]
fn a_suspension_and_a_new_number_of_workers_are_shown_in_the_spec() {
    let object = shown("dynamic", &json!({ "state": "suspended", "workers": { "min": 1, "max": 7 } }));
    assert_eq!(object["spec"]["runPolicy"]["suspend"], true);
    assert_eq!(object["spec"]["tfReplicaSpecs"]["Worker"]["replicas"], 7);
}
