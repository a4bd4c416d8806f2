//! Tests that the client refuses bad input with exit code 2, and reports a missing master with exit code 3.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use e2e::{Finished, Scene};

/// Arguments that the client refuses, and a text that stderr must contain.
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
    (&["--task", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"], "use 1 to 55"),
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
    (&["--master", "kube:/team"], "the context is empty"),
    (&["--master", "kube:Team"], "is not the name of a namespace"),
    (&["install", "-n", "Team"], "is not the name of a namespace"),
];

#[test]
fn bad_arguments_are_refused_with_the_expected_error_and_no_script_starts() {
    let scene = Scene::new("open('started', 'w').close()");
    for (args, named) in REFUSED {
        let run = scene.run(args).code(2);
        assert!(run.stderr.contains(named), "{args:?}: no {named:?} on stderr:\n{}", run.stderr);
        assert!(run.stderr.contains("error: "), "{args:?}: no error on stderr:\n{}", run.stderr);
        assert_eq!(run.stdout, "", "unexpected output on stdout with {args:?}");
        scene.assert_empty();
    }
    assert!(!scene.path().join("started").exists(), "a script ran");
}

#[test]
fn the_error_names_a_missing_kubeconfig_or_context() {
    let scene = Scene::new("");
    fs::write(scene.path().join("empty"), "").expect("cannot write the file");
    for (file, master, named) in [
        ("absent", "kube", "there is no usable kubeconfig"),
        ("empty", "kube", "failed to determine current context"),
        ("empty", "kube:dev/team", "the kubeconfig has no context \"dev\""),
    ] {
        for verb in ["list", "install", "uninstall"] {
            let mut client = scene.client(&[verb, "--master", master]);
            let run = Finished::of(client.env("KUBECONFIG", scene.path().join(file))).code(2);
            assert!(run.stderr.contains(named) && run.stderr.contains("hint: "), "{}", run.stderr);
        }
    }
}

#[test]
fn the_error_names_a_folder_that_has_no_exec_py() {
    let scene = Scene::new("");
    fs::remove_file(scene.path().join("exec.py")).expect("cannot remove exec.py");
    let run = scene.run(&[]).code(2);
    assert!(run.stderr.contains("no exec.py in") && run.stderr.contains("hint: "), "{}", run.stderr);
}

#[test]
fn the_error_names_the_line_at_which_a_script_does_not_parse() {
    let scene = Scene::new("print('fine')\nx = (\n");
    let run = scene.run(&["--worker-num", "2"]).code(2);
    scene.assert_empty();
    assert!(run.stderr.contains("the script does not parse: ") && run.stderr.contains("line 2"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

#[test]
fn the_error_says_that_python_cannot_be_started() {
    let scene = Scene::new("print('fine')");
    let run = Finished::of(scene.client(&[]).env("PATH", scene.path())).code(2);
    scene.assert_empty();
    assert!(run.stderr.contains("cannot start python or python3"), "{}", run.stderr);
}

#[test]
fn the_exit_code_is_3_if_no_master_listens_or_the_server_is_no_master() {
    let scene = Scene::new("print('fine')");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("no free port");
    let url = format!("http://{closed}");
    let run = scene.run(&["--master", &url, "list"]).code(3);
    assert!(run.stderr.contains(&url), "{}", run.stderr);

    let other = TcpListener::bind("127.0.0.1:0").expect("no free port");
    let url = format!("http://{}", other.local_addr().expect("the socket has no address"));
    let answers = thread::spawn(move || {
        let (caller, _) = other.accept().expect("the client has not connected");
        let mut asked = String::new();
        BufReader::new(&caller).read_line(&mut asked).expect("the client has sent no request");
        (&caller).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").expect("cannot answer the client");
    });
    let run = scene.run(&["--master", &url, "list"]).code(3);
    assert!(run.stderr.contains("not as a Muster master"), "{}", run.stderr);
    answers.join().expect("the server has panicked");
}

#[test]
fn a_variable_with_a_nul_byte_is_refused_and_so_are_too_long_arguments() {
    let scene = Scene::new("open('started', 'w').close()");
    fs::write(scene.path().join("nul.env"), "A=x\0y\n").expect("cannot write the file");
    let run = scene.run(&["--env-file", "nul.env"]).code(2);
    assert!(run.stderr.contains("NUL"), "{}", run.stderr);
    let long = "x".repeat(131_000);
    let run = scene.run(&["--", &long, &long, &long, &long, &long]).code(2);
    assert!(run.stderr.contains("put large input into a file"), "{}", run.stderr);
    assert!(!scene.path().join("started").exists(), "a script ran");
}

#[test]
fn a_used_name_is_refused_and_its_job_stays_unchanged() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "1"]).code(0);
    let run = scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "2"]).code(2);
    assert!(run.stderr.contains("another job is named \"mine\""), "{}", run.stderr);
    let view = scene.run(&["--master", &master.url, "status", "mine", "-o", "json"]).code(0).view();
    assert_eq!(view.spec.worker_num, 1);
}
