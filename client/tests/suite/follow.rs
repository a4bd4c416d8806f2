//! Following submitted jobs to their end: their lines and changes, the closing line, and the exit code.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;

use protocol::error::{ErrorCode, Problem};
use protocol::ids::UnixMillis;
use protocol::view::{JobResult, JobState, JobView};
use rustix::process::Signal;

use crate::support::fake_master::{FakeMaster, Logs, Script, gone_after_one_answer};
use crate::support::views::{decided, failed, finished, line, pending, running, succeeded};
use crate::support::{Ended, client, finish, folder_with_script, signal, until};

fn lines() -> Logs {
    Logs::Lines(vec![line("worker-0", 6, "hello"), line("worker-1", 8, "\u{1b}[1mwelt\u{1b}[0m")])
}

fn submit_at(url: &str, more: &[&str]) -> Ended {
    let folder = folder_with_script();
    finish(client(folder.path()).args(["--task", "digits", "--master", url]).args(more).spawn().unwrap())
}

#[test]
fn every_step_of_a_job_that_succeeds_is_printed() {
    let views = vec![pending("digits"), running("digits"), succeeded("digits")];
    let master = FakeMaster::start(Script { views, logs: [lines()].into(), ..Script::default() });
    let ended = submit_at(&master.url, &[]).expect_code(0);
    assert_eq!(
        ended.stdout, "worker-0 │ hello\nworker-1 │ \u{1b}[1mwelt\u{1b}[0m\n",
        "the escape sequences of the script were changed"
    );
    let told: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(
        told,
        [
            "job digits accepted: AllReduce, 2 workers",
            "gang complete: 2 of 2 in 1.8 s",
            "running: generation 1.1, all 2 started 0.02 s after the gang was complete",
            "succeeded in 4.8 s: pods 1.8 s, start 0.02 s, training 3.0 s",
        ]
    );
}

#[test]
fn after_a_failure_the_client_prints_the_cause_and_the_last_output_and_exits_with_1() {
    let views = vec![pending("digits"), running("digits"), failed("digits")];
    let master = FakeMaster::start(Script { views, logs: [lines()].into(), ..Script::default() });
    let ended = submit_at(&master.url, &[]).expect_code(1);
    let told: Vec<&str> = ended.stderr.lines().skip(3).collect();
    assert_eq!(
        told,
        [
            "worker-1 exited with code 3",
            "failed after 4.8 s: worker-1 exited with code 3 (pods 1.8 s, start 0.02 s, training 3.0 s)",
            "last output of worker-1 on stderr:",
            "  Traceback",
            "  ValueError: no",
        ]
    );
}

#[test]
fn a_cancelled_job_ends_with_exit_code_1() {
    let views = vec![pending("digits"), finished("digits", JobResult::Cancelled)];
    let master = FakeMaster::start(Script { views, ..Script::default() });
    submit_at(&master.url, &[]).expect_code(1).expect_stderr("cancelled after 4.8 s");
}

#[test]
fn flags_variables_and_arguments_for_the_script_are_submitted() {
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], ..Script::default() });
    let folder = folder_with_script();
    let arguments =
        ["--task", "digits", "--strategy", "allreduce", "--worker-num", "3", "--env", "A=1", "--env", "OWN"];
    let mut command = client(folder.path());
    command.args(arguments).args(["--master", &master.url, "--", "--epochs", "3"]).env("OWN", "mine");
    finish(command.spawn().unwrap()).expect_code(0);
    let expected = serde_json::json!({
        "name": "digits", "strategy": "AllReduce",
        "worker_num": 3, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
        "work_dir": folder.path().canonicalize().unwrap(),
        "args": ["--epochs", "3"], "env": {"A": "1", "OWN": "mine"},
    });
    assert_eq!(master.submitted(), expected);
}

#[test]
fn a_command_ends_when_the_result_is_decided_even_if_pods_remain() {
    for (result, code, state) in
        [(JobResult::Succeeded, 0, JobState::Succeeded), (JobResult::Cancelled, 1, JobState::Cancelled)]
    {
        // The views never show the job as finished.
        let views = vec![running("digits"), decided("digits", result)];
        let master = || FakeMaster::start(Script { views: views.clone(), logs: [lines()].into(), ..Script::default() });
        assert_eq!(submit_at(&master().url, &[]).expect_code(code).stdout.lines().count(), 2);
        let shown = submit_at(&master().url, &["-o", "json"]).expect_code(code).stdout;
        assert_eq!(serde_json::from_str::<JobView>(&shown).unwrap().state, state);
        let folder = folder_with_script();
        for verb in [&["logs", "digits", "-f"][..], &["wait", "digits"]] {
            let mut command = client(folder.path());
            finish(command.args(verb).args(["--master", &master().url]).spawn().unwrap()).expect_code(code);
        }
    }
}

