//! Golden JSON of the answer to a dry run.

use protocol::dry_run::{DryRun, PodsOfKind};
use protocol::origin::Warning;
use protocol::patch::JobPatch;
use serde_json::json;

use crate::common::{assert_golden, assert_tolerates_new_fields};

#[test]
fn the_answer_of_a_job_whose_pods_are_processes_has_no_pods() {
    assert_golden(&DryRun::default(), &json!({"pods": []}));
}

#[test]
fn the_answer_has_the_pods_of_each_kind_and_the_warnings() {
    let answer = DryRun {
        lacks_code: true,
        pods: vec![PodsOfKind { count: 2, first: json!({"kind": "Pod"}) }],
        warnings: vec![Warning { path: "spec.x".into(), sentence: "has no effect".into() }],
        ..DryRun::default()
    };
    let golden = json!({
        "lacks_code": true, "pods": [{"count": 2, "first": {"kind": "Pod"}}],
        "warnings": [{"path": "spec.x", "sentence": "has no effect"}],
    });
    assert_golden(&answer, &golden);
    assert_tolerates_new_fields::<DryRun>(&golden);
}

#[test]
fn the_answer_of_a_tfjob_on_record_has_its_change() {
    let change = JobPatch { suspended: Some(true), ..JobPatch::default() };
    let golden = json!({"on_record": true, "change": {"suspended": true}, "pods": []});
    assert_golden(&DryRun { on_record: true, change, ..DryRun::default() }, &golden);
}
