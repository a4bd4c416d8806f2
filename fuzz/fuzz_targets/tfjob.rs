//! A TFJob as YAML or JSON. If the master refuses the TFJob, each reason names a field. The master can show an accepted
//! TFJob as an object. If a user applies this object again, the object describes the same job.
#![cfg_attr(fuzzing, no_main)]

use launchers::kubeflow::{ReplicaHost, difference, object, read};
use protocol::ids::UnixMillis;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::tfjob::TfJobRequest;
use protocol::view::JobView;
use serde_json::json;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|document: &[u8]| check(document));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(document: &[u8]) {
    let Ok(document) = std::str::from_utf8(document) else { return };
    let read = |document: String| {
        let place = ReplicaHost::Pods { namespace: "team".to_owned(), honours_root: true };
        read(&TfJobRequest { document, ..TfJobRequest::default() }, &place).map(|read| read.spec)
    };
    let spec = match read(document.to_owned()) {
        Ok(spec) => spec,
        Err(refused) => return assert!(refused.iter().all(|note| !note.path.is_empty()), "{refused:?}"),
    };
    let stored: JobSpec = serde_json::from_value(json!(spec)).expect("the stored job could not be parsed");
    assert_eq!(stored, spec);
    let view = json!({
        "name": spec.name, "uid": "u", "seq": 1, "state": "pending", "spec": spec, "workers": spec.workers(),
        "replicas": [], "times": {},
    });
    let view: JobView = serde_json::from_value(view).expect("the view could not be parsed");
    let shown = object(&view, Some("team"), UnixMillis(0)).expect("the job could not be shown as a TFJob");
    let again = read(shown.to_string()).unwrap_or_else(|refused| panic!("{refused:?} in the shown TFJob {shown:#}"));
    assert_eq!(difference(&spec, spec.workers(), &again), Some(JobPatch::default()), "{shown:#}");
}
