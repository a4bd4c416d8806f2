//! What is wrong is said before anything is started: exit code 2, a sentence that names it, and nothing left behind.

use std::fs;
use std::net::TcpListener;

use e2e::{Finished, Scene};

/// Arguments, and what stderr must name.
const REFUSED: &[(&[&str], &str)] = &[
    (&["--worker-num", "0"], "worker-num"),
    (&["--worker-num", "-1"], "--worker-num"),
    (&["--worker-num", "3.5"], "--worker-num"),
    (&["--worker-num", "100000"], "at most"),
    (&["--strategy", "ParameterServer", "--ps-num", "0"], "ps-num"),
    (&["--strategy", "AllReduce", "--ps-num", "1"], "AllReduce"),
    (&["--strategy", "Gossip"], "Gossip"),
    (&["--task", "Digits"], "Digits"),
    (&["--task", "a.b"], "a.b"),
    (&["--task", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"], "40"),
    (&["--env", "A B=1"], "A B"),
    (&["--env", "A\nB=1"], "A\\nB"),
    (&["--env", "=1"], "environment name"),
    (&["--env", "RANK=7"], "RANK"),
    (&["--env", "SURELY_NOT_SET_ANYWHERE"], "SURELY_NOT_SET_ANYWHERE"),
    (&["--env-file", "absent.env"], "absent.env"),
    (&["--chief-num", "2"], "chief-num"),
    (&["--evaluator-num", "2"], "evaluator-num"),
    (&["--detach"], "local"),
    (&["--no-such-flag"], "--no-such-flag"),
    (&["--master", "ftp://somewhere"], "ftp"),
];

#[test]
fn each_wrong_word_is_refused_by_name_and_starts_nothing() {
    let scene = Scene::new("open('started', 'w').close()");
    for (args, named) in REFUSED {
        let run = scene.run(args).code(2);
        assert!(run.stderr.contains(named), "{args:?} must name {named:?}:\n{}", run.stderr);
        assert!(run.stderr.contains("error: "), "{args:?}:\n{}", run.stderr);
        assert_eq!(run.stdout, "", "{args:?}");
        scene.assert_empty();
    }
    assert!(!scene.path().join("started").exists(), "nothing was run");
}

#[test]
fn a_folder_without_exec_py_is_named() {
    let scene = Scene::new("");
    fs::remove_file(scene.path().join("exec.py")).expect("it was there");
    let run = scene.run(&[]).code(2);
    assert!(run.stderr.contains("no exec.py in") && run.stderr.contains("hint: "), "{}", run.stderr);
}

#[test]
fn a_script_that_does_not_parse_is_refused_with_its_line() {
    let scene = Scene::new("print('fine')\nx = (\n");
    let run = scene.run(&["--worker-num", "2"]).code(2);
    scene.assert_empty();
    assert!(run.stderr.contains("SyntaxError") && run.stderr.contains("line 2"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

#[test]
fn a_host_without_python_is_told_so() {
    let scene = Scene::new("print('fine')");
    let run = scene.client(&[]).env("PATH", scene.path()).output().map(Finished::from).expect("it starts").code(2);
    scene.assert_empty();
    assert!(run.stderr.contains("python"), "{}", run.stderr);
}

#[test]
fn a_master_that_is_not_there_or_is_something_else_is_exit_code_3() {
    let scene = Scene::new("print('fine')");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let url = format!("http://{closed}");
    let run = scene.run(&["--master", &url, "list"]).code(3);
    assert!(run.stderr.contains(&url), "{}", run.stderr);
}

#[test]
fn a_taken_name_is_refused_and_the_job_that_has_it_is_not_touched() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "1"]).code(0);
    let run = scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "2"]).code(2);
    assert!(run.stderr.contains("another job is named \"mine\""), "{}", run.stderr);
    let again = scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "1"]).code(0);
    assert!(again.stderr.contains("job mine was submitted before"), "{}", again.stderr);
    let view = scene.run(&["--master", &master.url, "status", "mine", "-o", "json"]).code(0).view();
    assert_eq!(view.spec.worker_num, 1);
}
