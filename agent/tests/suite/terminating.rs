//! An agent that gets SIGTERM, for example when its pod is preempted or evicted: what the run, the master and
//! Kubernetes learn.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Agent, process_state, signal, wait_until};
use agent::last_words::message;
use protocol::agent::{ExitOutcome, ExitReport, LAST_WORDS_BYTES, LastWords, RunState, RunStatus};
use protocol::ids::UnixMillis;
use rustix::process::Signal;

/// After SIGTERM, prints `got SIGTERM`, waits until the file `GO` exists, and exits with code 75.
const ORDERLY: &str = r#"
import os, signal, sys, time
def end(*_):
    os.write(1, b"got SIGTERM\n")
    while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
    os.write(2, b"saved\n")
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
os.write(1, b"ready\n")
while True: time.sleep(1000)
"#;

/// Ignores SIGTERM.
const STUBBORN: &str =
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(1000)";

fn started(flags: &[&str], script: &str, go: &str) -> Agent {
    let agent = Agent::start(flags, &["python3", "-u", "-c", script]);
    assert_eq!(agent.post("/config?generation=2.1", &format!(r#"{{"GO":"{go}"}}"#)).status, 200);
    assert_eq!(agent.get("/run?generation=2.1").status, 200);
    agent.wait_for_output("ready");
    agent
}

/// Calls `let_go`, which lets the run end, and waits for this end. Returns the status of the ended run.
fn status_after_end(agent: &Agent, let_go: impl FnOnce()) -> RunStatus {
    thread::scope(|scope| {
        let waiter = scope.spawn(|| agent.wait_for(RunState::Exited));
        let_go();
        waiter.join().unwrap()
    })
}

#[test]
fn a_run_gets_sigterm_and_a_grace_and_readers_learn_how_the_run_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (go, log) = (folder.path().join("go"), folder.path().join("termination-log"));
    fs::write(&log, "").unwrap();
    for order in [Signal::TERM, Signal::INT] {
        let flags = ["--termination-grace", "60", "--termination-log", log.to_str().unwrap()];
        let mut agent = started(&flags, ORDERLY, go.to_str().unwrap());
        let mut follower = BufReader::new(agent.send("GET", "/logs?follow=true", ""));
        signal(agent.pid(), order);
        agent.wait_for_output("got SIGTERM");
        assert_eq!(agent.status().state, RunState::Stopping);
        // A later SIGTERM changes nothing.
        signal(agent.pid(), Signal::TERM);
        let exited = status_after_end(&agent, || fs::write(&go, "").unwrap());
        // Readers can still read.
        assert_eq!(String::from_utf8(agent.logs("both")).unwrap(), "ready\ngot SIGTERM\nsaved\n");
        assert_eq!(agent.status().exit, exited.exit);
        let mut followed = String::new();
        follower.read_to_string(&mut followed).unwrap();
        assert!(followed.contains("saved\n"), "{followed}");
        assert_eq!(agent.wait_for_end().code(), Some(75));

        let exit = exited.exit.unwrap();
        assert_eq!((&exit.outcome, exit.stopped, exit.terminated), (&ExitOutcome::Code(75), true, true));
        let left: LastWords = serde_json::from_str(&fs::read_to_string(&log).unwrap()).unwrap();
        assert_eq!(left, LastWords { generation: exited.generation, exit, membership: None });
        fs::remove_file(&go).unwrap();
    }
}

#[test]
fn a_run_that_ignores_sigterm_is_killed_before_the_agent_must_end() {
    let mut agent = started(&["--termination-grace", "3"], STUBBORN, "");
    let run = agent.status().pid.unwrap();
    let sent = Instant::now();
    let exit = status_after_end(&agent, || signal(agent.pid(), Signal::TERM)).exit.unwrap();
    assert_eq!((exit.outcome, exit.stopped, exit.terminated), (ExitOutcome::Signal(9), true, true));
    assert!(sent.elapsed() >= Duration::from_millis(2400), "the run was killed after only {:?}", sent.elapsed());
    assert_eq!((agent.wait_for_end().code(), process_state(run)), (Some(137), None));
}

#[test]
fn a_second_interrupt_kills_the_run_at_once() {
    let mut agent = started(&["--termination-grace", "100000"], ORDERLY, "never");
    signal(agent.pid(), Signal::INT);
    agent.wait_for_output("got SIGTERM");
    let exit = status_after_end(&agent, || signal(agent.pid(), Signal::INT)).exit.unwrap();
    assert_eq!((exit.outcome, exit.stopped, exit.terminated), (ExitOutcome::Signal(9), true, true));
    assert_eq!(agent.wait_for_end().code(), Some(137));
}

#[test]
fn an_agent_that_got_sigterm_starts_no_further_run() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let agent = started(&["--termination-grace", "60"], ORDERLY, go.to_str().unwrap());
    signal(agent.pid(), Signal::TERM);
    agent.wait_for_output("got SIGTERM");
    assert_eq!(agent.post("/config?generation=2.2", "{}").status, 409);
    status_after_end(&agent, || fs::write(&go, "").unwrap());
    assert_eq!(agent.post("/config?generation=2.2", "{}").status, 503);
}

#[test]
fn a_stop_before_sigterm_is_reported_as_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let agent = started(&["--termination-grace", "60"], ORDERLY, go.to_str().unwrap());
    assert_eq!(agent.post("/stop?grace=60", "").status, 202);
    agent.wait_for_output("got SIGTERM");
    signal(agent.pid(), Signal::TERM);
    let exit = status_after_end(&agent, || fs::write(&go, "").unwrap()).exit.unwrap();
    assert_eq!((exit.outcome, exit.stopped, exit.terminated), (ExitOutcome::Code(75), true, false));
}