#[test]
fn the_first_start_under_a_new_master_is_marked_with_its_cause() {
    let mut taken_over = pending("digits");
    taken_over.seq = 3;
    let mut again = running("digits");
    (again.seq, again.generation) = (4, Some("2.1".parse().unwrap()));
    let mut ended = succeeded("digits");
    (ended.seq, ended.generation) = (5, again.generation);
    let views = vec![pending("digits"), running("digits"), taken_over, again, ended];
    let master = FakeMaster::start(Script { views, ..Script::default() });
    let told = submit_at(&master.url, &["-o", "json"]).expect_code(0);
    told.expect_stderr("\n--- start 2.1, after the previous start was lost with its master ---\n");
}

#[test]
fn a_job_that_goes_on_under_a_new_master_is_reported_as_if_the_master_had_not_changed() {
    let mut taken_over = pending("digits");
    taken_over.seq = 3;
    let of_new_master = |mut view: JobView, seq| {
        (view.seq, view.times.joined, view.times.started) = (seq, None, Some(UnixMillis(2_815)));
        view
    };
    let (found, ended) = (of_new_master(running("digits"), 4), of_new_master(succeeded("digits"), 5));
    let views = vec![pending("digits"), running("digits"), taken_over, found, ended];
    let master = FakeMaster::start(Script { views, ..Script::default() });
    let told = submit_at(&master.url, &["-o", "json"]).expect_code(0);
    assert_eq!(
        told.stderr.lines().collect::<Vec<_>>(),
        [
            "job digits accepted: AllReduce, 2 workers",
            "gang complete: 2 of 2 in 1.8 s",
            "running: generation 1.1, all 2 started 0.02 s after the gang was complete",
            "succeeded in 4.8 s: pods 1.8 s, start 0.02 s, training 3.0 s",
        ]
    );
}

#[test]
fn json_output_is_only_the_ended_job() {
    let views = vec![pending("digits"), running("digits"), succeeded("digits")];
    let master = FakeMaster::start(Script { views, logs: [lines()].into(), ..Script::default() });
    let ended = submit_at(&master.url, &["-o", "json"]).expect_code(0).expect_stderr("succeeded in 4.8 s");
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), succeeded("digits"));
    assert!(!master.asked().iter().any(|request| request.contains("/logs")), "{:?}", master.asked());
}

#[test]
fn detach_prints_the_name_and_how_to_follow_the_job() {
    let master = FakeMaster::start(Script { views: vec![pending("digits")], ..Script::default() });
    let ended = submit_at(&master.url, &["-d"]).expect_code(0);
    assert_eq!(ended.stdout, "digits\n");
    ended.expect_stderr(&format!("client logs digits -f --master {}", master.url));
    assert_eq!(master.asked(), ["GET /v1/master", "POST /v1/jobs"]);

    let ended = submit_at(&master.url, &["-d", "-o", "json"]).expect_code(0);
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), pending("digits"));
}

#[test]
fn the_name_of_an_ended_job_is_refused() {
    for (view, result) in [(succeeded("digits"), "succeeded"), (failed("digits"), "failed")] {
        for more in [&[][..], &["--detach"], &["-o", "json"]] {
            let master = FakeMaster::start(Script { views: vec![view.clone()], before: true, ..Script::default() });
            let ended = submit_at(&master.url, more).expect_code(2);
            assert_eq!(ended.stdout, "");
            let sentence = format!("error: job digits has already ended ({result}); nothing was submitted\n");
            ended.expect_stderr(&sentence).expect_stderr("hint: add --replace to run it again");
        }
    }
}

#[test]
fn the_name_of_a_job_with_a_result_is_refused_even_if_pods_remain() {
    let view = decided("digits", JobResult::Succeeded);
    let master = FakeMaster::start(Script { views: vec![view], before: true, ..Script::default() });
    submit_at(&master.url, &[]).expect_code(2).expect_stderr("job digits has already ended (succeeded)");
}

#[test]
fn submitting_a_running_job_again_follows_the_running_job() {
    let views = vec![running("digits"), succeeded("digits")];
    let master = FakeMaster::start(Script { views, before: true, logs: [lines()].into(), ..Script::default() });
    let ended = submit_at(&master.url, &[]).expect_code(0).expect_stderr("job digits was submitted before");
    assert_eq!(ended.stdout.lines().count(), 2);
}

