//! The verbs: their output, their requests to the master, and their exit codes.

use std::io::Read;
use std::sync::{Arc, Mutex};

use protocol::failure::{FailedStart, Failure};
use protocol::ids::UnixMillis;
use protocol::master::BackendKind;
use protocol::view::{JobList, JobResult, JobView};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::fake_master::{FakeMaster, Logs, Script};
use crate::support::live_master::{Jobs, LiveMaster, TOKEN};
use crate::support::views::{failed, finished, line, pending, running, succeeded};
use crate::support::{client, finish, folder_with_script, interrupt, printed, run, serve_aside, until};

/// A master with this output of a running job, which succeeds or fails then.
fn printing<const N: usize>(logs: [Logs; N], then: Option<JobView>) -> FakeMaster {
    let views = [Some(running("digits")), then].into_iter().flatten().collect();
    FakeMaster::start(Script { views, logs: logs.into(), ..Script::default() })
}

#[test]
fn list_shows_a_line_for_each_job() {
    let master = FakeMaster::with(vec![succeeded("digits"), failed("letters")]);
    let ended = master.run(&["list"]).expect_code(0);
    let rows: Vec<Vec<&str>> = ended.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STRATEGY", "STATE", "REPLICAS", "TIME", "RESULT"]);
    // TIME ends at the job's result. The end of the pods is not used, because a restarted master may record it again.
    assert_eq!(rows[1], ["digits", "AllReduce", "succeeded", "2", "4.8", "s", "succeeded"]);
    assert!(ended.stdout.lines().nth(2).unwrap().ends_with("worker-1 exited with code 3"), "{}", ended.stdout);

    let ended = master.run(&["list", "--output", "json"]).expect_code(0);
    let expected = JobList { seq: 0, jobs: vec![succeeded("digits").summary(), failed("letters").summary()] };
    assert_eq!(serde_json::from_str::<JobList>(&ended.stdout).unwrap(), expected);
}

#[test]
fn ages_are_computed_by_the_clock_of_the_master() {
    let late = |answer: axum::response::Response| async {
        ([(axum::http::header::DATE, "Thu, 01 Jan 1970 00:01:01 GMT")], answer)
    };
    let view = running("digits");
    let routes = axum::Router::new()
        .route("/v1/jobs", axum::routing::get(async move || axum::Json(JobList { seq: 1, jobs: vec![view.summary()] })))
        .layer(axum::middleware::map_response(late));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    serve_aside(|| tokio::net::TcpListener::from_std(listener).unwrap(), routes);
    let ended = run(folder_with_script().path(), &["list", "--master", &url]).expect_code(0);
    let time: Vec<&str> = ended.stdout.lines().nth(1).unwrap().split_whitespace().skip(4).collect();
    assert_eq!(time, ["1", "m", "00", "s"], "the job was accepted at 1 s");
}

#[test]
fn list_watches_the_jobs_that_the_filters_choose() {
    let views = vec![running("digits"), failed("letters"), running("digits-2")];
    for (format, first) in [("text", 3), ("json", 2)] {
        let master = LiveMaster::start(Jobs { views: views.clone(), ..Jobs::default() });
        let folder = folder_with_script();
        let mut list = client(folder.path());
        list.args(["list", "digits", "-w", "-o", format, "--master", &master.url]).env("MUSTER_TOKEN", TOKEN);
        let mut list = list.spawn().unwrap();
        let lines = printed(&mut list, first);
        assert!(lines.contains("digits-2") && !lines.contains("letters"), "{lines}");
        master.change(|jobs| jobs.views[1] = succeeded("letters"));
        master.change(|jobs| jobs.views[2] = succeeded("digits-2"));
        let line = printed(&mut list, 1);
        let is_row = line.starts_with("digits-2") && line.contains("succeeded");
        let is_json = serde_json::from_str(&line).is_ok_and(|job: Value| job["state"] == "succeeded");
        assert!(if format == "json" { is_json } else { is_row }, "{line}");
        assert_eq!(interrupt(list, Signal::INT).stdout, "");
    }
}

#[test]
fn a_closed_stdout_ends_a_list_without_an_error() {
    // The list does not fit into a pipe, so the client is still writing when the reader closes the pipe.
    let master = FakeMaster::with((0..500).map(|_| succeeded("digits")).collect());
    let mut child = master.spawn(&["list", "-o", "json"]);
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    assert_eq!(&first, b"{");
    assert_eq!(finish(child).expect_code(1).stderr, "");
}

