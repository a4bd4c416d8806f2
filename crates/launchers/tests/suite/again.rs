//! Tests of a TFJob that is applied again: which of its fields may differ from the job on record.

use std::fs;

use launchers::kubeflow::{difference, what_differs};
use protocol::elastic::Workers;
use protocol::job::JobSpec;
use protocol::origin::Origin;
use protocol::patch::JobPatch;

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

#[test]
fn the_first_field_or_flag_that_differs_is_named() {
    let on_record = edited("every_role", "kind", "kind");
    let changed = |change: &dyn Fn(&mut JobSpec)| {
        let mut sent = on_record.clone();
        change(&mut sent);
        assert_eq!(difference(&on_record, None, &sent), None, "the changed job is the same job");
        what_differs(&on_record, &sent)
    };
    let of_object = |sent: &mut JobSpec| {
        let Some(Origin::TfJob(origin)) = &mut sent.origin else { panic!("not a TFJob") };
        origin.object_uid = Some("uid".to_owned());
    };
    let command = "spec.tfReplicaSpecs.Chief.template.spec.containers[0].args[0] differs";
    for (sent, expected) in [
        (what_differs(&on_record, &edited("every_role", "--steps", "--epochs")), command),
        (
            changed(&|sent| sent.env = [("KEY".parse().expect("not a name"), "value".to_owned())].into()),
            "--env differs",
        ),
        (changed(&|sent| sent.run_policy.max_restarts += 1), "--max-restarts differs"),
        (changed(&|sent| sent.run_policy.evaluator_grace_seconds = Some(1)), "--evaluator-grace differs"),
        (changed(&|sent| sent.pod.allow_root = true), "--allow-root differs"),
        (changed(&|sent| sent.script = "train.py".parse().expect("not a script")), "--code differs"),
        (changed(&of_object), "client apply sent one of the two TFJobs, and kubectl apply the other"),
        (
            changed(&|sent| sent.ps_num += 1),
            "this master reads the TFJob differently than the master that accepted the job",
        ),
    ] {
        assert_eq!(sent, expected);
    }
}
