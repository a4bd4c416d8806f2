//! Tests of elastic jobs: workers come and go while the job runs.

use std::collections::BTreeMap;

use master::host::clock::wall_clock;
use master::registry::JobHandle;
use master::store::JobStore;
use protocol::agent::ExitOutcome;
use protocol::elastic::Workers;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::patch::JobPatch;
use protocol::progress::Progress;
use protocol::run_policy::RunPolicy;
use protocol::starts::ChangeCause;
use protocol::view::{JobState, JobView};
use serde_json::json;
use testkit::fake::FakeAgent;

use crate::service::harness::{Master, client, in_time, reach, until, worker};

/// An elastic job that restarts without a pause. Its grow interval is longer than a test may take.
pub(crate) fn elastic(name: &str, min: u32, max: u32) -> JobSpec {
    let request = JobRequest {
        worker_min: Some(min),
        worker_num: Some(max),
        run_policy: RunPolicy { backoff_seconds: 0, ..RunPolicy::default() },
        ..JobRequest::new(name.parse().expect("not a job's name"), Strategy::AllReduce)
    };
    JobSpec::try_from(request).expect("an invalid request")
}

fn workers(indexes: &[u32]) -> Vec<ReplicaId> {
    indexes.iter().copied().map(worker).collect()
}

/// Waits until the job runs with these members, in the order of their seats.
pub(crate) async fn running_with(job: &JobHandle, indexes: &[u32]) -> JobView {
    let roster = workers(indexes);
    until(job, |view| view.state == JobState::Running && view.roster == roster).await
}

pub(crate) async fn agents(master: &Master, spec: &JobSpec, indexes: &[u32]) -> BTreeMap<u32, FakeAgent> {
    let mut agents = BTreeMap::new();
    for index in indexes {
        agents.insert(*index, master.backend.agent(&spec.name, worker(*index)).await);
    }
    agents
}

async fn scale(master: &Master, spec: &JobSpec, min: Option<u32>, max: u32) -> Workers {
    let patch = JobPatch { worker_min: min, worker_num: Some(max), ..JobPatch::default() };
    let record = master.jobs.requests.patch(&spec.name, patch).await.expect("the change was refused");
    record.workers().expect("the job is not elastic")
}

/// The value of a variable in the newest environment of this agent.
pub(crate) fn newest(agent: &FakeAgent, variable: &str) -> serde_json::Value {
    agent.history().configs.last().expect("the agent was not configured").1[variable].clone()
}

pub(crate) fn succeed(agents: &BTreeMap<u32, FakeAgent>) {
    agents.values().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_shrinks_and_grows_with_its_maximum_number_of_workers() {
    let master = Master::new();
    let spec = elastic("scaled", 2, 4);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2, 3]).await;
    assert_eq!(scale(&master, &spec, None, 2).await, Workers { min: 2, max: 2 });
    let view = running_with(&job, &[0, 1]).await;
    assert_eq!(view.changes.last().expect("no change").cause, ChangeCause::Shrunk);
    until(&job, |view| view.replicas.len() == 2).await;
    scale(&master, &spec, None, 5).await;
    let view = running_with(&job, &[0, 1, 2, 3, 4]).await;
    let cause = &view.changes.last().expect("no change").cause;
    assert_eq!(*cause, ChangeCause::Joined { replicas: workers(&[2, 3, 4]) });
    assert_eq!(
        view.generation,
        Some(Generation { epoch: 1, sequence: 3 }),
        "the three workers did not join in one start"
    );
    assert_eq!(view.restarts.total(), 0);
    let agents = agents(&master, &spec, &[0, 1, 2, 3, 4]).await;
    assert_eq!(newest(&agents[&0], "MUSTER_RESTART_COUNT"), json!(2));
    assert_eq!(newest(&agents[&4], "WORLD_SIZE"), json!(5));
    succeed(&agents);
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_for_a_larger_number_of_workers_are_created_without_a_pause() {
    let master = Master::new();
    let spec = elastic("scaled", 1, 2);
    let job = master.submit(spec.clone()).await;
    // If the master paused as it does after lost pods, this test would exceed its deadline.
    for _ in 0..8 {
        running_with(&job, &[0, 1]).await;
        scale(&master, &spec, None, 1).await;
        running_with(&job, &[0]).await;
        scale(&master, &spec, None, 2).await;
    }
    running_with(&job, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_a_start_names_the_steps_that_worker_0_had_not_saved() {
    let master = Master::new();
    let spec = elastic("unsaved", 1, 2);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1]).await;
    let report = |step: u64, saved: u64| Progress { step: Some(step), saved: Some(saved), ..Progress::default() };
    let agents = agents(&master, &spec, &[0, 1]).await;
    agents[&0].report(report(61, 50));
    agents[&1].report(report(61, 10));
    scale(&master, &spec, None, 1).await;
    let newest = running_with(&job, &[0]).await.changes.pop().expect("no change");
    assert_eq!(
        newest.to_string(),
        "fewer workers are wanted; steps 51 to 61 are lost, because worker-0 ended before it had saved: \
         going on with 1 worker (start 1.2)"
    );
    agents[&0].report(report(70, 70));
    scale(&master, &spec, None, 2).await;
    let newest = running_with(&job, &[0, 1]).await.changes.pop().expect("no change");
    assert_eq!(newest.lost_steps, None);
}

