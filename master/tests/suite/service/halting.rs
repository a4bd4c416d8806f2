//! Tests of jobs that wait for new code when their script has failed (`on_failure` is `wait`).

use master::registry::JobHandle;
use master::store::{JobStore, Wish};
use protocol::agent::ExitOutcome;
use protocol::failure::Failure;
use protocol::ids::Generation;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::run_policy::{OnFailure, RunPolicy};
use protocol::starts::{ChangeCause, GangChange};
use protocol::view::{JobState, JobView};
use serde_json::json;
use testkit::fake::FakeAgent;

use crate::service::delivering::{agents, keep, spec};
use crate::service::elastic::newest;
use crate::service::harness::{Master, in_time, reach, until, worker};
use crate::service::pushing::{keep_both, keep_other, push, runs_in};

/// A job without restarts that waits for new code when its script has failed.
fn halting(master: &Master) -> JobSpec {
    let spec = spec(keep(master.jobs.code()), 0);
    JobSpec { run_policy: RunPolicy { on_failure: OnFailure::Wait, ..spec.run_policy.clone() }, ..spec }
}

/// Lets worker-1 fail, and waits until the job is halted.
async fn halt(master: &Master, spec: &JobSpec) -> (JobHandle, JobView, [FakeAgent; 2]) {
    let job = master.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    let agents = agents(master, spec).await;
    agents[1].exit(ExitOutcome::Code(1));
    let view = until(&job, |view| view.state == JobState::Halted).await;
    (job, view, agents)
}

