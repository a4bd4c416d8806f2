//! Tests of jobs from their submission until they succeed.

use std::collections::HashSet;

use futures_util::future::join_all;
use protocol::agent::{ExitOutcome, Membership};
use protocol::ids::Generation;
use protocol::view::{JobResult, JobState, JobTimes, ReplicaState};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeBackend};

use crate::service::harness::{Master, in_time, reach, spec, until, worker};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_four_succeeds_when_all_four_have_succeeded() {
    let master = Master::new();
    let spec = spec("four", 4);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    for agent in &agents[..3] {
        agent.exit(ExitOutcome::Code(0));
    }
    let three = |view: &protocol::view::JobView| {
        view.replicas.iter().filter(|replica| replica.state == ReplicaState::Exited).count() == 3
    };
    assert_eq!(until(&job, three).await.state, JobState::Running);
    agents[3].exit(ExitOutcome::Code(0));
    let view = reach(&job, JobState::Succeeded).await;
    assert_eq!(view.result, Some(JobResult::Succeeded));
    assert_eq!(view.generation, Some(Generation { epoch: 1, sequence: 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_is_configured_once_and_started_once() {
    let master = Master::new();
    let spec = spec("once", 4);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
    for agent in &agents {
        let history = agent.history();
        assert_eq!((history.configs.len(), history.starts.len(), history.stops.len()), (1, 1, 0), "{history:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_agents_get_the_same_tensorflow_cluster_and_each_its_own_index_in_this_cluster() {
    let master = Master::new();
    let spec = spec("told", 4);
    master.submit(spec.clone()).await;
    let configs: Vec<_> = master.started(&spec).await.iter().map(|agent| agent.history().configs[0].clone()).collect();
    let cluster = &configs[0].1["TF_CONFIG"]["cluster"];
    let addresses: HashSet<_> = cluster["worker"].as_array().expect("not a list").iter().cloned().collect();
    assert_eq!(addresses.len(), 4, "{cluster}");
    for (index, (generation, environment)) in configs.iter().enumerate() {
        assert_eq!(&environment["TF_CONFIG"]["cluster"], cluster);
        assert_eq!(environment["TF_CONFIG"]["task"]["index"], index);
        assert_eq!(generation.to_string(), "1.1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_starts_before_all_agents_have_their_environment() {
    let master = Master::new();
    let spec = spec("phases", 8);
    master.submit(spec.clone()).await;
    let histories: Vec<_> = master.started(&spec).await.iter().map(|agent| agent.history()).collect();
    let last_config = histories.iter().flat_map(|history| &history.configured_at).max();
    let first_start = histories.iter().flat_map(|history| &history.starts).min();
    assert!(
        last_config < first_start,
        "the first start at {first_start:?} is not after the last environment at {last_config:?}"
    );
}

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
async fn twenty_simultaneous_jobs_all_succeed_and_no_two_replicas_share_an_address() {
    let master = Master::new();
    let specs: Vec<_> = (0..20).map(|index| spec(&format!("job-{index}"), 4)).collect();
    let jobs = join_all(specs.iter().map(|spec| master.submit(spec.clone()))).await;
    let agents = in_time("all runs have started", join_all(specs.iter().map(|spec| master.started(spec)))).await;
    let views: Vec<_> = jobs.iter().map(|job| job.view.borrow().clone()).collect();
    let addresses: HashSet<_> = views.iter().flat_map(|view| view.replicas.iter()).map(|r| r.address.clone()).collect();
    assert_eq!(addresses.len(), 80, "{addresses:?}");
    agents.iter().flatten().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    for job in &jobs {
        reach(job, JobState::Succeeded).await;
    }
    assert_eq!(master.jobs.list().len(), 20);
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
        tokio::spawn(async move { jobs.submit(spec("again", 1)).await })
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
