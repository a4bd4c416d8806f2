//! `GET /create`'s query: what is accepted is a job that the other way of submitting accepts too, and the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use master::http::spec_of_query;
use protocol::job::{JobRequest, JobSpec};

fuzz_target!(|query: &str| {
    let Some(spec) = spec_of_query(query) else { return };
    let json = serde_json::to_vec(&spec).expect("a job is JSON");
    let request: JobRequest = serde_json::from_slice(&json).expect("a job can be asked for");
    assert_eq!(JobSpec::try_from(request).as_ref(), Ok(&spec));
    let says_so = |(_, value): (_, std::borrow::Cow<'_, str>)| value == spec.name.as_str();
    assert!(form_urlencoded::parse(query.as_bytes()).any(says_so), "the name was given");
});
