//! `ui`: the pages, their stream of events, their actions, and requests that are not from the page.

use protocol::failure::{FailedStart, Failure};
use protocol::history::PastJob;
use protocol::ids::UnixMillis;
use protocol::view::{JobState, JobView, ReplicaState};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::support::live_master::{Jobs, LiveMaster, TOKEN};
use crate::support::page::Page;
use crate::support::views::{failed, line, pending, running, succeeded};
use crate::support::{client, finish, folder_with_script, interrupt, printed, until};

/// A master with one running job.
fn with_running_job() -> LiveMaster {
    LiveMaster::start(Jobs {
        views: vec![running("digits")],
        lines: vec![line("worker-0", 4, "one")],
        series: None,
        ..Jobs::default()
    })
}

/// The job digits, elastic, with this many workers.
fn elastic(workers: u32) -> JobView {
    let mut view = serde_json::to_value(running("digits")).unwrap();
    let replica = |index| json!({"replica": format!("worker-{index}"), "state": "running", "pod": format!("digits-worker-{index}"), "address": format!("10.1.{}.{}:1234", index / 256, index % 256), "started_at": 1_700_000_000_000_u64});
    view["spec"]["worker_num"] = json!(workers);
    view["spec"]["worker_min"] = json!(1);
    view["workers"] = json!({"min": 1, "max": workers});
    view["replicas"] = (0..workers).map(replica).collect();
    view["roster"] = (0..workers).map(|index| json!(format!("worker-{index}"))).collect();
    serde_json::from_value(view).unwrap()
}

fn series(replicas: u32) -> Value {
    let point = |at: u64| json!({"at": 1000 * at, "generation": "1.1", "progress": {"step": at, "steps": at, "wall_us": at * 20_000, "batch": 32, "values": {"loss": 1.0 / (at + 1) as f64}}});
    let points: Vec<Value> = (1..4).map(point).collect();
    let replicas: Vec<Value> =
        (0..replicas).map(|index| json!({"replica": format!("worker-{index}"), "points": points})).collect();
    json!({"replicas": replicas})
}

#[test]
fn the_pages_can_be_read_without_javascript() {
    let views = vec![running("digits"), failed("letters"), succeeded("old")];
    let lines = vec![line("worker-0", 4, "\u{1b}[31mone\u{1b}[0m"), line("worker-1", 4, "two")];
    let master = LiveMaster::start(Jobs { views, lines, series: Some(series(2)), ..Jobs::default() });
    let page = Page::of(&master);

    let list = page.get("");
    assert_eq!(list.status, 200);
    for part in ["href=\"jobs/digits\"", "state failed", "worker-1 exited with code 3", "AllReduce", &master.url] {
        assert!(list.body.contains(part), "no {part:?} in\n{}", list.body);
    }
    let found = page.get("?q=DIG&state=");
    assert!(found.body.contains("jobs/digits") && !found.body.contains("jobs/letters"), "{}", found.body);
    let found = page.get("?q=&state=failed");
    assert!(found.body.contains("jobs/letters") && !found.body.contains("jobs/digits"), "{}", found.body);
    assert!(page.get("?q=nothing").body.contains("None of the 3 jobs matches."));

    let job = || page.get("jobs/digits");
    until("the output has been read", || job().body.contains("worker-1</span>"));
    let job = job();
    assert_eq!(job.status, 200);
    let parts = [
        "job digits is running: AllReduce, 2 workers",
        "href=\"../jobs/digits/cancel\"",
        "step 3, loss 0.25, 20 ms per step",
        "<td class=\"number\">20 ms<td class=\"number\">32",
        "loss of worker-0",
        "<polyline class=\"c0\"",
        "<span class=\"f1\">one</span>",
        &format!("client logs digits -f --master {}", master.url),
    ];
    for part in parts {
        assert!(job.body.contains(part), "no {part:?} in\n{}", job.body);
    }
    assert!(!job.body.contains("<h2>Why</h2>"), "nothing has failed");

    let logs = page.get("jobs/digits/logs/worker-1");
    assert!(logs.body.contains("two</span>") && !logs.body.contains("one</span>"), "{}", logs.body);
    assert!(logs.body.contains("<dd>127.0.0.1:24001</dd>"), "{}", logs.body);
    let searched = page.get("jobs/digits/logs/all?q=ONE");
    assert!(searched.body.contains("one</span>") && !searched.body.contains("two</span>"), "{}", searched.body);
    let config = page.get("jobs/digits/tf-config/worker-1");
    let text = config.body.replace("&#34;", "\"");
    assert!(text.contains("\"127.0.0.1:24000\",") && text.contains("\"index\": 1"), "{text}");
}

