//! Tests of jobs in which a replica's memory is too small for its batch.

use job::batching::{Tried, rules, sizes_by_rank, too_large};
use job::diagnosis::{Evidence, diagnose};
use job::phase::{Ending, JobEvent, JobPhase, Seen};
use job::replica::ReplicaPhase::Exited;
use protocol::agent::ExitReport;
use protocol::batching::Batching;
use protocol::failure::{FailedStart, Failure, Restarts, TooLargeBatch};
use protocol::ids::UnixMillis;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::progress::Progress;
use protocol::view::JobResult;

use crate::support::{
    FIRST, NO_RESTARTS, SOON, exit, exited, fixed, id, seen, step, stopped, stopping, with_progress, with_restarts,
    workers,
};

fn spec(mut batching: Batching, (min, max): (Option<u32>, u32)) -> JobSpec {
    batching.global_batch = Some(96);
    let name = "digits".parse().expect("a valid name");
    let request =
        JobRequest { worker_num: Some(max), worker_min: min, batching, ..JobRequest::new(name, Strategy::AllReduce) };
    JobSpec::try_from(request).expect("a valid request")
}

fn out_of_memory() -> ExitReport {
    let exception = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating";
    ExitReport { exception: Some(exception.to_owned()), ..exit(1, 9) }
}

fn batch_of(replica: &str, batch: u32, most: u32) -> TooLargeBatch {
    TooLargeBatch { replica: id(replica), batch, most, possible: None }
}

/// A job of two workers, after these failures of worker-1 with these limits.
fn after(limits: &[u32]) -> Restarts {
    let failed = |most: &u32| FailedStart {
        too_large: vec![batch_of("worker-1", 2 * most, *most)],
        ..FailedStart::new(Some(FIRST), UnixMillis(9), exited("worker-1", out_of_memory()))
    };
    Restarts { failed_starts: limits.iter().map(failed).collect(), ..NO_RESTARTS.clone() }
}

#[test]
fn a_batch_that_was_too_large_becomes_the_last_size_that_lasted_or_half_of_it() {
    let two = (None, 2);
    let limit = |tried: Tried, batching: Batching| {
        let batch = too_large(&[(id("worker-1"), tried)], &spec(batching, two), &after(&[]))[0];
        assert_eq!((batch.replica, batch.batch), (id("worker-1"), tried.size));
        (batch.most, batch.possible)
    };
    let none = Batching::default;
    assert_eq!(limit(Tried { size: 64, lasted: None }, none()), (32, None));
    assert_eq!(limit(Tried { size: 64, lasted: Some(48) }, none()), (48, None));
    let eights = Batching { multiple: Some(8), ..none() };
    assert_eq!(limit(Tried { size: 40, lasted: None }, eights), (16, None), "a multiple of 8");
    let small = Batching { max_batch: Some(60), ..none() };
    assert_eq!(limit(Tried { size: 48, lasted: None }, small), (24, Some(84)), "60 and 24 samples are too few");
    let bounded = Batching { min_batch: Some(30), ..none() };
    assert_eq!(limit(Tried { size: 48, lasted: None }, bounded), (24, Some(0)), "less than the minimum");
    assert_eq!(limit(Tried { size: 1, lasted: None }, none()), (0, Some(0)), "nothing is less than 1");
    let earlier = after(&[24]);
    let other = (id("worker-0"), Tried { size: 72, lasted: None });
    let [batch] = too_large(&[other], &spec(none(), two), &earlier)[..] else { panic!("not one batch") };
    assert_eq!(batch.possible, Some(60), "worker-1 has too little memory too");
    let both = [other, (id("worker-1"), Tried { size: 24, lasted: Some(20) })];
    let limits = too_large(&both, &spec(none(), two), &after(&[]))
        .iter()
        .map(|one| (one.most, one.possible))
        .collect::<Vec<_>>();
    assert_eq!(limits, [(36, Some(56)), (20, Some(56))]);
}

