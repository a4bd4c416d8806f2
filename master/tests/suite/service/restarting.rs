//! Tests of failed starts, and of the restarts after them.

use std::time::Instant;

use axum::http::StatusCode;
use job::policy::RELEASE_TIMEOUT;
use master::host::clock::wall_clock;
use master::logs::JobLogs;
use master::registry::JobHandle;
use protocol::agent::{ExitOutcome, RunStatus};
use protocol::ids::{Generation, JobName};
use protocol::run_policy::{CleanPods, OnStartTimeout, RunPolicy};
use protocol::view::{JobState, JobView};
use serde_json::json;
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeAgent, FakeBackend};

use crate::captured_log;
use crate::service::harness::{Master, files_below, in_time, reach, spec_with, until, worker};

/// A run policy that restarts without a pause.
fn at_once(max_restarts: u32) -> RunPolicy {
    RunPolicy { max_restarts, backoff_seconds: 0, ..RunPolicy::default() }
}

/// Waits until the gang runs in the `sequence`-th start of the first master.
async fn running(job: &JobHandle, sequence: u32) -> JobView {
    let generation = Some(Generation { epoch: 1, sequence });
    until(job, |view| view.state == JobState::Running && view.generation == generation).await
}

async fn agents(master: &Master, job: &JobName, count: u32) -> Vec<FakeAgent> {
    let mut agents = vec![];
    for index in 0..count {
        agents.push(master.backend.agent(job, worker(index)).await);
    }
    agents
}