#[test]
fn replace_deletes_the_old_job_and_then_submits() {
    let views = vec![succeeded("digits")];
    let master = FakeMaster::start(Script { views, before: true, ..Script::default() });
    let ended = submit_at(&master.url, &["--replace", "-d"]).expect_code(0);
    ended.expect_stderr("job digits is deleted\njob digits accepted: AllReduce, 2 workers\n");
    let asked = master.asked();
    let asked: Vec<&str> = asked.iter().map(|request| request.split('?').next().unwrap()).collect();
    let job = "GET /v1/jobs/digits";
    let check = "POST /v1/dry-runs/jobs";
    assert_eq!(asked, ["GET /v1/master", check, job, "DELETE /v1/jobs/digits", job, "POST /v1/jobs"]);
    assert!(master.asked()[1].ends_with("?replace=true"), "{:?}", master.asked());
}

#[test]
fn replace_waits_for_a_master_that_is_away_at_any_step_of_the_delete() {
    let (shown, deleted) = ("GET /v1/jobs/digits", "DELETE /v1/jobs/digits");
    let script = || Script { views: vec![succeeded("digits")], before: true, ..Script::default() };
    for script in [
        Script { away: vec![shown], ..script() },
        Script { away: vec![deleted], ..script() },
        Script { away: vec!["GET /v1/jobs/digits?after="], ..script() },
        Script { lost: vec![deleted], ..script() },
    ] {
        let master = FakeMaster::start(script);
        let ended = submit_at(&master.url, &["--replace", "-d"]).expect_code(0);
        let ended = ended.expect_stderr("; retrying\njob digits is deleted\njob digits accepted: ");
        assert_eq!(ended.stderr.matches("retrying").count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_repeated_delete_names_the_job_that_it_is_for() {
    let deleted = "DELETE /v1/jobs/digits";
    let script = Script { views: vec![succeeded("digits")], before: true, lost: vec![deleted], ..Script::default() };
    let master = FakeMaster::start(script);
    submit_at(&master.url, &["--replace", "-d"]).expect_code(0);
    let asked = master.asked();
    let deletes: Vec<&String> = asked.iter().filter(|request| request.starts_with(deleted)).collect();
    assert_eq!(deletes, ["DELETE /v1/jobs/digits?uid=uid-1"; 2]);
}

#[test]
fn a_submit_that_was_repeated_because_nobody_listened_does_not_claim_an_earlier_job() {
    let address = gone_after_one_answer();
    let folder = folder_with_script();
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
    let ended = submit_at(&master.url, &["--replace", "-d"]).expect_code(0);
    assert!(ended.stderr.starts_with("job digits accepted"), "{}", ended.stderr);
}

#[test]
fn an_interrupt_during_replace_says_that_no_job_was_submitted() {
    // The deleted job is still shown, and does not change.
    let master = FakeMaster::start(Script { views: vec![running("digits")], lingers: true, ..Script::default() });
    let folder = folder_with_script();
    let mut command = client(folder.path());
    let child = command.args(["--task", "digits", "--replace", "--master", &master.url]).spawn().unwrap();
    until("the client waits for the end of the delete", || {
        master.asked().iter().any(|request| request.contains("wait="))
    });
    signal(&child, Signal::INT);
    let ended = finish(child).expect_signal(Signal::INT);
    assert_eq!(ended.stderr, "job digits is being deleted; no new job was submitted\n");
    assert!(!master.asked().contains(&"POST /v1/jobs".to_owned()), "{:?}", master.asked());
}

#[test]
fn a_broken_log_stream_continues_after_its_last_line() {
    let first =
        Logs::Lines(vec![line("worker-0", 6, "one"), line("worker-1", 8, "two"), line("worker-0", 12, "three")]);
    let second = Logs::Lines(vec![line("worker-1", 20, "four")]);
    // The client asks for this view after the first stream: the job is still running.
    let views = vec![running("digits")];
    let master = FakeMaster::start(Script { views, logs: [first, second].into(), ..Script::default() });
    let folder = folder_with_script();
    let mut child = client(folder.path()).args(["--task", "digits", "--master", &master.url]).spawn().unwrap();
    let mut printed = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..4 {
        std::io::BufRead::read_line(&mut printed, &mut text).unwrap();
    }
    signal(&child, Signal::INT);
    drop(finish(child));
    assert_eq!(text, "worker-0 │ one\nworker-1 │ two\nworker-0 │ three\nworker-1 │ four\n");
    let asked = master.asked();
    let again: Vec<&String> = asked.iter().filter(|request| request.contains("from=")).collect();
    assert_eq!(again[0], "GET /v1/jobs/digits/logs?follow=true&from=worker-0%3A12%2Cworker-1%3A8");
}

#[test]
fn an_interrupt_keeps_the_job_and_says_how_to_come_back() {
    for kind in [Signal::INT, Signal::TERM] {
        let logs = [lines()].into();
        let master = FakeMaster::start(Script { views: vec![running("digits")], logs, ..Script::default() });
        let folder = folder_with_script();
        let mut child = client(folder.path()).args(["--task", "digits", "--master", &master.url]).spawn().unwrap();
        // The first line shows that the client follows the job.
        let mut printed = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut printed, &mut String::new()).unwrap();
        signal(&child, kind);
        let ended = finish(child).expect_signal(kind);
        let ended = ended.expect_stderr(&format!("to continue: client logs digits -f --master {}", master.url));
        ended.expect_stderr(&format!("to cancel the job: client cancel digits --master {}", master.url));
        assert!(!master.asked().iter().any(|request| request.contains("cancel")), "{:?}", master.asked());
    }
}

#[test]
fn an_interrupt_ends_a_shells_loop_before_its_second_job() {
    let master =
        FakeMaster::start(Script { views: vec![running("digits")], logs: [lines()].into(), ..Script::default() });
    let folder = folder_with_script();
    let mut shell = crate::support::command("bash".as_ref(), folder.path());
    let twice = "for n in 1 2; do \"$0\" --task digits --master \"$1\"; done";
    let client = env!("CARGO_BIN_EXE_client");
    let mut child = shell.args(["-c", twice, client, &master.url]).process_group(0).spawn().unwrap();
    let mut printed = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut printed, &mut String::new()).unwrap();
    // At Ctrl-C, a terminal also signals the whole process group.
    rustix::process::kill_process_group(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    drop(finish(child).expect_signal(Signal::INT));
    let submits = master.asked().iter().filter(|request| *request == "POST /v1/jobs").count();
    assert_eq!(submits, 1);
}

#[test]
fn an_interrupt_during_the_submit_says_how_to_check_for_the_job() {
    for more in [&[][..], &["--detach"]] {
        let master = FakeMaster::start(Script { mute: true, ..Script::default() });
        let folder = folder_with_script();
        let mut command = client(folder.path());
        let child = command.args(["--task", "digits", "--master", &master.url]).args(more).spawn().unwrap();
        until("the job is submitted", || master.asked().contains(&"POST /v1/jobs".to_owned()));
        signal(&child, Signal::INT);
        let ended = finish(child).expect_signal(Signal::INT);
        let sentence = "job digits may or may not have been accepted; to check: client status digits --master";
        assert_eq!(ended.stderr, format!("{sentence} {}\n", master.url));
    }
}

#[test]
fn a_closed_stdout_ends_the_command_without_an_error() {
    let many = (1..20_000).map(|index| line("worker-0", index, "a line that is long enough to fill a pipe some day"));
    let logs = [Logs::Lines(many.collect())].into();
    let master = FakeMaster::start(Script { views: vec![running("digits")], logs, ..Script::default() });
    let folder = folder_with_script();
    let mut child = client(folder.path()).args(["--task", "digits", "--master", &master.url]).spawn().unwrap();
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
        let detail = "a sentence of the master".to_owned();
        let refusal = Some(Problem { status, code, detail });
        let master = FakeMaster::start(Script { refusal, ..Script::default() });
        let ended = submit_at(&master.url, &[]).expect_code(exit).expect_stderr("error: a sentence of the master\n");
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn variables_turn_colours_on_and_off() {
    let script = || Script { views: vec![succeeded("digits")], logs: [lines()].into(), ..Script::default() };
    let folder = folder_with_script();
    let with = |name: &str, master: &FakeMaster| {
        let mut command = client(folder.path());
        finish(command.args(["--task", "digits", "--master", &master.url]).env(name, "1").spawn().unwrap()).stdout
    };
    let forced = with("CLICOLOR_FORCE", &FakeMaster::start(script()));
    assert!(forced.starts_with("\u{1b}["), "{forced:?}");
    let refused = with("NO_COLOR", &FakeMaster::start(script()));
    assert!(refused.starts_with("worker-0 │ hello\n"), "{refused:?}");
}
