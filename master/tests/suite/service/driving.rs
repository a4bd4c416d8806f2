//! Tests of jobs from their submission until they succeed.

use std::time::Duration;

use job::wait::Wait;
use master::store::Wish;
use protocol::agent::Membership;
use protocol::run_policy::{CleanPods, RunPolicy};
use protocol::view::{JobState, JobTimes, ReplicaState};
use testkit::fake::{Arrival, FakeBackend, FakeStore};
use tokio::time::Instant;

use crate::service::harness::{Master, in_time, spec, spec_with, until, worker};

#[tokio::test(flavor = "multi_thread")]
async fn the_view_has_the_time_of_each_stage() {
    let view = Master::new().succeed(&spec("times", 2)).await;
    let JobTimes { accepted, joined, configured, started, halted, ended, finished, .. } = view.times;
    assert_eq!(halted, None);
    let times = [accepted, joined, configured, started, ended, finished];
    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_never_start_show_why_they_wait() {
    let backend = FakeBackend::new(Arrival::Never("0/3 nodes have room"));
    let master = Master::over("first", backend, FakeStore::default());
    let job = master.submit(spec("waiting", 2)).await;
    let view = until(&job, |view| view.replicas.iter().all(|replica| replica.reason.is_some())).await;
    assert_eq!(view.state, JobState::Pending);
    for replica in view.replicas.iter() {
        assert_eq!(replica.reason.as_deref(), Some("0/3 nodes have room"));
        assert_eq!(replica.state, ReplicaState::Requested);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_receives_its_membership_in_the_start() {
    let master = Master::new();
    let spec = spec("seated", 3);
    master.submit(spec.clone()).await;
    let agents = in_time("all runs have started", master.started(&spec)).await;
    let memberships: Vec<_> = agents.iter().map(|agent| agent.status().membership).collect();
    let expected = |seat: u32| Some(Membership { seat, of: 3, start: 0, pushes: 0 });
    assert_eq!(memberships, [expected(0), expected(1), expected(2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_of_a_job_whose_record_somebody_deletes_is_removed() {
    use master::store::JobStore;
    let (master, spec) = (Master::new(), spec("lost", 1));
    master.submit(spec.clone()).await;
    in_time("the run has started", master.started(&spec)).await;
    let stored = master.store.get(&spec.name).await.expect("cannot read the record").expect("no record");
    master.store.delete(&spec.name, &stored.record.uid).await.expect("cannot delete the record");
    in_time("the folder is removed", master.backend.forgotten(&stored.key())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_submitted_while_an_old_job_of_the_same_name_is_removed_gets_its_own_view() {
    use master::store::JobStore;
    let mut master = Master::new();
    let old = master.succeed(&spec("again", 1)).await;
    // The registry stops following the records, so that it does not learn of the deletion yet.
    master.stop_following().await;
    master.store.delete(&old.name, &old.uid).await.expect("cannot delete the record");
    let submit = {
        let jobs = std::sync::Arc::clone(&master.jobs);
        tokio::spawn(async move { jobs.requests.submit(spec("again", 1)).await })
    };
    // The registry follows the records again when the new record exists and the submission has had time to continue.
    // The registry then learns of the deletion and of the new record.
    let recorded = async {
        while master.store.get(&old.name).await.expect("cannot read the record").is_none() {}
        for _ in 0..10 {
            master.store.list().await.expect("cannot list the records");
        }
    };
    in_time("the new record exists", recorded).await;
    master.follow_again();
    let handle = match in_time("the submission is answered", submit)
        .await
        .expect("the task has panicked")
        .expect("not accepted")
    {
        master::registry::Submitted::Created(handle) => handle,
        master::registry::Submitted::Existing(_) => panic!("the submission returned the deleted job"),
    };
    assert_ne!(handle.view.borrow().uid, old.uid);
    let id = worker(0);
    until(&handle, |view| view.replicas.iter().any(|replica| replica.replica == id)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_its_node_prepares_for_longer_than_usual_shows_the_image() {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.keep_pending(&[worker(1)], Wait::Preparing { image: "digits:1".to_owned() });
    let (master, began) = (Master::over("first", backend, FakeStore::default()), Instant::now());
    let job = master.submit(spec("prepared", 2)).await;
    let view = until(&job, |view| view.replicas.iter().any(|replica| replica.reason.is_some())).await;
    let reasons: Vec<_> = view.replicas.iter().map(|replica| replica.reason.as_deref()).collect();
    let reason = "the node still prepares the pod (image digits:1, volumes, network); to see why, in its namespace: kubectl describe pod -l \
                  muster/job=prepared";
    assert_eq!(reasons, [None, Some(reason)]);
    assert!(began.elapsed() >= Duration::from_secs(5), "shown after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_whose_pod_is_still_prepared_keeps_no_driver_busy() {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.keep_pending(&[worker(1)], Wait::Preparing { image: "digits:1".to_owned() });
    let master = Master::over("first", backend, FakeStore::default());
    let policy = RunPolicy { clean_pods: CleanPods::None, ..RunPolicy::default() };
    let spec = spec_with("kept", 2, policy);
    let job = master.submit(spec.clone()).await;
    let is_there = |table: &master::backend::PodTable| table.len() == 2;
    in_time("the pods are created", master.backend.table(&spec.name).wait_for(is_there)).await.expect("no table");
    master.wish(&spec.name, Wish::Cancel).await;
    until(&job, |view| view.times.finished.is_some()).await;
    // Virtual time passes only while all drivers wait.
    tokio::time::sleep(Duration::from_secs(60)).await;
}