#[test]
fn a_configured_run_is_reported_as_terminated_after_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("termination-log");
    fs::write(&log, "an earlier message, which is longer than the new message".repeat(9)).unwrap();
    let mut agent = Agent::start(&["--termination-log", log.to_str().unwrap()], &["true"]);
    agent.post("/config?generation=1.1", "{}");
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait_for_end().code(), Some(143));
    let left: LastWords = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    assert_eq!(left.generation.unwrap().to_string(), "1.1");
    assert!(left.exit.stopped && left.exit.terminated, "{left:?}");
}

#[test]
fn an_agent_ends_soon_after_sigterm_without_readers_and_with_a_reader_that_does_not_read() {
    let mut agent = Agent::of_shell("exec sleep 1000");
    agent.go();
    agent.wait_for(RunState::Running);
    let sent = Instant::now();
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait_for_end().code(), Some(143));
    assert!(sent.elapsed() < Duration::from_secs(10), "the agent ended only after {:?}", sent.elapsed());

    let mut agent = Agent::of_shell("yes | head -c 12000000; echo done >&2; exec sleep 1000");
    agent.go();
    wait_until("all output", || (agent.logs("stderr") == b"done\n").then_some(()));
    let mut reader = BufReader::new(agent.send("GET", "/logs?follow=true&stream=stdout", ""));
    reader.fill_buf().unwrap();
    let sent = Instant::now();
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait_for_end().code(), Some(143));
    assert!(sent.elapsed() < Duration::from_secs(5), "the agent ended only after {:?}", sent.elapsed());
}

#[test]
fn last_words_are_also_written_after_a_finish_but_only_to_an_existing_file() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("termination-log");
    for is_there in [false, true] {
        if is_there {
            fs::write(&log, "").unwrap();
        }
        let mut agent =
            Agent::start(&["--termination-log", log.to_str().unwrap()], &["sh", "-c", "echo no >&2; exit 3"]);
        agent.go();
        agent.wait_for_exit();
        assert_eq!(agent.finish(), Some(3));
        assert_eq!(log.exists(), is_there);
    }
    let left: LastWords = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    assert_eq!((left.generation, left.exit.stderr_tail.as_str()), (None, "no\n"));
    assert_eq!((left.exit.outcome, left.exit.terminated), (ExitOutcome::Code(3), false));
}

#[test]
fn last_words_fit_and_keep_the_end_of_stderr_and_the_beginning_of_a_reason() {
    let words = |outcome, stderr_tail: String| {
        let exit = ExitReport { stderr_tail, ..ExitReport::new(outcome, UnixMillis(1)) };
        LastWords { generation: None, exit, membership: None }
    };
    for text in ["x", "é", "\u{1b}[1m", "\"\\\n", "\u{0}", "😀"] {
        for length in [0_usize, 1, 500, 4096] {
            let long = text.repeat(length.div_ceil(text.len()));
            for outcome in [ExitOutcome::Code(1), ExitOutcome::NotStarted(long.clone())] {
                let whole = words(outcome, long.clone());
                let json = message(whole.clone());
                assert!(json.len() <= LAST_WORDS_BYTES, "the message has {} bytes", json.len());
                let left: LastWords = serde_json::from_slice(&json).unwrap();
                assert!(whole.exit.stderr_tail.ends_with(&left.exit.stderr_tail), "{text:?} {length}");
                if length <= 1 {
                    assert_eq!(left, whole);
                }
                if let (ExitOutcome::NotStarted(kept), ExitOutcome::NotStarted(all)) =
                    (&left.exit.outcome, &whole.exit.outcome)
                {
                    assert!(all.starts_with(kept));
                }
            }
        }
    }
    let plain: LastWords = serde_json::from_slice(&message(words(ExitOutcome::Code(1), "x".repeat(4096)))).unwrap();
    assert!(plain.exit.stderr_tail.len() > 3900, "more of stderr was cut than necessary");
}
