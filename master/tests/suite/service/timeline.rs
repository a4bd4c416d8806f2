//! Tests that the timeline of a job tells the same as its view: the same causes, the same times, the same failures.

use master::host::clock::wall_clock;
use master::registry::JobHandle;
use protocol::agent::ExitOutcome;
use protocol::ids::UnixMillis;
use protocol::progress::Progress;
use protocol::run_policy::RunPolicy;
use protocol::spent::Goodput;
use protocol::starts::{ChangeCause, GangChange};
use protocol::timeline::{StartEnding, StartFacts, Timeline};
use protocol::view::JobState;
use serde_json::json;

use crate::service::elastic::{agents, elastic, running_with};
use crate::service::harness::{Master, in_time, reach, spec, spec_with, until, worker};

fn timeline(job: &JobHandle) -> Timeline {
    job.kept.timeline.shown(&job.view.borrow(), wall_clock())
}

fn changes(timeline: &Timeline) -> Vec<GangChange> {
    timeline.starts.iter().filter_map(StartFacts::change).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_and_the_next_one_have_the_times_and_the_failure_of_the_view() {
    let master = Master::serving(None).await;
    let policy = RunPolicy { max_restarts: 1, backoff_seconds: 0, ..RunPolicy::default() };
    let spec = spec_with("retried", 2, policy);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    master.backend.agent(&spec.name, worker(1)).await.exit(ExitOutcome::Code(3));
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 1).await;
    for index in 0..2 {
        master.backend.agent(&spec.name, worker(index)).await.exit(ExitOutcome::Code(0));
    }
    let view = reach(&job, JobState::Succeeded).await;

    let answer = master.get("/v1/jobs/retried/timeline").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let timeline: Timeline = serde_json::from_value(answer.json()).expect("not a timeline");
    let [first, second] = &timeline.starts[..] else { panic!("there are not two starts: {timeline:?}") };
    let failed = &view.restarts.failed_starts[0];
    assert_eq!((first.generation, &first.cause), (failed.generation, &Some(ChangeCause::First)));
    let Some(StartEnding::Failed { failure }) = &first.ending else { panic!("{first:?}") };
    assert_eq!(failure.to_string(), failed.failure.to_string());
    assert_eq!(second.cause, Some(ChangeCause::Left { failure: failure.clone() }));
    assert_eq!(second.ending, Some(StartEnding::Succeeded));

    let times = &view.times;
    assert_eq!(
        (first.began, first.complete, first.configured, first.started),
        (times.accepted, times.joined, times.configured, times.started)
    );
    assert_eq!((second.began, second.started, second.stopped), (first.dead, times.restarted, times.ended));
    assert_eq!((timeline.ended, timeline.accepted), (times.ended, times.accepted.expect("no time of the submit")));
    assert_eq!(timeline.spent.whole_ms(), times.ended.expect("no end").0 - timeline.accepted.0);
    assert!(matches!(timeline.spent.goodput(), None | Some(Goodput::Running(_))), "{:?}", timeline.spent);

    assert_eq!(timeline.replicas.len(), 2, "{timeline:?}");
    for facts in &timeline.replicas {
        let order = [facts.requested, facts.addressed, facts.joined, facts.configured, facts.started, facts.ended];
        assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{facts:?}");
        assert_eq!(facts.generation, second.generation);
    }
    let reasons: Vec<_> = timeline.failed_replicas.iter().filter_map(|facts| facts.reason.as_deref()).collect();
    assert!(reasons.contains(&"exited with code 3"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_an_elastic_job_is_a_start_with_the_same_cause() {
    let master = Master::new();
    let spec = elastic("changes", 1, 3);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    agents(&master, &spec, &[1]).await[&1].exit(ExitOutcome::Code(3));
    let failed = |view: &protocol::view::JobView| view.state == JobState::Running && view.changes.len() == 2;
    let view = until(&job, failed).await;
    let timeline = timeline(&job);
    assert_eq!(changes(&timeline), view.changes);
    assert_eq!(timeline.starts[0].workers, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_and_a_suspension_are_in_the_timeline() {
    let master = Master::new();
    let spec = spec("stepping", 1);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let report = |step: u64| serde_json::from_value::<Progress>(json!({"step": step})).expect("not a report");
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    agent.report(report(7));
    let look = async {
        while timeline(&job).replicas[0].first_step.is_none() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the step is in the timeline", look).await;
    master.suspend(&spec, true).await;
    reach(&job, JobState::Suspended).await;
    let suspended = timeline(&job);
    let [start] = &suspended.starts[..] else { panic!("{suspended:?}") };
    assert_eq!((start.first_step.map(|first| first.step), &start.ending), (Some(7), &Some(StartEnding::Suspended)));
    // Times are in whole milliseconds.
    while Some(wall_clock()) <= start.dead {
        tokio::task::yield_now().await;
    }
    master.suspend(&spec, false).await;
    reach(&job, JobState::Running).await;
    let resumed = timeline(&job);
    let [before, after] = &resumed.starts[..] else { panic!("{resumed:?}") };
    assert_eq!(after.cause, Some(ChangeCause::Resumed));
    assert!(before.dead < after.began, "the job was not suspended between the starts: {resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_takeover_only_what_the_agents_report_is_known_of_earlier_starts() {
    let first = Master::new();
    let policy = RunPolicy { max_restarts: 2, backoff_seconds: 0, ..RunPolicy::default() };
    let spec = spec_with("taken-over", 1, policy);
    let job = first.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    first.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(3));
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 1).await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    reach(&job, JobState::Running).await;
    let shown = timeline(&job);
    let [adopted] = &shown.starts[..] else { panic!("{shown:?}") };
    // The scripts of fake agents start one millisecond after the epoch.
    let known = (adopted.generation.map(|start| start.to_string()), adopted.started, shown.unseen);
    assert_eq!(known, (Some("1.2".to_owned()), Some(UnixMillis(1)), 1));
    assert_eq!((&adopted.cause, adopted.began, adopted.complete), (&None, None, None));
    assert!(shown.taken_over > Some(shown.accepted), "{shown:?}");
    let facts = &shown.replicas[0];
    assert_eq!((facts.requested, facts.joined, facts.started), (None, None, Some(UnixMillis(1))), "{facts:?}");

    second.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(3));
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 2).await;
    let shown = timeline(&job);
    let [adopted, own] = &shown.starts[..] else { panic!("{shown:?}") };
    assert!(matches!(adopted.ending, Some(StartEnding::Failed { .. })), "{adopted:?}");
    assert!(own.began == adopted.dead && own.started >= own.began, "{own:?}");
    assert_eq!(shown.unseen, 1);
}
