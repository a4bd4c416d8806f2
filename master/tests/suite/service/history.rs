//! Tests that a job that has ended stays in the history after its record is deleted.

use std::collections::BTreeMap;

use history::History;
use master::registry::KEPT_FINISHED;
use protocol::agent::ExitOutcome;
use protocol::history::{PastJob, PastJobs};
use protocol::ids::Generation;
use protocol::job::JobSpec;
use protocol::progress::SeriesPoint;
use protocol::run_policy::RunPolicy;
use protocol::timeline::StartEnding;
use protocol::view::JobState;

use crate::service::harness::{Master, in_time, reach, spec, spec_with, until, worker};

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
async fn the_history_has_every_number_of_the_output_with_the_start_that_printed_it() {
    let master = Master::serving(None).await;
    // The times of lines are as exact as 10 ms.
    let policy = RunPolicy { max_restarts: 1, backoff_seconds: 1, ..RunPolicy::default() };
    let metrics = BTreeMap::from([("loss".to_owned(), "loss: ([0-9.]+)".parse().expect("not a pattern"))]);
    let spec = JobSpec { metrics, ..spec_with("curve", 1, policy) };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    agent.print("loss: 2\n");
    in_time("the output is read", async {
        while !agent.is_followed() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The output of the next start is copied some time after its end.
    agent.cut_logs(3);
    agent.exit(ExitOutcome::Code(3));
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 1).await;
    agent.print("epoch 1\nloss: 1");
    agent.exit(ExitOutcome::Code(0));
    let ended = reach(&job, JobState::Succeeded).await;
    let past = master.only_past_job().await;
    let loss = |point: &SeriesPoint| {
        let (_, loss) = point.progress.as_ref()?.values.iter().next()?;
        Some((Some(point.generation), loss))
    };
    let losses: Vec<(Option<Generation>, f64)> = past.series.replicas[0].points.iter().filter_map(loss).collect();
    let first = ended.restarts.failed_starts[0].generation;
    assert_eq!(losses, [(first, 2.0), (ended.generation, 1.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_long_output_is_deleted_although_its_numbers_are_still_being_read() {
    let master = Master::serving(None).await;
    let pattern = |index: u32| (format!("loss{index}"), "loss: ([0-9.]+)".parse().expect("not a pattern"));
    let spec = JobSpec { metrics: (0..8).map(pattern).collect(), ..spec("long", 1) };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    agent.print(&"epoch 1, loss: 0.5\n".repeat(1 << 20));
    agent.exit(ExitOutcome::Code(0));
    until(&job, |view| view.result.is_some()).await;
    assert_eq!(master.get("/v1/jobs/long/series").await.status, 200);
    assert_eq!(master.delete("/v1/jobs/long").await.status, 202);
    master.forgotten(&spec.name).await;
    assert_eq!(master.only_past_job().await.view.state, JobState::Succeeded);
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
