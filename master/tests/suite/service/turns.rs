//! Tests of gangs that compete for room: two gangs never wait for each other.

use std::time::Duration;

use futures_util::future::join_all;
use job::observation::PodState;
use job::turns::GIVE_WAY_AFTER;
use master::backend::PodTable;
use master::registry::JobHandle;
use master::store::Wish;
use protocol::agent::ExitOutcome;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeBackend};

use crate::service::harness::{Master, in_time, reach, spec, until};

/// A master over a cluster with room for this number of pods.
fn with_room(pods: usize) -> Master {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.limit_room(pods);
    Master::over("first", backend, FakeStore::default())
}

/// Four gangs of four.
fn four() -> Vec<JobSpec> {
    (0..4).map(|index| spec(&format!("gang-{index}"), 4)).collect()
}

/// A gang whose pods have a higher priority than those of other gangs.
fn urgent(name: &str, workers: u32) -> JobSpec {
    let mut spec = spec(name, workers);
    spec.pod.priority_class = Some("priority-10".parse().expect("a valid name"));
    spec
}

/// Waits until this number of the job's pods have a node.
pub(crate) async fn placed(backend: &FakeBackend, job: &str, count: usize) {
    let mut table = backend.table(&job.parse().expect("a valid name"));
    let is_placed = |table: &PodTable| table.values().filter(|pod| matches!(pod.state, PodState::Running(_))).count();
    let waited = table.wait_for(|table| is_placed(table) == count);
    in_time(&format!("{count} pods of {job} have a node"), waited).await.expect("the back end lives");
}

/// Lets the job succeed as soon as it runs.
async fn run(master: &Master, job: &JobHandle) -> JobView {
    let view = reach(job, JobState::Running).await;
    let ids: Vec<ReplicaId> = view.replicas.iter().map(|replica| replica.replica).collect();
    for id in ids {
        master.backend.agent(&view.name, id).await.exit(ExitOutcome::Code(0));
    }
    reach(job, JobState::Succeeded).await
}

