//! Tests that a timeline is bounded, and that no time is lost when it is cut.

use job::observation::{AgentState, Enrolled, Observation};
use job::tracked::Tracked;
use protocol::agent::{ExitOutcome, ExitReport, Membership};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::view::JobTimes;

use super::*;
use crate::driver::initial_view;
use crate::store::JobRecord;

const SECOND: u64 = 1000;

/// Notes one start of ten seconds that fails, and that the next start gathers. Returns the time after it.
fn failed_start(timeline: &TimelineOfJob, sequence: u32, began: u64) -> u64 {
    let at = |second: u64| UnixMillis(began + second * SECOND);
    let generation = Generation { epoch: 1, sequence };
    let replica = "worker-1".parse().unwrap();
    let exit = ExitReport { stderr_tail: "x".repeat(4000), ..ExitReport::new(ExitOutcome::Code(1), at(9)) };
    let failure = Failure::ReplicaExited { replica, exit };
    let mut facts = timeline.0.lock();
    facts.complete(generation, at(1));
    drop(facts);
    let cause = if sequence == 1 { ChangeCause::First } else { ChangeCause::Left { failure: failure.clone() } };
    timeline.start(generation, Beginning { workers: 64, cause: cause.clone(), lost_steps: None }, sequence - 1);
    let mut facts = timeline.0.lock();
    facts.open().unwrap().started = Some(at(2));
    drop(facts);
    if sequence > 1 {
        let [gathering, starting] = [1, 1].map(std::time::Duration::from_secs);
        assert_eq!(timeline.0.lock().start_times(), Some(StartTimes { gathering, starting }));
    }
    timeline.step(generation, 1, at(3));
    timeline.step(generation, 6, at(8));
    let mut facts = timeline.0.lock();
    facts.end(StartEnding::Failed { failure: without_output(failure) }, at(10));
    facts.gather(at(10), Some(cause));
    at(10).0
}

#[test]
fn a_job_that_restarts_for_ever_has_a_bounded_timeline_whose_parts_sum_to_its_whole_time() {
    let timeline = TimelineOfJob::default();
    let spec = JobRequest { worker_num: Some(64), ..JobRequest::new("digits".parse().unwrap(), Strategy::AllReduce) };
    let spec = JobSpec::try_from(spec).unwrap();
    let record = JobRecord::new(spec, "uid".to_owned(), "master".to_owned(), UnixMillis(0));
    let phase = JobPhase::Pending {
        gathering: job::phase::Gathering {
            next: Generation { epoch: 1, sequence: 1 },
            horizon: None,
            ready_since: None,
            is_held_back: false,
        },
        since: std::time::Duration::ZERO,
    };
    timeline.begin(&record, &phase, UnixMillis(5));
    let mut now = 0;
    for sequence in 1..=100 {
        for index in 0..64 {
            let id = ReplicaId { role: Role::Worker, index };
            timeline.see(id, &member(sequence, index), None, UnixMillis(now));
        }
        now = failed_start(&timeline, sequence, now);
    }
    let mut view = initial_view(&record);
    view.times = JobTimes { accepted: Some(UnixMillis(0)), ..JobTimes::default() };
    let shown = timeline.shown(&view, UnixMillis(now));
    let Folded { causes, .. } = shown.folded.clone().unwrap();
    assert_eq!(causes, [("first".to_owned(), 1), ("left".to_owned(), 36)].into());
    assert_eq!((shown.starts.len(), shown.unseen), (STARTS_MAX, 0));
    // Every start repeats all steps of the start before, so only the steps of the last start are kept.
    let expected = Spent {
        gathering_ms: 2 * SECOND,
        program_startup_ms: 100 * SECOND,
        kept_steps_ms: 5 * SECOND,
        lost_steps_ms: 99 * 5 * SECOND,
        after_steps_ms: 100 * 2 * SECOND,
        recovery_ms: 99 * 2 * SECOND,
        ..Spent::default()
    };
    assert_eq!(expected.whole_ms(), now);
    assert_eq!(shown.spent, expected);
    let bytes = serde_json::to_vec(&shown).unwrap().len();
    assert!(bytes <= 64 * 1024, "the timeline has {bytes} bytes");
}

/// A member of this start, whose agent has not answered.
fn member(sequence: u32, seat: u32) -> Tracked {
    let membership = Membership { seat, of: 64, start: sequence - 1, pushes: 0 };
    let generation = Generation { epoch: 1, sequence };
    let mut tracked = Tracked::new(false);
    tracked.seen = Observation { enrolled: Some(Enrolled { generation, membership }), ..Observation::NEW };
    tracked.request(std::time::Duration::ZERO);
    tracked
}

#[test]
fn a_failed_start_keeps_its_replicas_until_another_start_fails() {
    let timeline = TimelineOfJob::default();
    timeline.0.lock().gather(UnixMillis(0), None);
    let id = ReplicaId { role: Role::Worker, index: 1 };
    timeline.see(id, &member(1, 1), None, UnixMillis(1));
    failed_start(&timeline, 1, 0);
    let second = Generation { epoch: 1, sequence: 2 };
    timeline.0.lock().complete(second, UnixMillis(12_000));
    timeline.start(second, Beginning { workers: 1, cause: ChangeCause::Pushed, lost_steps: None }, 1);
    timeline.see(id, &member(2, 1), Some(second), UnixMillis(12_000));
    let spec = JobSpec::try_from(JobRequest::new("digits".parse().unwrap(), Strategy::AllReduce)).unwrap();
    let view = initial_view(&JobRecord::new(spec, "uid".to_owned(), "master".to_owned(), UnixMillis(0)));
    let shown = timeline.shown(&view, UnixMillis(13_000));
    let starts = |replicas: &[ReplicaFacts]| replicas.iter().map(|facts| facts.generation).collect::<Vec<_>>();
    assert_eq!(starts(&shown.replicas), [Some(second)]);
    assert_eq!(starts(&shown.failed_replicas), [Some(Generation { epoch: 1, sequence: 1 })]);
}

#[test]
fn an_evaluator_that_starts_again_alone_is_there_once_for_each_pod() {
    let (mut replicas, id) = (Replicas::default(), "evaluator-0".parse().unwrap());
    let start = Generation { epoch: 1, sequence: 1 };
    let mut evaluator = member(1, 0);
    for at in 0..20 {
        let enrolled = evaluator.seen.enrolled;
        evaluator.seen.agent = AgentState::Failed(evaluator.seen.lost("it failed"));
        replicas.see(id, &evaluator, Some(start), UnixMillis(at));
        evaluator.request(std::time::Duration::from_secs(at));
        replicas.see(id, &evaluator, Some(start), UnixMillis(at));
        evaluator.seen.enrolled = enrolled;
        replicas.see(id, &evaluator, Some(start), UnixMillis(at));
    }
    let shown = replicas.of(Some(start));
    let facts: Vec<_> = shown.iter().map(|facts| (facts.pod, facts.ended.is_some(), facts.reason.is_some())).collect();
    let expected: Vec<_> = (4..20).map(|pod| (pod, true, true)).chain([(20, false, false)]).collect();
    assert_eq!(facts, expected);
    assert_eq!(replicas.of(None).len(), 1);
}
