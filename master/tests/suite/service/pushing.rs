//! Tests in which a user pushes new code into a job that runs.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use master::code::{CodeError, CodeStore};
use master::registry::JobsError;
use protocol::agent::{ExitOutcome, RunState, RunStatus};
use protocol::code::{CodeId, Sha256};
use protocol::ids::Generation;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::starts::ChangeCause;
use protocol::view::{JobState, JobView};
use serde_json::json;
use testkit::fake::{Arrival, FakeBackend, FakeStore, TakesCode};

use crate::faulty_store::{Bug, FaultyStore};
use crate::service::delivering::{agents, keep, keep_files, spec};
use crate::service::harness::{Master, in_time, reach, spec_with, until, worker};

/// Stores the second version of the code.
pub(crate) fn keep_other(master: &Master) -> CodeId {
    keep_other_in(master.jobs.code())
}

fn keep_other_in(store: &CodeStore) -> CodeId {
    keep_files(store, ["print('hello again')", "NAME = 1"])
}

/// Stores both versions of the code.
pub(crate) fn keep_both(store: &CodeStore) {
    keep(store);
    keep_other_in(store);
}

pub(crate) async fn push(master: &Master, spec: &JobSpec, code: CodeId) -> Result<(), String> {
    let patch = JobPatch { code: Some(code), ..JobPatch::default() };
    master.jobs.requests.patch(&spec.name, patch).await.map(drop).map_err(|error| error.to_string())
}

