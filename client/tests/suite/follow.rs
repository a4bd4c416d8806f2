//! Following submitted jobs to their end: their lines and changes, the closing line, and the exit code.

use std::io::{BufRead, BufReader, Read};

use protocol::error::ErrorCode;
use protocol::ids::UnixMillis;
use protocol::view::{JobResult, JobState, JobView};
use rustix::process::Signal;
use serde_json::json;

use crate::support::fake_master::{FakeMaster, Logs, Script, gone_after_one_answer, refusal};
use crate::support::views::{decided, failed, line, pending, running, succeeded};
use crate::support::{client, finish, folder_with_script, interrupt, printed, until};

/// The sentences about a job that succeeds.
const STEPS: [&str; 4] = [
    "job digits accepted: AllReduce, 2 workers",
    "gang complete: 2 of 2 in 1.8 s",
    "running: generation 1.1, all 2 started 0.02 s after the gang was complete",
    "succeeded in 4.8 s: pods 1.8 s, start 0.02 s, training 3.0 s",
];

fn lines() -> Logs {
    Logs::Lines(vec![line("worker-0", 6, "hello"), line("worker-1", 8, "\u{1b}[1mwelt\u{1b}[0m")])
}

/// A master with these views of its job, which has printed two lines.
fn printing(views: Vec<JobView>) -> FakeMaster {
    FakeMaster::start(Script { views, logs: [lines()].into(), ..Script::default() })
}

/// A master to which an earlier command submitted the job.
fn submitted_before(views: Vec<JobView>) -> FakeMaster {
    FakeMaster::start(Script { views, before: true, logs: [lines()].into(), ..Script::default() })
}

#[test]
fn every_step_of_a_job_that_succeeds_is_printed() {
    let master = printing(vec![pending("digits"), running("digits"), succeeded("digits")]);
    let ended = master.submit(&[]).expect_code(0);
    assert_eq!(
        ended.stdout, "worker-0 │ hello\nworker-1 │ \u{1b}[1mwelt\u{1b}[0m\n",
        "the escape sequences of the script were changed"
    );
    assert_eq!(ended.stderr.lines().collect::<Vec<_>>(), STEPS);
}

#[test]
fn after_a_failure_the_client_prints_the_cause_and_the_last_output_and_exits_with_1() {
    let master = printing(vec![pending("digits"), running("digits"), failed("digits")]);
    let ended = master.submit(&[]).expect_code(1);
    let told: Vec<&str> = ended.stderr.lines().skip(3).collect();
    let expected = [
        "worker-1 exited with code 3",
        "failed after 4.8 s: worker-1 exited with code 3 (pods 1.8 s, start 0.02 s, training 3.0 s)",
        "last output of worker-1 on stderr:",
        "  Traceback",
        "  ValueError: no",
    ];
    assert_eq!(told, expected);
}

#[test]
fn flags_variables_and_arguments_for_the_script_are_submitted_and_the_last_value_of_a_variable_wins() {
    let (master, folder) = (FakeMaster::with(vec![succeeded("digits")]), folder_with_script());
    let replicas = "--strategy PS --worker-num 3 --ps-num 2 --chief-num 0 --evaluator-num 1";
    let rest = "--task t-1 --env A=1 --env A=2=3 --env OWN -- --epochs 3";
    let arguments: Vec<&str> = replicas.split(' ').chain(rest.split(' ')).collect();
    finish(master.client(folder.path(), &arguments).env("OWN", "mine").spawn().unwrap()).expect_code(0);
    let folder = folder.path().canonicalize().unwrap();
    let expected = json!({
        "name": "t-1", "strategy": "ParameterServer",
        "worker_num": 3, "ps_num": 2, "chief_num": 0, "evaluator_num": 1,
        "work_dir": folder, "about": {"source": folder.join("exec.py")},
        "args": ["--epochs", "3"], "env": {"A": "2=3", "OWN": "mine"},
    });
    assert_eq!(master.submitted(), expected);
}

#[test]
fn a_command_ends_when_the_result_is_decided_even_if_pods_remain() {
    for (result, code, state) in
        [(JobResult::Succeeded, 0, JobState::Succeeded), (JobResult::Cancelled, 1, JobState::Cancelled)]
    {
        // The views never show the job as finished.
        let master = || printing(vec![running("digits"), decided("digits", result.clone())]);
        let ended = master().submit(&[]).expect_code(code).expect_stderr(&format!("{state} "));
        assert_eq!(ended.stdout.lines().count(), 2);
        let shown = master().submit(&["-o", "json"]).expect_code(code).stdout;
        assert_eq!(serde_json::from_str::<JobView>(&shown).unwrap().state, state);
        for verb in [&["logs", "digits", "-f"][..], &["wait", "digits"]] {
            master().run(verb).expect_code(code);
        }
    }
}

