//! How the agent keeps output, and how readers find it by offsets and follow it to the end of a run.

use std::io::Read;
use std::iter;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::thread;

use crate::support::{Agent, parse_response, start_as_pod};
use protocol::aged_output::AgedReader;
use protocol::agent::{ExitOutcome, RunState};
use protocol::routes::{AGED_OUTPUT, LOG_COMPLETE_TRAILER, LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};

#[test]
fn output_is_kept_byte_for_byte_and_each_stream_has_its_own_offsets() {
    let agent =
        Agent::of_python(r#"import os; os.write(1, b"a\xff\x00b\r\n"); os.write(2, b"\xc3("); os.write(1, b"end")"#);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    assert_eq!(agent.logs("stdout"), b"a\xff\x00b\r\nend");
    assert_eq!(agent.logs("stderr"), b"\xc3(");
    assert_eq!(agent.logs("both").len(), 11);
    let answer = agent.get("/logs?stream=stdout&offset=4");
    assert_eq!(
        (answer.body.as_slice(), answer.headers["content-type"].as_str()),
        (b"\r\nend".as_slice(), "application/octet-stream")
    );
    assert_eq!((answer.number(LOG_OFFSET_HEADER), answer.number(LOG_DROPPED_HEADER)), (4, 0));
    let answer = agent.get("/logs?stream=stdout&offset=100");
    assert_eq!((answer.body.len(), answer.number(LOG_OFFSET_HEADER), answer.number(LOG_DROPPED_HEADER)), (0, 9, 0));
}

#[test]
fn lines_of_stdout_and_stderr_stay_whole_in_the_log_of_both() {
    let script = r#"
import os
for i in range(2000):
    os.write(1, b"out-"); os.write(2, b"err-")
    os.write(1, b"line\n"); os.write(2, b"line\n")
"#;
    let agent = Agent::of_python(script);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    let both = String::from_utf8(agent.logs("both")).unwrap();
    assert_eq!(both.lines().count(), 4000);
    assert!(both.lines().all(|line| line == "out-line" || line == "err-line"));
}

#[test]
fn an_unfinished_line_is_shown_after_a_while() {
    let agent = Agent::of_shell("printf 'Password: '; exec sleep 1000");
    agent.go();
    assert_eq!(agent.wait_for_output("Pass"), "Password: ");
}

#[test]
fn a_progress_bar_that_is_rewritten_all_the_time_is_shown_before_its_line_ends() {
    let script = r#"
import itertools, os, time
for i in itertools.count():
    os.write(1, b"\rp%d" % i)
    time.sleep(0.005)
"#;
    let agent = Agent::of_python(script);
    agent.go();
    // The script prints `p200` after about a second. Until then, the agent logs several pieces of the unfinished line.
    agent.wait_for_output("p200");
    assert_eq!(agent.status().state, RunState::Running);
}

#[test]
fn output_can_be_read_with_the_age_of_each_part() {
    let agent = Agent::of_shell("echo early; sleep 0.05; echo late");
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    let answer = agent.get("/logs?offset=2&ages=true");
    assert_eq!((answer.headers["content-type"].as_str(), answer.number(LOG_OFFSET_HEADER)), (AGED_OUTPUT, 2));
    let (mut reader, mut rest) = (AgedReader::default(), answer.body.as_slice());
    let parts: Vec<_> = iter::from_fn(|| reader.next(&mut rest)).collect();
    assert_eq!(parts.iter().map(|part| part.bytes).collect::<Vec<_>>(), [b"rly\n".as_slice(), b"late\n"]);
    assert!(parts[0].age > parts[1].age, "{parts:?}");
    assert_eq!(agent.get("/logs?ages=maybe").status, 400);
}

#[test]
fn bytes_that_the_log_cannot_keep_are_reported_as_dropped() {
    let agent = Agent::start(&["--log-bytes", "1000"], &["python3", "-c", "for i in range(1000): print(f'{i:09}')"]);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    let answer = agent.get("/logs?offset=500");
    assert_eq!((answer.number(LOG_OFFSET_HEADER), answer.number(LOG_DROPPED_HEADER)), (9000, 8500));
    assert!(answer.text().starts_with("000000900\n") && answer.text().ends_with("000000999\n"));
    let answer = agent.get("/logs?offset=9990");
    assert_eq!((answer.text().as_str(), answer.number(LOG_DROPPED_HEADER)), ("000000999\n", 0));
}

/// An agent whose output files cannot grow beyond this many bytes.
fn agent_with_limited_files(bytes: u64, script: &str) -> Agent {
    let mut program = std::process::Command::new("sh");
    let agent = env!("CARGO_BIN_EXE_agent");
    let limit = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", bytes / 512);
    program.args(["-c", &limit, agent, "--supervised", "--listen", "127.0.0.1:0", "--", "python3", "-c", script]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Agent::from_program(program)
}

#[test]
fn the_newest_output_and_stderr_are_kept_when_the_disk_fills_up() {
    let script = "import sys\nfor i in range(100_000): print(f'{i:09}')\nsys.exit('no space is left')";
    let agent = agent_with_limited_files(600_000, script);
    assert_eq!(agent.outcome(), ExitOutcome::Code(1));
    let kept = String::from_utf8(agent.logs("stdout")).unwrap();
    assert!(kept.ends_with("000099998\n000099999\n") && kept.len() > 200_000, "kept {} bytes", kept.len());
    assert_eq!(agent.logs("stderr"), b"no space is left\n");
}

#[test]
fn bytes_that_could_not_be_kept_are_a_gap_after_which_a_reader_continues() {
    // The long line does not fit into the 512 bytes after the header. A log of less than 64 KiB does not shrink.
    let script = "import os\nos.write(1, b'before\\n')\nos.write(1, b'x' * 65535 + b'\\n')\nos.write(1, b'after\\n')";
    let agent = agent_with_limited_files(4096 + 512, script);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    let first = agent.get("/logs?stream=stdout");
    assert_eq!((first.text().as_str(), first.number(LOG_DROPPED_HEADER)), ("before\n", 0));
    let second = agent.get("/logs?stream=stdout&offset=7");
    assert_eq!((second.number(LOG_OFFSET_HEADER), second.number(LOG_DROPPED_HEADER)), (7 + 65_536, 65_536));
    assert_eq!(second.text(), "after\n");
}

#[test]
fn a_reader_that_accepts_trailers_learns_that_the_run_has_ended() {
    let agent = Agent::of_shell("echo line; exec sleep 1000");
    let text = |mut stream: TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(agent.post("/config?generation=2.7", "{}").status, 200);
    assert_eq!(agent.get("/run").status, 200);
    agent.wait_for_output("line");
    let streams = ["te: trailers\r\n", ""].map(|headers| agent.send_with(headers, "GET", "/logs?follow=true", b""));
    assert_eq!(agent.post("/stop?grace=0", "").status, 202);
    let end = format!("\r\n0\r\n{LOG_COMPLETE_TRAILER}: 2.7\r\n\r\n");
    let [knowing, plain] = streams.map(text);
    assert!(knowing.ends_with(&format!("line\n{end}")), "{knowing}");
    assert!(plain.ends_with("line\n\r\n0\r\n\r\n"), "{plain}");
    let part = agent.request_with("te: trailers\r\n", "GET", "/logs?offset=1", "");
    assert_eq!(part.text(), "ine\n", "wrong answer without follow=true");
}

#[test]
fn a_request_with_follow_gets_everything_up_to_the_end_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let script = format!("echo first; while ! test -e {go:?}; do sleep 0.01; done; echo last; echo unfinished >&2");
    let agent = Agent::of_shell(&script);
    let mut early = agent.send("GET", "/logs?follow=true", "");
    agent.go();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("first") {
        let mut piece = [0; 4096];
        let n = early.read(&mut piece).unwrap();
        assert!(n > 0, "the stream ended before the run");
        seen.extend_from_slice(&piece[..n]);
    }
    std::fs::write(&go, "").unwrap();
    early.read_to_end(&mut seen).unwrap();
    let mut lines: Vec<String> = parse_response(&seen).text().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["first", "last", "unfinished"]);
    assert_eq!(
        agent.get("/logs?follow=true&stream=stdout&offset=6").text(),
        "last\n",
        "wrong output for a later reader"
    );
}

