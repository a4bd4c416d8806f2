//! Tests of a job as users of Kubeflow see it: conditions, counts of replicas, and the spec that was sent.

use launchers::kubeflow::object;
use protocol::ids::UnixMillis;
use serde_json::{Value, json};

use super::{BEGIN, read_file, view_of};

/// The time `seconds` after the job was accepted.
fn at(seconds: u64) -> UnixMillis {
    UnixMillis(BEGIN.0 + seconds * 1000)
}

/// The TFJob object that is shown for the job of the file `name`. `more` contains fields of the job's view.
fn shown(name: &str, more: &Value) -> Value {
    let spec = read_file(name).expect("an invalid TFJob").spec;
    object(&view_of(&spec, more), Some("team"), at(60)).expect("not a TFJob")
}

/// The conditions after the first one, as `TYPE STATUS REASON SECONDS`. Asserts that the first one is `Created`.
fn conditions(object: &Value) -> Vec<String> {
    let of = |condition: &Value| {
        let text = |name: &str| condition[name].as_str().expect("not text").to_owned();
        let second = text("lastTransitionTime");
        let second = second.trim_start_matches("2026-01-01T00:00:").trim_end_matches('Z');
        format!("{} {} {} {second}", text("type"), text("status"), text("reason"))
    };
    let mut all: Vec<String> =
        object["status"]["conditions"].as_array().expect("no conditions").iter().map(of).collect();
    assert_eq!(all.remove(0), "Created True TFJobCreated 00");
    all
}

fn replica(id: &str, state: &str, exit: &Value) -> Value {
    let mut view = json!({ "replica": id, "state": state, "pod": format!("mnist-{id}") });
    if !exit.is_null() {
        view["exit"] = exit.clone();
    }
    view
}

#[test]
fn the_newest_conditions_show_the_state_of_the_job() {
    let failure = json!({ "cause": "deadline_exceeded", "after_seconds": 9 });
    let failed = json!({ "failed_starts": [{ "at": at(9), "failure": failure, "counted": true }], "counted": 1 });
    let accepted = json!({ "accepted": BEGIN });
    let started = json!({ "accepted": BEGIN, "started": at(5) });
    let ended = json!({ "accepted": BEGIN, "started": at(5), "ended": at(30) });
    let cancelled = json!({ "accepted": BEGIN, "ended": at(1) });
    let suspended = json!({ "accepted": BEGIN, "started": at(5), "suspended": at(8) });
    let suspended_early = json!({ "accepted": BEGIN, "suspended": BEGIN });
    let resumed = json!({ "accepted": BEGIN, "started": at(5), "resumed": at(12) });
    let restarted = json!({ "accepted": BEGIN, "started": at(5), "resumed": at(12), "restarted": at(20) });
    for (state, times, more, expected) in [
        ("pending", &accepted, json!({}), vec![]),
        ("starting", &accepted, json!({}), vec![]),
        ("running", &started, json!({}), vec!["Running True TFJobRunning 05"]),
        ("restarting", &started, json!({ "restarts": failed }), vec!["Restarting True TFJobRestarting 09"]),
        ("stopping", &started, json!({ "restarts": failed }), vec!["Running True TFJobRunning 05"]),
        (
            "stopping",
            &ended,
            json!({ "result": { "outcome": "succeeded" } }),
            vec!["Running False TFJobRunning 30", "Succeeded True TFJobSucceeded 30"],
        ),
        (
            "failed",
            &ended,
            json!({ "result": { "outcome": "failed", "failure": failure } }),
            vec!["Running False TFJobRunning 30", "Failed True TFJobFailed 30"],
        ),
        (
            "cancelled",
            &cancelled,
            json!({ "result": { "outcome": "cancelled" } }),
            vec!["Failed True TFJobCancelled 01"],
        ),
        (
            "suspended",
            &suspended,
            json!({}),
            vec!["Running False TFJobSuspended 08", "Suspended True TFJobSuspended 08"],
        ),
        ("suspended", &suspended_early, json!({}), vec!["Suspended True TFJobSuspended 00"]),
        ("restarting", &resumed, json!({ "restarts": failed }), vec!["Suspended False TFJobResumed 12"]),
        ("starting", &resumed, json!({}), vec!["Suspended False TFJobResumed 12"]),
        (
            "running",
            &restarted,
            json!({ "restarts": failed }),
            vec!["Suspended False TFJobResumed 12", "Running True TFJobRunning 20"],
        ),
        // The failure is older than the newest start. So this restart has another cause, for example a change of
        // members, and the condition stays Running.
        (
            "restarting",
            &restarted,
            json!({ "restarts": failed }),
            vec!["Suspended False TFJobResumed 12", "Running True TFJobRunning 20"],
        ),
    ] {
        let mut view = more;
        (view["state"], view["times"]) = (state.into(), times.clone());
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
        "times": { "accepted": BEGIN, "started": at(5), "ended": at(30) },
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
