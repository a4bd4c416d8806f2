//! Tests of failures, cancels and deletes, and of what is left after them.

use std::time::Duration;

use master::agents::client::AgentClient;
use master::backend::PodTable;
use master::store::{JobStore, Wish};
use protocol::agent::{ExitOutcome, FirstSignal};
use protocol::failure::{Failure, Loss};
use protocol::view::{JobResult, JobState, ReplicaState};
use serde_json::json;
use tokio::time::timeout;

use crate::service::harness::{Answer, DEADLINE, Master, client, files_below, reach, spec, until, worker};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_stops_all_other_runs_at_once_and_is_reported() {
    let master = Master::new();
    let spec = spec("fails", 4);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents[2].exit(ExitOutcome::Code(3));
    let view = reach(&job, JobState::Failed).await;
    let Some(JobResult::Failed { failure: Failure::ReplicaExited { replica, exit } }) = view.result else {
        panic!("{:?}", view.result)
    };
    assert_eq!((replica, exit.outcome, exit.stopped), (worker(2), ExitOutcome::Code(3), false));
    for (shown, agent) in view.replicas.iter().zip(&agents) {
        let stopped = shown.replica != worker(2);
        let (outcome, stops) =
            if stopped { (ExitOutcome::Signal(9), vec![Duration::ZERO]) } else { (ExitOutcome::Code(3), vec![]) };
        assert_eq!(agent.history().stops, stops, "{shown:?}");
        assert_eq!(shown.exit.clone().map(|exit| (exit.outcome, exit.stopped)), Some((outcome, stopped)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_fails_the_job_with_its_reason() {
    let master = Master::new();
    let spec = spec("loses", 3);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    master.backend.lose(&spec.name, worker(1), "the node was drained");
    let view = reach(&job, JobState::Failed).await;
    let failure =
        Failure::ReplicaLost { replica: worker(1), reason: "the node was drained".to_owned(), loss: Loss::Broken };
    assert_eq!(view.result, Some(JobResult::Failed { failure }));
    assert_eq!(view.replicas[1].state, ReplicaState::Lost);
    assert_eq!(agents[0].history().stops, [Duration::ZERO]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_fails_if_another_program_stops_a_run() {
    let master = Master::new();
    let spec = spec("meddled", 2);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    let client = AgentClient::new();
    client.stop(agents[1].address(), None, FirstSignal::Term, Duration::ZERO).await.expect("cannot stop the run");
    let view = reach(&job, JobState::Failed).await;
    let Some(JobResult::Failed { failure: Failure::ReplicaExited { replica, exit } }) = view.result else {
        panic!("{:?}", view.result)
    };
    assert_eq!((replica, exit.stopped), (worker(1), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_stops_all_runs_with_grace_and_keeps_the_record() {
    let master = Master::serving(None).await;
    let spec = spec("cancelled", 2);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    assert_eq!(Answer::of(client().post(master.url("/v1/jobs/cancelled/cancel"))).await.status, 202);
    reach(&job, JobState::Cancelled).await;
    assert_eq!(master.get("/v1/jobs/cancelled").await.json()["result"], json!({"outcome": "cancelled"}));
    for agent in &agents {
        assert_eq!(agent.history().stops, [job::policy::CANCEL_GRACE]);
    }
    let record = master.store.get(&spec.name).await.expect("cannot read the record").expect("no record").record;
    assert_eq!(record.ended.map(|ended| ended.result), Some(JobResult::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_right_after_the_submit_leaves_no_pod_behind() {
    let master = Master::new();
    let spec = spec("regretted", 16);
    master.submit(spec.clone()).await;
    master.wish(&spec.name, Wish::Delete).await;
    master.forgotten(&spec.name).await;
    assert_eq!(master.backend.pods(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_leaves_no_pods_no_record_and_no_logs() {
    let master = Master::serving(None).await;
    let spec = spec("deleted", 2);
    let job = master.submit(spec.clone()).await;
    for agent in master.started(&spec).await {
        agent.print("a line\n");
        agent.exit(ExitOutcome::Code(0));
    }
    reach(&job, JobState::Succeeded).await;
    // Each replica has three files: its output, the times of this output, and the offset at which the output of its
    // newest agent begins.
    assert_eq!(files_below(master.logs.path()), 6);
    assert_eq!(master.delete("/v1/jobs/deleted").await.status, 202);
    master.forgotten(&spec.name).await;
    assert_eq!(master.backend.pods(), 0);
    assert_eq!(files_below(master.logs.path()), 0);
    assert_eq!(master.store.get(&spec.name).await.expect("cannot read the record"), None);
    let (output, again) = (master.get("/v1/jobs/deleted/logs").await, master.delete("/v1/jobs/deleted").await);
    for answer in [master.get("/v1/jobs/deleted").await, output, again] {
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_job"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_that_is_deleted_is_stopped_first() {
    let master = Master::new();
    let spec = spec("running", 2);
    master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    master.wish(&spec.name, Wish::Delete).await;
    master.forgotten(&spec.name).await;
    assert!(agents.iter().all(|agent| agent.history().stops.len() == 1));
    assert_eq!(master.backend.pods(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_side_cars_run_on_after_its_agent_has_ended_is_deleted_at_the_end() {
    let master = Master::new();
    master.backend.keep_side_cars();
    let view = master.succeed(&spec("proxied", 2)).await;
    let mut table = master.backend.table(&view.name);
    let emptied = timeout(DEADLINE, table.wait_for(PodTable::is_empty)).await;
    assert!(emptied.is_ok(), "{:?}", master.backend.table(&view.name).borrow());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_finished_job_changes_nothing() {
    let master = Master::new();
    let before = master.succeed(&spec("over", 1)).await;
    master.wish(&before.name, Wish::Cancel).await;
    let record = master.store.get(&before.name).await.expect("cannot read the record").expect("no record").record;
    assert_eq!((record.wish, record.ended.map(|ended| ended.result)), (Wish::Run, Some(JobResult::Succeeded)));
    let job = master.jobs.table.find(&before.name).expect("the job is no longer listed");
    assert_eq!(until(&job, |_| true).await, before);
}
