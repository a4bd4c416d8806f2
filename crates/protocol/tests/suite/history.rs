//! Golden JSON of the jobs in the history.

use crate::common::{assert_golden, assert_tolerates_new_fields, read};
use protocol::history::{PastJob, PastJobs, Skipped};
use serde_json::json;

#[test]
fn the_golden_json_of_a_list_of_past_jobs() {
    let skipped = Skipped { file: "1-a-b.json".into(), reason: "is damaged".into() };
    let json = json!({"jobs": [], "skipped": [{"file": "1-a-b.json", "reason": "is damaged"}]});
    assert_golden(&PastJobs { jobs: vec![], skipped: vec![skipped] }, &json);
    assert_golden(&PastJobs::default(), &json!({"jobs": []}));
    assert_tolerates_new_fields::<PastJobs>(&json);
}

#[test]
fn the_golden_json_of_a_past_job() {
    let spec = json!({
        "name": "digits", "strategy": "AllReduce",
        "worker_num": 1, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
    });
    let view = json!({
        "name": "digits", "uid": "0b5e", "seq": 1, "state": "succeeded", "result": {"outcome": "succeeded"}, "spec": spec,
        "replicas": [], "times": {"accepted": 1, "ended": 2},
    });
    let spent = json!({
        "kept_steps_ms": 0, "lost_steps_ms": 0, "running_ms": 0, "program_startup_ms": 0, "after_steps_ms": 0,
        "gathering_ms": 1, "recovery_ms": 0, "suspended_ms": 0, "halted_ms": 0,
    });
    let timeline = json!({
        "name": "digits", "uid": "0b5e", "state": "succeeded", "now": 3, "accepted": 1, "ended": 2, "starts": [],
        "replicas": [], "spent": spent,
    });
    let json = json!({"view": view, "timeline": timeline, "series": {"replicas": []}, "last_output": "killed\n"});
    let past: PastJob = read(&json).expect("not a past job");
    assert_eq!((past.view.uid.as_str(), past.last_output.as_str()), ("0b5e", "killed\n"));
    assert_golden(&past, &json);
    assert_tolerates_new_fields::<PastJob>(&json);
}