#[test]
fn the_next_start_keeps_the_limits_of_all_earlier_failures() {
    let sizes = |restarts: &Restarts, workers: u32| {
        let places = (0..workers).map(|index| id(&format!("worker-{index}"))).map(|place| (place, place)).collect();
        sizes_by_rank((&spec(Batching::default(), (None, workers)), restarts), &places, |_| None)
    };
    assert_eq!(sizes(&after(&[]), 2), Some(vec![48, 48]));
    assert_eq!(sizes(&after(&[40, 24]), 2), Some(vec![72, 24]));
    assert_eq!(sizes(&after(&[4]), 2), Some(vec![92, 4]), "less than the usual minimum");
    assert_eq!(sizes(&after(&[24]), 3), Some(vec![36, 24, 36]));
    let places = [id("worker-1")];
    let alone = rules(&spec(Batching::default(), (Some(1), 2)), &after(&[24]), &places).expect("no rules");
    assert_eq!(alone.divide(&[1.0]), Some(vec![96]), "a limit prevents a start");
}

#[test]
fn an_elastic_job_starts_only_with_enough_memory() {
    let batching = || Batching { max_batch: Some(60), ..Batching::default() };
    let needed = |batching: Batching, workers, limits: &[(&str, u32)]| {
        let limit = |place| limits.iter().find(|(name, _)| id(name) == place).map(|(_, limit)| *limit);
        spec(batching, workers).workers_for_batch(limit)
    };
    let small = [("worker-1", 20), ("worker-2", 20)];
    assert_eq!(needed(batching(), (Some(2), 4), &[]), Ok(2));
    assert_eq!(needed(batching(), (Some(2), 4), &small), Ok(3), "both small ones and one other");
    assert_eq!(needed(batching(), (Some(2), 3), &small[..1]), Ok(3));
    assert_eq!(needed(batching(), (None, 2), &small[..1]), Err(80), "a fixed job has no further workers");
    let eights = || Batching { multiple: Some(8), ..batching() };
    assert_eq!(needed(eights(), (None, 2), &small[..1]), Err(56 + 16), "multiples of 8");
    assert_eq!(needed(Batching { min_batch: Some(30), ..batching() }, (Some(2), 3), &small[..1]), Err(0));
}

/// What follows when worker-1 ends for lack of memory twice in the same way, with this consequence for its batch.
fn judged(too_large: Option<TooLargeBatch>) -> (JobPhase, FailedStart) {
    let mut members = workers(&[Exited(FIRST, stopped(10)), Exited(FIRST, out_of_memory())]).places().to_vec();
    members[1] = with_progress(&members[1], Progress { step: Some(12), ..Progress::default() });
    let mut gang = fixed(members);
    let lacking = gang.members().filter_map(|member| Some((member.id, member.out_of_memory()?)));
    assert_eq!(lacking.collect::<Vec<_>>(), [(id("worker-1"), FIRST)]);
    gang.note_too_large(too_large.into_iter().collect());
    let failure: Failure = exited("worker-1", out_of_memory());
    let evidence = Evidence {
        generation: Some(FIRST),
        now: UnixMillis(20),
        budget: Some(job::policy::Budget::Counted),
        last_lines: vec![],
        silence: Default::default(),
        stacks: None,
    };
    let first = diagnose(failure.clone(), &gang, evidence);
    let restarts = Restarts { counted: 1, failed_starts: vec![first.clone()], ..NO_RESTARTS.clone() };
    let policy = with_restarts(3);
    let seen = Seen { restarts: &restarts, ..seen(&gang, &policy, SOON) };
    (step(stopping(Ending::Failed(failure)), JobEvent::Observed, seen).0, first)
}

#[test]
fn a_start_with_a_smaller_batch_is_not_the_same_again_and_an_impossible_batch_ends_the_job() {
    let smaller = batch_of("worker-1", 48, 24);
    let (phase, recorded) = judged(Some(smaller));
    assert!(matches!(phase, JobPhase::Restarting(_)), "{phase:?}");
    assert_eq!(recorded.too_large, [smaller], "the limit is not recorded");
    let impossible = TooLargeBatch { possible: Some(84), ..smaller };
    let (phase, _) = judged(Some(impossible));
    assert!(matches!(phase, JobPhase::Releasing { result: JobResult::Failed { .. }, .. }), "{phase:?}");
    // The job divides no batch.
    let (phase, recorded) = judged(None);
    assert!(matches!(phase, JobPhase::Releasing { .. }), "the same exception twice in a row: {phase:?}");
    assert_eq!(recorded.too_large, []);
}