#[test]
fn status_shows_the_job_and_each_replica() {
    let master = FakeMaster::with(vec![failed("digits")]);
    let ended = master.run(&["status", "digits"]).expect_code(0);
    for part in ["asked for   AllReduce, 2 workers", "state       failed", "generation  1.1", "EXIT OR REASON"] {
        assert!(ended.stdout.contains(part), "no {part:?} in\n{}", ended.stdout);
    }
    let last = ended.stdout.lines().last().unwrap();
    let words: Vec<&str> = last.split_whitespace().collect();
    assert_eq!(words, ["worker-1", "exited", "digits-worker-1", "127.0.0.1:24001", "exited", "with", "code", "3"]);

    let ended = master.run(&["status", "digits", "-o", "json"]).expect_code(0);
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), failed("digits"));
}

#[test]
fn an_error_about_an_unknown_job_names_the_job() {
    let master = FakeMaster::with(vec![running("digits")]);
    for arguments in [&["status", "letters"][..], &["logs", "letters"], &["wait", "letters"], &["delete", "letters"]] {
        let ended = master.run(arguments).expect_code(2);
        ended
            .expect_stderr("error: there is no job \"letters\"")
            .expect_stderr(&format!("client list --master {}\n", master.url));
    }
}

#[test]
fn logs_prints_the_merged_output_or_the_output_of_one_replica() {
    let master = printing([Logs::Lines(vec![line("worker-1", 4, "one"), line("worker-0", 4, "two")])], None);
    let ended = master.run(&["logs", "digits", "--tail", "5"]).expect_code(0);
    assert_eq!(ended.stdout, "worker-1 │ one\nworker-0 │ two\n");
    assert_eq!(master.asked().last().unwrap(), "GET /v1/jobs/digits/logs?follow=false&tail=5");
    let ended = master.run(&["logs", "digits", "-o", "json"]).expect_code(0);
    assert_eq!(ended.stdout.lines().next().unwrap(), r#"{"replica":"worker-1","offset":4,"line":"one"}"#);

    let master = printing([Logs::Raw(b"raw \x1b[2J\xffbytes\nno end".to_vec())], None);
    let ended = master.run(&["logs", "digits", "--replica", "worker-1"]).expect_code(0);
    assert_eq!(ended.stdout, String::from_utf8_lossy(b"raw \x1b[2J\xffbytes\nno end"));
    let asked = "GET /v1/jobs/digits/logs?follow=false&replica=worker-1";
    // The first answer may have ended before a gap. So the client asks whether more output follows.
    assert_eq!(master.asked()[1..], [asked.to_owned(), format!("{asked}&offset=21")]);
}

#[test]
fn client_logs_with_follow_exits_with_the_jobs_result() {
    for (view, code) in [(succeeded("digits"), 0), (failed("digits"), 1)] {
        let master = printing([Logs::Lines(vec![line("worker-0", 4, "one")])], Some(view.clone()));
        let ended = master.run(&["logs", "digits", "-f"]).expect_code(code);
        assert_eq!(ended.stdout, "worker-0 │ one\n");
        ended.expect_stderr("job digits is running: AllReduce, 2 workers");

        let master = printing([Logs::Raw(b"one\n".to_vec())], Some(view));
        let ended = master.run(&["logs", "digits", "-f", "--replica", "worker-0"]).expect_code(code);
        assert_eq!(ended.stdout, "one\n");
    }
}

#[test]
fn a_broken_stream_of_one_replica_continues_after_its_last_byte() {
    // The job is still running when the first stream ends. It has ended when the last stream ends.
    let logs = ["one\n", "one\n", "one\ntwo\n"].map(|output| Logs::Raw(output.into()));
    let master = printing(logs, Some(succeeded("digits")));
    let ended = master.run(&["logs", "digits", "-f", "--replica", "worker-0", "--tail", "7"]).expect_code(0);
    assert_eq!(ended.stdout, "one\ntwo\n");
    let asked = master.asked();
    let asked: Vec<&str> = asked.iter().filter_map(|request| request.split_once("logs?")).map(|(_, it)| it).collect();
    let again = "follow=true&replica=worker-0&offset=4";
    let after_the_last = "follow=true&replica=worker-0&offset=8";
    assert_eq!(asked, ["follow=true&replica=worker-0&tail=7", again, again, after_the_last]);
}

#[test]
fn output_without_an_offset_is_not_from_a_master() {
    let master = printing([Logs::RawNowhere(b"one\n".to_vec())], None);
    let ended = master.run(&["logs", "digits", "--replica", "worker-0"]).expect_code(3);
    ended.expect_stderr("answers, but not as a Muster master (HTTP status 200)");
}

#[test]
fn wait_exits_with_the_jobs_result() {
    for (view, code, sentence) in
        [(succeeded("digits"), 0, "succeeded in 4.8 s"), (failed("digits"), 1, "failed after")]
    {
        let master = FakeMaster::with(vec![pending("digits"), running("digits"), view.clone()]);
        master.run(&["wait", "digits"]).expect_code(code).expect_stderr(sentence);
        let ended = master.run(&["wait", "digits", "-o", "json"]).expect_code(code);
        assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), view);
    }
}

