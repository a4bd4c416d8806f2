//! The exception that ended a job is its headline, wherever the job is shown.

use std::sync::{Arc, Mutex};

use protocol::view::{JobResult, JobView};
use serde_json::{Value, json};

use crate::support::fake_master::FakeMaster;
use crate::support::live_master::{Jobs, LiveMaster};
use crate::support::page::Page;
use crate::support::serve_aside;
use crate::support::views::{decided, failed, running};

const HEADLINE: &str =
    "worker-1: AttributeError: module 'keras.callbacks' has no attribute 'experimental' (mnist.py:73)";

/// The job digits, whose script has failed with an exception of a library.
fn with_exception() -> JobView {
    let exception = "AttributeError: module 'keras.callbacks' has no attribute 'experimental'";
    let stderr = format!(
        "I0000 noise\nTraceback (most recent call last):\n  File \"/w/mnist.py\", line 73, in <module>\n{exception}\n"
    );
    let mut view = serde_json::to_value(failed("digits")).unwrap();
    view["result"]["failure"]["exit"]["exception"] = json!(exception);
    view["result"]["failure"]["exit"]["stderr_tail"] = json!(stderr);
    view["restarts"] = json!({"failed_starts": [{"generation": "1.1", "at": 5_800, "failure": view["result"]["failure"], "counted": true}]});
    serde_json::from_value(view).unwrap()
}

/// A server that records the bodies of its requests, and its address.
fn recorder() -> (Arc<Mutex<Vec<Value>>>, String) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    let take = move |axum::Json(body)| async move { kept.lock().unwrap().push(body) };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let routes = axum::Router::new().route("/hook", axum::routing::post(take));
    serve_aside(|| tokio::net::TcpListener::from_std(listener).unwrap(), routes);
    (bodies, url)
}

#[test]
fn the_exception_leads_in_exit_sentence_list_status_why_notification_and_page() {
    let master = FakeMaster::with(vec![running("digits"), with_exception()]);
    let (bodies, url) = recorder();
    let waited = master.run(&["wait", "digits", "--notify", &url]).expect_code(1);
    waited.expect_stderr(&format!("job digits failed after 4.8 s: {HEADLINE} (pods 1.8 s"));
    let bodies = bodies.lock().unwrap().clone();
    assert!(bodies[0]["text"].as_str().unwrap().contains(&format!("failed after 4.8 s: {HEADLINE}")), "{bodies:?}");

    let listed = FakeMaster::with(vec![with_exception()]).run(&["list"]).expect_code(0).stdout;
    assert!(listed.trim_end().ends_with(HEADLINE), "{listed}");
    let status = master.run(&["status", "digits"]).expect_code(0).stdout;
    assert!(status.contains(&format!("\nresult      {HEADLINE}\n")), "{status}");
    let why = master.run(&["why", "digits"]).expect_code(0).stdout;
    assert_eq!(why.lines().next().unwrap(), format!("job digits failed: {HEADLINE}"));
    assert!(why.contains("\nhow            worker-1 exited with code 3\n"), "{why}");

    let page = Page::of(&LiveMaster::start(Jobs { views: vec![with_exception()], ..Jobs::default() }));
    for path in ["", "jobs/digits"] {
        let body = page.get(path).body.replace("&#39;", "'");
        assert!(body.contains(HEADLINE), "{path}: {body}");
    }
}

#[test]
fn a_notification_of_the_end_has_the_state_of_the_result() {
    let result = with_exception().result.unwrap();
    for (result, state) in [(result, "failed"), (JobResult::Succeeded, "succeeded")] {
        let (bodies, url) = recorder();
        let master = FakeMaster::with(vec![running("digits"), decided("digits", result)]);
        master.run(&["wait", "digits", "--notify", &url]);
        let bodies = bodies.lock().unwrap().clone();
        assert_eq!(bodies.last().unwrap()["state"], state, "{bodies:?}");
    }
}