#[test]
fn a_reader_that_is_too_slow_is_cut_off_and_learns_later_how_much_it_missed() {
    let script = "import os\nfor i in range(400): os.write(1, b'x' * 65535 + b'\\n')";
    let agent = Agent::start(&["--log-bytes", "200000"], &["python3", "-c", script]);
    let mut stream = agent.send("GET", "/logs?follow=true&stream=stdout", "");
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let first = parse_response(&bytes);
    let end = first.number(LOG_OFFSET_HEADER) + first.body.len() as u64;
    assert!(end < 400 * 65536, "the slow reader was not cut off");
    let second = agent.get(&format!("/logs?follow=true&stream=stdout&offset={end}"));
    assert_eq!(second.number(LOG_OFFSET_HEADER), 400 * 65536 - 200_000);
    assert_eq!(second.number(LOG_DROPPED_HEADER), 400 * 65536 - 200_000 - end);
    assert_eq!(second.body.len(), 200_000);
}

#[test]
fn a_quarter_of_a_gibibyte_without_a_newline_takes_little_memory_and_requests_are_answered() {
    let script = "import os\npiece = b'x' * (1 << 20)\nfor i in range(256):\n  left = len(piece)\n  while left: left -= os.write(1, piece[:left])";
    let agent = Agent::start(&["--log-bytes", "1048576"], &["python3", "-c", script]);
    agent.go();
    thread::scope(|scope| {
        let end = scope.spawn(|| agent.wait_for_exit());
        while !end.is_finished() {
            assert_eq!(agent.get("/healthz").status, 200);
        }
        assert_eq!(end.join().unwrap().outcome, ExitOutcome::Code(0));
    });
    assert_eq!(agent.get("/logs?stream=stdout&offset=9999999999").number(LOG_OFFSET_HEADER), 1 << 28);
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 32 * 1024, "the agent had {kilobytes} kB of memory at its peak");
}

