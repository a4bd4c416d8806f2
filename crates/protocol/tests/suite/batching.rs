//! Batches in a request: which are accepted, and what is said about the others.

use proptest::prelude::*;
use protocol::batching::{BatchBounds, Batching, GLOBAL_BATCH_MAX};
use protocol::elastic::Workers;
use protocol::env::{ENTRY_LIMIT, EnvName};
use protocol::error::ErrorCode;
use protocol::group::Group;
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use protocol::patch::JobPatch;
use protocol::tf_config::{TfConfigOptions, members_max};
use serde_json::{Value, json};

/// Groups of workers, each from its fields and its number of workers.
fn request(workers: u32, batching: Batching, groups: &[(Value, u32)]) -> JobRequest {
    let group = |(fields, count): &(Value, u32)| {
        let mut group = json!({"role": "worker", "count": count});
        group.as_object_mut().expect("an object").extend(fields.as_object().expect("not an object").clone());
        serde_json::from_value::<Group>(group).expect("not a group")
    };
    let name = "digits".parse().expect("not a name");
    JobRequest {
        worker_num: Some(workers),
        batching,
        groups: groups.iter().map(group).collect(),
        ..JobRequest::new(name, Strategy::AllReduce)
    }
}

fn global(batch: u32) -> Batching {
    Batching { global_batch: Some(batch), ..Batching::default() }
}

fn refusal(request: JobRequest) -> SpecError {
    JobSpec::try_from(request).expect_err("the request is accepted")
}

#[test]
fn the_global_batch_is_given_or_the_sum_of_fixed_sizes() {
    let fixed = [(json!({"batch": {"min": 64, "max": 64}}), 2), (json!({"batch": {"min": 16, "max": 16}}), 2)];
    for (request, batch) in [
        (request(4, Batching::default(), &[]), None),
        (request(4, global(256), &[]), Some(256)),
        (request(4, Batching::default(), &fixed), Some(160)),
        (
            request(
                4,
                global(176),
                &[(json!({"batch": {"min": 64, "max": 64}}), 2), (json!({"batch": {"min": 16, "max": 32}}), 2)],
            ),
            Some(176),
        ),
    ] {
        let spec = JobSpec::try_from(request).expect("the request is refused");
        assert_eq!(spec.global_batch(), batch);
        let record = serde_json::to_value(&spec).expect("not JSON");
        assert_eq!(serde_json::from_value::<JobSpec>(record).expect("not a spec"), spec);
    }
}

#[test]
fn impossible_batches_are_refused_and_named() {
    let with = |batching: Batching| request(4, Batching { global_batch: Some(64), ..batching }, &[]);
    let bounds = |min_batch, max_batch| Batching { min_batch, max_batch, ..Batching::default() };
    let multiple = |multiple| Batching { multiple: Some(multiple), ..Batching::default() };
    let elastic = |request: JobRequest| JobRequest { worker_min: Some(1), ..request };
    let listed = TfConfigOptions {
        extra: [("batch_size_list".to_owned(), json!([1]))].into_iter().collect(),
        ..TfConfigOptions::default()
    };
    let of_server = Group { batch: Some(BatchBounds { min: 1, max: 2 }), ..Group::new(Role::Ps, 1) };
    for (request, part) in [
        (request(4, global(0), &[]), "global-batch is 0"),
        (request(4, global(GLOBAL_BATCH_MAX + 1), &[]), "from 1 to 10000000"),
        (
            request(4, global(3), &[]),
            "a global batch of 3 is too small for 4 workers: their smallest batches have 4 samples",
        ),
        (request(4, bounds(Some(8), None), &[]), "the batches need a sum"),
        (
            request(
                4,
                Batching::default(),
                &[(json!({"batch": {"min": 64, "max": 64}}), 2), (json!({"batch": {"min": 16, "max": 32}}), 2)],
            ),
            "the batches need a sum",
        ),
        (
            elastic(request(4, Batching::default(), &[(json!({"batch": {"min": 64, "max": 64}}), 4)])),
            "the batches need a sum",
        ),
        (with(bounds(Some(17), None)), "too small for 4 workers: their smallest batches have 68 samples"),
        (with(bounds(None, Some(15))), "too large for 4 workers: their largest batches may have only 60 samples"),
        (elastic(with(bounds(None, Some(32)))), "too large for 1 workers"),
        (with(bounds(Some(9), Some(8))), "a batch of 9 to 8 is impossible"),
        (with(bounds(Some(0), None)), "a batch of 0 to 64 is impossible"),
        (with(multiple(0)), "not a multiple of 0"),
        (with(multiple(7)), "global-batch 64 is not a multiple of 7"),
        (with(Batching { min_batch: Some(9), max_batch: Some(15), ..multiple(8) }), "contain no multiple of 8"),
        (
            request(2, global(64), &[(json!({"gpus": 1}), 1), (json!({"cpu": "4"}), 1)]),
            "some workers have GPUs and some have none",
        ),
        (
            JobRequest {
                groups: vec![of_server],
                ps_num: Some(1),
                strategy: Strategy::ParameterServer,
                ..request(2, global(64), &[])
            },
            "a group of role ps has a batch",
        ),
    ] {
        let error = refusal(request);
        assert_eq!(error.code(), ErrorCode::BadBatching, "{error}");
        assert!(error.to_string().contains(part), "{error}: {part}");
    }
    let error = refusal(JobRequest { tf_config: listed, ..request(4, global(64), &[]) });
    assert_eq!(error.code(), ErrorCode::BadGroups, "{error}");
}

