//! The text of a record in a store. An accepted record has the job's name. It is the same after it is written and
//! parsed again. A client can parse its view.
#![cfg_attr(fuzzing, no_main)]

use master::driver::initial_view;
use master::job::plan;
use master::store::JobRecord;
use protocol::ids::JobName;
use protocol::view::JobView;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|text: &[u8]| check(text));

/// Checks one input.
///
/// # Panics
/// If the input breaks a rule in this file's description.
pub(crate) fn check(text: &[u8]) {
    let name: JobName = "digits".parse().expect("a job's name");
    let Ok(record) = JobRecord::read(&name, text) else { return };
    assert_eq!(record.spec.name, name);
    assert!(std::path::Path::new(&record.uid).components().count() == 1 && !record.uid.starts_with('.'));
    assert!(record.epoch.checked_add(1).is_some(), "another master can take over the job");
    let written = serde_json::to_vec(&record).expect("a record is JSON");
    assert_eq!(JobRecord::read(&name, &written).as_ref(), Ok(&record));

    assert!((1..10_000).contains(&plan::replicas(&record.spec).len()));
    let view = serde_json::to_vec(&initial_view(&record)).expect("a view is JSON");
    let view: JobView = serde_json::from_slice(&view).expect("a client can parse the view");
    assert_eq!(view.spec, record.spec);
    if let Some(ended) = record.ended {
        ended.times_of_finished();
        let _ = ended.bounded();
    }
}
