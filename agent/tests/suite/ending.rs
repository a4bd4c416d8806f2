//! When an agent ends, with which exit code, and what it prints for a bad command line.

use std::io::Read;

use crate::support::{Agent, failed, parse_response, process_state, program};
use protocol::agent::RunState;

fn code_after(script: &str) -> Option<i32> {
    let mut agent = Agent::of_shell(script);
    agent.go();
    agent.wait_for_exit();
    agent.finish()
}

#[test]
fn a_finished_agent_exits_with_the_exit_code_of_its_run() {
    assert_eq!(code_after("exit 0"), Some(0));
    assert_eq!(code_after("exit 3"), Some(3));
    assert_eq!(code_after("kill -9 $$"), Some(137));
}

#[test]
fn a_finished_agent_without_a_run_exits_with_code_0() {
    let mut agent = Agent::of_shell("true");
    let answer = agent.post("/finish", "");
    assert_eq!((answer.status, answer.text().as_str()), (200, "OK"));
    assert_eq!(agent.wait_for_end().code(), Some(0));
}

#[test]
fn a_finished_agent_whose_run_was_stopped_before_it_started_exits_with_code_143() {
    let mut agent = Agent::of_shell("true");
    agent.post("/config", "{}");
    agent.post("/stop", "");
    assert_eq!(agent.finish(), Some(143));
}

#[test]
fn an_agent_refuses_to_finish_while_a_run_is_active() {
    let agent = Agent::of_shell("exec sleep 1000");
    agent.go();
    assert_eq!(agent.post("/finish", "").status, 409);
    assert_eq!(agent.status().state, RunState::Running);
}

#[test]
fn open_answers_end_when_the_agent_ends() {
    let mut agent = Agent::of_shell("true");
    let mut follower = agent.send("GET", "/logs?follow=true", "");
    let mut poll = agent.send("GET", "/status?after=1&wait=60", "");
    // One thread answers all requests. When this request is answered, both requests above have been accepted.
    agent.status();
    assert_eq!(agent.post("/finish", "").status, 200);
    for stream in [&mut follower, &mut poll] {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(parse_response(&bytes).status, 200);
    }
    assert_eq!(agent.wait_for_end().code(), Some(0));
}

#[test]
fn an_agent_without_requests_ends_by_itself_with_the_exit_code_of_its_run() {
    let mut agent = Agent::start(&["--linger", "2"], &["sh", "-c", "exit 4"]);
    agent.go();
    agent.wait_for_exit();
    let mut listening = agent.send("GET", &format!("/status?after={}&wait=4", agent.status().seq), "");
    let mut bytes = Vec::new();
    listening.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse_response(&bytes).status, 200, "the agent cut off an open request");
    assert_eq!(agent.wait_for_end().code(), Some(4));
}

#[test]
fn a_bad_flag_or_variable_is_refused_with_exit_code_2() {
    for (flags, message) in [
        (
            ["--listen", "nowhere"],
            "error: --listen: \"nowhere\" is invalid: use an address and port, such as 0.0.0.0:7896\n",
        ),
        (
            ["--termination-grace", "x"],
            "error: --termination-grace: \"x\" is invalid: use a number of seconds from 0 to one year\n",
        ),
        (["--linger", "-1"], "error: --linger: \"-1\" is invalid: use a number of seconds from 0 to one year\n"),
        (
            ["--log-bytes", "0"],
            "error: --log-bytes: \"0\" is invalid: use a number of bytes from 1 to 9223372036854775807\n",
        ),
        (["--frobnicate", "x"], "error: invalid option '--frobnicate'\n"),
        (["--supervised", "--"], "error: no command after --\n"),
    ] {
        assert_eq!(failed(program().args(flags)), (Some(2), message.to_owned()));
    }
    let (code, message) = failed(program().env("MUSTER_TERMINATION_GRACE_SECONDS", "x"));
    assert_eq!(code, Some(2));
    assert!(message.starts_with("error: MUSTER_TERMINATION_GRACE_SECONDS: \"x\" is invalid"), "{message}");
}

#[test]
fn a_working_directory_that_does_not_exist_is_refused_with_exit_code_2() {
    let hint = "hint: create it, or name another directory with --work-dir\n";
    for (dir, why) in [
        ("/nowhere", "cannot use the working directory \"/nowhere\": No such file or directory (os error 2)"),
        ("/etc/passwd", "the working directory \"/etc/passwd\" is not a directory"),
    ] {
        let ended = failed(program().args(["--listen", "127.0.0.1:0", "--work-dir", dir]));
        assert_eq!(ended, (Some(2), format!("error: {why}\n{hint}")));
    }
}

#[test]
fn help_and_version_are_printed_on_stdout() {
    for (flag, begin) in [("--help", "Starts a command with an environment"), ("-V", "agent 0.")] {
        let output = program().arg(flag).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().starts_with(begin));
    }
}

#[test]
fn an_agent_whose_port_is_taken_names_the_address_and_exits_with_code_2() {
    let agent = Agent::of_shell("true");
    let address = agent.address.to_string();
    let (code, message) = failed(program().args(["--listen", &address]));
    assert_eq!(code, Some(2));
    assert!(message.starts_with(&format!("error: listen on {address}: ")), "{message}");
    assert!(process_state(agent.pid()).is_some());
}