#[test]
fn an_interrupted_wait_says_how_to_come_back() {
    let master = FakeMaster::with(vec![running("digits")]);
    let child = master.spawn(&["wait", "digits"]);
    until("the client waits for the end", || master.was_asked("wait="));
    let ended = interrupt(child, Signal::INT);
    let ended = ended.expect_stderr("no longer waiting for job digits; the job keeps running\n");
    let ended = ended.expect_stderr(&format!("to continue: client wait digits --master {}\n", master.url));
    ended.expect_stderr(&format!("to cancel the job: client cancel digits --master {}\n", master.url));
}

#[test]
fn wait_gives_up_after_its_timeout() {
    let master = FakeMaster::with(vec![running("digits")]);
    let ended = master.run(&["wait", "digits", "--timeout", "300ms"]).expect_code(1);
    ended.expect_stderr("error: job digits is still running after 0.3 s");
}

#[test]
fn verbose_shows_each_request_without_secrets() {
    let token = Some("s3cret".to_owned());
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], token, ..Script::default() });
    let folder = folder_with_script();
    for flags in [&["-v", "status", "digits"][..], &["status", "digits", "--verbose"]] {
        let mut command = master.client(folder.path(), flags);
        let ended = finish(command.env("MUSTER_TOKEN", "s3cret").spawn().unwrap()).expect_code(0);
        let requests = ["digits: 200 after ", "digits/series?tail=64: 404 after "];
        let requests = requests.map(|request| format!("master: GET {}/v1/jobs/{request}", master.url));
        assert_eq!(ended.stderr.lines().count(), requests.len(), "{}", ended.stderr);
        for (line, request) in ended.stderr.lines().zip(requests) {
            assert!(line.starts_with(&request) && !line.contains("s3cret"), "{line}");
        }
    }
    let refused = FakeMaster::with(vec![]).run(&["-v", "status", "letters"]).expect_code(2);
    refused.expect_stderr("/v1/jobs/letters: 404 after ");
}

#[test]
fn cancel_and_delete_ask_the_master() {
    let master = FakeMaster::with(vec![running("digits")]);
    master.run(&["cancel", "digits"]).expect_code(0).expect_stderr("job digits is being cancelled");
    assert_eq!(master.asked(), ["GET /v1/jobs/digits", "POST /v1/jobs/digits/cancel"]);
    master.run(&["delete", "digits"]).expect_code(0).expect_stderr("job digits is deleted");
    assert!(master.was_asked("DELETE /v1/jobs/digits?uid=uid-1"), "{:?}", master.asked());
}

#[test]
fn an_unknown_name_stops_no_other_job_and_decides_the_exit_code() {
    for (verb, done) in [("cancel", "job digits is being cancelled"), ("delete", "job digits is deleted")] {
        let master = FakeMaster::with(vec![running("digits")]);
        let ended = master.run(&[verb, "none", "digits", "digits", "never"]).expect_code(2);
        let ended = ended.expect_stderr("error: none: there is no").expect_stderr("error: never: there is no");
        assert_eq!(ended.stderr.matches(done).count(), 1, "{}", ended.stderr);
        ended.expect_stderr(&format!("client list --master {}\n", master.url));
    }
}

#[test]
fn a_wait_for_several_jobs_prints_those_that_have_ended_and_a_job_that_is_named_twice_as_one_job() {
    let master = FakeMaster::with(vec![succeeded("digits")]);
    let ended = master.run(&["wait", "none", "digits", "-o", "json"]).expect_code(2);
    let shown: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&shown["jobs"][0]["name"], shown["jobs"].as_array().unwrap().len()), (&"digits".into(), 1));
    ended.expect_stderr("error: none: there is no job").expect_stderr("job digits succeeded in 4.8 s");
    let ended = master.run(&["wait", "digits", "digits", "-o", "json"]).expect_code(0);
    assert_eq!(serde_json::from_str::<JobView>(&ended.stdout).unwrap(), succeeded("digits"));
}

#[test]
fn an_ended_job_is_not_cancelled() {
    for (view, state) in [
        (succeeded("digits"), "succeeded"),
        (failed("digits"), "failed"),
        (finished("digits", JobResult::Cancelled), "cancelled"),
    ] {
        let master = FakeMaster::with(vec![view]);
        let ended = master.run(&["cancel", "digits"]).expect_code(0);
        assert_eq!(ended.stderr, format!("job digits has already ended ({state}); nothing was done\n"));
        assert_eq!(master.asked(), ["GET /v1/jobs/digits"]);
    }
    let master = FakeMaster::with(vec![running("digits")]);
    master.run(&["cancel", "letters"]).expect_code(2).expect_stderr("error: there is no such job");
}

