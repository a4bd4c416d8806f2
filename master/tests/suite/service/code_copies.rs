//! Tests of the copies of code beside the records, and of masters that have lost the code on their disk.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use job::wait::Wait;
use master::registry::{JobHandle, JobsError};
use master::store::CodeCopies;
use protocol::agent::ExitOutcome;
use protocol::code::CodeId;
use protocol::failure::Failure;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobResult, JobState, JobView};
use testkit::fake::{Arrival, FakeBackend, FakeStore};

use crate::service::delivering::{agents, keep, spec, taken_over};
use crate::service::harness::{Master, in_time, reach, spec_with, until, worker};
use crate::service::pushing::{keep_other, push, runs_in};

/// What a replica waits for if nobody has the code of the job `bringing`.
const WAY_OUT: &str = "client push bringing sends it again";

async fn copies(store: &FakeStore) -> Vec<CodeId> {
    store.copies().await.expect("the store in memory failed").into_iter().map(|copy| copy.id).collect()
}

/// Removes all files of the master's store of code, as the loss of its disk does.
fn lose_disk(master: &Master) {
    for folder in ["manifests", "blobs"] {
        remove_files(&master.logs.path().join("code").join(folder));
    }
}

fn remove_files(folder: &Path) {
    for file in std::fs::read_dir(folder).expect("no folder of code") {
        std::fs::remove_file(file.expect("no file").path()).expect("cannot remove the file");
    }
}

/// Makes the master and its store of records lose the code of a running job. Then a script fails, and the next start
/// needs the code at worker-0.
async fn lose_everywhere(master: &Master, spec: &JobSpec) {
    let agents = agents(master, spec).await;
    lose_disk(master);
    master.store.tamper(spec.code.expect("no code"), None).await;
    agents[0].lose_code();
    agents[1].exit(ExitOutcome::Code(1));
}

/// A running job that has brought its code, and may restart once.
async fn running(master: &Master) -> (JobSpec, JobHandle) {
    let spec = spec(keep(master.jobs.code()), 1);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    (spec, job)
}

/// The code of a job as an agent sends it back.
async fn content(master: &Master, spec: &JobSpec) -> Vec<u8> {
    let copy = master.store.read(spec.code.expect("no code")).await.expect("the store in memory failed");
    let mut content = vec![];
    GzDecoder::new(copy.expect("no copy").as_slice()).read_to_end(&mut content).expect("not a copy");
    content
}

fn wants(code: Option<CodeId>) -> impl FnMut(&JobView) -> bool {
    move |view| view.wanted_code == code && code.is_some()
}