async fn revision(master: &Master, spec: &JobSpec) -> u64 {
    master.store.get(&spec.name).await.expect("no answer").expect("no record of the job").record.revision
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_continues_with_the_same_members() {
    let first = Master::new();
    let spec = elastic("adopted", 2, 4);
    let job = first.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2, 3]).await;
    let revision = revision(&first, &spec).await;
    first.backend.evict(&spec.name, worker(1), "node drained");
    let seats = running_with(&job, &[0, 2, 3, 1]).await;
    let mut causes = seats.changes.iter().map(|change| &change.cause);
    let is_eviction = |cause: &ChangeCause| matches!(cause, ChangeCause::Left { failure } if failure.to_string() == "worker-1 was lost: node drained");
    assert!(causes.any(is_eviction), "{:?}", seats.changes);
    assert_eq!(self::revision(&first, &spec).await, revision, "the record has changed");
    let second = first.successor().await;
    let job = second.job(&spec.name);
    let view = running_with(&job, &[0, 2, 3, 1]).await;
    assert_eq!(view.generation, seats.generation, "the start has not continued");
    scale(&second, &spec, None, 3).await;
    let view = running_with(&job, &[0, 2, 3]).await;
    assert_eq!(view.generation, Some(Generation { epoch: 2, sequence: 1 }));
    let agents = agents(&second, &spec, &[0, 2, 3]).await;
    assert_eq!(newest(&agents[&3], "MUSTER_RESTART_COUNT"), json!(seats.changes.len()));
    succeed(&agents);
    assert_eq!(reach(&job, JobState::Succeeded).await.restarts.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_master_notices_that_a_member_left_while_no_master_ran() {
    let first = Master::new();
    let spec = elastic("missed", 2, 3);
    let job = first.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    first.stop_following().await;
    first.backend.replace(&spec.name, worker(1)).await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    let view = running_with(&job, &[0, 2, 1]).await;
    assert_eq!((view.restarts.total(), view.generation.expect("no start").epoch), (0, 2));
    succeed(&agents(&second, &spec, &[0, 1, 2]).await);
    reach(&job, JobState::Succeeded).await;
}

/// The cause of the job's newest start.
fn newest_cause(view: &JobView) -> ChangeCause {
    view.changes.last().expect("no change").cause.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_agent_is_the_cause_of_a_start_even_if_a_script_that_left_because_of_it_is_reported_first() {
    let master = Master::new();
    let spec = elastic("killed", 1, 2);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1]).await;
    let agents = agents(&master, &spec, &[0, 1]).await;
    agents[&0].cut_off(true);
    agents[&1].exit(ExitOutcome::Code(75));
    until(&job, |view| view.state == JobState::Stopping).await;
    master.backend.lose(&spec.name, worker(0), "its agent was killed");
    let view = until(&job, |view| view.state == JobState::Running && view.changes.len() > 1).await;
    let ChangeCause::Left { failure } = &view.changes[1].cause else { panic!("{:?}", view.changes) };
    assert_eq!(failure.to_string(), "worker-0 was lost: its agent was killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_left_is_not_the_cause_of_a_start_if_a_member_was_lost_while_no_master_ran() {
    let first = Master::new();
    let spec = elastic("unseen", 1, 2);
    let job = first.submit(spec.clone()).await;
    running_with(&job, &[0, 1]).await;
    first.stop_following().await;
    agents(&first, &spec, &[1]).await[&1].exit(ExitOutcome::Code(75));
    first.backend.replace(&spec.name, worker(0)).await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    let view = reach(&job, JobState::Running).await;
    assert_eq!(newest_cause(&view), ChangeCause::TakenOver);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_ends_the_job_although_a_worker_could_still_join() {
    let master = Master::new();
    let spec = elastic("done", 1, 2);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1]).await;
    let agents = agents(&master, &spec, &[0, 1]).await;
    agents[&0].exit(ExitOutcome::Code(0));
    until(&job, |view| view.replicas[0].exit.is_some()).await;
    scale(&master, &spec, None, 3).await;
    until(&job, |view| view.replicas.len() == 3 && view.workers == Some(Workers { min: 1, max: 3 })).await;
    agents[&1].exit(ExitOutcome::Code(0));
    let view = reach(&job, JobState::Succeeded).await;
    assert_eq!(view.generation, Some(Generation { epoch: 1, sequence: 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_does_not_fit_the_job_is_refused() {
    let master = Master::serving(None).await;
    let spec = elastic("patched", 2, 3);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    master.submit(crate::service::harness::spec("fixed", 1)).await;
    let cases = [
        ("patched", json!({"worker_num": 0}), 422, "bad_worker_num"),
        ("patched", json!({"worker_min": 4}), 422, "bad_worker_num"),
        ("patched", json!({"worker_num": 100_000}), 422, "bad_worker_num"),
        ("patched", json!({"workers": 4}), 422, "bad_request"),
        ("patched", json!("4"), 422, "bad_request"),
        ("fixed", json!({"worker_num": 3}), 409, "cannot_scale"),
        ("unknown", json!({"worker_num": 3}), 404, "unknown_job"),
    ];
    for (name, body, status, code) in cases {
        let answer = master.patch(&format!("/v1/jobs/{name}"), &body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(answer.code(), code, "{body}: {answer:?}");
    }
    let before = revision(&master, &spec).await;
    let answer = master.patch("/v1/jobs/patched", &json!({"worker_num": 3})).await;
    assert_eq!((answer.status, &answer.json()["workers"]), (200, &json!({"min": 2, "max": 3})));
    assert_eq!(revision(&master, &spec).await, before, "a change to the same number of workers has changed the record");
    succeed(&agents(&master, &spec, &[0, 1, 2]).await);
    reach(&job, JobState::Succeeded).await;
    let answer = master.patch("/v1/jobs/patched", &json!({"worker_num": 4})).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "cannot_scale"), "the job has ended, but {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_worker_that_joins_later_reaches_a_reader_that_follows() {
    let master = Master::serving(None).await;
    let spec = elastic("printing", 1, 2);
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1]).await;
    let reader = client().get(master.url("/v1/jobs/printing/logs?follow=true")).send();
    let mut lines = in_time("the stream begins", reader).await.expect("no answer").error_for_status().expect("not 200");
    scale(&master, &spec, None, 3).await;
    running_with(&job, &[0, 1, 2]).await;
    let agents = agents(&master, &spec, &[0, 1, 2]).await;
    agents[&2].print("hello of the third\n");
    succeed(&agents);
    let mut seen = String::new();
    while !seen.contains("hello of the third") {
        let piece =
            in_time("the line arrives", lines.chunk()).await.expect("the stream broke").expect("the stream has ended");
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
    reach(&job, JobState::Succeeded).await;
    in_time("the stream ends with the job", async {
        while lines.chunk().await.expect("the stream broke").is_some() {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_ten_minutes_without_a_failure_earlier_failures_use_no_restart() {
    let master = Master::new();
    let elastic = elastic("forgiven", 1, 2);
    let spec = JobSpec { run_policy: RunPolicy { max_restarts: 1, ..elastic.run_policy.clone() }, ..elastic };
    let job = master.submit(spec.clone()).await;
    for failures in 1..=2 {
        running_with(&job, &[0, 1]).await;
        agents(&master, &spec, &[1]).await[&1].exit(ExitOutcome::Code(3));
        until(&job, |view| view.state == JobState::Running && view.restarts.counted == failures).await;
        let stored = master.store.get(&spec.name).await.expect("no answer").expect("no record of the job");
        let mut record = stored.record.clone();
        record.restarts.last_counted_at = Some(UnixMillis(1));
        master.store.update(record.changed(), &stored.version).await.expect("the record was not updated");
        until(&job, |view| view.restarts.last_counted_at == Some(UnixMillis(1))).await;
    }
    let view = running_with(&job, &[0, 1]).await;
    assert_eq!((view.restarts.counted, view.restarts.spent()), (2, 1));
    succeed(&agents(&master, &spec, &[0, 1]).await);
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_on_a_machine_whose_clock_is_late_counts_like_every_other_failure() {
    let master = Master::new();
    let elastic = elastic("late-clock", 1, 2);
    let spec = JobSpec { run_policy: RunPolicy { max_restarts: 1, ..elastic.run_policy.clone() }, ..elastic };
    let job = master.submit(spec.clone()).await;
    for failures in 0..=1 {
        until(&job, |view| view.state == JobState::Running && view.restarts.counted == failures).await;
        let agent = &agents(&master, &spec, &[1]).await[&1];
        agent.exit_at(ExitOutcome::Code(3), UnixMillis(wall_clock().0 - 15 * 60 * 1000));
    }
    let view = until(&job, |view| view.state == JobState::Failed || view.restarts.counted > 1).await;
    assert_eq!((view.state, view.restarts.spent()), (JobState::Failed, 1));
}