/// A second master with the pods and the records of the first master. The second master has both versions of the code.
async fn taken_over(first: &Master, spec: &JobSpec) -> (Master, JobHandle) {
    let second = Master::with_code("second", first.backend.clone(), first.store.clone(), keep_both).complete().await;
    let job = second.job(&spec.name);
    (second, job)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_job_keeps_its_pods_and_starts_again_with_new_code() {
    let elsewhere = Master::new();
    let fixed = halting(&elsewhere);
    for spec in [fixed.clone(), JobSpec { worker_min: Some(1), ..fixed }] {
        let master = Master::new();
        let old = keep(master.jobs.code());
        let (job, view, agents) = halt(&master, &spec).await;
        assert!(view.times.halted.is_some() && view.result.is_none(), "{view:?}");
        let [failed] = &*view.restarts.failed_starts else { panic!("{:?}", view.restarts) };
        let Failure::ReplicaExited { replica, .. } = &failed.failure else { panic!("{failed:?}") };
        assert_eq!((*replica, failed.generation, view.restarts.total()), (worker(1), view.generation, 0));
        let record = master.store.get(&spec.name).await.expect("no answer").expect("no record of the job").record;
        assert!(record.restarts.is_empty(), "the failure was judged before the end of the wait");
        push(&master, &spec, old).await.expect("the code was refused");
        let pushes = until(&job, |view| view.state == JobState::Halted).await.pushes;
        assert_eq!(pushes, 0, "a push of the failed code has an effect");

        let other = keep_other(&master);
        push(&master, &spec, other).await.expect("the code was refused");
        let view = until(&job, runs_in(1, 2)).await;
        assert_eq!((view.code, view.times.halted), (Some(other), None));
        assert!(view.restarts.is_empty(), "{:?}", view.restarts);
        assert_eq!(view.changes.last().expect("no change").cause, ChangeCause::Pushed);
        for agent in &agents {
            assert_eq!((agent.history().configs.len(), agent.status().code.running), (2, Some(other)));
            assert_eq!(newest(agent, "MUSTER_RESTART_COUNT"), json!(1));
            agent.exit(ExitOutcome::Code(0));
        }
        reach(&job, JobState::Succeeded).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_continues_to_wait_for_code_although_the_failed_pod_is_lost_too() {
    let elsewhere = Master::new();
    let fixed = halting(&elsewhere);
    for spec in [fixed.clone(), JobSpec { worker_min: Some(1), ..fixed }] {
        let first = Master::new();
        keep(first.jobs.code());
        let (_, before, _) = halt(&first, &spec).await;
        first.stop_following().await;
        first.backend.lose(&spec.name, worker(1), "its node died");
        let (second, job) = taken_over(&first, &spec).await;
        let view = until(&job, |view| view.state == JobState::Halted).await;
        let known = |view: &JobView| (view.restarts.clone(), view.times.halted, view.generation, view.started_pushes);
        assert_eq!(known(&view), known(&before), "the new master shows another failure or time than the first master");
        push(&second, &spec, keep_other(&second)).await.expect("the code was refused");
        let view = until(&job, |view| view.state == JobState::Running).await;
        assert!(view.restarts.is_empty(), "{:?}", view.restarts);
        let GangChange { generation, cause, .. } = &view.changes[0];
        assert_eq!((*generation, cause), (Generation { epoch: 2, sequence: 1 }, &ChangeCause::Pushed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_counts_the_start_that_has_halted_the_job_although_all_pods_are_lost() {
    let first = Master::new();
    let spec = halting(&first);
    let job = first.submit(spec.clone()).await;
    until(&job, runs_in(1, 1)).await;
    first.backend.evict(&spec.name, worker(1), "drained");
    until(&job, runs_in(1, 2)).await;
    agents(&first, &spec).await[1].exit(ExitOutcome::Code(1));
    reach(&job, JobState::Halted).await;
    first.stop_following().await;
    for index in 0..2 {
        first.backend.lose(&spec.name, worker(index), "its node died");
    }
    let (second, job) = taken_over(&first, &spec).await;
    reach(&job, JobState::Halted).await;
    push(&second, &spec, keep_other(&second)).await.expect("the code was refused");
    until(&job, runs_in(2, 1)).await;
    for agent in agents(&second, &spec).await {
        assert_eq!(
            newest(&agent, "MUSTER_RESTART_COUNT"),
            json!(2),
            "wrong restart count after an evicted and a failed start"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_job_that_is_suspended_or_has_ended_has_no_halt() {
    let master = Master::new();
    let spec = halting(&master);
    let on_record = async || master.store.get(&spec.name).await.expect("no answer").expect("no record").record;
    let (job, ..) = halt(&master, &spec).await;
    assert_eq!(on_record().await.halted.map(|halted| halted.pushes), Some(0));
    master.suspend(&spec, true).await;
    let view = reach(&job, JobState::Suspended).await;
    assert_eq!((view.restarts.total(), view.times.halted), (0, None));
    let record = on_record().await;
    let first = Generation { epoch: 1, sequence: 1 };
    assert_eq!((record.halted, record.suspension.ended, record.suspension.starts), (None, Some(first), 1));
    master.suspend(&spec, false).await;
    until(&job, runs_in(1, 2)).await;
    agents(&master, &spec).await[1].exit(ExitOutcome::Code(1));
    reach(&job, JobState::Halted).await;
    assert!(on_record().await.halted.is_some());
    master.wish(&spec.name, Wish::Cancel).await;
    reach(&job, JobState::Cancelled).await;
    assert_eq!(on_record().await.halted, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_halted_elastic_job_follow_its_number_of_workers() {
    let master = Master::new();
    let spec = JobSpec { worker_min: Some(1), ..halting(&master) };
    let (job, ..) = halt(&master, &spec).await;
    let more = JobPatch { worker_num: Some(3), ..JobPatch::default() };
    master.jobs.requests.patch(&spec.name, more).await.expect("the change was refused");
    let third = master.backend.agent(&spec.name, worker(2)).await;
    let view = until(&job, |view| view.replicas.len() == 3).await;
    assert_eq!((view.state, third.history().configs.len()), (JobState::Halted, 0));
    master.backend.evict(&spec.name, worker(1), "drained");
    // The master refuses a push until it has observed the eviction.
    let other = keep_other(&master);
    in_time("the code is accepted", async { while push(&master, &spec, other).await.is_err() {} }).await;
    let view = until(&job, |view| view.state == JobState::Running && view.roster.len() == 3).await;
    assert_eq!(view.restarts.counted, 0);
}