#[test]
fn an_unreadable_record_can_be_deleted() {
    let master = FakeMaster::start(Script { unreadable: Some("digits"), ..Script::default() });
    let ended = master.run(&["delete", "digits"]).expect_code(0);
    ended.expect_stderr("deleted the unreadable record of job digits");
    assert_eq!(master.asked(), ["GET /v1/jobs/digits", "DELETE /v1/jobs/digits"]);
}

#[test]
fn doctor_checks_only_the_master_whose_address_is_given() {
    let checks = |master: &FakeMaster| {
        let ended = master.run(&["doctor", "-o", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let checks = shown["checks"].as_array().unwrap().iter();
        (ended.code, checks.map(|check| format!("{} {}", check["name"], check["verdict"])).collect::<Vec<_>>())
    };
    // The version of the fake master differs from that of the client.
    let master = FakeMaster::with(vec![]);
    assert_eq!(checks(&master), (Some(0), vec![r#""master" "warn""#.to_owned()]));
    assert_eq!(master.asked(), ["GET /v1/master"]);
    let refusing = FakeMaster::start(Script { token: Some("s3cret".to_owned()), ..Script::default() });
    assert_eq!(checks(&refusing), (Some(1), vec![r#""master" "fail""#.to_owned()]));
    let (_, of_pods) = checks(&FakeMaster::of(BackendKind::Kubernetes));
    assert!(of_pods.len() == 2 && of_pods[1].starts_with(r#""Docker""#), "{of_pods:?}");
}

#[test]
fn completions_name_flags_and_verbs_and_need_no_master() {
    let folder = folder_with_script();
    for shell in ["bash", "zsh", "fish"] {
        let mut command = client(folder.path());
        command.args(["completions", shell]).env("MUSTER_MASTER", "nonsense");
        let ended = finish(command.spawn().unwrap()).expect_code(0);
        assert!(ended.stdout.contains("worker-num") && ended.stdout.contains("completions"), "{shell}");
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn help_is_on_stdout_with_defaults_and_exit_codes() {
    let folder = folder_with_script();
    let ended = run(folder.path(), &["--help"]).expect_code(0);
    for part in ["[default: 2]", "MUSTER_MASTER", "Examples:", "Exit codes:"] {
        assert!(ended.stdout.contains(part), "no {part:?} in\n{}", ended.stdout);
    }
    assert_eq!(ended.stderr, "");
}

#[test]
fn wait_posts_the_restarts_and_the_end_of_a_job() {
    let posted: Arc<Mutex<Vec<serde_json::Value>>> = Arc::default();
    let told = Arc::clone(&posted);
    let router = axum::Router::new().route(
        "/hook",
        axum::routing::post(async move |axum::Json(event): axum::Json<serde_json::Value>| {
            told.lock().unwrap().push(event);
        }),
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    serve_aside(move || tokio::net::TcpListener::from_std(listener).unwrap(), router);
    let mut restarted = running("digits");
    restarted.seq += 1;
    restarted.restarts.note(FailedStart::new(None, UnixMillis(1), Failure::DeadlineExceeded { after_seconds: 5 }));
    restarted.restarts.count_restart(UnixMillis(1));
    let mut ended = succeeded("digits");
    ended.seq += 1;
    let master = FakeMaster::with(vec![running("digits"), restarted, ended]);
    master.run(&["wait", "digits", "--notify", &url]).expect_code(0);
    let texts: Vec<String> =
        posted.lock().unwrap().iter().map(|event| event["text"].as_str().unwrap().into()).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(
        texts[0].starts_with("job digits starts again, restart 1 of 3: the job exceeded its deadline"),
        "{texts:?}"
    );
    assert!(texts[1].starts_with("job digits succeeded"), "{texts:?}");
    let secret = format!("{url}/no/T0KEN");
    let ended = master.run(&["wait", "digits", "--notify", &secret]).expect_code(0);
    assert!(!ended.stderr.contains("T0KEN"), "{}", ended.stderr);
    ended.expect_stderr("cannot post to the address of --notify: ");
    let folder = folder_with_script();
    std::fs::write(folder.path().join("hook"), format!("{url}\n")).unwrap();
    let posts = || posted.lock().unwrap().len();
    let before = posts();
    master.run_in(folder.path(), &["wait", "digits", "--notify-file", "hook"]).expect_code(0);
    let from_environment = master.client(folder.path(), &["wait", "digits"]).env("MUSTER_NOTIFY", &url).spawn();
    finish(from_environment.unwrap()).expect_code(0);
    assert_eq!(posts(), before + 2, "one post for each way to name the address");
    std::fs::write(folder.path().join("hook"), "T0KEN").unwrap();
    let refused = master.run_in(folder.path(), &["wait", "digits", "--notify-file", "hook"]).expect_code(2);
    assert!(!refused.stderr.contains("T0KEN"), "{}", refused.stderr);
    refused.expect_stderr("hook: use an address that begins with http:// or https://");
}