/// The values of a variable in the environments of an agent, one for each start.
fn values(agent: &FakeAgent, variable: &str) -> Vec<serde_json::Value> {
    agent.history().configs.iter().map(|(_, environment)| environment[variable].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_before_it_is_listed_is_created_again() {
    let master = Master::new();
    master.backend.lose_unlisted(worker(1));
    let job = master.submit(spec_with("unlisted", 2, at_once(0))).await;
    let view = running(&job, 1).await;
    assert!(view.restarts.is_empty(), "{:?}", view.restarts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_restarts_the_whole_gang_in_the_same_pods() {
    let master = Master::new();
    let spec = spec_with("again", 3, at_once(1));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    let before = agents(&master, &spec.name, 3).await;
    before[1].exit(ExitOutcome::Code(3));
    let view = running(&job, 2).await;
    assert_eq!((view.restarts.counted, view.restarts.uncounted), (1, 0));
    let failed = &view.restarts.failed_starts[0];
    assert_eq!(failed.failure.to_string(), "worker-1 exited with code 3");
    assert_eq!(
        failed.consequences.len(),
        2,
        "the failure does not list the two other runs as its consequences: {failed:?}"
    );
    let after = agents(&master, &spec.name, 3).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.address(), new.address());
        assert_eq!(new.history().starts.len(), 2);
        assert_eq!(values(new, "MUSTER_RESTART_COUNT"), [json!(0), json!(1)]);
        assert_eq!(values(new, "MUSTER_GENERATION"), [json!("1.1"), json!("1.2")]);
    }
    after.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
}

/// Waits until the master waits for the next status and the output of each of these agents.
async fn followed(agents: &[FakeAgent]) {
    let all = async {
        while !agents.iter().all(FakeAgent::is_followed) {
            tokio::task::yield_now().await;
        }
    };
    in_time("the master follows every agent", all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_without_output_do_not_interrupt_the_copy_of_output_and_each_restart_needs_two_polls() {
    captured_log::begin();
    let master = Master::new();
    let spec = spec_with("silent", 2, at_once(10));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    let agents = agents(&master, &spec.name, 2).await;
    followed(&agents).await;
    let polls = || agents.iter().map(FakeAgent::polls).collect::<Vec<_>>();
    let before = polls();
    for sequence in 2..=5 {
        agents[0].exit(ExitOutcome::Code(1));
        running(&job, sequence).await;
        followed(&agents).await;
    }
    for agent in &agents {
        let interrupted = captured_log::lines(&["interrupted", &format!("agent={}", agent.address())]);
        assert_eq!(interrupted, Vec::<String>::new());
    }
    // In each start, the first poll finds that the run has started, and the second poll waits for the end of the run.
    assert_eq!(polls(), before.into_iter().map(|polls| polls + 2 * 4).collect::<Vec<_>>());
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_replaced_between_two_observations_causes_an_uncounted_restart() {
    let master = Master::new();
    let spec = spec_with("replaced", 2, at_once(0));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    master.backend.replace(&spec.name, worker(1)).await;
    let view = running(&job, 2).await;
    assert_eq!((view.restarts.counted, view.restarts.uncounted), (0, 1));
    let failure = view.restarts.failed_starts[0].failure.to_string();
    assert!(failure.contains("its pod or its machine is gone"), "{failure}");
    agents(&master, &spec.name, 2).await.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_replaced_after_its_success_does_not_undo_the_success() {
    let master = Master::new();
    let spec = spec_with("done-before", 2, at_once(0));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    let agents = agents(&master, &spec.name, 2).await;
    agents[1].exit(ExitOutcome::Code(0));
    let has_exited = |view: &JobView| view.replicas[1].exit.is_some();
    in_time("worker-1 has exited", job.view.clone().wait_for(has_exited)).await.expect("the driver has ended");
    master.backend.replace(&spec.name, worker(1)).await;
    agents[0].exit(ExitOutcome::Code(0));
    let view = reach(&job, JobState::Succeeded).await;
    assert_eq!(view.restarts.total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_restarts_left_fails_and_lists_the_failure_of_each_start() {
    let master = Master::new();
    let spec = spec_with("spent", 2, at_once(2));
    let job = master.submit(spec.clone()).await;
    for start in 1..=3 {
        running(&job, start).await;
        let agent = master.backend.agent(&spec.name, worker(0)).await;
        agent.exit(ExitOutcome::Code(i32::try_from(start).expect("too large a number")));
    }
    let view = reach(&job, JobState::Failed).await;
    let failures: Vec<String> = view.restarts.failed_starts.iter().map(|start| start.failure.to_string()).collect();
    assert_eq!(failures, [1, 2, 3].map(|code| format!("worker-0 exited with code {code}")));
    assert!(view.restarts.failed_starts.iter().all(|start| start.counted), "{view:?}");
    assert_eq!((view.restarts.counted, view.restarts.uncounted), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_503_of_an_ending_agent_causes_an_uncounted_restart_and_a_503_of_a_proxy_causes_a_counted_restart() {
    let ending = r#"{"status":503,"code":"unavailable","detail":"the agent is ending"}"#;
    for (body, counts) in [(ending, (1, 1)), ("no healthy upstream", (2, 0))] {
        let master = Master::new();
        let spec = spec_with("ending", 2, at_once(2));
        let job = master.submit(spec.clone()).await;
        running(&job, 1).await;
        let before = agents(&master, &spec.name, 2).await;
        before[1].refuse_environments((StatusCode::SERVICE_UNAVAILABLE, body));
        before[0].exit(ExitOutcome::Code(3));
        let view = running(&job, 3).await;
        assert_eq!((view.restarts.counted, view.restarts.uncounted), counts, "{view:?}");
        let after = agents(&master, &spec.name, 2).await;
        assert_eq!(before[0].address(), after[0].address());
        assert_ne!(before[1].address(), after[1].address());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_replaced_at_once_even_right_after_another_replacement() {
    let master = Master::new();
    let spec = spec_with("twice", 2, at_once(2));
    let job = master.submit(spec.clone()).await;
    let begin = Instant::now();
    for (start, lost) in [(1, worker(0)), (2, worker(1))] {
        running(&job, start).await;
        master.backend.lose(&spec.name, lost, "its agent was killed");
    }
    running(&job, 3).await;
    assert!(begin.elapsed() < RELEASE_TIMEOUT, "the third start runs only after {:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_between_two_starts_is_polled_again_after_its_connection_broke() {
    let master = Master::new();
    let spec = spec_with("kept", 1, RunPolicy { backoff_seconds: 300, ..RunPolicy::default() });
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    agent.exit(ExitOutcome::Code(1));
    reach(&job, JobState::Restarting).await;
    in_time("the agent is polled again", agent.cut_polls()).await;
}

#[tokio::test]
async fn the_output_of_a_new_agent_begins_where_the_output_of_the_old_agent_ended() {
    let dir = tempfile::tempdir().expect("no folder");
    let logs = || JobLogs::new(dir.path().to_owned(), &[worker(0)]);
    let first = logs();
    let log = first.of(worker(0)).expect("the replica has no log");
    assert_eq!(log.base_of(&RunStatus::idle("one")).await.expect("cannot record the base"), 0);
    log.append(0, "of one\n".into(), wall_clock()).await.expect("cannot append to the log");
    assert_eq!(log.base_of(&RunStatus::idle("one")).await.expect("no recorded base"), 0);
    assert_eq!(log.base_of(&RunStatus::idle("two")).await.expect("cannot record the base"), 7);
    log.append(7, "of two\n".into(), wall_clock()).await.expect("cannot append to the log");
    // A second master reads the same files.
    let second = logs();
    let log = second.of(worker(0)).expect("the replica has no log");
    assert_eq!(log.base_of(&RunStatus::idle("two")).await.expect("no recorded base"), 7);
    assert_eq!(log.last_lines(9, 7).await, ["of two"]);
}

#[tokio::test]
async fn the_last_lines_of_long_output_are_complete_lines() {
    let dir = tempfile::tempdir().expect("no folder");
    let logs = JobLogs::new(dir.path().to_owned(), &[worker(0)]);
    let log = logs.of(worker(0)).expect("the replica has no log");
    let output: String = (0..100).map(|line| format!("line {line:02} {}\n", "x".repeat(1000))).collect();
    log.append(0, output.clone().into(), wall_clock()).await.expect("cannot append to the log");
    let expected: Vec<&str> = output.lines().collect();
    assert_eq!(log.last_lines(20, 0).await, expected[84..], "not the last lines that fit");
    assert_eq!(log.last_lines(3, 0).await, expected[97..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_lines_of_the_replica_that_failed_first_are_kept() {
    let master = Master::new();
    let spec = spec_with("lines", 2, at_once(0));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    let agent = master.backend.agent(&spec.name, worker(1)).await;
    (0..30).for_each(|line| agent.print(&format!("line {line}\n")));
    agent.exit(ExitOutcome::Code(3));
    let view = reach(&job, JobState::Failed).await;
    let last = view.restarts.failed_starts.last().expect("no failed start");
    assert_eq!(last.last_lines, (10..30).map(|line| format!("line {line}")).collect::<Vec<_>>());
    let consequences: Vec<_> = last.consequences.iter().map(|one| (one.replica, one.stopped)).collect();
    assert_eq!(consequences, [(worker(0), true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_requeued_gang_are_deleted_and_created_again() {
    let master = Master::over("first", FakeBackend::new(Arrival::Never("no room")), FakeStore::default());
    let policy =
        RunPolicy { start_timeout_seconds: 1, on_start_timeout: OnStartTimeout::Requeue, ..RunPolicy::default() };
    let spec = spec_with("queued", 2, policy);
    let job = master.submit(spec.clone()).await;
    let view = reach(&job, JobState::Restarting).await;
    let failure = view.restarts.failed_starts[0].failure.to_string();
    assert_eq!(failure, "2 replicas were not ready within 1 s: worker-0, worker-1 (no room)");
    in_time("all pods are deleted", master.backend.table(&spec.name).wait_for(|table| table.is_empty()))
        .await
        .expect("no table");
    reach(&job, JobState::Pending).await;
    in_time("the pods are created again", master.backend.table(&spec.name).wait_for(|table| table.len() == 2))
        .await
        .expect("no table");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_deadline_the_run_that_was_silent_longest_is_listed_first_and_its_last_lines_are_kept() {
    let master = Master::new();
    let spec = spec_with("hangs", 2, RunPolicy { deadline_seconds: Some(5), ..at_once(3) });
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents[1].print("waiting for the others\n");
    // A fake agent serves output only at the end of its run, so the test copies this line.
    let copied = job.kept.logs.of(worker(1)).expect("the replica has no log");
    copied.append(0, "waiting for the others\n".into(), wall_clock()).await.expect("cannot append to the log");
    agents[0].exit(ExitOutcome::Code(0));
    let view = reach(&job, JobState::Failed).await;
    let failed = view.restarts.failed_starts.last().expect("no failed start").clone();
    assert_eq!(failed.failure.to_string(), "the job exceeded its deadline of 5 s");
    let outcomes: Vec<(String, bool)> =
        failed.consequences.iter().map(|one| (format!("{} {}", one.replica, one.how), one.stopped)).collect();
    assert!(outcomes[0].0.starts_with("worker-1 had printed nothing for ") && outcomes[0].1, "{outcomes:?}");
    assert_eq!(outcomes[1], ("worker-0 exited with code 0".to_owned(), false));
    assert_eq!(failed.last_lines, ["waiting for the others"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_job_is_forgotten_after_its_ttl() {
    let master = Master::new();
    let spec = spec_with("brief", 1, RunPolicy { ttl_after_finished_seconds: Some(0), ..at_once(0) });
    master.submit(spec.clone()).await;
    let agent = master.backend.agent(&spec.name, worker(0)).await;
    in_time("the run starts", agent.started()).await;
    agent.exit(ExitOutcome::Code(0));
    master.forgotten(&spec.name).await;
    assert_eq!((master.backend.pods(), files_below(master.logs.path())), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_pods_decides_which_pods_of_a_finished_job_stay() {
    for (clean_pods, left) in [(CleanPods::All, 0), (CleanPods::Running, 2), (CleanPods::None, 2)] {
        let master = Master::new();
        let spec = spec_with("cleaned", 2, RunPolicy { clean_pods, ..at_once(0) });
        master.succeed(&spec).await;
        let table = master.backend.table(&spec.name);
        let is_so = |table: &master::backend::PodTable| table.len() == left;
        in_time("the expected number of pods is left", table.clone().wait_for(is_so)).await.expect("no table");
        let lives = |pod: &job::observation::Pod| matches!(pod.state, job::observation::PodState::Running(_));
        let living = table.borrow().values().filter(|pod| lives(pod)).count();
        assert_eq!(living, if clean_pods == CleanPods::None { 2 } else { 0 }, "{clean_pods:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_the_replica_that_failed_the_job_is_told_to_finish() {
    let master = Master::new();
    let spec = spec_with("ends", 2, at_once(0));
    let job = master.submit(spec.clone()).await;
    running(&job, 1).await;
    master.backend.agent(&spec.name, worker(1)).await.exit(ExitOutcome::Code(3));
    reach(&job, JobState::Failed).await;
    let table = master.backend.table(&spec.name).borrow().clone();
    let ended = |pod: &job::observation::Pod| matches!(pod.state, job::observation::PodState::Terminated { .. });
    assert!(table.len() == 2 && table.values().all(ended), "a pod has not ended by itself: {table:?}");
}
