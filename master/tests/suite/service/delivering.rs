//! Tests of the code that the master sends to the agents of a job.

use axum::http::StatusCode;
use master::code::CodeStore;
use master::registry::JobHandle;
use protocol::agent::ExitOutcome;
use protocol::code::CodeId;
use protocol::failure::{Failure, Loss};
use protocol::ids::Generation;
use protocol::job::JobSpec;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobResult, JobState, JobView};
use testkit::fake::{Arrival, FakeAgent, FakeBackend, FakeStore, TakesCode};

use crate::code::{Code, send};
use crate::service::harness::{Master, in_time, reach, spec_with, until, worker};

const CONTENTS: [&str; 2] = ["print('hello')", "NAME = 1"];

/// Puts code with two files into the store.
pub(crate) fn keep(store: &CodeStore) -> CodeId {
    keep_files(store, CONTENTS)
}

/// Puts code with these two files into the store.
pub(crate) fn keep_files(store: &CodeStore, contents: [&'static str; 2]) -> CodeId {
    let [script, module] = contents.map(str::as_bytes);
    let code = Code::new(&[("train.py", script), ("b.py", module)]);
    send(store, &code);
    code.id()
}

/// A job of two workers that brings this code.
pub(crate) fn spec(code: CodeId, max_restarts: u32) -> JobSpec {
    let policy = RunPolicy { max_restarts, backoff_seconds: 0, ..RunPolicy::default() };
    let script = "train.py".parse().expect("not a script");
    JobSpec { code: Some(code), script, ..spec_with("bringing", 2, policy) }
}

pub(crate) async fn agents(master: &Master, spec: &JobSpec) -> [FakeAgent; 2] {
    [master.backend.agent(&spec.name, worker(0)).await, master.backend.agent(&spec.name, worker(1)).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_gets_the_code_once_for_two_starts_and_is_asked_for_a_warm_interpreter() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 1);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let agents = agents(&master, &spec).await;
    agents[1].exit(ExitOutcome::Code(1));
    let next = Some(Generation { epoch: 1, sequence: 2 });
    until(&job, |view| view.state == JobState::Running && view.generation == next).await;
    for agent in &agents {
        in_time("the agent is asked for a warm interpreter", async {
            while agent.history().warmed.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let history = agent.history();
        assert_eq!((history.offers, history.blobs.len(), history.configs.len()), (1, 2, 2));
        assert_eq!(agent.status().code.running, spec.code);
        agent.exit(ExitOutcome::Code(0));
    }
    reach(&job, JobState::Succeeded).await;
}

/// A master that has taken over a running job. Its own disk does not have the job's code.
pub(crate) async fn taken_over() -> (Master, JobHandle, JobSpec) {
    let first = Master::new();
    let spec = spec(keep(first.jobs.code()), 1);
    let job = first.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let second = first.successor().await;
    let job = second.job(&spec.name);
    reach(&job, JobState::Running).await;
    (second, job, spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_offers_no_code_to_agents_that_have_the_code() {
    let (second, job, spec) = taken_over().await;
    let agents = agents(&second, &spec).await;
    agents[0].exit(ExitOutcome::Code(1));
    let next = Some(Generation { epoch: 2, sequence: 1 });
    until(&job, |view| view.state == JobState::Running && view.generation == next).await;
    for agent in &agents {
        assert_eq!((agent.history().offers, agent.history().configs.len()), (1, 2));
        agent.exit(ExitOutcome::Code(0));
    }
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_fails_and_names_the_replica_if_a_replica_cannot_receive_the_code() {
    for (status, problem, loss) in [
        (500, r#"{"status": 500, "code": "internal", "detail": "permission denied"}"#, Loss::Broken),
        (422, r#"{"status": 422, "code": "bad_code", "detail": "permission denied"}"#, Loss::Hopeless),
    ] {
        let backend = FakeBackend::new(Arrival::AtOnce);
        let master = Master::over("first", backend, FakeStore::default());
        let spec = spec(keep(master.jobs.code()), 0);
        let status = StatusCode::from_u16(status).expect("not a status");
        master.backend.take_code([worker(1)], TakesCode::Never((status, problem)));
        let job = master.submit(spec.clone()).await;
        let view = reach(&job, JobState::Failed).await;
        let reason = "its agent did not receive the job's code: permission denied".to_owned();
        let failure = Failure::ReplicaLost { replica: worker(1), reason, loss };
        assert_eq!(view.result, Some(JobResult::Failed { failure }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_waits_for_room_on_the_disk_of_its_agent() {
    let master = Master::new();
    let spec = spec(keep(master.jobs.code()), 0);
    let full = r#"{"status": 507, "code": "code_store_full", "detail": "no space left on device"}"#;
    master.backend.take_code([worker(1)], TakesCode::Never((StatusCode::INSUFFICIENT_STORAGE, full)));
    let job = master.submit(spec.clone()).await;
    let names_the_disk = |view: &JobView| view.replicas[1].reason.as_deref() == Some("no space left on device");
    until(&job, |view| names_the_disk(view) || view.state.is_finished()).await;
    assert_eq!(job.view.borrow().result, None);
    master.backend.agent(&spec.name, worker(1)).await.take_code(TakesCode::AtOnce);
    reach(&job, JobState::Running).await;
}

/// The maximum number of agents that receive blobs of one job at the same time.
const MANY: u32 = 32;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_the_code_although_many_other_agents_do_not_answer() {
    let master = Master::new();
    master.backend.take_code((0..MANY).map(worker), TakesCode::StallsAtOffer);
    let spec = JobSpec { worker_num: MANY + 1, ..spec(keep(master.jobs.code()), 0) };
    master.submit(spec.clone()).await;
    let last = master.backend.agent(&spec.name, worker(MANY)).await;
    in_time("the last agent has the code", async {
        while last.status().code.staged != spec.code {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_agents_of_one_job_do_not_delay_another_job() {
    let master = Master::new();
    master.backend.take_code((0..MANY).map(worker), TakesCode::StallsAtBlobs);
    let slow = JobSpec { worker_num: MANY, ..spec(keep(master.jobs.code()), 0) };
    master.submit(slow.clone()).await;
    for index in 0..MANY {
        let agent = master.backend.agent(&slow.name, worker(index)).await;
        in_time("the agent is asked which blobs it lacks", async {
            while agent.history().offers == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    master.backend.take_code((0..MANY).map(worker), TakesCode::AtOnce);
    let job = master.submit(JobSpec { name: "other".parse().expect("not a name"), worker_num: 2, ..slow }).await;
    reach(&job, JobState::Running).await;
}