/// Waits until this many of the jobs wait for their turn. Returns these jobs.
async fn queued(jobs: &[JobHandle], count: usize) -> Vec<&JobHandle> {
    let is_queued = |job: &&JobHandle| job.view.borrow().queued_behind.is_some();
    let all = async {
        loop {
            let queued: Vec<&JobHandle> = jobs.iter().filter(is_queued).collect();
            if queued.len() == count {
                return queued;
            }
            tokio::task::yield_now().await;
        }
    };
    in_time(&format!("{count} jobs wait for their turn"), all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_goes_on_with_gangs_that_wait_for_their_turn() {
    let first = with_room(4);
    let jobs = join_all(four().into_iter().map(|spec| first.submit(spec))).await;
    for waiting in queued(&jobs, 2).await {
        assert_eq!(waiting.view.borrow().state, JobState::Pending);
    }
    let second = first.successor().await;
    let jobs: Vec<JobHandle> = four().iter().map(|spec| second.job(&spec.name)).collect();
    let views = in_time("all gangs run", join_all(jobs.iter().map(|job| run(&second, job)))).await;
    assert!(views.iter().all(|view| view.restarts.total() == 0), "{views:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_gives_its_pods_back_to_a_gang_with_a_higher_priority_and_this_is_no_restart() {
    let master = with_room(4);
    let busy = master.submit(spec("busy", 2)).await;
    reach(&busy, JobState::Running).await;
    let large = master.submit(spec("large", 4)).await;
    placed(&master.backend, "large", 2).await;
    let urgent = master.submit(urgent("urgent", 4)).await;
    until(&large, |view| view.queued_behind.is_some()).await;
    placed(&master.backend, "large", 0).await;
    run(&master, &busy).await;
    run(&master, &urgent).await;
    assert_eq!(run(&master, &large).await.restarts.total(), 0);
}

/// Lets this time pass at once. Only the runtime of one thread can do this.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

fn is_behind(view: &JobView, first: &str) -> bool {
    view.queued_behind.as_ref().is_some_and(|behind| behind.as_str() == first)
}

#[tokio::test]
async fn of_two_gangs_on_a_quota_the_second_gives_its_pods_back_and_runs_after_the_first() {
    let backend = FakeBackend::new(Arrival::AtOnce);
    backend.limit_quota(4);
    let master = Master::over("first", backend, FakeStore::default());
    let busy = master.submit(spec("busy", 2)).await;
    reach(&busy, JobState::Running).await;
    let large = master.submit(spec("large", 4)).await;
    let over = |view: &JobView| view.replicas.iter().filter_map(|replica| replica.reason.as_deref()).count();
    let view = until(&large, |view| over(view) == 2).await;
    let reason = view.replicas.iter().find_map(|replica| replica.reason.clone()).unwrap_or_default();
    assert!(reason.contains("exceeded quota"), "{reason}");
    let urgent = master.submit(urgent("urgent", 4)).await;
    until(&large, |view| is_behind(view, "urgent")).await;
    placed(&master.backend, "large", 0).await;
    run(&master, &busy).await;
    // The urgent gang tries again to create the pods for which the quota had no room.
    pass(Duration::from_secs(5)).await;
    assert_eq!(run(&master, &urgent).await.restarts.total(), 0);
    assert_eq!(run(&master, &large).await.restarts.total(), 0);
}

#[tokio::test]
async fn a_gang_larger_than_the_cluster_says_what_it_lacks_and_then_lets_others_run() {
    let master = with_room(4);
    let large = master.submit(spec("large", 6)).await;
    let lacks = |view: &JobView| view.replicas.iter().filter_map(|replica| replica.reason.as_deref()).count() == 2;
    let view = until(&large, lacks).await;
    let reason = view.replicas.iter().find_map(|replica| replica.reason.clone());
    assert_eq!(reason.as_deref(), Some("0/1 nodes are available: 1 Insufficient cpu."));
    let small = master.submit(spec("small", 2)).await;
    until(&small, |view| is_behind(view, "large")).await;
    pass(GIVE_WAY_AFTER).await;
    // All room is held by the large gang, so it gives its pods back.
    run(&master, &small).await;
    let again = until(&large, lacks).await;
    assert_eq!((again.state, again.restarts.total()), (JobState::Pending, 0));
}

/// One after another, the gangs would need longer than their start timeout.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_gangs_that_fit_start_together_although_each_creation_of_a_pod_takes_a_second() {
    let master = with_room(40);
    master.backend.create_slowly(Duration::from_secs(1));
    let run_policy = RunPolicy { start_timeout_seconds: 15, max_restarts: 0, ..RunPolicy::default() };
    let specs = (0..20).map(|index| JobSpec { run_policy: run_policy.clone(), ..spec(&format!("gang-{index}"), 2) });
    let jobs = join_all(specs.map(|spec| master.submit(spec))).await;
    let begun = jobs.iter().map(|job| until(job, |view| view.state != JobState::Pending));
    for view in in_time("all gangs start", join_all(begun)).await {
        assert_eq!(view.result, None, "{}", view.name);
    }
    in_time("all gangs run", join_all(jobs.iter().map(|job| reach(job, JobState::Running)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_gangs_that_are_submitted_at_once_all_run_and_none_restarts() {
    let master = with_room(4);
    let specs = (0..50).map(|index| spec(&format!("gang-{index}"), 1 + index % 4));
    let jobs = join_all(specs.map(|spec| master.submit(spec))).await;
    let views = in_time("all gangs run", join_all(jobs.iter().map(|job| run(&master, job)))).await;
    for view in views {
        assert_eq!((view.restarts.total(), view.queued_behind), (0, None), "{} has restarted", view.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_job_leaves_the_room_that_comes_free_to_a_gang_that_waits() {
    let master = with_room(4);
    let elastic = JobSpec { worker_min: Some(1), ..spec("elastic", 4) };
    let job = master.submit(spec("first", 3)).await;
    reach(&job, JobState::Running).await;
    let elastic = master.submit(elastic).await;
    let small = until(&elastic, |view| view.state == JobState::Running).await;
    assert_eq!(small.roster.len(), 1);
    let gang = master.submit(spec("gang", 3)).await;
    until(&gang, |view| view.replicas.iter().any(|replica| replica.reason.is_some())).await;
    run(&master, &job).await;
    let view = run(&master, &gang).await;
    assert_eq!(view.restarts.total(), 0);
    let grown = until(&elastic, |view| view.roster.len() == 4).await;
    assert_eq!(grown.restarts.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_waits_for_its_turn_can_be_cancelled_and_the_next_one_runs_when_the_first_is_cancelled() {
    let master = with_room(4);
    let jobs = join_all(four().into_iter().map(|spec| master.submit(spec))).await;
    for waiting in queued(&jobs, 2).await {
        let name = waiting.view.borrow().name.clone();
        master.wish(&name, Wish::Cancel).await;
        reach(waiting, JobState::Cancelled).await;
    }
    let others: Vec<&JobHandle> = jobs.iter().filter(|job| job.view.borrow().state != JobState::Cancelled).collect();
    let is_running = |job: &&&JobHandle| job.view.borrow().state == JobState::Running;
    let running = async {
        loop {
            if let Some(running) = others.iter().find(is_running) {
                return *running;
            }
            tokio::task::yield_now().await;
        }
    };
    let first = in_time("a gang runs", running).await;
    let name = first.view.borrow().name.clone();
    master.wish(&name, Wish::Cancel).await;
    let next = others.iter().find(|job| job.view.borrow().name != name).expect("one more gang");
    run(&master, next).await;
}
