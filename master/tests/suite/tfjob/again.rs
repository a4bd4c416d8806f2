//! Tests which fields of a TFJob may differ from the job on record when the TFJob is applied again.

use std::fs;

use master::tfjob::difference;
use protocol::elastic::{JobPatch, Workers};
use protocol::job::JobSpec;

use super::{corpus, read_text};

/// The job of a file in which the text `before` is replaced by `after`.
fn edited(name: &str, before: &str, after: &str) -> JobSpec {
    let document = fs::read_to_string(corpus().join(name).with_extension("yaml")).expect("cannot read the file");
    assert!(document.contains(before), "{name} has no {before}");
    read_text(&document.replace(before, after)).expect("an invalid TFJob").spec
}

#[test]
fn only_suspend_and_the_workers_of_an_elastic_job_may_differ() {
    let same = Some(JobPatch::default());
    for (name, before, after, expected) in [
        ("clean_none_suspended", "mnist", "mnist", same),
        ("clean_none_suspended", "suspend: true", "suspend: false", same),
        ("clean_none_suspended", "    suspend: true\n", "", same),
        ("clean_none_suspended", "cleanPodPolicy: None", "cleanPodPolicy: All", None),
        ("clean_none_suspended", "OnFailure", "Never", None),
        ("every_role", "--steps", "--epochs", None),
        ("every_role", "replicas: 2", "replicas: 3", None),
        ("every_role", "nightly", "daily", None),
        ("dynamic", "mnist:1", "mnist:2", None),
        ("dynamic_alone", "replicas: 1", "replicas: 3", Some(JobPatch { worker_num: Some(3), ..JobPatch::default() })),
        ("dynamic", "replicas: 4", "replicas: 1", Some(JobPatch { worker_num: Some(1), ..JobPatch::default() })),
        ("dynamic", "replicas: 4", "replicas: 6", Some(JobPatch { worker_num: Some(6), ..JobPatch::default() })),
    ] {
        let on_record = edited(name, "kind", "kind");
        let sent = edited(name, before, after);
        assert_eq!(difference(&on_record, on_record.workers(), &sent), expected, "{name}: {before} becomes {after}");
    }
}

#[test]
fn workers_are_compared_with_the_current_number_of_workers() {
    let spec = edited("dynamic", "kind", "kind");
    let scaled = Some(Workers { min: 1, max: 7 });
    let back = Some(JobPatch { worker_num: Some(4), ..JobPatch::default() });
    assert_eq!(difference(&spec, scaled, &spec), back);
}