#[test]
fn the_page_of_a_failed_job_begins_with_the_cause() {
    let mut view = failed("letters");
    let failure =
        Failure::ReplicaExited { replica: "worker-1".parse().unwrap(), exit: view.replicas[1].exit.clone().unwrap() };
    let start = FailedStart::new(view.generation, UnixMillis(5_800), failure);
    view.restarts.failed_starts.push(FailedStart { last_lines: vec!["ValueError: <no>".to_owned()], ..start });
    let page = Page::of(&LiveMaster::start(Jobs { views: vec![view], ..Jobs::default() }));
    let body = page.get("jobs/letters").body;
    let places = [
        "failed after 4.8 s",
        "first to fail  worker-1",
        "  │ ValueError: &#60;no&#62;",
        "<h2>Replicas</h2>",
        "<h2>Timeline</h2>",
        "<h2>Output</h2>",
    ];
    let places = places.map(|part| body.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{body}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(body.contains("4.8 s  failed: worker-1 exited with code 3"), "{body}");
    for action in ["cancel", "suspend", "resume", "scale"] {
        assert!(!body.contains(&format!("letters/{action}")), "{action} has no effect on a job that has ended");
    }
}

#[test]
fn an_error_of_the_master_is_shown_on_the_page() {
    let master = with_running_job();
    let page = Page::of(&master);
    let unknown = page.get("jobs/letters");
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("there is no job &#34;letters&#34;"), "{}", unknown.body);
    assert_eq!(page.get("jobs/letters/cancel").status, 404);
    assert_eq!(page.get("jobs/letters/logs/all").status, 404);
    assert_eq!(page.get("jobs/letters/tf-config/worker-0").status, 404);
    for path in [
        "jobs/Not_A_Name",
        "jobs/digits/explode",
        "jobs/digits/logs/worker-x",
        "jobs/digits/logs/worker-1/x",
        "jobs",
        "jobs/digits?from=x",
        "events?job=Not_A_Name",
        "events?job=digits&logs=x",
        "..",
        "%2e%2e/x",
    ] {
        let answer = page.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (404, ""), "{path}");
    }
}

