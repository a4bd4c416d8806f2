//! Tests that the master asks all agents where their scripts are, and shows what the scripts use.

use protocol::agent::ExitOutcome;
use protocol::run_policy::RunPolicy;
use protocol::stacks::{Answer, Dump, JobStacks, ProcessStacks, ReplicaStacks};
use protocol::usage::Usage;
use protocol::view::JobState;
use serde_json::json;

use crate::service::harness::{Master, in_time, reach, spec, spec_with};

/// A process whose main thread is at this line.
fn process_at(file: &str, line: u32, source: &str) -> ProcessStacks {
    let frame = format!("  File \"/job/{file}\", line {line} in step\n    {source}\n");
    let text = format!("Current thread 0x01 (most recent call first):\n{frame}");
    ProcessStacks {
        pid: 7,
        process: None,
        program: "python3".to_owned(),
        state: 'S',
        cpu_percent: 0,
        waits_in: None,
        dump: Dump::Text(text),
    }
}

impl Master {
    async fn stacks_of(&self, job: &str) -> JobStacks {
        let answer = self.get(&format!("/v1/jobs/{job}/stacks")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("not stacks")
    }
}

fn reason(stacks: &ReplicaStacks) -> &str {
    match &stacks.answer {
        Answer::WhyNot(reason) => reason,
        Answer::Processes(processes) => panic!("there are stacks: {processes:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stacks_of_all_members_come_with_a_sentence_and_a_missing_one_with_its_reason() {
    let master = Master::serving(None).await;
    let spec = spec("hangs", 5);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    agents.iter().for_each(|agent| agent.show_stacks(vec![process_at("train.py", 88, "peer.recv(4)")]));
    agents[2].show_stacks(vec![process_at("data.py", 31, "with open(path) as file:")]);
    agents[3].show_stacks(vec![]);
    agents[4].cut_off(true);
    let stacks = master.stacks_of("hangs").await;
    let places = "worker-0 and worker-1 wait in recv() (train.py:88), worker-2 is in open() (data.py:31)";
    assert!(stacks.summary.starts_with(places), "{}", stacks.summary);
    let names: Vec<String> = stacks.replicas.iter().map(|stacks| stacks.replica.to_string()).collect();
    assert_eq!(names, ["worker-0", "worker-1", "worker-2", "worker-3", "worker-4"]);
    assert_eq!(reason(&stacks.replicas[3]), "exec.py has just ended");
    assert!(
        reason(&stacks.replicas[4]).contains("did not answer in time")
            || reason(&stacks.replicas[4]).contains("could not reach"),
        "{stacks:?}"
    );
    assert_eq!(master.get("/v1/jobs/other/stacks").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_deadline_the_scripts_are_asked_before_they_are_stopped_and_the_failure_keeps_the_sentence() {
    let master = Master::serving(None).await;
    let spec = spec_with("late", 3, RunPolicy { deadline_seconds: Some(5), max_restarts: 0, ..RunPolicy::default() });
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents.iter().for_each(|agent| agent.show_stacks(vec![process_at("train.py", 88, "peer.recv(4)")]));
    agents[1].show_stacks(vec![process_at("data.py", 31, "with open(path) as file:")]);
    agents[2].exit(ExitOutcome::Code(0));
    let view = reach(&job, JobState::Failed).await;
    let failed = view.restarts.failed_starts.last().expect("no failed start");
    let sentence = "worker-0 waits in recv() (train.py:88), worker-1 is in open() (data.py:31); \
                    no stack of worker-2: exec.py exited with code 0";
    assert_eq!(failed.stacks.as_deref(), Some(sentence));
    assert_eq!(master.stacks_of("late").await.summary, "no replica runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_usage_of_a_run_is_shown_also_without_the_helper_and_forgotten_with_the_run() {
    let master = Master::serving(None).await;
    let spec = spec("reports", 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    reach(&job, JobState::Running).await;
    agents[0].tell_usage(Usage { cpu_us: 1, rss_bytes: 4096, memory_limit: Some(8192) });
    let usage = async || master.get("/v1/jobs/reports/series").await.json()["usage"].clone();
    let shown = in_time("the usage is shown", async {
        loop {
            let usage = usage().await;
            if !usage.is_null() {
                return usage;
            }
        }
    });
    let shown = shown.await;
    let (replica, rss, limit) = (&shown[0]["replica"], &shown[0]["rss_bytes"], &shown[0]["memory_limit"]);
    assert_eq!((replica, rss, limit), (&json!("worker-0"), &json!(4096), &json!(8192)), "{shown}");
    agents[0].exit(ExitOutcome::Code(0));
    reach(&job, JobState::Succeeded).await;
    assert!(usage().await.is_null());
}