#[test]
fn a_job_that_goes_on_under_a_new_master_is_reported_as_if_the_master_had_not_changed() {
    let of_new_master = |view: JobView, seq| {
        let mut view = JobView { seq, ..view };
        (view.times.joined, view.times.started) = (None, Some(UnixMillis(2_815)));
        view
    };
    let taken_over = JobView { seq: 3, ..pending("digits") };
    let (found, ended) = (of_new_master(running("digits"), 4), of_new_master(succeeded("digits"), 5));
    let master = FakeMaster::with(vec![pending("digits"), running("digits"), taken_over, found, ended]);
    let told = master.submit(&["-o", "json"]).expect_code(0);
    assert_eq!(told.stderr.lines().collect::<Vec<_>>(), STEPS);
}

#[test]
fn json_output_is_only_the_ended_job() {
    let master = printing(vec![pending("digits"), running("digits"), succeeded("digits")]);
    let ended = master.submit(&["-o", "json"]).expect_code(0).expect_stderr(STEPS[3]);
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), succeeded("digits"));
    assert!(!master.was_asked("/logs"), "{:?}", master.asked());
}

#[test]
fn detach_prints_the_name_and_how_to_follow_the_job() {
    let master = FakeMaster::with(vec![pending("digits")]);
    let ended = master.submit(&["-d"]).expect_code(0);
    assert_eq!(ended.stdout, "digits\n");
    ended.expect_stderr(&format!("client logs digits -f --master {}", master.url));
    assert_eq!(master.asked(), ["GET /v1/master", "POST /v1/jobs"]);

    let ended = master.submit(&["-d", "-o", "json"]).expect_code(0);
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), pending("digits"));
}

#[test]
fn the_name_of_a_job_with_a_result_is_refused_even_if_pods_remain() {
    let remaining = decided("digits", JobResult::Succeeded);
    for (view, result) in [(succeeded("digits"), "succeeded"), (failed("digits"), "failed"), (remaining, "succeeded")] {
        for more in [&[][..], &["--detach"], &["-o", "json"]] {
            let ended = submitted_before(vec![view.clone()]).submit(more).expect_code(2);
            assert_eq!(ended.stdout, "");
            let sentence = format!("error: job digits has already ended ({result}); nothing was submitted\n");
            ended.expect_stderr(&sentence).expect_stderr("hint: add --replace to run it again");
        }
    }
}

#[test]
fn submitting_a_running_job_again_follows_the_running_job() {
    let master = submitted_before(vec![running("digits"), succeeded("digits")]);
    let ended = master.submit(&[]).expect_code(0).expect_stderr("job digits was submitted before");
    assert_eq!(ended.stdout.lines().count(), 2);
}

#[test]
fn replace_deletes_the_old_job_and_then_submits() {
    let master = submitted_before(vec![succeeded("digits")]);
    let ended = master.submit(&["--replace", "-d"]).expect_code(0);
    ended.expect_stderr(&format!("job digits is deleted\n{}\n", STEPS[0]));
    let asked = master.asked();
    let asked: Vec<&str> = asked.iter().map(|request| request.split('?').next().unwrap()).collect();
    let job = "GET /v1/jobs/digits";
    let check = "POST /v1/dry-runs/jobs";
    assert_eq!(asked, ["GET /v1/master", check, job, "DELETE /v1/jobs/digits", job, "POST /v1/jobs"]);
    assert!(master.asked()[1].ends_with("?replace=true"), "{:?}", master.asked());
}

#[test]
fn replace_waits_for_a_master_that_is_away_at_any_step_and_each_delete_names_the_job_that_it_is_for() {
    let (shown, deleted) = ("GET /v1/jobs/digits", "DELETE /v1/jobs/digits");
    for (away, lost, deletes) in [
        (vec![shown], vec![], 1),
        (vec![deleted], vec![], 2),
        (vec!["GET /v1/jobs/digits?after="], vec![], 1),
        (vec![], vec![deleted], 2),
    ] {
        let views = vec![succeeded("digits")];
        let master = FakeMaster::start(Script { views, before: true, away, lost, ..Script::default() });
        let ended = master.submit(&["--replace", "-d"]).expect_code(0);
        let ended = ended.expect_stderr("; retrying\njob digits is deleted\njob digits accepted: ");
        assert_eq!(ended.stderr.matches("retrying").count(), 1, "{}", ended.stderr);
        let asked = master.asked();
        let asked: Vec<&String> = asked.iter().filter(|request| request.starts_with(deleted)).collect();
        assert_eq!(asked, vec!["DELETE /v1/jobs/digits?uid=uid-1"; deletes]);
    }
}

