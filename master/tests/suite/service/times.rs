//! Tests of the times that the view of a job shows after another master has taken the job over.

use job::wait::Wait;
use protocol::agent::ExitOutcome;
use protocol::ids::UnixMillis;
use protocol::job::JobSpec;
use protocol::view::{JobState, JobTimes};
use testkit::fake::{Arrival, FakeBackend, FakeStore};

use crate::service::elastic::{elastic, running_with};
use crate::service::harness::{Master, reach, spec, until, worker};

/// The time at which the scripts of fake agents start.
const STARTED: Option<UnixMillis> = Some(UnixMillis(1));

/// When the gang was complete, configured, started for the first time, and started again.
fn steps(times: &JobTimes) -> [Option<UnixMillis>; 4] {
    let JobTimes { joined, configured, started, restarted, .. } = times;
    [*joined, *configured, *started, *restarted]
}

/// An elastic job of one or two workers, with the pod of worker-1 pending, and its first master.
async fn one_of_two(name: &str) -> (Master, JobSpec) {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.keep_pending(&[worker(1)], Wait::Other("0/1 nodes have room".to_owned()));
    let (first, spec) = (Master::over("first", backend, FakeStore::default()), elastic(name, 1, 2));
    let job = first.submit(spec.clone()).await;
    running_with(&job, &[0]).await;
    (first, spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_shows_only_the_times_that_it_has_seen_and_those_that_the_agents_report() {
    let (first, spec) = one_of_two("taken-over").await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    let before = running_with(&job, &[0]).await;
    assert_eq!(steps(&before.times), [None, None, STARTED, None]);
    second.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(3));
    let again = until(&job, |view| view.state == JobState::Running && view.generation != before.generation).await;
    let [joined, configured, started, restarted] = steps(&again.times);
    assert_eq!([joined, configured, started], [None, None, STARTED]);
    assert!(restarted > STARTED, "wrong time of the newest start: {restarted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_does_not_take_a_later_start_for_the_first_one() {
    let (first, spec) = one_of_two("restarted").await;
    first.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(3));
    let job = first.job(&spec.name);
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 1).await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    assert_eq!(steps(&running_with(&job, &[0]).await.times), [None, None, None, STARTED]);
    second.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(0));
    assert_eq!(steps(&reach(&job, JobState::Succeeded).await.times), [None, None, None, STARTED]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_under_a_new_master_may_not_be_the_jobs_first_start() {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.limit_room(0);
    let first = Master::over("first", backend, FakeStore::default());
    let spec = spec("late", 1);
    let job = first.submit(spec.clone()).await;
    until(&job, |view| view.replicas[0].reason.is_some()).await;
    let second = first.successor().await;
    second.backend.limit_room(1);
    let job = second.job(&spec.name);
    let view = reach(&job, JobState::Running).await;
    let [joined, configured, started, restarted] = steps(&view.times);
    assert_eq!([joined, configured, started], [None; 3]);
    assert!(restarted >= view.times.accepted, "wrong time of the start: {restarted:?}");
}
