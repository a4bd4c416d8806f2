//! Tests in which a user suspends a job and resumes it.

use std::time::Duration;

use master::agents::token::AgentKey;
use master::registry::JobHandle;
use master::store::Wish;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::starts::ChangeCause;
use protocol::view::{JobState, JobView};
use serde_json::json;
use testkit::fake::{Arrival, FakeBackend, FakeStore};

use crate::service::elastic::{agents, elastic, newest, succeed};
use crate::service::harness::{Master, in_time, reach, until};

/// A fixed job with this number of workers.
fn fixed(name: &str, workers: u32) -> JobSpec {
    JobSpec { worker_min: None, ..elastic(name, 1, workers) }
}

async fn suspend(master: &Master, spec: &JobSpec, is_suspended: bool) {
    let patch = JobPatch { suspended: Some(is_suspended), ..JobPatch::default() };
    master.jobs.patch(&spec.name, patch).await.expect("the change was refused");
}

/// Waits until the job is suspended and all its pods are deleted.
async fn emptied(master: &Master, job: &JobHandle, spec: &JobSpec) -> JobView {
    let view = until(job, |view| view.state == JobState::Suspended).await;
    in_time("the pods are deleted", async {
        while !master.backend.agents(&spec.name).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_has_no_pods_and_starts_again_when_it_is_resumed() {
    for spec in [elastic("suspended", 2, 3), fixed("suspended", 3)] {
        let master = Master::new();
        let job = master.submit(spec.clone()).await;
        until(&job, |view| view.state == JobState::Running).await;
        suspend(&master, &spec, true).await;
        let view = emptied(&master, &job, &spec).await;
        assert_eq!((view.restarts.total(), view.result), (0, None));
        suspend(&master, &spec, false).await;
        until(&job, |view| view.state == JobState::Running && view.generation.is_some_and(|one| one.sequence == 2))
            .await;
        let agents = agents(&master, &spec, &[0, 1, 2]).await;
        assert_eq!(newest(&agents[&0], "MUSTER_RESTART_COUNT"), json!(1));
        succeed(&agents);
        let view = reach(&job, JobState::Succeeded).await;
        assert_eq!(view.restarts.total(), 0);
        let change = view.changes.last().expect("no change");
        assert_eq!((change.workers, &change.cause), (3, &ChangeCause::Resumed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_keeps_a_suspended_job_suspended_and_counts_its_starts() {
    for spec in [elastic("left", 2, 3), fixed("left", 3)] {
        let key = AgentKey::random();
        let first = Master::with_key("first", key, FakeBackend::new(Arrival::AtOnce), FakeStore::default());
        let job = first.submit(spec.clone()).await;
        until(&job, |view| view.state == JobState::Running).await;
        suspend(&first, &spec, true).await;
        emptied(&first, &job, &spec).await;
        first.stop_following().await;
        let second = Master::over("second", first.backend.clone(), first.store.clone());
        second.jobs.complete().await;
        let job = second.jobs.find(&spec.name).expect("the second master has no job");
        emptied(&second, &job, &spec).await;
        suspend(&second, &spec, false).await;
        until(&job, |view| view.state == JobState::Running).await;
        let agents = agents(&second, &spec, &[0, 1, 2]).await;
        let count = newest(&agents[&0], "MUSTER_RESTART_COUNT").as_u64().expect("not a number");
        assert!(count >= 1, "the new master counts {count} earlier starts");
        succeed(&agents);
        assert_eq!(reach(&job, JobState::Succeeded).await.restarts.counted, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_can_be_cancelled_and_an_ended_job_cannot_be_suspended() {
    let master = Master::new();
    let spec = fixed("paused", 2);
    let job = master.submit(spec.clone()).await;
    until(&job, |view| view.state == JobState::Running).await;
    suspend(&master, &spec, true).await;
    emptied(&master, &job, &spec).await;
    master.jobs.wish(&spec.name, Wish::Cancel).await.expect("the cancel was refused");
    reach(&job, JobState::Cancelled).await;
    let patch = JobPatch { suspended: Some(true), ..JobPatch::default() };
    let error = master.jobs.patch(&spec.name, patch).await.expect_err("an ended job was suspended");
    assert_eq!(error.to_string(), "job \"paused\" has ended, or is being stopped, so it can no longer be changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_can_be_suspended_before_its_agents_answer() {
    let master =
        Master::with_key("m", AgentKey::random(), FakeBackend::new(Arrival::Never("no node")), FakeStore::default());
    let spec = fixed("early", 2);
    let job = master.submit(spec.clone()).await;
    suspend(&master, &spec, true).await;
    let view = until(&job, |view| view.state == JobState::Suspended).await;
    assert_eq!(view.generation, None);
}