pub(crate) fn runs_in(epoch: u32, sequence: u32) -> impl Fn(&JobView) -> bool {
    move |view| view.state == JobState::Running && view.generation == Some(Generation { epoch, sequence })
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_push_all_scripts_start_again_with_the_new_code_in_the_same_pods() {
    let first = spec(keep(Master::new().jobs.code()), 0);
    for spec in [first.clone(), JobSpec { worker_min: Some(1), ..first }] {
        let master = Master::new();
        keep(master.jobs.code());
        let job = master.submit(spec.clone()).await;
        until(&job, runs_in(1, 1)).await;
        let agents = agents(&master, &spec).await;
        let other = keep_other(&master);
        push(&master, &spec, other).await.expect("the code was refused");
        let view = until(&job, runs_in(1, 2)).await;
        assert_eq!((view.code, view.pushes, view.started_pushes), (Some(other), 1, 1));
        assert_eq!(view.restarts.total(), 0);
        let change = view.changes.last().expect("no change");
        assert_eq!((change.generation, &change.cause), (Generation { epoch: 1, sequence: 2 }, &ChangeCause::Pushed));
        for agent in &agents {
            let history = agent.history();
            assert_eq!((history.offers, agent.status().code.running), (2, Some(other)));
            assert_eq!(history.configs.last().expect("no config").1["MUSTER_RESTART_COUNT"], json!(1));
        }
        push(&master, &spec, other).await.expect("the code was refused");
        assert_eq!(until(&job, runs_in(1, 2)).await.pushes, 1, "a push of the same code was counted");
        agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
        reach(&job, JobState::Succeeded).await;
        let error = push(&master, &spec, keep(master.jobs.code())).await.expect_err("an ended job has taken code");
        assert!(error.contains("so it takes no new code: "), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_take_the_code_is_named_and_the_job_continues() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 0);
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let agents = agents(&master, &spec).await;
    agents[1].take_code(TakesCode::Never((StatusCode::INSUFFICIENT_STORAGE, "disk full")));
    let error = push(&master, &spec, keep_other(&master)).await.expect_err("an agent refuses, but the push succeeded");
    assert!(error.contains("an agent did not accept the new code: worker-1: "), "{error}");
    let view = until(&job, runs_in(1, 1)).await;
    assert_eq!((view.pushes, view.code), (0, spec.code));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_takes_longer_than_a_request_names_the_slow_agent_and_succeeds_when_it_is_repeated() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 0);
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let agents = agents(&master, &spec).await;
    agents[1].take_code(TakesCode::StallsAtBlobs);
    let other = keep_other(&master);
    let patch = JobPatch { code: Some(other), ..JobPatch::default() };
    let error = loop {
        let pushed = master.jobs.requests.patch_within(&spec.name, patch, Duration::ZERO).await;
        let error = pushed.expect_err("the push succeeded before all agents had the code").to_string();
        if !error.contains("worker-0, ") {
            break error;
        }
    };
    assert!(error.starts_with("the new code of job \"bringing\" has not reached worker-1 yet"), "{error}");
    assert_eq!(until(&job, runs_in(1, 1)).await.pushes, 0, "the push is already on record");
    agents[1].take_code(TakesCode::AtOnce);
    push(&master, &spec, other).await.expect("the repeated push failed");
    until(&job, |view| view.started_pushes == 1 && view.code == Some(other)).await;
    // The submit made the first offer. All push requests share one delivery, which makes the second offer. If this
    // delivery ends before the last request, the last request makes a third offer.
    let offers = agents.map(|agent| agent.history().offers);
    assert!(offers == [2, 2] || offers == [3, 3], "wrong number of offers for all requests: {offers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_of_code_with_a_damaged_file_is_refused_until_the_file_is_sent_again() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 0);
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let other = keep_other(&master);
    let blob = master.logs.path().join("code/blobs").join(Sha256::of(b"print('hello again')").to_string());
    std::fs::write(blob, "print('HELLO AGAIN')").expect("the blob cannot be damaged");
    let patch = JobPatch { code: Some(other), ..JobPatch::default() };
    let error = master.jobs.requests.patch(&spec.name, patch).await.expect_err("damaged code was accepted");
    assert!(matches!(error, JobsError::Code(CodeError::Missing(id)) if id == other), "{error}");
    keep_other(&master);
    push(&master, &spec, other).await.expect("the push failed after the file was sent again");
    until(&job, |view| view.started_pushes == 1).await;
}

/// Writes a push into the record, as a master does before it dies.
async fn put_push_on_record(store: &FakeStore, spec: &JobSpec, code: CodeId) {
    let stored = master::store::amend(store, &spec.name, |record| (record.code, record.pushes) = (Some(code), 1));
    stored.await.expect("the push was not written");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_master_died_while_it_stopped_scripts_for_a_push_the_next_master_runs_the_new_code_without_a_failure() {
    let fixed = spec(keep(Master::new().jobs.code()), 0);
    for spec in [fixed.clone(), JobSpec { worker_min: Some(1), ..fixed }] {
        let (backend, store) = (FakeBackend::new(Arrival::AtOnce), FakeStore::default());
        let first = Master::over("first", backend.clone(), store.clone());
        keep(first.jobs.code());
        let job = first.submit(spec.clone()).await;
        until(&job, runs_in(1, 1)).await;
        first.stop_following().await;
        let other = keep_other(&first);
        put_push_on_record(&store, &spec, other).await;
        for agent in agents(&first, &spec).await {
            agent.end_as_stopped();
        }
        let second = Master::with_code("second", backend, store, keep_both).complete().await;
        let job = second.job(&spec.name);
        let view = until(&job, |view| view.state == JobState::Running && view.pushes == 1).await;
        assert!(view.restarts.is_empty(), "{:?}", view.restarts);
        let cause = view.changes.last().map(|change| &change.cause);
        assert_eq!((view.code, cause), (Some(other), Some(&ChangeCause::Pushed)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_a_user_pushes_while_a_failure_is_recorded_is_not_lost() {
    let elsewhere = Master::new();
    let (spec, other) = (spec(keep(elsewhere.jobs.code()), 1), keep_other(&elsewhere));
    let store = FaultyStore { store: FakeStore::default(), bug: Bug::PushComesFirst(other) };
    let master = Master::serving_over(Arc::new(store)).await;
    keep(master.jobs.code());
    keep_other(&master);
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let agents = agents(&master, &spec).await;
    agents[1].exit(ExitOutcome::Code(1));
    let run_other = |status: RunStatus| status.state == RunState::Running && status.code.running == Some(other);
    in_time("all scripts run the new code", async {
        while !agents.iter().all(|agent| run_other(agent.status())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_image_takes_no_code() {
    let master = Master::new();
    let spec = spec_with("fixed-image", 1, protocol::run_policy::RunPolicy::default());
    let spec = JobSpec { work_dir: None, image: Some("train:1".parse().expect("not an image")), ..spec };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let error = push(&master, &spec, keep(master.jobs.code())).await.expect_err("a job with an image has taken code");
    assert!(error.starts_with("the script of job \"fixed-image\" is in its image: "), "{error}");
    master.backend.agent(&spec.name, worker(0)).await.exit(ExitOutcome::Code(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_two_simultaneous_pushes_all_scripts_run_the_code_on_record() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 0);
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let third = keep_files(master.jobs.code(), ["print('and again')", "NAME = 1"]);
    let (one, two) = tokio::join!(push(&master, &spec, keep_other(&master)), push(&master, &spec, third));
    assert_eq!((one, two), (Ok(()), Ok(())));
    let view = until(&job, |view| view.started_pushes == 2).await;
    for agent in agents(&master, &spec).await {
        assert_eq!(agent.status().code.running, view.code);
        agent.exit(ExitOutcome::Code(0));
    }
    let view = reach(&job, JobState::Succeeded).await;
    assert_eq!(view.restarts.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_accepted_while_the_job_waits_for_its_pods_and_refused_after_the_job_is_deleted() {
    let master = Master::over("first", FakeBackend::new(Arrival::Never("no node")), FakeStore::default());
    let spec = spec(keep(master.jobs.code()), 0);
    let job = master.submit(spec.clone()).await;
    let other = keep_other(&master);
    push(&master, &spec, other).await.expect("the push failed");
    let view = until(&job, |view| view.pushes == 1).await;
    assert_eq!((view.state, view.code), (JobState::Pending, Some(other)));
    master.jobs.requests.wish(&spec.name, master::store::Wish::Delete).await.expect("the wish was not recorded");
    let error = push(&master, &spec, keep(master.jobs.code())).await.expect_err("a deleted job has taken code");
    assert!(error.contains("takes no new code") || error.starts_with("no job is named"), "{error}");
}