#[test]
fn output_is_copied_to_the_agents_own_stdout_in_a_pod() {
    let script = "echo to-stdout; echo to-stderr >&2; printf unfinished";
    let (mut agent, mut stdout) = start_as_pod(&["--", "sh", "-c", script]);
    agent.go();
    agent.wait_for_exit();
    assert_eq!(agent.finish(), Some(0));
    let mut printed = String::new();
    stdout.read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "to-stdout\nunfinished");
}

#[test]
fn an_agent_reserves_the_disk_space_of_a_traceback_and_no_more_when_it_starts() {
    let (mut agent, _stdout) = start_as_pod(&["--log-bytes", "1048576", "--", "true"]);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().flatten();
    let files = descriptors.filter_map(|fd| std::fs::metadata(fd.path()).ok()).filter(|file| file.nlink() == 0);
    let taken: Vec<u64> = files.map(|file| file.blocks() * 512).collect();
    let stat =
        std::process::Command::new("stat").args(["--file-system", "--format", "%T"]).arg(std::env::temp_dir()).output();
    // A file system in memory reserves nothing.
    let least = if stat.unwrap().stdout == b"tmpfs\n" { 0 } else { 256 << 10 };
    assert!(
        taken.len() == 3 && taken.iter().all(|bytes| (least..1 << 20).contains(bytes)),
        "the logs do not have the expected bytes on disk: {taken:?}"
    );
    agent.finish();
}

#[test]
fn a_pods_log_that_nobody_reads_blocks_neither_requests_nor_the_run_nor_the_end_of_the_agent() {
    let args = ["--log-bytes", "100000", "--", "python3", "-c", "print('x' * 1000000)"];
    let (mut agent, _unread) = start_as_pod(&args);
    assert_eq!(agent.outcome(), ExitOutcome::Code(0));
    assert_eq!(agent.finish(), Some(0));
}

#[test]
fn a_report_names_an_exception_whose_text_is_longer_than_the_stderr_tail() {
    let script = "raise ValueError('Attempt to convert (PerReplica:{\\n' + '[[1. 2. 3.]\\n' * 20_000 + '})')";
    let agent = Agent::of_python(script);
    agent.go();
    let report = agent.wait_for_exit();
    assert_eq!(report.exception.as_deref(), Some("ValueError: Attempt to convert (PerReplica:{"));
    assert!(report.stderr_tail.ends_with("[[1. 2. 3.]\n})\n") && !report.stderr_tail.contains("PerReplica"));
}

#[test]
fn a_report_with_control_characters_has_a_limited_length() {
    let agent = Agent::of_python(r"raise ValueError('\x1b' * 500_000)");
    assert_eq!(agent.outcome(), ExitOutcome::Code(1));
    let length = agent.get("/status").body.len();
    assert!((9_000..10_000).contains(&length), "the status has {length} bytes");
}
