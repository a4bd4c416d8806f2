//! The text of a record in a store. An accepted record has the job's name, a uid that can name a folder, and an epoch
//! that can be raised. The record is the same after it is written and parsed again. A client can parse the job's view.
#![cfg_attr(fuzzing, no_main)]

use job::plan;
use master::driver::initial_view;
use master::store::JobRecord;
use protocol::ids::JobName;
use protocol::view::JobView;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|text: &[u8]| check(text));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(text: &[u8]) {
    let name: JobName = "digits".parse().expect("the name of the job is invalid");
    let Ok(record) = JobRecord::read(&name, text) else { return };
    assert_eq!(record.spec.name, name);
    assert!(std::path::Path::new(&record.uid).components().count() == 1 && !record.uid.starts_with('.'));
    assert!(record.epoch.checked_add(1).is_some(), "the epoch cannot be raised");
    let written = serde_json::to_vec(&record).expect("the record could not be written as JSON");
    assert_eq!(JobRecord::read(&name, &written).as_ref(), Ok(&record));

    assert!((1..10_000).contains(&plan::replicas(&record.spec).len()));
    let view = serde_json::to_vec(&initial_view(&record)).expect("the view could not be written as JSON");
    let view: JobView = serde_json::from_slice(&view).expect("a client cannot parse the view");
    assert_eq!(view.spec, record.spec);
    if let Some(ended) = record.ended {
        ended.times_of_finished();
        let _ = ended.bounded();
    }
}
