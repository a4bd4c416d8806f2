//! The answers of the routes, with real runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use crate::support::{Agent, PATIENCE, process_state};
use protocol::agent::{ExitOutcome, MESSAGES, Membership, RunState, RunStatus};
use protocol::error::ErrorCode;

const SEED_CONFIG: &str = r#"{"MASTER":"10.1.2.3","SET_ID":0,"NUM_WORKERS":2,"TF_CONFIG":{"cluster":{"worker":["10.1.0.5:1234","10.1.0.6:1234"],"ps":["10.1.0.4:1234"]},"task":{"type":"worker","index":0}}}"#;

#[test]
fn the_first_prototypes_protocol_runs_one_config_after_another() {
    let agent = Agent::of_shell("echo $MASTER $SET_ID $NUM_WORKERS $TF_CONFIG");
    for (config, printed) in [(SEED_CONFIG.to_owned(), "10.1.0.6"), (SEED_CONFIG.replace(".6:", ".7:"), "10.1.0.7")] {
        let answer = agent.post("/config", &config);
        assert_eq!((answer.status, answer.text().as_str()), (200, "OK"));
        let answer = agent.get("/run");
        assert_eq!((answer.status, answer.text().as_str()), (200, "OK"));
        assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0));
        assert_eq!(agent.get("/run").status, 200, "wrong answer to a second request for the same run");
        assert!(agent.wait_for_output(printed).starts_with("10.1.2.3 0 2 {\"cluster\":{\"worker\":[\"10.1.0.5:1234\""));
    }
    assert_eq!(agent.wait_for_output("10.1.0.7").lines().count(), 2);
}

