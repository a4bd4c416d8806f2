//! Tests of jobs that are no longer on record: `list --all`, `status`, `why` and `timeline` show them.

use serde_json::json;

use crate::support::{folder_with_script, run};

/// A folder with the history of a user, which contains one failed job and a damaged file.
fn user_with_history() -> tempfile::TempDir {
    let folder = folder_with_script();
    let spec = json!({
        "name": "letters", "strategy": "AllReduce",
        "worker_num": 1, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
    });
    let failure = json!({"cause": "deadline_exceeded", "after_seconds": 7});
    let view = json!({
        "name": "letters", "uid": "0b5e", "seq": 1, "state": "failed", "spec": spec, "replicas": [],
        "result": {"outcome": "failed", "failure": failure}, "times": {"accepted": 1000, "ended": 9000},
    });
    let timeline = json!({
        "name": "letters", "uid": "0b5e", "state": "failed", "now": 9000, "accepted": 1000, "ended": 9000, "starts": [],
        "replicas": [], "spent": {"gathering_ms": 8000},
    });
    let past = json!({"view": view, "timeline": timeline, "series": {"replicas": []}, "last_output": "Traceback\nValueError: no\n"});
    let history = history::History::at(folder.path().join("state/muster/history"));
    history.keep(&serde_json::from_value(past).unwrap()).unwrap();
    std::fs::write(folder.path().join("state/muster/history/0000000000001-digits.1.json"), "{}").unwrap();
    folder
}

#[test]
fn a_job_of_an_earlier_local_master_is_shown_from_the_history_of_its_user() {
    let folder = user_with_history();
    let run = |arguments: &[&str]| run(folder.path(), arguments);
    let listed = run(&["list", "--all", "--state", "failed"]).expect_code(0);
    assert!(listed.stdout.lines().nth(1).is_some_and(|row| row.starts_with("letters ")), "{}", listed.stdout);
    listed.expect_stderr("skipped a file of the history: 0000000000001-digits.1.json can be read or changed");
    run(&["list", "--all", "--state", "running"]).expect_code(0);
    for (verb, part) in [
        ("status", "state       failed"),
        ("why", "job letters failed: the job exceeded its deadline of 7 s"),
        ("timeline", "job letters: failed 8.0 s after the submit"),
    ] {
        let shown = run(&[verb, "letters"]).expect_code(0);
        assert!(shown.stdout.contains(part), "{verb}: {}", shown.stdout);
        shown.expect_stderr("job letters is no longer on record; this is from the history");
        run(&[verb, "digits"]).expect_code(2).expect_stderr("you have no running local master");
    }
}

#[test]
fn a_list_without_running_jobs_is_empty_and_counts_the_jobs_that_have_ended() {
    for master in [&[][..], &["--master", "local"]] {
        let folder = user_with_history();
        let run = |arguments: &[&str]| run(folder.path(), &[arguments, master].concat());
        let listed = run(&["list"]).expect_code(0);
        assert_eq!(listed.stdout, "NAME  STRATEGY  STATE  REPLICAS  TIME  RESULT\n");
        listed.expect_stderr("no job runs; client list --all").expect_stderr(" shows 1 that has ended");
        assert_eq!(run(&["list", "-o", "json"]).expect_code(0).stdout, "{\n  \"jobs\": []\n}\n");
        assert_eq!(run(&["top"]).expect_code(0).stdout, "no job runs\n");
    }
}

#[test]
fn verbs_find_a_local_job_that_has_ended_in_the_history() {
    let folder = user_with_history();
    let run = |arguments: &[&str]| run(folder.path(), arguments);
    run(&["wait", "letters"]).expect_code(1).expect_stderr("job letters failed after 8.0 s: the job exceeded");
    let waited = run(&["wait", "letters", "-o", "json"]).expect_code(1);
    assert!(waited.stdout.contains("\"state\": \"failed\""), "{}", waited.stdout);
    run(&["cancel", "letters"]).expect_code(0).expect_stderr("job letters has already ended (failed)");
    let logs = run(&["logs", "letters"]).expect_code(0).expect_stderr("the history keeps the end of its output");
    assert_eq!(logs.stdout, "Traceback\nValueError: no\n");
    assert!(run(&["top", "letters"]).expect_code(0).stdout.starts_with("letters is failed\n"));
    for verb in ["stacks", "suspend", "delete"] {
        let refused = run(&[verb, "letters"]).expect_code(2);
        refused.expect_stderr("error: job letters has ended (failed)").expect_stderr("hint: client why letters");
    }
    for verb in ["stacks", "wait", "logs", "cancel", "top"] {
        run(&[verb, "digits"]).expect_code(2).expect_stderr("no master is given");
    }
}