async fn succeed(master: &Master, job: &JobHandle, spec: &JobSpec) {
    agents(master, spec).await.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_with_an_empty_disk_reads_the_code_from_its_copy() {
    let (second, job, spec) = taken_over().await;
    let pods = agents(&second, &spec).await;
    pods[0].lose_code();
    pods[1].exit(ExitOutcome::Code(1));
    until(&job, runs_in(2, 1)).await;
    assert_eq!(pods.each_ref().map(|agent| agent.status().code.running), [spec.code; 2]);
    succeed(&second, &job, &spec).await;
    // A client sends no code that the master can read from the copy.
    let again = JobSpec { name: "again".parse().expect("not a name"), ..spec.clone() };
    lose_disk(&second);
    second.submit(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_replica_gets_code_from_another_agent_if_disk_and_copy_are_lost() {
    let (second, job, spec) = taken_over().await;
    let pods = agents(&second, &spec).await;
    pods[1].hold_code(content(&second, &spec).await);
    second.store.tamper(spec.code.expect("no code"), None).await;
    second.backend.evict(&spec.name, worker(0), "Evicted: low on memory");
    let view = until(&job, |view| view.state == JobState::Running && view.restarts.uncounted == 1).await;
    assert_eq!(view.wanted_code, None);
    let [new, old] = agents(&second, &spec).await;
    assert_eq!((new.status().code.running, old.history().reads), (spec.code, 1));
    succeed(&second, &job, &spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_code_from_an_agent_is_refused_and_the_next_agent_is_asked() {
    for index in 0..3 {
        let master = Master::new();
        let spec = JobSpec { worker_num: 3, ..spec(keep(master.jobs.code()), 1) };
        let job = master.submit(spec.clone()).await;
        reach(&job, JobState::Running).await;
        let (right, last) = (content(&master, &spec).await, master.backend.agent(&spec.name, worker(2)).await);
        let [_, liar] = agents(&master, &spec).await;
        let all_but_last = &right[..right.len() - 1];
        let wrong = [vec![], all_but_last.to_vec(), [all_but_last, b"?"].concat()];
        liar.hold_code(wrong[index].clone());
        last.hold_code(right);
        lose_everywhere(&master, &spec).await;
        until(&job, runs_in(1, 2)).await;
        assert_eq!((liar.history().reads, last.history().reads), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_with_another_content_is_not_used() {
    let master = Master::new();
    let (spec, job) = running(&master).await;
    let other = keep_other(&master);
    master.submit(JobSpec { name: "other".parse().expect("not a name"), code: Some(other), ..spec.clone() }).await;
    let content = master.store.read(other).await.expect("the store in memory failed");
    lose_everywhere(&master, &spec).await;
    let code = spec.code.expect("no code");
    for content in [content.clone(), content.map(|content| content[..content.len() / 2].to_vec()), Some(vec![])] {
        master.store.tamper(code, content).await;
        in_time("the copy is read", master.store.read_again(code)).await;
        // The master reads the copy again only if it has refused the content.
        in_time("the copy is read again", master.store.read_again(code)).await;
        let view = until(&job, wants(spec.code)).await;
        assert_eq!(view.result, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_code_that_nobody_has_until_a_client_sends_it_again() {
    let master = Master::new();
    let (spec, job) = running(&master).await;
    lose_everywhere(&master, &spec).await;
    let view = until(&job, wants(spec.code)).await;
    assert_eq!(view.result, None);
    let reason = view.replicas[0].reason.as_deref().expect("no reason to wait");
    assert!(reason.ends_with(WAY_OUT), "{reason}");
    keep(master.jobs.code());
    let view = until(&job, runs_in(1, 2)).await;
    assert_eq!((view.wanted_code, view.restarts.total()), (None, 1));
    succeed(&master, &job, &spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_for_which_nobody_has_the_code_fails_by_its_time_limit_alone_and_says_so() {
    let master = Master::new();
    let wanted = spec(keep(master.jobs.code()), 1);
    let policy = RunPolicy { start_timeout_seconds: 3, ..wanted.run_policy.clone() };
    let spec = JobSpec { run_policy: policy, ..wanted };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    lose_everywhere(&master, &spec).await;
    let view = reach(&job, JobState::Failed).await;
    let Some(JobResult::Failed { failure: Failure::StartTimeout { missing, reason: Some(reason), .. } }) = view.result
    else {
        panic!("{view:#?}");
    };
    assert_eq!(missing, [worker(0)]);
    assert!(reason.ends_with(WAY_OUT), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_running_elastic_job_waits_for_the_code_without_limit() {
    let master = Master::new();
    let wanted = spec(keep(master.jobs.code()), 1);
    let run_policy = RunPolicy { start_timeout_seconds: 1, ..wanted.run_policy.clone() };
    let spec = JobSpec { worker_min: Some(1), run_policy, ..wanted };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    lose_disk(&master);
    master.store.tamper(spec.code.expect("no code"), None).await;
    master.backend.evict(&spec.name, worker(1), "Evicted: low on memory");
    until(&job, wants(spec.code)).await;
    let alone = |view: &JobView| view.state == JobState::Running && view.roster == [worker(0)];
    let since = until(&job, alone).await;
    // Another job fails because the same time limit has passed.
    master.backend.keep_pending(&[worker(2)], Wait::Other("no node".to_owned()));
    let late = RunPolicy { start_timeout_seconds: 2, max_restarts: 0, ..RunPolicy::default() };
    reach(&master.submit(spec_with("late", 3, late)).await, JobState::Failed).await;
    let view = until(&job, wants(spec.code)).await;
    assert_eq!((view.state, view.generation), (JobState::Running, since.generation));
    keep(master.jobs.code());
    until(&job, |view| view.state == JobState::Running && view.roster.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_is_no_longer_wanted_when_no_replica_waits_for_it() {
    let master = Master::new();
    let spec = JobSpec { worker_min: Some(1), ..spec(keep(master.jobs.code()), 1) };
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    lose_disk(&master);
    master.store.tamper(spec.code.expect("no code"), None).await;
    master.backend.evict(&spec.name, worker(1), "Evicted: low on memory");
    until(&job, wants(spec.code)).await;
    let patch = JobPatch { worker_num: Some(1), ..JobPatch::default() };
    master.jobs.requests.patch(&spec.name, patch).await.expect("the number of workers was refused");
    until(&job, |view| view.wanted_code.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_waits_for_lost_code_takes_the_code_of_a_push_instead() {
    // The first master has no pods yet, so it brings the code to no agent.
    let store = FakeStore::default();
    let first = Master::over("first", FakeBackend::new(Arrival::Never("no node")), store.clone());
    let spec = spec(keep(first.jobs.code()), 0);
    first.submit(spec.clone()).await;
    first.stop_following().await;
    store.tamper(spec.code.expect("no code"), None).await;
    let second = Master::over("second", FakeBackend::new(Arrival::AtOnce), store).complete().await;
    let job = second.job(&spec.name);
    until(&job, wants(spec.code)).await;
    let other = keep_other(&second);
    push(&second, &spec, other).await.expect("the code was refused");
    let view = until(&job, runs_in(2, 1)).await;
    assert_eq!((view.code, view.wanted_code), (Some(other), None));
    succeed(&second, &job, &spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_of_other_code_begins_the_next_start_while_a_start_waits_for_lost_code() {
    let master = Master::new();
    let (spec, job) = running(&master).await;
    lose_everywhere(&master, &spec).await;
    until(&job, |view| view.state == JobState::Starting && view.wanted_code == spec.code).await;
    let other = keep_other(&master);
    push(&master, &spec, other).await.expect("the code was refused");
    let view = until(&job, runs_in(1, 3)).await;
    assert_eq!((view.code, view.wanted_code, view.restarts.total()), (Some(other), None, 1));
    succeed(&master, &job, &spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_with_room_for_one_object_keeps_the_record_and_the_view_has_a_warning() {
    let master = Master::serving(None).await;
    let code = keep(master.jobs.code());
    let spec = spec(code, 0);
    master.store.set_quota(0).await;
    let refused = master.jobs.requests.submit(spec.clone()).await.expect_err("accepted without room");
    assert!(matches!(&refused, JobsError::NotKept(reason) if reason == "exceeded quota"), "{refused}");
    assert_eq!(copies(&master.store).await, []);
    for room in [1, 2] {
        let name = format!("job-{room}").parse().expect("not a name");
        master.store.set_quota(2 * room - 1).await;
        let job = master.submit(JobSpec { name, ..spec.clone() }).await;
        reach(&job, JobState::Running).await;
        let shown = master.get(&format!("/v1/jobs/job-{room}")).await.json();
        if room == 1 {
            assert_eq!(copies(&master.store).await, []);
            let warning = shown["warnings"][0].clone();
            assert_eq!(warning["path"], "code");
            let sentence = warning["sentence"].as_str().expect("no sentence");
            assert!(
                sentence.starts_with("only this master's disk has the code") && sentence.ends_with("exceeded quota")
            );
        } else {
            assert_eq!((copies(&master.store).await, shown.get("warnings")), (vec![code], None));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_record_is_refused_is_removed_at_once() {
    let master = Master::new();
    let code = keep(master.jobs.code());
    let patch = JobPatch { code: Some(code), ..JobPatch::default() };
    let without = spec_with("plain", 1, RunPolicy::default());
    master.submit(without.clone()).await;
    let refused =
        master.jobs.requests.patch(&without.name, patch).await.expect_err("a job without code has taken code");
    assert!(matches!(refused, JobsError::NotPushable(_)), "{refused}");
    assert_eq!(copies(&master.store).await, []);
    // With a range, the push is refused when the record is about to be written.
    let spec = spec(code, 0);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let other = keep_other(&master);
    let patch = JobPatch { code: Some(other), worker_num: Some(9), ..JobPatch::default() };
    let refused = master.jobs.requests.patch(&spec.name, patch).await.expect_err("a fixed job has a range");
    assert!(matches!(refused, JobsError::Spec(_)), "{refused}");
    assert_eq!(copies(&master.store).await, [code]);
    assert_eq!(job.view.borrow().pushes, 0);
}