#[test]
fn changes_and_new_lines_reach_an_open_tab() {
    let master = with_running_job();
    let page = Page::of(&master);
    let mut events = page.events("job=digits");
    events.until("part", "head\n<h1>digits <span class=\"state running\">");
    let first = events.until_line("one");
    assert_eq!(first.data, r#"[{"replica":"worker-0","colour":1,"spans":[{"class":"","text":"one"}]}]"#);
    master.change(|jobs| jobs.lines.push(line("worker-1", 9, "\u{1b}[1m<b>two</b>")));
    let second = events.until("lines", "");
    assert_eq!(second.data, r#"[{"replica":"worker-1","colour":2,"spans":[{"class":"b","text":"<b>two</b>"}]}]"#);
    master.change(|jobs| jobs.views[0].replicas_mut()[1].reason = Some("node <drained>".to_owned()));
    let replicas = events.until("part", "node &#60;drained&#62;");
    assert!(replicas.data.starts_with("replicas\n"), "{}", replicas.data);
    // Only this part has changed.
    master.change(|jobs| jobs.views[0].replicas_mut()[1].reason = None);
    assert!(events.next().data.starts_with("replicas\n"));

    // A tab that comes back gets only what it missed.
    drop(events);
    let mut events = page.events_after("job=digits", &first.id);
    assert_eq!(events.until("lines", "").data, second.data);
    let mut one = page.events("job=digits&logs=worker-1");
    assert_eq!(one.until_line("two").data, second.data);

    // Another job with the same name begins anew.
    master.change(|jobs| {
        jobs.lines = vec![line("worker-0", 3, "new")];
        jobs.views[0] = JobView { uid: "uid-2".to_owned(), ..pending("digits") };
    });
    events.until("anew", "");
    events.until("part", "head\n<h1>digits <span class=\"state pending\">");
    master.change(|jobs| jobs.views.clear());
    events.until("part", "there is no job");
    master.change(|jobs| jobs.views.push(succeeded("digits")));
    events.until("part", "head\n<h1>digits <span class=\"state succeeded\">");
}

#[test]
fn the_output_of_one_replica_begins_with_all_its_newest_lines() {
    let quiet = (1..=300).map(|index| line("worker-1", 2 * index, &format!("quiet {index}.")));
    let loud = (1..=600).map(|index| line("worker-0", 2 * index, &format!("loud {index}.")));
    let lines = quiet.chain(loud).collect();
    let master = LiveMaster::start(Jobs { views: vec![running("digits")], lines, ..Jobs::default() });
    let page = Page::of(&master);
    // A tab that begins while the page still reads many older lines may end, and the browser opens it again.
    let mut all = page.events("job=digits");
    all.until_line("loud 600.");
    let mut one = page.events("job=digits&logs=worker-1");
    let first = one.until("anew", "quiet 1.");
    assert_eq!(first.data.matches("quiet").count(), 300, "{}", first.data);
    assert!(!first.data.contains("loud"), "{}", first.data);
    master.change(|jobs| jobs.lines.push(line("worker-1", 602, "quiet 301.")));
    let second = one.until_line("301");
    assert_eq!((second.name.as_str(), second.data.matches("quiet").count()), ("lines", 1), "{}", second.data);
    // A tab that comes back gets only what it missed.
    let mut again = page.events_after("job=digits&logs=worker-1", &first.id);
    let missed = again.until_line("301");
    assert_eq!((missed.name.as_str(), missed.data.matches("quiet").count()), ("lines", 1), "{}", missed.data);
    // If lines are missing then, the next stream begins with all newest lines. Here, another job has the name.
    master.change(|jobs| {
        jobs.lines = (1..=300).map(|index| line("worker-1", 2 * index, &format!("other {index}."))).collect();
        jobs.lines.extend((1..=600).map(|index| line("worker-0", 2 * index, &format!("noise {index}."))));
        jobs.views[0] = JobView { uid: "uid-2".to_owned(), ..running("digits") };
    });
    again.end();
    all.until_line("noise 600.");
    let mut anew = page.events_after("job=digits&logs=worker-1", &missed.id);
    assert_eq!(anew.until("anew", "other 1.").data.matches("other").count(), 300);
}

#[test]
fn the_list_is_live_and_filtered() {
    let master = with_running_job();
    let page = Page::of(&master);
    let mut events = page.events("q=dig&state=");
    events.until("part", "jobs/digits");
    master.change(|jobs| jobs.views.push(running("letters")));
    master.change(|jobs| jobs.views[0].state = JobState::Stopping);
    let rows = events.until("part", "stopping").data;
    assert!(!rows.contains("jobs/letters"), "{rows}");
}

#[test]
fn an_action_asks_first_and_acts_once() {
    let master = LiveMaster::start(Jobs { views: vec![elastic(4)], ..Jobs::default() });
    let page = Page::of(&master);
    let changes = || {
        let received = master.received().into_iter().filter(|received| !received.line.starts_with("GET"));
        received.map(|received| format!("{} {}", received.line, received.body)).collect::<Vec<_>>()
    };
    for action in ["cancel", "delete", "scale", "suspend", "resume"] {
        let asked = page.get(&format!("jobs/digits/{action}"));
        assert_eq!(asked.status, 200, "{action}");
        assert!(asked.body.contains("<form method=\"post\""), "{}", asked.body);
        assert!(asked.body.contains("name=\"uid\" value=\"uid-1\""), "{}", asked.body);
    }
    assert_eq!(changes(), Vec::<String>::new());
    assert!(page.get("jobs/digits/scale").body.contains("name=\"workers\" value=\"1:4\""));

    let done = [("cancel", "../digits"), ("suspend", "../digits"), ("resume", "../digits"), ("delete", "../../")];
    for (action, next) in done {
        let answer = page.post(&format!("jobs/digits/{action}"), "uid=uid-1");
        assert_eq!(answer.status, 303, "{action}: {}", answer.body);
        assert!(answer.head.contains(&format!("location: {next}\r\n")), "{}", answer.head);
    }
    assert_eq!(page.post("jobs/digits/scale", "uid=uid-1&workers=2%3A6").status, 303);
    let expected = [
        "POST /v1/jobs/digits/cancel ",
        "PATCH /v1/jobs/digits {\"suspended\":true}",
        "PATCH /v1/jobs/digits {\"suspended\":false}",
        "DELETE /v1/jobs/digits?uid=uid-1 ",
        "PATCH /v1/jobs/digits {\"worker_min\":2,\"worker_num\":6}",
    ];
    assert_eq!(changes(), expected);
}

/// The failed job letters in the history.
fn past() -> PastJob {
    let mut view = serde_json::to_value(failed("letters")).unwrap();
    view["uid"] = json!("0b5e");
    let timeline = json!({
        "name": "letters", "uid": "0b5e", "state": "failed", "now": 9000, "accepted": 1000, "ended": 9000, "starts": [],
        "replicas": [], "spent": {"gathering_ms": 8000},
    });
    let past = json!({
        "view": view, "timeline": timeline, "series": series(2), "last_output": "<b>one\n\u{1b}[31mtwo\u{1b}[0m\n",
    });
    serde_json::from_value(past).unwrap()
}

#[test]
fn a_job_of_the_history_has_a_page_and_can_run_again() {
    let master = LiveMaster::start(Jobs { views: vec![running("digits")], past: vec![past()], ..Jobs::default() });
    let page = Page::of(&master);
    let list = page.get("").body;
    assert!(list.contains("<a href=\"history/0b5e\">letters</a>") && list.contains("jobs/digits"), "{list}");
    let found = page.get("?q=letters&state=running").body;
    assert!(found.contains("None of the 2 jobs matches."), "{found}");

    let body = page.get("history/0b5e").body;
    for part in [
        "This page is from the history.",
        "failed after 4.8 s",
        "href=\"../history/0b5e/rerun\"",
        "loss of worker-0",
        "The last lines of worker-1.",
        "&#60;b&#62;one",
        "<span class=\"f1\">two</span>",
        "client rerun letters --master",
    ] {
        assert!(body.contains(part), "no {part:?} in\n{body}");
    }
    for part in ["0b5e/delete", "logs/", "tf-config", "client logs"] {
        assert!(!body.contains(part), "{part:?} is of a job on record:\n{body}");
    }
    let asked = page.get("history/0b5e/rerun").body;
    assert!(asked.contains("A new job with the same settings") && asked.contains("href=\"../0b5e\""), "{asked}");
    let submits = || master.received().into_iter().filter(|it| it.line.starts_with("POST")).collect::<Vec<_>>();
    assert!(submits().is_empty(), "the question alone submits nothing");
    let task = asked.split_once("name=\"task\" value=\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
    assert_eq!(page.post("history/0b5e/rerun", "").status, 404, "a form without a name");
    let answer = page.post("history/0b5e/rerun", &format!("uid=0b5e&task={task}"));
    assert_eq!(answer.status, 303, "{}", answer.body);
    let [submit] = &submits()[..] else { panic!("{:?}", submits()) };
    let job: Value = serde_json::from_str(&submit.body).unwrap();
    let name = job["name"].as_str().unwrap();
    assert!(name == task && name.starts_with("letters-") && job["worker_num"] == json!(2), "{job}");
    assert!(answer.head.contains(&format!("location: ../../jobs/{name}\r\n")), "{}", answer.head);
    for path in ["history/none", "history/..%2fjobs", "history/none/rerun"] {
        assert!([404, 409].contains(&page.get(path).status), "{path}");
    }
}

#[test]
fn a_job_that_has_ended_can_run_again() {
    let master = LiveMaster::start(Jobs { views: vec![failed("letters"), running("digits")], ..Jobs::default() });
    let page = Page::of(&master);
    assert!(page.get("jobs/letters").body.contains("href=\"../jobs/letters/rerun\""));
    assert!(!page.get("jobs/digits").body.contains("digits/rerun"), "a running job cannot run again");
    assert_eq!(page.post("jobs/letters/rerun", "uid=uid-1").status, 409, "a form without a name");
    assert_eq!(page.post("jobs/digits/rerun", "uid=uid-1&task=next").status, 409, "the job runs");
    let answer = page.post("jobs/letters/rerun", "uid=uid-1&task=letters-2");
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert!(answer.head.contains("location: ../letters-2\r\n"), "{}", answer.head);
}

#[test]
fn commands_with_the_name_of_a_later_job_are_not_shown_for_an_earlier_one() {
    let master = LiveMaster::start(Jobs { views: vec![running("letters")], past: vec![past()], ..Jobs::default() });
    let body = Page::of(&master).get("history/0b5e").body;
    assert!(body.contains("0b5e/rerun") && !body.contains("client "), "{body}");
}

#[test]
fn the_page_shows_how_a_job_differs_from_the_run_before() {
    let run = |view: JobView, uid: &str, accepted: u64, args: &str| {
        let mut view = serde_json::to_value(view).unwrap();
        view["uid"] = json!(uid);
        view["times"]["accepted"] = json!(accepted);
        view["spec"]["about"] = json!({"source": "/home/me/train.py", "commit": "4e37ab42d1c2"});
        view["spec"]["args"] = json!(["--epochs", args]);
        serde_json::from_value::<JobView>(view).unwrap()
    };
    let mut oldest = past();
    oldest.view = run(oldest.view, "0b5e", 1, "<3>");
    let views = vec![run(failed("second"), "uid-2", 2, "5"), run(running("third"), "uid-3", 3, "9"), running("other")];
    let page = Page::of(&LiveMaster::start(Jobs { views, past: vec![oldest], ..Jobs::default() }));
    let body = |path: &str| page.get(path).body;
    until("the earlier run is known", || body("jobs/third").contains("<a href=\"../jobs/second\">second</a>"));
    assert!(body("jobs/third").contains("<li>args: --epochs 5 → --epochs 9</li>"), "{}", body("jobs/third"));
    until("the earlier run is known", || body("jobs/second").contains("<a href=\"../history/0b5e\">letters</a>"));
    assert!(
        body("jobs/second").contains("<li>args: --epochs &#60;3&#62; → --epochs 5</li>"),
        "{}",
        body("jobs/second")
    );
    assert!(!body("history/0b5e").contains("run before") && !body("jobs/other").contains("run before"));
}

#[test]
fn a_run_is_compared_with_the_earlier_run_of_its_own_name() {
    let run = |name: &str, uid: &str, accepted: u64| {
        let mut view = serde_json::to_value(failed(name)).unwrap();
        view["uid"] = json!(uid);
        view["times"]["accepted"] = json!(accepted);
        view["spec"]["about"] = json!({"source": "/home/me/train.py"});
        view["code"] = json!("50db9c5e".repeat(8));
        serde_json::from_value::<JobView>(view).unwrap()
    };
    let mut same_name = past();
    same_name.view = run("digits", "0b5e", 1);
    let views = vec![run("batches", "uid-2", 2), run("digits", "uid-3", 3)];
    let page = Page::of(&LiveMaster::start(Jobs { views, past: vec![same_name], ..Jobs::default() }));
    let body = || page.get("jobs/digits").body;
    until("the earlier run is known", || body().contains("the run before, <a href=\"../history/0b5e\">digits</a>"));
    let body = body();
    assert!(body.contains("<dd>50db9c5e50db</dd>"), "{body}");
    assert!(!body.contains("<dt>generation</dt>"), "{body}");
    assert!(page.get("jobs/none").body.contains("<a href=\"../\">All jobs</a>"));
}

#[test]
fn a_job_that_was_deleted_moves_to_the_history_in_an_open_list() {
    let master = with_running_job();
    let page = Page::of(&master);
    let mut events = page.events("");
    events.until("part", "jobs/digits");
    master.change(|jobs| {
        jobs.views.clear();
        jobs.past = vec![past()];
    });
    let list = events.until("part", "history/0b5e").data;
    assert!(!list.contains("jobs/digits"), "{list}");
}

#[test]
fn the_page_of_a_job_that_leaves_the_record_goes_on_with_the_history() {
    let view = JobView { uid: "0b5e".to_owned(), ..running("letters") };
    let master = LiveMaster::start(Jobs { views: vec![view], ..Jobs::default() });
    let page = Page::of(&master);
    let mut events = page.events("job=letters");
    events.until("part", "<span class=\"state running\">");
    master.change(|jobs| {
        jobs.views.clear();
        jobs.past = vec![past()];
    });
    let head = events.until("part", "This page is from the history.").data;
    assert!(head.contains("href=\"../history/0b5e/rerun\"") && head.contains("state failed"), "{head}");
    // A page that is opened later leads to the page of the history, also while the first page is open.
    for later in [&page, &Page::of(&master)] {
        let answer = later.get("jobs/letters");
        assert_eq!(answer.status, 303, "{}", answer.body);
        assert!(answer.head.contains("location: ../history/0b5e\r\n"), "{}", answer.head);
    }
    // A new job with this name takes the page over.
    master.change(|jobs| jobs.views.push(running("letters")));
    until("the new job has a page", || page.get("jobs/letters").status == 200);
}

#[test]
fn an_action_that_is_wrong_has_no_effect() {
    let master = LiveMaster::start(Jobs { views: vec![elastic(4)], ..Jobs::default() });
    let page = Page::of(&master);
    for (action, form, reason) in [
        ("cancel", "uid=uid-0", "job digits was deleted, and another job has its name now"),
        ("delete", "uid=", "job digits was deleted, and another job has its name now"),
        ("scale", "uid=uid-1&workers=many", "invalid number of workers &#34;many&#34;"),
        ("scale", "uid=uid-1&workers=", "invalid number of workers"),
    ] {
        let answer = page.post(&format!("jobs/digits/{action}"), form);
        assert_eq!(answer.status, 409, "{action} {form}");
        assert!(answer.body.contains(reason), "{}", answer.body);
    }
    assert_eq!(page.post("jobs/digits/cancel", "id=uid-1").status, 404, "a form without the uid");
    assert_eq!(page.post("jobs/digits", "uid=uid-1").status, 404);
    assert_eq!(page.post("", "uid=uid-1").status, 404);
    assert!(master.received().iter().all(|received| received.line.starts_with("GET")), "{:?}", master.received());
}

/// Method, target and headers of a request.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

#[test]
fn requests_that_are_not_from_the_page_get_an_empty_404() {
    let master = with_running_job();
    let page = Page::of(&master);
    drop(page.get(""));
    let before = master.received().len();
    let (host, own) = (("Host", page.host()), format!("http://{}", page.host()));
    let own = ("Origin", own.as_str());
    let (job, cancel) = (format!("/{}/jobs/digits", page.key()), format!("/{}/jobs/digits/cancel", page.key()));
    let other_key = format!("/{}/", page.key().chars().rev().collect::<String>());
    let frame = [host, ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")];
    let form =
        [host, own, ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")];
    let cases: &[Case<'_>] = &[
        ("GET", &job, &[("Host", "evil.example")]),
        ("GET", &job, &[("Host", "127.0.0.1:1")]),
        ("GET", &job, &[]),
        ("GET", &other_key, &[host]),
        ("GET", "/", &[host]),
        ("GET", "/jobs/digits", &[host]),
        ("GET", "/favicon.ico", &[host]),
        ("GET", &job, &[host, ("Sec-Fetch-Site", "cross-site")]),
        ("GET", &job, &[host, ("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Dest", "script")]),
        ("GET", &job, &frame),
        ("GET", &job, &[host, ("Origin", "http://evil.example")]),
        ("HEAD", &job, &[host]),
        ("OPTIONS", &job, &[host, ("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")]),
        ("PUT", &cancel, &[host, own]),
        ("POST", &cancel, &[host]),
        ("POST", &cancel, &[host, ("Origin", "null")]),
        ("POST", &cancel, &[host, ("Origin", "http://evil.example")]),
        ("POST", &cancel, &form),
        ("POST", &cancel, &[("Host", "evil.example"), ("Origin", "http://evil.example")]),
    ];
    for (method, target, headers) in cases {
        let answer = page.ask(method, target, headers, if *method == "POST" { "uid=uid-1" } else { "" });
        assert_eq!((answer.status, answer.body.as_str()), (404, ""), "{method} {target} {headers:?}");
        assert!(!answer.head.contains("access-control-"), "{}", answer.head);
    }
    assert_eq!(master.count("POST"), 0);
    assert!(
        master.received()[before..].iter().all(|received| !received.line.contains("/v1/jobs/")),
        "{:?}",
        master.received()
    );
    let opened =
        [host, ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")];
    assert_eq!(page.ask("GET", &job, &opened, "").status, 200, "the file that opens the page is another site");
}

#[test]
fn every_answer_forbids_the_browser_what_the_page_does_not_need() {
    let page = Page::of(&with_running_job());
    for answer in [page.get(""), page.get("app.js"), page.get("jobs/digits"), page.get("nothing")] {
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
            "referrer-policy: same-origin",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
        ] {
            assert!(answer.head.contains(header), "no {header} in {}", answer.head);
        }
    }
    let script = page.get("app.js").body;
    assert!(script.lines().count() <= 100, "{} lines", script.lines().count());
}

#[test]
fn the_token_and_the_key_stay_where_they_belong() {
    let master = with_running_job();
    let page = Page::of(&master);
    let target = format!("/{}/jobs/digits", page.key());
    let browser = [
        ("Host", page.host()),
        ("Cookie", "session=1"),
        ("User-Agent", "Mozilla/5.0"),
        ("X-Custom", "yes"),
        ("Referer", "http://127.0.0.1/x"),
    ];
    let shown = page.ask("GET", &target, &browser, "");
    let mut texts = vec![shown.head, shown.body];
    for path in ["", "jobs/digits/logs/all", "jobs/digits/cancel", "jobs/digits/tf-config/worker-0", "jobs/letters"] {
        let answer = page.get(path);
        texts.extend([answer.head, answer.body]);
    }
    let mut events = page.events("job=digits");
    texts.push(events.until("part", "run\n").data);
    texts.push(events.until_line("one").data);
    for text in texts {
        assert!(!text.contains(TOKEN) && !text.contains(page.key()), "{text}");
    }
    for received in master.received() {
        let sent = format!("{received:?}");
        assert!(!sent.contains(page.key()), "{sent}");
        let agent = received.headers.get("user-agent").unwrap().to_str().unwrap();
        assert!(agent.starts_with("muster-client/"), "{agent}");
        assert!(
            ["cookie", "x-custom", "referer", "origin"].iter().all(|name| !received.headers.contains_key(*name)),
            "{sent}"
        );
    }
}

/// Texts that could act as HTML, as sequences of a terminal, or as a direction of text.
fn payloads() -> Vec<String> {
    let marks = [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\"><svg onload=alert(1)>",
        "'><b>",
        "</pre></section></main>",
        "<!--",
        "]]>",
        "&lt;i&gt;",
        "{{ base }}",
        "javascript:alert(1)",
    ];
    let controls =
        ["", "\u{0}", "\u{1b}[31m", "\u{1b}]0;title\u{7}", "\u{202e}", "\u{2066}", "\r", "\n", "\u{9b}2J", "\u{fffd}"];
    let frames = ["", "a", "\n\ndata: x", "\u{85}", "ü"];
    let of = |mark: &str| {
        controls
            .iter()
            .flat_map(|control| frames.map(|frame| format!("{frame}{control}{mark}{control}")))
            .collect::<Vec<_>>()
    };
    marks.iter().flat_map(|mark| of(mark)).collect()
}

#[test]
fn five_hundred_hostile_texts_reach_the_page_only_as_text() {
    let payloads = payloads();
    assert_eq!(payloads.len(), 500);
    let mut view = elastic(500);
    let mut reports = series(500);
    let mut lines = Vec::new();
    for (index, text) in payloads.iter().enumerate() {
        let replica = &mut view.replicas_mut()[index];
        (replica.state, replica.reason) = (ReplicaState::Lost, Some(text.clone()));
        lines.push(line(&format!("worker-{index}"), 9, text));
        if index < 4 {
            reports["replicas"][0]["points"][0]["progress"]["values"][text.replace(char::is_control, "")] = json!(1.0);
            reports["replicas"][0]["points"][1]["progress"]["values"][text.replace(char::is_control, "")] = json!(2.0);
        }
    }
    let failure = Failure::ReplicaLost {
        replica: "worker-3".parse().unwrap(),
        reason: payloads.concat(),
        loss: Default::default(),
    };
    let start = FailedStart::new(view.generation, UnixMillis(5_800), failure);
    view.restarts.failed_starts.push(FailedStart { last_lines: payloads.clone(), ..start });
    // A master accepts no NUL in an argument.
    view.spec_mut().args = payloads.iter().map(|text| text.replace('\0', "")).collect();
    view.queued_behind = Some("digits".parse().unwrap());
    let page =
        Page::of(&LiveMaster::start(Jobs { views: vec![view], lines, series: Some(reports), ..Jobs::default() }));

    let mut texts: Vec<String> =
        (0..5).map(|from| page.get(&format!("jobs/digits?from={}", from * 100)).body).collect();
    for path in [
        "jobs/digits/logs/all",
        "jobs/digits/logs/all?q=%3Cscript%3E%22%3Eonload",
        "jobs/digits/logs/worker-3",
        "?q=%3Cscript%3E%22",
        "jobs/digits/tf-config/worker-1",
    ] {
        texts.push(page.get(path).body);
    }
    let mut events = page.events("job=digits");
    for id in ["head\n", "why\n", "replicas\n", "timeline\n", "run\n"] {
        texts.push(events.until("part", id).data);
    }
    let lines = events.until_line("worker-499").data;
    for text in &texts {
        let is_safe = |letter: char| {
            letter == '\n'
                || !letter.is_control() && !matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(text.chars().all(is_safe), "{:?}", text.chars().find(|letter| !is_safe(*letter)));
        for part in ["<script>", "<img", "<svg onload", "'><b>", "</pre></section></main>", "<!--", "\"><svg"] {
            assert!(!text.contains(part), "{part} is not escaped in\n{text}");
        }
    }
    assert!(texts[0].contains("&#60;script&#62;alert(1)"), "{}", texts[0]);
    let texts: Vec<Value> = serde_json::from_str(&lines).unwrap();
    assert_eq!(texts.len(), 500);
    assert!(!lines.contains("\\u0") && !lines.contains('\u{202e}'), "{lines}");
}

#[test]
fn a_page_of_500_replicas_is_small_and_leads_to_the_others() {
    let page =
        Page::of(&LiveMaster::start(Jobs { views: vec![elastic(500)], series: Some(series(500)), ..Jobs::default() }));
    let first = page.get("jobs/digits").body;
    assert!(first.len() <= 150_000, "{} bytes", first.len());
    assert!(
        first.contains(">worker-99<") && !first.contains(">worker-100<") && first.contains("digits?from=100#replicas")
    );
    let last = page.get("jobs/digits?from=400").body;
    assert!(last.contains(">worker-499<") && last.contains("401 to 500 of 500") && !last.contains(">Later<"));
    let beyond = page.get("jobs/digits?from=18446744073709551615").body;
    assert!(beyond.contains("1 to 100 of 500"), "a page beyond the end is the first one");
}

#[test]
fn two_hundred_tabs_of_one_job_cause_the_requests_of_one() {
    let master = with_running_job();
    let page = Page::of(&master);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", page.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    drop(page.get("jobs/digits"));
    let before = memory();
    // A tab that never reads must not delay the others.
    let host = page.host().to_owned();
    let stopped = page.send("GET", &format!("/{}/events?job=digits", page.key()), &[("Host", &host)], "");
    let mut tabs: Vec<_> = (0..200).map(|_| page.events("job=digits")).collect();
    for tab in &mut tabs {
        tab.until("part", "head\n");
    }
    for number in 0..300 {
        master.change(|jobs| jobs.lines.push(line("worker-0", 100 + number, &"x".repeat(1000))));
    }
    master.change(|jobs| jobs.views[0].state = JobState::Stopping);
    for tab in &mut tabs {
        tab.until("part", "state stopping");
    }
    let grown = memory().saturating_sub(before);
    assert!(grown <= 30 * 1024, "{grown} KiB for 200 tabs");
    assert_eq!(master.count("GET /v1/jobs/digits/logs?follow=true"), 1, "{:?}", master.received());
    let changes = 301;
    assert!(master.count("GET /v1/jobs/digits?after") <= changes, "one long poll at a time");
    drop(stopped);
}

#[test]
fn connections_that_send_nothing_do_not_keep_the_user_out() {
    let page = Page::of(&with_running_job());
    let silent: Vec<_> = (0..520).map(|_| TcpStream::connect(page.host()).unwrap()).collect();
    assert_eq!(page.get("jobs/digits").status, 200);
    drop(silent);
}

#[test]
fn jobs_beyond_the_fourth_are_asked_by_short_requests() {
    let views = ["a", "b", "c", "d", "e"].map(running).to_vec();
    let master =
        LiveMaster::start(Jobs { views, lines: vec![line("worker-0", 4, "one")], series: None, ..Jobs::default() });
    let page = Page::of(&master);
    let mut tabs = ["a", "b", "c", "d", "e"].map(|name| page.events(&format!("job={name}")));
    for tab in &mut tabs {
        tab.until_line("one");
    }
    until("four jobs are followed", || master.count("GET /v1/jobs/d/logs?follow=true") == 1);
    assert_eq!(master.count("GET /v1/jobs/e/logs?follow=true"), 0);
    master.change(|jobs| {
        jobs.views[4].state = JobState::Stopping;
        jobs.lines.push(line("worker-0", 8, "two"));
    });
    tabs[4].until("part", "state stopping");
    let two = tabs[4].until_line("two").data;
    assert!(!two.contains("one"), "lines are sent twice: {two}");
}

#[test]
fn a_browser_gets_a_private_file_instead_of_the_address() {
    let master = with_running_job();
    let folder = folder_with_script();
    let opener = folder.path().join("xdg-open");
    fs::write(&opener, "#!/bin/sh\nprintf '%s\\n' \"$@\" > opened.part\nmv opened.part opened\n").unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), "/usr/bin:/bin");
    let mut command = client(folder.path());
    command.args(["ui", "--master", &master.url]).env("MUSTER_TOKEN", TOKEN).env("PATH", path).env("DISPLAY", ":99");
    let mut child = command.spawn().unwrap();
    let address = printed(&mut child, 1).trim().to_owned();
    let opened = folder.path().join("opened");
    until("the file is opened", || opened.exists());
    let argument = fs::read_to_string(opened).unwrap();
    let file = std::path::Path::new(argument.trim());
    assert!(file.starts_with(folder.path().join("runtime").canonicalize().unwrap()), "{argument}");
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(file).unwrap().contains(&format!("content=\"0; url={address}\"")));
    drop(interrupt(child, Signal::INT));
    assert!(!file.exists(), "the file stays after the page has ended");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let master = with_running_job();
    let page = Page::of(&master);
    let port = page.host().split(':').nth(1).unwrap();
    let folder = folder_with_script();
    let ended = finish(
        client(folder.path()).args(["ui", "--no-open", "--port", port, "--master", &master.url]).spawn().unwrap(),
    );
    ended.expect_code(2).expect_stderr(&format!("listen on 127.0.0.1:{port}")).expect_stderr("choose another --port");
}

#[test]
fn without_a_local_master_the_page_waits_for_one() {
    let folder = folder_with_script();
    let history = history::History::at(folder.path().join("state/muster/history"));
    let child = client(folder.path()).args(["ui", "--no-open"]).spawn().unwrap();
    let page = Page::started(child, folder);
    assert!(page.get("").body.contains("There are no jobs yet."));
    let job = page.get("jobs/digits").body;
    assert!(job.contains("no local master runs job digits"), "{job}");
    // A job that a local master has run is in the history of the user.
    history.keep(&past()).unwrap();
    let answer = page.get("jobs/letters");
    assert!(answer.status == 303 && answer.head.contains("location: ../history/0b5e\r\n"), "{}", answer.head);
}
