//! A run of several processes.

use protocol::agent::{ExitOutcome, ProcessStatus, RunState};
use protocol::processes::EndedProcess;
use protocol::stacks::{Dump, Stacks};
use protocol::warm::WarmState;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::warm::Folders;
use crate::support::{Agent, children_of, process_state, signal, wait_until, wait_until_gone};

impl Agent {
    /// Configures a run with a process for each of these environments, and starts it.
    fn go_several(&self, all: &Value, each: &[Value]) {
        let path = format!("/config?processes={}", each.len());
        let answer = self.post(&path, &json!({"all": all, "each": each}).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(self.get("/run").status, 200);
    }

    /// Runs processes with the ranks from 0.
    fn go_ranks(&self, count: usize) {
        self.go_several(&json!({}), &ranks(count));
    }

    fn process_pids(&self) -> Vec<u32> {
        self.status().processes.into_iter().filter_map(|process| process.pid).collect()
    }
}

fn ranks(count: usize) -> Vec<Value> {
    (0..count).map(|rank| json!({"RANK": rank, "WORLD_SIZE": count})).collect()
}

fn ended(index: u32, rank: u32) -> Option<EndedProcess> {
    Some(EndedProcess { index, rank: Some(rank) })
}

fn sorted_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn each_process_has_its_variables_and_the_members_of_objects_that_all_share() {
    let agent = Agent::of_shell(r#"echo "$RANK $SHARED $TF_CONFIG""#);
    let all = json!({"SHARED": "s", "TF_CONFIG": {"cluster": {"worker": ["a:1", "a:2"]}}});
    let each: Vec<Value> = (0..2).map(|rank| json!({"RANK": rank, "TF_CONFIG": {"task": {"index": rank}}})).collect();
    agent.go_several(&all, &each);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    let line =
        |rank| format!(r#"[rank{rank}] {rank} s {{"cluster":{{"worker":["a:1","a:2"]}},"task":{{"index":{rank}}}}}"#);
    assert_eq!(sorted_lines(&agent.logs("stdout")), [line(0), line(1)]);
    assert_eq!(sorted_lines(&agent.logs("both")), [line(0), line(1)]);
}

#[test]
fn the_first_failure_is_the_end_of_the_run_and_the_other_processes_are_killed() {
    let agent = Agent::of_python(
        "import os, sys, time\nif os.environ['RANK'] == '11':\n  time.sleep(0.2)\n  raise ValueError('no data')\n\
         print('noise of another rank', file=sys.stderr)\ntime.sleep(1000)",
    );
    let each: Vec<Value> = (8..12).map(|rank| json!({"RANK": rank})).collect();
    agent.go_several(&json!({}), &each);
    let exit = agent.wait_for_exit();
    assert_eq!((exit.outcome.clone(), exit.process, exit.stopped), (ExitOutcome::Code(1), ended(3, 11), false));
    assert_eq!(exit.exception.as_deref(), Some("ValueError: no data"));
    assert!(!exit.stderr_tail.contains("noise") && !exit.stderr_tail.contains("[rank"), "{}", exit.stderr_tail);
    assert!(String::from_utf8_lossy(&agent.logs("stderr")).contains("[rank11] ValueError: no data\n"));
    assert_eq!(children_of(agent.pid()), [0; 0]);
}

#[test]
fn a_process_that_succeeds_or_leaves_lets_the_others_run() {
    for (code, end) in [(0, 0), (75, 75), (3, 3)] {
        let script = format!("[ $RANK = 1 ] && exit {code}; read line < go; exit 0");
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
        let agent =
            Agent::start(&["--work-dir", folder.path().to_str().unwrap()], &["sh", "-c", &script.replace('$', "$$")]);
        agent.go_ranks(2);
        if code != 3 {
            let alone = wait_until("the end of rank 1", || {
                let status = agent.status();
                (status.processes.len() == 2 && status.processes[1].pid.is_none()).then_some(status)
            });
            // After 75, the time of the others is limited.
            assert_eq!(alone.state, if code == 0 { RunState::Running } else { RunState::Stopping });
            std::fs::write(&go, "\n").unwrap();
        }
        assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(end));
    }
}

#[test]
fn a_process_that_is_killed_is_named_and_a_stop_ends_all() {
    let agent = Agent::of_shell("exec sleep 1000");
    agent.go_ranks(3);
    let pids = agent.process_pids();
    signal(pids[1], Signal::KILL);
    let exit = agent.wait_for_exit();
    assert_eq!((exit.outcome, exit.process), (ExitOutcome::Signal(9), ended(1, 1)));
    pids.into_iter().for_each(wait_until_gone);

    let agent = Agent::of_shell("trap 'sleep 0.2; exit 0' TERM; while :; do sleep 0.01; done");
    agent.go_ranks(3);
    agent.wait_for(RunState::Running);
    assert_eq!(agent.post("/stop?grace=20", "").status, 202);
    let exit = agent.wait_for_exit();
    assert!(exit.stopped && exit.outcome != ExitOutcome::Signal(9), "{exit:?}");
}

#[test]
fn the_status_shows_each_process_and_what_all_use() {
    let agent = Agent::of_shell("exec sleep 1000");
    agent.go_ranks(2);
    let status = agent.wait_for(RunState::Running);
    let pids: Vec<u32> = status.processes.iter().filter_map(|process| process.pid).collect();
    assert_eq!((pids.len(), status.pid), (2, Some(pids[0])));
    assert!(pids.iter().all(|pid| process_state(*pid).is_some()));
    let memory = |process: &ProcessStatus| process.usage.unwrap().rss_bytes;
    assert_eq!(status.usage.unwrap().rss_bytes, status.processes.iter().map(memory).sum::<u64>());
}

/// Each process reports the steps of its rank: rank 0 reports 1, rank 1 reports 2.
const REPORTS: &str = "import muster, os, standin, time
job = muster.Job(global_batch=4)
job.started()
job.step(int(os.environ['RANK']) + 1, (0, 0))
while True: time.sleep(1000)";

#[test]
fn the_lowest_rank_reports_for_the_replica_cold_and_warm() {
    for warm in [false, true] {
        let folders = Folders::new();
        folders.write_script(REPORTS);
        let (agent, env) = (folders.agent(), folders.env(&json!({})));
        if warm {
            assert_eq!(agent.warm_up(&env, &json!(["standin"])), WarmState::Ready);
        }
        agent.go_several(&env, &ranks(4));
        let helper = wait_until("a step of all", || agent.status().helper.filter(|helper| helper.has_stepped()));
        assert_eq!(helper.step, Some(1));
        let steps: Vec<_> = agent.status().processes.into_iter().map(|process| process.helper.unwrap().step).collect();
        assert_eq!(steps, [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(folders.imports(), if warm { 1 } else { 4 });
    }
}

#[test]
fn the_stacks_of_each_process_are_its_own() {
    let folders = Folders::new();
    folders.write_script("import os, time\ndef wait_0(): time.sleep(1000)\ndef wait_1(): time.sleep(1000)\nglobals()['wait_' + os.environ['RANK']]()");
    let agent = folders.agent();
    agent.go_several(&folders.env(&json!({})), &ranks(2));
    let processes = wait_until("the stacks of both", || {
        let stacks: Stacks = serde_json::from_slice(&agent.post("/stacks", "").body).ok()?;
        let has_text = stacks.processes.iter().all(|process| matches!(process.dump, Dump::Text(_)));
        (stacks.processes.len() == 2 && has_text).then_some(stacks.processes)
    });
    for (index, process) in (0..).zip(processes) {
        assert_eq!(process.process, Some(index));
        let Dump::Text(text) = process.dump else { unreachable!() };
        assert!(text.contains(&format!("in wait_{index}")), "{text}");
    }
}

#[test]
fn a_bad_number_of_processes_or_environments_is_refused() {
    let agent = Agent::of_shell("true");
    for query in ["processes=0", "processes=65", "processes=two"] {
        assert_eq!(agent.post(&format!("/config?{query}"), r#"{"all": {}, "each": []}"#).status, 400, "{query}");
    }
    for body in ["{}", r#"{"all": {}, "each": [{}]}"#, r#"{"all": {}, "each": [{}, {}], "more": 1}"#] {
        let answer = agent.post("/config?processes=2", body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
    }
    assert_eq!(agent.status().state, RunState::Idle);
}
