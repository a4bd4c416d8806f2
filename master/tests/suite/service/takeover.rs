//! Tests of a second master that has the pods and records of the first master.

use std::num::NonZeroU32;

use master::agents::token::AgentKey;
use master::store::{JobStore, Wish};
use protocol::agent::{ExitOutcome, MESSAGES, MESSAGES_OF_SEVERAL};
use protocol::job::JobSpec;
use protocol::pod::PodOptions;
use protocol::view::{JobResult, JobState};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeBackend};

use crate::service::elastic::elastic;
use crate::service::harness::{Master, in_time, reach, spec};

/// Waits until this master has the job, and returns it.
async fn found(master: &Master, name: &protocol::ids::JobName) -> master::registry::JobHandle {
    let find = async {
        loop {
            if let Some(handle) = master.jobs.table.find(name) {
                return handle;
            }
            tokio::task::yield_now().await;
        }
    };
    in_time("the job is found", find).await
}

/// A persistent agent key that no other master has.
fn kept_key() -> AgentKey {
    let dir = tempfile::tempdir().expect("no folder");
    AgentKey::read_or_make(&dir.path().join("agent-key")).expect("no new key")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_with_another_key_does_not_change_a_running_job_and_shows_the_reason() {
    let (backend, store) = (FakeBackend::new(Arrival::AtOnce), FakeStore::default());
    let first = Master::with_key("first", kept_key(), backend, store);
    let spec = spec("foreign", 2);
    let job = first.submit(spec.clone()).await;
    let agents = first.started(&spec).await;
    reach(&job, JobState::Running).await;

    let second = Master::with_key("second", kept_key(), first.backend.clone(), first.store.clone());
    let shown = found(&second, &spec.name).await;
    let view =
        crate::service::harness::until(&shown, |view| view.replicas.iter().all(|replica| replica.reason.is_some()))
            .await;
    let reason = view.replicas[0].reason.clone().unwrap_or_default();
    let record = first.store.get(&spec.name).await.expect("cannot read the record").expect("no record").record;
    let theirs = record.agent_key.expect("the record has no key");
    assert!(
        reason.starts_with("the job is left to the master whose agent key") && reason.contains(&theirs),
        "{reason}"
    );
    assert_eq!((view.state, record.epoch, record.holder.as_str()), (JobState::Pending, 1, "first"));

    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
    assert_eq!(reach(&shown, JobState::Succeeded).await.result, Some(JobResult::Succeeded));
    for agent in &agents {
        let history = agent.history();
        assert_eq!((history.configs.len(), history.starts.len(), history.stops.len()), (1, 1, 0), "{history:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_a_master_with_another_key_is_carried_out_by_the_master_that_has_the_key() {
    let (backend, store) = (FakeBackend::new(Arrival::AtOnce), FakeStore::default());
    let first = Master::with_key("first", kept_key(), backend, store);
    let spec = spec("wished", 2);
    let job = first.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let second = Master::with_key("second", kept_key(), first.backend.clone(), first.store.clone());
    let shown = found(&second, &spec.name).await;
    second.wish(&spec.name, master::store::Wish::Cancel).await;
    reach(&job, JobState::Cancelled).await;
    reach(&shown, JobState::Cancelled).await;
}

/// Submits a job to `first`, waits until `second` shows the job, and stops `first`. The job's pods never start. Each
/// pod has a grace period of 1 s.
async fn abandoned(first: &Master, second: &Master) -> master::registry::JobHandle {
    let pod = PodOptions { termination_grace_seconds: NonZeroU32::new(1), ..PodOptions::default() };
    let spec = JobSpec { pod, ..spec("left", 2) };
    in_time("the master has read the records", first.jobs.complete()).await;
    in_time("the master has read the records", second.jobs.complete()).await;
    first.submit(spec.clone()).await;
    let is_there = |table: &master::backend::PodTable| table.len() == 2;
    in_time("the pods are created", first.backend.table(&spec.name).wait_for(is_there)).await.expect("no table");
    let shown = found(second, &spec.name).await;
    crate::service::harness::until(&shown, |view| view.replicas.iter().all(|replica| replica.reason.is_some())).await;
    first.stop_following().await;
    shown
}

#[tokio::test(start_paused = true)]
async fn a_wish_is_carried_out_by_the_asked_master_if_the_master_with_the_jobs_key_has_stopped() {
    for wish in [Wish::Cancel, Wish::Delete] {
        let (backend, store) = (FakeBackend::new(Arrival::Never("no room")), FakeStore::default());
        let first = Master::with_key("first", kept_key(), backend.clone(), store.clone());
        let second = Master::with_key("second", kept_key(), backend, store);
        let shown = abandoned(&first, &second).await;
        ends(&second, &shown, wish).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wish_is_carried_out_by_the_asked_master_if_the_newer_master_has_stopped() {
    for wish in [Wish::Cancel, Wish::Delete] {
        let (backend, store) = (FakeBackend::new(Arrival::Never("no room")), FakeStore::default());
        let newer = Master::over("2-newer", backend.clone(), store.clone());
        let older = Master::over("1-older", backend, store);
        let shown = abandoned(&newer, &older).await;
        ends(&older, &shown, wish).await;
    }
}

/// Asserts that the asked master carries out the wish, and that no pod is left.
async fn ends(asked: &Master, shown: &master::registry::JobHandle, wish: Wish) {
    let name = shown.view.borrow().name.clone();
    asked.wish(&name, wish).await;
    match wish {
        Wish::Delete => {
            let mut view = shown.view.clone();
            in_time("the driver ends", async { while view.changed().await.is_ok() {} }).await;
            assert_eq!(asked.store.get(&name).await.expect("cannot read the record"), None);
        }
        Wish::Run | Wish::Cancel => {
            let view = reach(shown, JobState::Cancelled).await;
            assert_eq!(view.result, Some(JobResult::Cancelled));
        }
    }
    assert!(asked.backend.table(&name).borrow().is_empty(), "a pod is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_master_continues_a_running_job_without_starting_it_again() {
    let first = Master::new();
    let spec = spec("goes-on", 3);
    let job = first.submit(spec.clone()).await;
    let agents = first.started(&spec).await;
    reach(&job, JobState::Running).await;

    let second = Master::over("second", first.backend.clone(), first.store.clone()).complete().await;
    let job = second.job(&spec.name);
    let view = reach(&job, JobState::Running).await;
    assert_eq!(view.generation.map(|generation| generation.to_string()).as_deref(), Some("1.1"));
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    assert_eq!(reach(&job, JobState::Succeeded).await.result, Some(JobResult::Succeeded));
    for agent in &agents {
        let history = agent.history();
        assert_eq!((history.configs.len(), history.starts.len(), history.stops.len()), (1, 1, 0), "{history:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_the_prototype_are_started_once_and_their_pods_tell_the_exit_codes() {
    let prototypes = FakeBackend::new(Arrival::Prototypes);
    let first = Master::over("first", prototypes, FakeStore::default());
    let spec = spec("prototype", 2);
    let job = first.submit(spec.clone()).await;
    let agents = first.started(&spec).await;
    reach(&job, JobState::Running).await;

    let second = first.successor().await;
    let job = second.job(&spec.name);
    reach(&job, JobState::Running).await;
    agents[0].exit(ExitOutcome::Code(0));
    agents[1].exit(ExitOutcome::Code(3));
    let view = reach(&job, JobState::Failed).await;
    let Some(JobResult::Failed { failure }) = view.result else { panic!("{view:?}") };
    assert_eq!(failure.to_string(), "worker-1 exited with code 3");
    for agent in &agents {
        assert_eq!(agent.history().starts.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_agents_are_of_another_version_fails_at_its_first_start() {
    let master = Master::over("first", FakeBackend::new(Arrival::OtherVersion), FakeStore::default());
    let view = reach(&master.submit(spec("other", 2)).await, JobState::Failed).await;
    let Some(JobResult::Failed { failure }) = view.result else { panic!("{view:?}") };
    let version = MESSAGES_OF_SEVERAL + 1;
    let sentence = format!("its agent has version {version} of the messages, and this master has version {MESSAGES}");
    assert!(failure.to_string().contains(&sentence), "{failure}");
    assert_eq!(view.restarts.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_job_refuses_agents_of_the_prototype() {
    let master = Master::over("first", FakeBackend::new(Arrival::Prototypes), FakeStore::default());
    let view = reach(&master.submit(elastic("grown", 1, 2)).await, JobState::Failed).await;
    let Some(JobResult::Failed { failure }) = view.result else { panic!("{view:?}") };
    assert!(failure.to_string().contains("its agent is the first prototype's"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unseen_end_of_the_prototypes_agents_is_read_from_their_pods() {
    let first = Master::over("first", FakeBackend::new(Arrival::Prototypes), FakeStore::default());
    let spec = spec("unseen", 2);
    let job = first.submit(spec.clone()).await;
    let agents = first.started(&spec).await;
    reach(&job, JobState::Running).await;
    first.stop_following().await;
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    let ended = |table: &master::backend::PodTable| {
        table.values().all(|pod| matches!(pod.state, job::observation::PodState::Terminated { .. }))
    };
    in_time("the pods have ended", first.backend.table(&spec.name).wait_for(ended)).await.expect("no table");

    let second = first.successor().await;
    reach(&second.job(&spec.name), JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_before_it_starts_is_created_again() {
    let master = Master::over("first", FakeBackend::new(Arrival::Never("no room")), FakeStore::default());
    let spec = spec("deleted", 2);
    let job = master.submit(spec.clone()).await;
    crate::service::harness::until(&job, |view| view.replicas.iter().all(|replica| replica.reason.is_some())).await;
    let key = job::key::JobKey { name: spec.name.clone(), uid: String::new() };
    let backend: &dyn master::backend::PodBackend = &master.backend;
    backend.delete(&key, crate::service::harness::worker(1)).await.expect("cannot delete the pod");
    let is_there = |table: &master::backend::PodTable| table.contains_key(&crate::service::harness::worker(1));
    in_time("the pod is created again", master.backend.table(&spec.name).wait_for(is_there)).await.expect("no table");
    assert!(job.view.borrow().restarts.is_empty(), "a failed start is recorded: {:?}", job.view.borrow());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_master_shows_a_finished_job_unchanged() {
    let first = Master::new();
    let before = first.succeed(&spec("stays", 2)).await;

    let second = first.successor().await;
    let after = reach(&second.job(&before.name), JobState::Succeeded).await;
    assert_eq!((&after.uid, &after.result, &after.spec), (&before.uid, &before.result, &before.spec));
    assert_eq!((after.generation, &after.replicas), (before.generation, &before.replicas));
    let times =
        |view: &protocol::view::JobView| (view.times.accepted, view.times.joined, view.times.started, view.times.ended);
    assert_eq!(times(&after), times(&before));
}
