//! Tests that a job that has ended stays in the history after its record is deleted.

use history::History;
use master::registry::KEPT_FINISHED;
use protocol::agent::ExitOutcome;
use protocol::history::{PastJob, PastJobs};
use protocol::run_policy::RunPolicy;
use protocol::timeline::StartEnding;
use protocol::view::JobState;

use crate::service::harness::{Master, in_time, reach, spec, spec_with, worker};

impl Master {
    async fn history(&self) -> PastJobs {
        let answer = self.get("/v1/history").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("not a list")
    }

    /// Waits until the history has one job, and returns the job.
    async fn only_past_job(&self) -> PastJob {
        let look = async {
            loop {
                if let [job] = &self.history().await.jobs[..] {
                    return job.uid.clone();
                }
            }
        };
        let uid = in_time("the history has one job", look).await;
        let answer = self.get(&format!("/v1/history/{uid}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("not a job")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_stays_in_the_history_after_its_deletion() {
    let master = Master::serving(None).await;
    let policy = RunPolicy { max_restarts: 0, ..RunPolicy::default() };
    let spec = spec_with("past", 1, policy);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    assert_eq!(master.history().await, PastJobs::default());
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    agent.print("the last words\n");
    agent.exit(ExitOutcome::Code(3));
    let ended = reach(&job, JobState::Failed).await;
    let past = master.only_past_job().await;
    assert_eq!(master.delete("/v1/jobs/past").await.status, 202);
    master.forgotten(&spec.name).await;
    assert_eq!(master.only_past_job().await, past);
    assert_eq!((past.view.uid, past.view.state), (ended.uid, JobState::Failed));
    assert_eq!((past.view.result, past.view.times.ended), (ended.result, ended.times.ended));
    assert!(matches!(past.timeline.starts[0].ending, Some(StartEnding::Failed { .. })), "{:?}", past.timeline);
    assert_eq!(past.last_output, "the last words\n");
    assert_eq!(master.get("/v1/history/unknown").await.status, 404);
    assert_eq!(master.get("/v1/history/%2e%2e").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_that_is_deleted_is_in_the_history_as_cancelled() {
    let master = Master::serving(None).await;
    let spec = spec("deleted", 1);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    assert_eq!(master.delete("/v1/jobs/deleted").await.status, 202);
    master.forgotten(&spec.name).await;
    let past = master.only_past_job().await;
    assert_eq!((past.view.name, past.view.state), (spec.name, JobState::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_adds_the_jobs_that_its_history_lacks() {
    let first = Master::new();
    let spec = spec("kept", 1);
    let job = first.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    first.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(0));
    let ended = reach(&job, JobState::Succeeded).await;
    // The new master has other folders.
    let second = first.successor().await.serve(None).await;
    let past = second.only_past_job().await;
    assert_eq!((past.view.uid, past.view.state), (ended.uid, JobState::Succeeded));
    assert_eq!(past.timeline.spent.whole_ms(), 0, "{:?}", past.timeline);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timeline_of_a_job_that_ended_under_an_earlier_master_comes_from_the_history() {
    let first = Master::serving(None).await;
    let spec = spec("long-gone", 1);
    first.succeed(&spec).await;
    let past = first.only_past_job().await;
    assert_eq!(past.timeline.starts.len(), 1);
    first.stop_following().await;
    let folder = tempfile::tempdir().expect("no folder");
    History::at(folder.path().join("history")).keep(&past).expect("the job was not kept");
    let second = Master::keeping(KEPT_FINISHED, "second", first.store.clone(), folder).complete().await;
    let second = second.serve(None).await;
    let answer = second.get("/v1/jobs/long-gone/timeline").await;
    assert_eq!(answer.json(), serde_json::to_value(&past.timeline).expect("not JSON"));
}
