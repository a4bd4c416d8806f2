//! `client logs`: which output it asks for, and how it prints times.

use protocol::ids::UnixMillis;
use protocol::output::{LogLine, OFFSETS_OF_A_MASTER};

use crate::support::fake_master::{FakeMaster, Logs, Script};
use crate::support::views::{line, running};

/// Runs `client logs digits` with these arguments. Returns its stdout and its request for output.
fn logs(output: Logs, arguments: &[&str]) -> (String, String) {
    let master =
        FakeMaster::start(Script { views: vec![running("digits")], logs: [output].into(), ..Script::default() });
    let ended = master.run(&[&["logs", "digits"], arguments].concat());
    let request = master.asked().into_iter().find_map(|asked| Some(asked.split_once("/logs?")?.1.to_owned()));
    (ended.expect_code(0).stdout, request.unwrap())
}

fn timed_lines() -> Logs {
    let timed = LogLine { time: Some(UnixMillis(1_795_480_489_007)), ..line("worker-0", 4, "one") };
    Logs::Lines(vec![timed, line("worker-1", 4, "two")])
}

#[test]
fn the_time_of_a_line_is_a_column_behind_the_name_of_its_replica() {
    let (printed, request) = logs(timed_lines(), &["--timestamps", "--since", "5m", "--tail", "3"]);
    let unknown = format!("{:24}", "-");
    assert_eq!(printed, format!("worker-0 │ 2026-11-24T00:34:49.007Z one\nworker-1 │ {unknown} two\n"));
    assert_eq!(request, "follow=false&times=true&tail=3&since_seconds=300");
}

#[test]
fn lines_of_one_replica_begin_with_their_time() {
    let (printed, request) = logs(timed_lines(), &["--timestamps", "--replica", "worker-0"]);
    assert!(printed.starts_with("2026-11-24T00:34:49.007Z one\n"), "{printed}");
    assert_eq!(request, "follow=false&replica=worker-0&lines=true&times=true");
}

#[test]
fn lines_as_json_have_times_on_request() {
    let (printed, request) = logs(timed_lines(), &["--timestamps", "-o", "json", "--replica", "worker-0"]);
    let first = r#"{"replica":"worker-0","time":1795480489007,"offset":4,"line":"one"}"#;
    assert_eq!(printed.lines().next(), Some(first));
    assert_eq!(request, "follow=false&replica=worker-0&lines=true&times=true");
}

#[test]
fn the_bytes_of_one_replica_can_begin_at_a_time() {
    let arguments = ["--replica", "worker-0", "--since-time", "2026-11-24T01:34:49+01:00"];
    let (printed, request) = logs(Logs::Raw(b"one\xff".to_vec()), &arguments);
    assert_eq!(printed, "one\u{fffd}");
    assert_eq!(request, "follow=false&replica=worker-0&since_time=1795480489000");
}

/// Runs `client logs digits` for a job in pods with this output. Returns its stderr.
fn said_by_logs(output: LogLine, arguments: &[&str]) -> String {
    let mut view = running("digits");
    view.spec_mut().image = Some("python:3.13".parse().unwrap());
    let logs = [Logs::Lines(vec![output])].into();
    let master = FakeMaster::start(Script { views: vec![view], logs, ..Script::default() });
    master.run(&[&["logs", "digits"], arguments].concat()).expect_code(0).stderr
}

#[test]
fn lost_output_of_an_ended_job_leads_to_a_hint() {
    let remark = line("worker-1", OFFSETS_OF_A_MASTER, "[output that an earlier master kept may be missing here]");
    let said = said_by_logs(remark, &[]);
    assert!(said.contains("hint: kubectl logs digits-worker-1 shows the output of a pod that still exists"), "{said}");
}

#[test]
fn a_line_after_lost_output_that_was_not_asked_for_leads_to_no_hint() {
    let said = said_by_logs(line("worker-1", OFFSETS_OF_A_MASTER + 5, "late"), &["--tail", "1"]);
    assert!(!said.contains("hint"), "{said}");
}

#[test]
fn a_pipe_gets_the_last_frame_of_a_progress_bar_and_json_gets_all_frames() {
    let bar = || line("worker-0", 20, "10%\r50%\u{8}\u{8}\u{8}\r100%\r");
    assert_eq!(logs(Logs::Lines(vec![bar()]), &[]).0, "worker-0 │ 100%\n");
    let (json, _) = logs(Logs::Lines(vec![bar()]), &["-o", "json"]);
    assert_eq!(serde_json::from_str::<LogLine>(&json).unwrap(), bar());
}