#[test]
fn sizes_whose_sum_is_too_large_for_a_number_and_too_many_workers_for_the_list_are_refused() {
    let huge = refusal(request(2, Batching::default(), &[(json!({"batch": {"min": u32::MAX, "max": u32::MAX}}), 2)]));
    assert!(huge.to_string().contains("global-batch is 4294967295"), "{huge}");
    let many = refusal(request(5_000, Batching::default(), &[(json!({"batch": {"min": 64, "max": 64}}), 5_000)]));
    assert!(matches!(many, SpecError::TooManyWorkers { asked: 5_000, .. }), "{many}");
}

#[test]
fn a_chief_is_never_missing_in_the_smallest_gang() {
    let chief = Group { batch: Some(BatchBounds { min: 1, max: 100 }), ..Group::new(Role::Chief, 1) };
    let mut elastic = request(4, global(100), &[(json!({"batch": {"min": 1, "max": 10}}), 4)]);
    elastic.groups.push(chief);
    let spec = JobSpec::try_from(JobRequest { chief_num: Some(1), worker_min: Some(1), ..elastic });
    assert_eq!(spec.map(|spec| spec.global_batch()), Ok(Some(100)));
}

#[test]
fn a_job_is_not_scaled_to_a_number_of_workers_for_which_there_are_no_sizes() {
    let bounds = Batching { min_batch: Some(16), max_batch: Some(64), ..global(128) };
    let spec = JobSpec::try_from(JobRequest { worker_min: Some(2), ..request(4, bounds, &[]) }).expect("refused");
    let patch =
        |min, max| spec.patched(None, JobPatch { worker_min: Some(min), worker_num: Some(max), ..JobPatch::default() });
    assert_eq!(patch(2, 8), Ok(Workers { min: 2, max: 8 }));
    for (min, max) in [(1, 4), (2, 9)] {
        assert!(matches!(patch(min, max), Err(SpecError::Batching(_))), "{min}:{max}");
    }
}

#[test]
fn first_weights_are_gpus_or_requested_cpus_or_equal() {
    let weights = |groups: &[(Value, u32)]| {
        let spec = JobSpec::try_from(request(2, global(96), groups)).expect("refused");
        spec.batch_weights(&[0, 1].map(|index| ReplicaId { role: Role::Worker, index }))
    };
    assert_eq!(weights(&[]), [1.0, 1.0]);
    assert_eq!(weights(&[(json!({"cpu": "1"}), 1), (json!({"cpu": "2500m:3"}), 1)]), [1_000.0, 2_500.0]);
    assert_eq!(weights(&[(json!({"cpu": "1"}), 1), (json!({"memory": "1Gi"}), 1)]), [1.0, 1.0]);
    assert_eq!(weights(&[(json!({"cpu": "8", "gpus": 1}), 1), (json!({"cpu": "4", "gpus": 4}), 1)]), [1.0, 4.0]);
}

proptest! {
    /// With the most members, TF_CONFIG with the longest addresses and list of sizes fits into one variable.
    #[test]
    fn tf_config_with_sizes_fits_into_a_variable(batch in 1_u32..=GLOBAL_BATCH_MAX, word in "[a-z]{0,200}") {
        let extra = [("environment".to_owned(), json!(word))].into_iter().collect();
        let options = TfConfigOptions { extra, chief_is_master: true, ..TfConfigOptions::default() };
        let members = members_max(&options, Some(batch)) as usize;
        let addresses = vec!["255.255.255.255:65535"; members];
        let text = json!({
            "cluster": {"master": [], "worker": addresses, "ps": []}, "task": {"type": "evaluator", "index": 99999},
            "batch_size_list": serde_json::to_string(&vec![batch; members]).expect("not JSON"), "environment": word,
        });
        let name: EnvName = "TF_CONFIG".parse().expect("not a name");
        let text = text.to_string();
        prop_assert_eq!(name.check_value(&text), Ok(()), "{} bytes", text.len());
        prop_assert!(text.len() + 64 > ENTRY_LIMIT, "{} bytes: there is room for more members", text.len());
    }
}