#[test]
fn a_submit_that_was_repeated_because_nobody_listened_does_not_claim_an_earlier_job() {
    let (address, folder) = (gone_after_one_answer(), folder_with_script());
    let mut submit = client(folder.path());
    let mut child = submit.args(["--task", "digits", "-d", "--master", &format!("http://{address}")]).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("retrying") {
        assert_ne!(told.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let _master =
        FakeMaster::start_at(&address, Script { views: vec![running("digits")], before: true, ..Script::default() });
    told.read_to_string(&mut text).unwrap();
    finish(child).expect_code(0);
    assert!(text.contains("job digits was submitted before and is running"), "{text}");
}

#[test]
fn replace_submits_if_there_is_no_old_job() {
    let views = vec![pending("digits")];
    let master = FakeMaster::start(Script { views, before: true, deleted: true, ..Script::default() });
    let ended = master.submit(&["--replace", "-d"]).expect_code(0);
    assert!(ended.stderr.starts_with("job digits accepted"), "{}", ended.stderr);
}

#[test]
fn an_interrupt_during_replace_says_that_no_job_was_submitted() {
    // The deleted job is still shown, and does not change.
    let master = FakeMaster::start(Script { views: vec![running("digits")], lingers: true, ..Script::default() });
    let child = master.spawn(&["--task", "digits", "--replace"]);
    until("the client waits for the end of the delete", || master.was_asked("wait="));
    let ended = interrupt(child, Signal::INT);
    assert_eq!(ended.stderr, "job digits is being deleted; no new job was submitted\n");
    assert!(!master.was_asked("POST /v1/jobs"), "{:?}", master.asked());
}

#[test]
fn a_broken_log_stream_continues_after_its_last_line() {
    let first =
        Logs::Lines(vec![line("worker-0", 6, "one"), line("worker-1", 8, "two"), line("worker-0", 12, "three")]);
    let second = Logs::Lines(vec![line("worker-1", 20, "four")]);
    // The client asks for this view after the first stream: the job is still running.
    let views = vec![running("digits")];
    let master = FakeMaster::start(Script { views, logs: [first, second].into(), ..Script::default() });
    let mut child = master.spawn(&["--task", "digits"]);
    let text = printed(&mut child, 4);
    drop(interrupt(child, Signal::INT));
    assert_eq!(text, "worker-0 │ one\nworker-1 │ two\nworker-0 │ three\nworker-1 │ four\n");
    let asked = master.asked();
    let again: Vec<&String> = asked.iter().filter(|request| request.contains("from=")).collect();
    assert_eq!(again[0], "GET /v1/jobs/digits/logs?follow=true&unfinished=true&from=worker-0%3A12%2Cworker-1%3A8");
}

#[test]
fn an_interrupt_keeps_the_job_and_says_how_to_come_back() {
    for kind in [Signal::INT, Signal::TERM] {
        let master = printing(vec![running("digits")]);
        let mut child = master.spawn(&["--task", "digits"]);
        // The first line shows that the client follows the job.
        printed(&mut child, 1);
        let ended = interrupt(child, kind);
        let ended = ended.expect_stderr(&format!("to continue: client logs digits -f --master {}", master.url));
        ended.expect_stderr(&format!("to cancel the job: client cancel digits --master {}", master.url));
        assert!(!master.was_asked("cancel"), "{:?}", master.asked());
    }
}

#[test]
fn an_interrupt_during_the_submit_says_how_to_check_for_the_job() {
    for more in [&[][..], &["--detach"]] {
        let master = FakeMaster::start(Script { mute: true, ..Script::default() });
        let child = master.spawn(&[&["--task", "digits"], more].concat());
        until("the job is submitted", || master.was_asked("POST /v1/jobs"));
        let ended = interrupt(child, Signal::INT);
        let sentence = "job digits may or may not have been accepted; to check: client status digits --master";
        assert_eq!(ended.stderr, format!("{sentence} {}\n", master.url));
    }
}

#[test]
fn a_closed_stdout_ends_the_command_without_an_error() {
    let many = (1..20_000).map(|index| line("worker-0", index, "a line that is long enough to fill a pipe some day"));
    let logs = [Logs::Lines(many.collect())].into();
    let master = FakeMaster::start(Script { views: vec![running("digits")], logs, ..Script::default() });
    let mut child = master.spawn(&["--task", "digits"]);
    drop(child.stdout.take());
    let ended = finish(child).expect_code(1);
    assert!(!ended.stderr.contains("error") && !ended.stderr.contains("panic"), "{}", ended.stderr);
}

#[test]
fn a_refused_submit_exits_with_2_for_bad_input_and_otherwise_with_3() {
    for (status, code, exit) in [
        (409, ErrorCode::JobExists, 2),
        (422, ErrorCode::BadWorkDir, 2),
        (400, ErrorCode::BadRequest, 2),
        (403, ErrorCode::Forbidden, 3),
        (500, ErrorCode::Internal, 3),
    ] {
        let refusal = Some(refusal(status, code, "a sentence of the master"));
        let master = FakeMaster::start(Script { refusal, ..Script::default() });
        let ended = master.submit(&[]).expect_code(exit).expect_stderr("error: a sentence of the master\n");
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn variables_turn_colours_on_and_off() {
    for (name, begin) in [("CLICOLOR_FORCE", "\u{1b}["), ("NO_COLOR", "worker-0 │ hello\n")] {
        let (master, folder) = (printing(vec![succeeded("digits")]), folder_with_script());
        let mut command = master.client(folder.path(), &["--task", "digits"]);
        let shown = finish(command.env(name, "1").spawn().unwrap()).stdout;
        assert!(shown.starts_with(begin), "{name}: {shown:?}");
    }
}
