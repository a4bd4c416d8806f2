//! `POST /stacks`: where the script is, without harm to any process.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use protocol::agent::{ExitOutcome, RunState};
use protocol::error::ErrorCode;
use protocol::stacks::{Answer, Dump, ProcessStacks, ReplicaStacks, Stacks, sentence, threads};
use protocol::warm::WarmState;
use rustix::process::Signal;
use serde_json::json;

use crate::support::warm::Folders;
use crate::support::{Agent, parse_response, process_state, signal, wait_until};

impl Agent {
    fn stacks(&self) -> Vec<ProcessStacks> {
        let answer = self.post("/stacks", "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice::<Stacks>(&answer.body).unwrap().processes
    }

    /// The processes, when these have these texts in their dumps or reasons.
    fn stacks_with(&self, texts: &[&str]) -> Vec<ProcessStacks> {
        wait_until(&format!("stacks with {texts:?}"), || {
            let processes = self.stacks();
            let has = |process: &ProcessStacks, text: &str| match &process.dump {
                Dump::Text(found) | Dump::WhyNot(found) => found.contains(text),
            };
            let are_all = processes.len() == texts.len();
            (are_all && processes.iter().zip(texts).all(|(process, text)| has(process, text))).then_some(processes)
        })
    }

    /// Asserts that the run has not ended.
    fn assert_runs(&self) {
        let status = self.status();
        assert_eq!(status.state, RunState::Running, "{status:?}");
    }
}

/// The sentence about a replica with these processes.
fn said(processes: &[ProcessStacks]) -> String {
    let answer = Answer::Processes(processes.to_vec());
    sentence(&[ReplicaStacks { replica: "worker-0".parse().unwrap(), answer }])
}

/// A script whose main thread waits in the open of a pipe, and has another thread.
const HANGS: &str = "import os, threading, time
def load(path):
    with open(path) as file:
        return file.read()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
os.mkfifo('pipe')
print('ready', flush=True)
load('pipe')";

#[test]
fn the_stacks_of_a_hanging_script_name_its_line_cold_and_warm() {
    for warm in [false, true] {
        let folders = Folders::new();
        folders.write_script(format!("import standin\n{HANGS}"));
        let agent = folders.agent();
        let env = folders.env(&json!({}));
        if warm {
            assert_eq!(agent.warm_up(&env, &json!(["standin"])), WarmState::Ready);
        }
        agent.start_with(&env);
        agent.wait_for_output("ready");
        let processes = agent.stacks_with(&["in load"]);
        assert_eq!(said(&processes), "worker-0 is in open() (exec.py:4)", "{processes:?}");
        let Dump::Text(text) = &processes[0].dump else { panic!("no text: {processes:?}") };
        assert_eq!(threads(text).len(), 2, "{text}");
        assert!(
            text.contains("    with open(path) as file:\n") && text.contains("exec.py\", line 9 in <module>"),
            "{text}"
        );
        assert_eq!((processes[0].state, processes[0].pid), ('S', agent.status().pid.unwrap()));
        assert!(processes[0].program.starts_with("python"), "{processes:?}");
        agent.assert_runs();
    }
}

#[test]
fn a_script_does_not_see_the_file_and_a_program_that_it_starts_does_not_inherit_it() {
    let script = "import os, subprocess, sys
code = 'import glob, os; print([link for link in map(os.path.realpath, glob.glob(\"/proc/self/fd/*\")) if \"memfd\" in link])'
print(os.environ.get('MUSTER_STACKS_FD'), flush=True)
subprocess.run([sys.executable, '-c', code], close_fds=False)";
    let agent = Agent::of_python(script);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    assert_eq!(String::from_utf8_lossy(&agent.logs("stdout")), "None\n[]\n");
}

#[test]
fn what_is_not_python_or_has_no_handler_is_told_why_and_lives() {
    let wait = "import time\nprint('ready', flush=True)\ntime.sleep(1000)";
    for (command, reason) in [
        (vec!["sh", "-c", "echo ready; while :; do read x < /dev/zero & wait; done"], "is not Python"),
        (vec!["sleep", "1000"], "sleep is not Python"),
        (vec!["python3", "-I", "-c", wait], "no handler for stacks"),
        (vec!["python3", "-E", "-c", wait], "no handler for stacks"),
    ] {
        let agent = Agent::start(&[], &command);
        agent.go();
        agent.wait_for(RunState::Running);
        let processes = wait_until("the reason", || {
            let processes = agent.stacks();
            matches!(&processes[0].dump, Dump::WhyNot(why) if why.contains(reason)).then_some(processes)
        });
        assert!(said(&processes).starts_with("no stack of worker-0: "), "{processes:?}");
        agent.assert_runs();
    }
}

#[test]
fn a_users_own_sitecustomize_comes_first_and_muster_then_adds_the_handler() {
    let folders = Folders::new();
    fs::write(folders.installed().join("sitecustomize.py"), "import builtins\nbuiltins.OWN = 'own'\n").unwrap();
    let agent = folders.agent();
    for (import, text) in [("time", "has another sitecustomize.py"), ("muster, time", "line 3 in <module>")] {
        folders.write_script(format!("import {import}\nprint(OWN, '{import}', flush=True)\ntime.sleep(1000)"));
        agent.start_with(&folders.env(&json!({})));
        agent.wait_for_output(&format!("own {import}\n"));
        agent.stacks_with(&[text]);
        agent.assert_runs();
        assert_eq!(agent.post("/stop?grace=0", "").status, 202);
        agent.wait_for_exit();
    }
}

#[test]
fn python_behind_a_shell_and_forked_children_have_stacks_of_their_own() {
    let script = "import os, sys, time
def child():
    time.sleep(1000)
if os.fork() == 0: child()
if os.fork() == 0: os.execvp('sleep', ['sleep', '1000'])
print('ready', flush=True)
time.sleep(1000)";
    let folders = Folders::new();
    folders.write_script(script);
    let agent = folders.agent_of(&["sh", "-c", "python3 exec.py; true"]);
    agent.start_with(&folders.env(&json!({})));
    agent.wait_for_output("ready");
    let processes = agent.stacks_with(&["is not Python", "line 7 in <module>", "line 3 in child", "another program"]);
    assert_eq!(said(&processes), "worker-0 waits in sleep() (exec.py:7)");
    agent.assert_runs();
    assert!(processes.iter().all(|process| process_state(process.pid) == Some('S')), "{processes:?}");
}

#[test]
fn a_process_that_does_not_answer_is_told_apart_and_answers_the_next_request() {
    let agent = Agent::of_python("import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)");
    agent.go();
    agent.wait_for_output("ready");
    let main = agent.status().pid.unwrap();
    signal(main, Signal::STOP);
    let stopped = agent.stacks_with(&["within 500 ms: it is stopped"]);
    assert_eq!(stopped[0].state, 'T');
    signal(main, Signal::CONT);
    agent.stacks_with(&["line 3 in <module>"]);
}

#[test]
fn requests_that_wait_for_the_same_answer_share_the_next_one() {
    // Each dump names another function.
    let script = "import time
for number in range(1000): exec(f'def f{number}(): time.sleep(0.001)')
print('ready', flush=True)
while True:
    for number in range(1000): globals()[f'f{number}']()";
    let agent = Agent::of_python(script);
    agent.go();
    agent.wait_for_output("ready");
    agent.stacks_with(&["in f"]);
    // A stopped agent receives all requests at once when it continues.
    signal(agent.pid(), Signal::STOP);
    let requests: Vec<_> = (0..16).map(|_| agent.send("POST", "/stacks", "")).collect();
    signal(agent.pid(), Signal::CONT);
    let dumps = requests.into_iter().map(|mut request| {
        let mut answer = Vec::new();
        request.read_to_end(&mut answer).unwrap();
        let Stacks { processes } = serde_json::from_slice(&parse_response(&answer).body).unwrap();
        match &processes[0].dump {
            Dump::Text(text) => text.clone(),
            Dump::WhyNot(reason) => panic!("{reason}"),
        }
    });
    let different: BTreeSet<String> = dumps.collect();
    assert!(different.len() <= 3, "{different:?}");
}

#[test]
fn a_busy_script_uses_processor_time_and_a_waiting_script_does_not() {
    let agent = Agent::of_python("print('ready', flush=True)\nwhile True: pass");
    agent.go();
    agent.wait_for_output("ready");
    wait_until("processor time", || (agent.stacks()[0].cpu_percent > 5).then_some(()));
    let first = wait_until("usage", || agent.status().usage);
    let more = || agent.status().usage.filter(|usage| usage.cpu_us > first.cpu_us);
    let later = wait_until("more processor time", more);
    assert!(later.rss_bytes > 1_000_000, "{later:?}");
    assert_eq!(agent.post("/stop?grace=0", "").status, 202);
    agent.wait_for_exit();
    assert_eq!(agent.status().usage, None);
}

#[test]
fn usage_counts_children_that_live_and_children_that_have_ended() {
    let script = "import os, time
block = bytearray(50_000_000)
if os.fork() == 0:
    own = bytearray(b'x') * 60_000_000
    print('ready', flush=True)
    time.sleep(1000)
ended = os.fork()
if ended == 0:
    until = time.process_time() + 0.3
    while time.process_time() < until: pass
    os._exit(0)
os.waitpid(ended, 0)
print('waited', flush=True)
time.sleep(1000)";
    let agent = Agent::of_python(script);
    agent.go();
    agent.wait_for_output("ready");
    agent.wait_for_output("waited");
    let usage = agent.status().usage.unwrap();
    assert!(usage.cpu_us >= 290_000 && usage.rss_bytes > 60_000_000, "{usage:?}");
    let seq = agent.status().seq;
    agent.status();
    assert_eq!(agent.status().seq, seq, "usage increases the sequence number");
}

#[test]
fn stacks_of_no_run_of_another_start_and_with_another_method_are_refused() {
    let agent = Agent::of_python("import time\ntime.sleep(1000)");
    let refused = |query: &str| agent.post(&format!("/stacks{query}"), "").refusal();
    assert_eq!(refused(""), (409, ErrorCode::Conflict));
    assert_eq!(agent.post("/config?generation=2.1", "{}").status, 200);
    assert_eq!(refused("?generation=2.1"), (409, ErrorCode::Conflict));
    assert_eq!(agent.get("/run?generation=2.1").status, 200);
    agent.wait_for(RunState::Running);
    assert_eq!(agent.post("/stacks?generation=2.1", "").status, 200);
    for other in ["?generation=2.2", "?generation=1.1"] {
        assert_eq!(refused(other), (409, ErrorCode::Conflict), "{other}");
    }
    assert_eq!(refused("?generation=x"), (400, ErrorCode::BadRequest));
    assert_eq!(agent.get("/stacks").refusal(), (405, ErrorCode::MethodNotAllowed));
}

/// A script that makes life hard: busy threads that make and drop frames, short-lived forks, and programs that start.
const BUSY: &str = "import os, subprocess, sys, threading, time
def sink(depth):
    return 0 if depth == 0 else 1 + sink(depth - 1)
def spin():
    while True: sink(40)
def fork():
    while True:
        child = os.fork()
        if child == 0: os._exit(sum(range(1000)) and 7)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 7: print('hurt: a fork', status, flush=True)
def start(preexec):
    while True:
        code = subprocess.run(['sh', '-c', 'exit 7'], preexec_fn=preexec).returncode
        if code != 7: print('hurt: a program', code, flush=True)
for work in (spin, spin, fork, lambda: start(None), lambda: start(lambda: time.sleep(0.02))):
    threading.Thread(target=work, daemon=True).start()
print('ready', flush=True)
for beat in range(10**9):
    time.sleep(0.05)
    print('beat', beat, flush=True)";

#[test]
fn fifty_requests_hurt_neither_a_busy_script_nor_its_forks_nor_its_programs() {
    let folders = Folders::new();
    folders.write_script(BUSY);
    let agent = folders.agent();
    agent.start_with(&folders.env(&json!({})));
    agent.wait_for_output("ready");
    let mut texts = 0;
    for _ in 0..50 {
        let processes = agent.stacks();
        texts += u32::from(matches!(processes[0].dump, Dump::Text(_)));
        agent.assert_runs();
    }
    let beats = || String::from_utf8_lossy(&agent.logs("stdout")).matches("beat").count();
    let before = beats();
    wait_until("a further beat", || (beats() > before).then_some(()));
    let output = String::from_utf8_lossy(&agent.logs("both")).into_owned();
    assert!(!output.contains("hurt"), "{output}");
    assert!(texts >= 40, "only {texts} of 50 requests got the stacks of the main process");
}

#[test]
fn requests_while_runs_start_and_stop_change_no_outcome() {
    let folders = Folders::new();
    folders.write_script("import sys\nsys.exit(7)");
    let agent = folders.agent();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        agent.start_with(&folders.env(&json!({})));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let answers = [agent.post("/stacks", ""), agent.post("/stacks", "")];
                assert!(answers.iter().all(|answer| [200, 409].contains(&answer.status)), "{answers:?}");
            });
            assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(7));
        });
    }
}