#[test]
fn each_generation_accepts_one_config() {
    let agent = Agent::of_shell("true");
    let config = |generation: &str, body: &str| agent.post(&format!("/config?generation={generation}"), body).status;
    assert_eq!(config("1.2", r#"{"A":"1","B":null}"#), 200);
    assert_eq!(config("1.2", r#"{"B": null, "A": "1"}"#), 200, "wrong answer to the same config in another spelling");
    assert_eq!(config("1.2", r#"{"A":"2"}"#), 409);
    assert_eq!(config("1.1", r#"{"A":"1"}"#), 412);
    assert_eq!(config("1.x", "{}"), 400);
    assert_eq!(agent.get("/run?generation=1.1").problem().code, ErrorCode::StaleGeneration);
    assert_eq!(agent.get("/run?generation=1.3").problem().code, ErrorCode::Conflict);
    assert_eq!(
        agent.get("/run?generation=1.2").problem().code,
        ErrorCode::StaleGeneration,
        "wrong refusal of start 1.2 after start 1.3"
    );
    assert_eq!(config("1.3", "{}"), 200);
    assert_eq!(agent.get("/run?generation=1.3").status, 200);
    agent.wait_for_exit();
    assert_eq!(
        agent.get("/run?generation=1.3").status,
        200,
        "wrong answer to a second request after the end of the run"
    );
}

#[test]
fn the_status_contains_the_membership_that_the_config_named() {
    let agent = Agent::of_shell("exit 3");
    assert_eq!(agent.status().messages, MESSAGES);
    let config = |query: &str| agent.post(&format!("/config?generation=1.1{query}"), "{}").status;
    assert_eq!(config("&seat=2&of=4"), 400, "wrong answer without `start`");
    assert_eq!(config("&seat=x&of=4&start=0"), 400);
    assert_eq!(agent.status().membership, None);
    assert_eq!(config("&seat=2&of=4&start=1&pushes=2"), 200);
    let membership = Some(Membership { seat: 2, of: 4, start: 1, pushes: 2 });
    assert_eq!(agent.status().membership, membership);
    assert_eq!(config("&seat=2&of=4&start=1&pushes=2"), 200, "wrong answer to the same config again");
    assert_eq!(config("&seat=3&of=4&start=1"), 409, "wrong answer to another seat in the same start");
    assert_eq!(agent.get("/run?generation=1.1").status, 200);
    agent.wait_for_exit();
    assert_eq!(agent.status().membership, membership);
}

#[test]
fn a_config_that_cannot_be_an_environment_changes_nothing() {
    const LONGEST: usize = protocol::env::ENTRY_LIMIT - "A=".len() - 1;
    let agent = Agent::of_shell("test ${#A} -gt 131000");
    let long = format!(r#"{{"A":"{}"}}"#, "x".repeat(LONGEST + 1));
    for body in [r#"{"A":"1","B=C":"2"}"#, r#"{"":"1"}"#, r#"{"A":"a\u0000b"}"#, r#"{"A":"\ud800"}"#, &long] {
        assert_eq!(agent.post("/config", body).problem().code, ErrorCode::BadEnv, "{body:.60}");
    }
    for body in ["", "[]", "\"x\"", "{", "null"] {
        assert_eq!(agent.post("/config", body).refusal(), (400, ErrorCode::BadRequest), "{body}");
    }
    assert_eq!(agent.status().state, RunState::Idle);
    assert_eq!(agent.get("/run").status, 409);
    let fits = format!(r#"{{"A":"{}"}}"#, "x".repeat(LONGEST));
    agent.go_with(&fits);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0), "the kernel refuses this variable");
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let agent = Agent::of_shell("true");
    let body = format!(r#"{{"A":"{}"}}"#, "x".repeat(2 * 1024 * 1024));
    assert_eq!(agent.post("/config", &body).problem().code, ErrorCode::TooLarge);
}

#[test]
fn a_run_gets_configured_variables_but_no_inherited_variables_of_muster() {
    let mut program = crate::support::program();
    program.args(["--", "sh", "-c", "env | sort"]).env_clear();
    program.envs([
        ("PATH", std::env!("PATH")),
        ("MUSTER_LISTEN", "127.0.0.1:0"),
        ("MUSTER_SUPERVISED", "1"),
        ("MUSTER_JOB", "of a master inside another job"),
        ("MUSTER_TOKEN", "of a client"),
        ("MUSTER_", "a prefix and no more"),
        ("KEPT", "k"),
    ]);
    program.env("GONE", "g");
    let agent = Agent::from_program(program);
    agent.go_with(r#"{"GONE": null, "T": true, "N": 1.50, "L": [1, "a b"], "S": " é"}"#);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    let printed = String::from_utf8(agent.logs("stdout")).unwrap();
    let of_agent = ["MUSTER_FD=", "MUSTER_STACKS_FD=", "PYTHONPATH=", "KUBEFLOW_TRAINER_SERVER_"];
    let (by_agent, others): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|l| of_agent.iter().any(|p| l.starts_with(p)));
    let ours: Vec<&str> =
        others.into_iter().filter(|l| !["PATH=", "PWD=", "_=", "SHLVL="].iter().any(|p| l.starts_with(p))).collect();
    assert_eq!(ours, ["KEPT=k", "L=[1,\"a b\"]", "N=1.50", "S= é", "T=true"]);
    assert_eq!(by_agent.len(), 5, "{printed}");
}

#[test]
fn fifty_concurrent_start_requests_start_one_run() {
    let agent = Agent::of_shell("echo started; sleep 1000");
    agent.post("/config?generation=1.1", "{}");
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| assert_eq!(agent.get("/run?generation=1.1").status, 200));
        }
    });
    agent.wait_for_output("started");
    assert_eq!(agent.post("/stop?grace=0", "").status, 202);
    agent.wait_for_exit();
    assert_eq!(agent.logs("stdout"), b"started\n");
}

#[test]
fn requests_with_a_wrong_method_are_refused_and_have_no_effect() {
    let agent = Agent::of_shell("true");
    agent.post("/config", "{}");
    for (method, path) in [
        ("HEAD", "/run"),
        ("POST", "/run"),
        ("OPTIONS", "/run"),
        ("GET", "/stop"),
        ("GET", "/finish"),
        ("PUT", "/config"),
        ("GET", "/config"),
        ("HEAD", "/logs"),
        ("POST", "/status"),
        ("HEAD", "/healthz"),
    ] {
        let answer = agent.request(method, path, "");
        assert_eq!(answer.status, 405, "{method} {path}");
        assert!(["GET", "POST"].contains(&answer.headers["allow"].as_str()));
    }
    assert_eq!(agent.get("/nothing").problem().code, ErrorCode::UnknownRoute);
    assert_eq!(agent.get("/healthz").status, 200);
    let status = agent.status();
    assert_eq!((status.state, status.started_at), (RunState::Configured, None));
}

#[test]
fn a_client_that_sends_half_a_request_is_cut_off() {
    let agent = Agent::of_shell("true");
    let mut connection = TcpStream::connect(agent.address).unwrap();
    connection.write_all(b"GET /status HTTP/1.1\r\nhost: ").unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn queries_that_do_not_parse_are_refused() {
    let agent = Agent::of_shell("true");
    for path in [
        "/status?after=x",
        "/status?after=1&wait=-1",
        "/logs?offset=-1",
        "/logs?stream=stdin",
        "/logs?follow=yes",
        "/run?generation=1",
    ] {
        assert_eq!(agent.get(path).problem().code, ErrorCode::BadRequest, "{path}");
    }
    for path in ["/stop?grace=-1", "/stop?grace=x", "/stop?grace=inf", "/stop?grace=1e99", "/stop?grace=NaN"] {
        assert_eq!(agent.post(path, "").problem().code, ErrorCode::BadRequest, "{path}");
    }
}

#[test]
fn exit_codes_and_signals_are_distinguished() {
    assert_eq!(Agent::of_shell("exit 75").outcome(), ExitOutcome::Code(75));
    assert_eq!(Agent::of_shell("kill -SEGV $$").outcome(), ExitOutcome::Signal(11));
    let agent = Agent::of_shell("kill -9 $$");
    assert_eq!(agent.outcome(), ExitOutcome::Signal(9));
    assert!(!agent.wait_for_exit().stopped, "a kill that nobody requested is reported as a stop");
}

#[test]
fn the_report_of_a_command_that_cannot_be_started_says_why_and_its_agent_exits_with_code_126() {
    for (command, why) in [
        ("no-such-python", "cannot start \"no-such-python\": not found on PATH"),
        ("/etc/passwd", "cannot start \"/etc/passwd\": Permission denied (os error 13)"),
        ("/nowhere/python", "cannot start \"/nowhere/python\": no such file"),
    ] {
        let mut agent = Agent::start(&[], &[command, "exec.py"]);
        assert_eq!(agent.outcome(), ExitOutcome::NotStarted(why.to_owned()));
        assert_eq!(agent.wait_for_exit().stderr_tail, format!("{why}\n"));
        assert_eq!(agent.finish(), Some(126));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let agent = Agent::start(&["--work-dir", &path], &["true"]);
    drop(folder);
    let outcome = agent.outcome();
    assert!(matches!(&outcome, ExitOutcome::NotStarted(reason) if reason.contains(&path)), "{outcome:?}");
    let outcome = Agent::of_shell("exit 127").outcome();
    assert_eq!(outcome, ExitOutcome::Code(127), "wrong outcome of a script that exits with code 127");
}

#[test]
fn the_words_of_an_entrypoint_come_before_the_command() {
    let agent = Agent::start(&["--entrypoint=env", "--entrypoint=PREPARED=5"], &["sh", "-c", "exit $PREPARED"]);
    assert_eq!(agent.outcome(), ExitOutcome::Code(5));
}

#[test]
fn the_stderr_tail_is_the_end_of_this_runs_stderr() {
    let agent =
        Agent::of_python("import os,sys; os.write(2, os.environ['T'].encode() * 2000 + b'\\xff last\\n'); sys.exit(3)");
    for (text, begin) in [("old-", "old-"), ("new-", "new-")] {
        agent.go_with(&format!(r#"{{"T":"{text}"}}"#));
        let report = agent.wait_for_exit();
        assert!(report.stderr_tail.ends_with(&format!("{begin}\u{fffd} last\n")), "{report:?}");
        assert!(report.stderr_tail.len() <= 4096);
    }
    let agent = Agent::of_shell("test $X = 1 && echo first >&2; true");
    for (x, tail) in [("1", "first\n"), ("2", "")] {
        agent.go_with(&format!(r#"{{"X":{x}}}"#));
        assert_eq!(agent.wait_for_exit().stderr_tail, tail);
    }
}

#[test]
fn a_status_describes_the_present_run() {
    let agent = Agent::of_shell("echo pid=$$; read x < /dev/stdin || exec sleep 1000");
    let idle = agent.status();
    assert_eq!((idle.seq, idle.state), (1, RunState::Idle));
    agent.post("/config?generation=2.7", "{}");
    agent.get("/run?generation=2.7");
    let running = agent.wait_for(RunState::Running);
    assert_eq!(running.boot_id, idle.boot_id);
    assert_eq!(running.generation.unwrap().to_string(), "2.7");
    assert_eq!(running.pid, Some(agent.wait_for_pid("pid")));
    assert!(running.started_at.is_some() && running.exit.is_none());
    assert_eq!(process_state(running.pid.unwrap()).map(|s| s != 'Z'), Some(true));
}

#[test]
fn a_long_poll_answers_at_the_next_change_or_after_its_wait() {
    let agent = Agent::of_shell("true");
    let seq = agent.status().seq;
    let still: RunStatus = serde_json::from_slice(&agent.get(&format!("/status?after={seq}&wait=0")).body).unwrap();
    assert_eq!(still.seq, seq);
    let next: RunStatus = thread::scope(|scope| {
        let poll = scope.spawn(|| agent.get(&format!("/status?after={seq}&wait=60")));
        agent.post("/config", "{}");
        serde_json::from_slice(&poll.join().unwrap().body).unwrap()
    });
    assert_eq!((next.seq, next.state), (seq + 1, RunState::Configured));
    let of_another_agent = agent.get("/status?after=999999&wait=60");
    assert_eq!(of_another_agent.status, 200, "wrong answer to a status number of another agent");
}

#[test]
fn an_agent_listens_on_ipv4_and_if_possible_on_ipv6_and_names_a_taken_port() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _entered = runtime.enter();
    let listener = agent::http::listen(&["[::]:0", "0.0.0.0:0"].map(|address| address.parse().unwrap())).unwrap();
    let address = listener.local_addr().unwrap();
    TcpStream::connect(("127.0.0.1", address.port())).unwrap();
    if address.is_ipv6() {
        TcpStream::connect(("::1", address.port())).unwrap();
    }
    let taken = agent::http::listen(&[address, "127.0.0.1:0".parse().unwrap()]).unwrap_err();
    assert_eq!(taken.to_string(), format!("listen on {address}"), "the error names another address");
}
