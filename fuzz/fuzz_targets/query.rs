//! The query of `GET /create`. An accepted query gives a job that `POST /v1/jobs` accepts unchanged.
#![cfg_attr(fuzzing, no_main)]

use master::http::spec_of_query;
use protocol::job::{JobRequest, JobSpec};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|query: &[u8]| check(query));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(query: &[u8]) {
    let Ok(query) = std::str::from_utf8(query) else { return };
    let Some(spec) = spec_of_query(query) else { return };
    let json = serde_json::to_vec(&spec).expect("the job could not be written as JSON");
    let request: JobRequest = serde_json::from_slice(&json).expect("the job's JSON is not a job request");
    assert_eq!(JobSpec::try_from(request).as_ref(), Ok(&spec));
    let is_name = |(_, value): (_, std::borrow::Cow<'_, str>)| value == spec.name.as_str();
    assert!(form_urlencoded::parse(query.as_bytes()).any(is_name), "no value of the query is the job's name");
}
