//! Tests of output after the master was replaced and has lost its folder, as in a pod with an `emptyDir`.

use protocol::agent::ExitOutcome;
use protocol::job::JobSpec;
use protocol::output::{LogLine, is_of_earlier_master};
use protocol::run_policy::RunPolicy;
use protocol::view::JobState;
use testkit::fake::FakeAgent;

use crate::service::harness::{Answer, Master, client, in_time, reach, spec, spec_with, until, worker};

/// The remark about output that this master does not have.
const REMARK: &str = "[output that an earlier master kept may be missing here]";

/// A job of two workers in its second start. Each worker has printed 7 bytes in the first start.
async fn restarted(name: &str) -> (Master, JobSpec) {
    let policy = RunPolicy { max_restarts: 3, backoff_seconds: 0, ..RunPolicy::default() };
    let (master, spec) = (Master::serving(None).await, spec_with(name, 2, policy));
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    agents.iter().for_each(|agent| agent.print("before\n"));
    agents[1].exit(ExitOutcome::Code(3));
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 1).await;
    for index in 0..2 {
        let log = job.kept.logs.of(worker(index)).expect("the replica has no log");
        in_time("the output is copied", async {
            while log.progress().end < 7 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    (master, spec)
}

async fn ends_with(master: &Master, spec: &JobSpec, text: &str) {
    let job = master.job(&spec.name);
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 2).await;
    for index in 0..2 {
        let agent: FakeAgent = master.backend.agent(&spec.name, worker(index)).await;
        agent.print(text);
        agent.exit(ExitOutcome::Code(0));
    }
    reach(&job, JobState::Succeeded).await;
}

/// The lines of worker-1 from this offset on.
async fn lines(master: &Master, spec: &JobSpec, offset: u64) -> Vec<String> {
    let path = format!("/v1/jobs/{}/logs?follow=true&from=worker-0:{offset},worker-1:{offset}", spec.name);
    let answer = Answer::of(client().get(master.url(&path))).await;
    let lines = answer.body.lines().map(|line| serde_json::from_str::<LogLine>(line).expect("not a line"));
    lines.filter(|line| line.replica == worker(1)).map(|line| line.line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_master_learns_from_a_replaced_agent_where_its_output_begins() {
    let (first, spec) = restarted("learned").await;
    let job = first.job(&spec.name);
    first.backend.replace(&spec.name, worker(1)).await;
    until(&job, |view| view.state == JobState::Running && view.restarts.total() == 2).await;
    let agent = first.backend.agent(&spec.name, worker(1)).await;
    in_time("the agent is told its place", agent.knows_log_base()).await;
    let second = first.successor().await.serve(None).await;
    ends_with(&second, &spec, "again 1\nagain 2\n").await;
    assert_eq!(lines(&second, &spec, 7).await, ["again 1", "again 2"]);
    let all = ["[7 bytes of output before this are no longer kept]", "again 1", "again 2"];
    assert_eq!(lines(&second, &spec, 0).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_an_agent_that_only_a_later_master_has_seen_is_not_taken_for_earlier_output() {
    let (first, spec) = restarted("unknown").await;
    first.stop_following().await;
    first.backend.replace(&spec.name, worker(1)).await;
    let second = first.successor().await.serve(None).await;
    ends_with(&second, &spec, "again 1\nagain 2\n").await;
    for offset in [0, 7] {
        assert_eq!(lines(&second, &spec, offset).await, [REMARK, "again 1", "again 2"], "from {offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lost_output_of_an_ended_job_is_reported() {
    let (first, spec) = (Master::new(), spec("ended", 2));
    first.succeed(&spec).await;
    let second = first.successor().await.serve(None).await;
    reach(&second.job(&spec.name), JobState::Succeeded).await;
    assert_eq!(lines(&second, &spec, 0).await, [REMARK]);
    let answer = second.get("/v1/jobs/ended/logs?replica=worker-1").await;
    let dropped = answer.header("muster-log-dropped").parse().expect("not a number");
    assert!(is_of_earlier_master(dropped) && answer.body.is_empty(), "{answer:?}");
}
