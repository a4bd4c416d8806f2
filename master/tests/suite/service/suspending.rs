//! Tests in which a user suspends a job and resumes it.

use std::time::Duration;

use master::registry::JobHandle;
use master::store::Wish;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::starts::ChangeCause;
use protocol::view::{JobState, JobView};
use serde_json::json;

use crate::service::elastic::{agents, elastic, newest, succeed};
use crate::service::harness::{Master, in_time, reach, until};

/// A fixed job with this number of workers.
fn fixed(name: &str, workers: u32) -> JobSpec {
    JobSpec { worker_min: None, ..elastic(name, 1, workers) }
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
        master.suspend(&spec, true).await;
        let view = emptied(&master, &job, &spec).await;
        assert_eq!((view.restarts.total(), view.result), (0, None));
        master.suspend(&spec, false).await;
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
        let first = Master::new();
        let job = first.submit(spec.clone()).await;
        until(&job, |view| view.state == JobState::Running).await;
        first.suspend(&spec, true).await;
        emptied(&first, &job, &spec).await;
        let second = first.successor().await;
        let job = second.job(&spec.name);
        emptied(&second, &job, &spec).await;
        second.suspend(&spec, false).await;
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
    master.suspend(&spec, true).await;
    emptied(&master, &job, &spec).await;
    master.jobs.requests.wish(&spec.name, Wish::Cancel).await.expect("the cancel was refused");
    reach(&job, JobState::Cancelled).await;
    let patch = JobPatch { suspended: Some(true), ..JobPatch::default() };
    let error = master.jobs.requests.patch(&spec.name, patch).await.expect_err("an ended job was suspended");
    assert_eq!(error.to_string(), "job \"paused\" has ended, or is being stopped, so it can no longer be changed");
}
