//! Tests that the client refuses bad input with exit code 2.

use std::fs;

use e2e::{Finished, Scene};

#[test]
fn bad_arguments_are_refused_and_no_script_starts() {
    let scene = Scene::new("open('started', 'w').close()");
    for (args, named) in [
        (&["--worker-num", "0"][..], "worker-num"),
        (&["--env", "A\nB=1"], "A\\nB"),
        (&["--detach"], "local"),
        (&["install", "-n", "Team"], "is not the name of a namespace"),
    ] {
        let run = scene.run(args).code(2).says(&["error: ", named]);
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
            Finished::of(client.env("KUBECONFIG", scene.path().join(file))).code(2).says(&[named, "hint: "]);
        }
    }
}

#[test]
fn the_error_names_a_folder_that_has_no_exec_py() {
    let scene = Scene::new("");
    fs::remove_file(scene.path().join("exec.py")).expect("cannot remove exec.py");
    scene.run(&[]).code(2).says(&["no exec.py in", "hint: "]);
}

#[test]
fn the_error_names_the_line_at_which_a_script_does_not_parse() {
    let scene = Scene::new("print('fine')\nx = (\n");
    let run = scene.run(&["--worker-num", "2"]).code(2).says(&["the script does not parse: ", "line 2"]);
    scene.assert_empty();
    assert_eq!(run.stdout, "");
}

#[test]
fn the_error_says_that_python_cannot_be_started() {
    let scene = Scene::new("print('fine')");
    Finished::of(scene.client(&[]).env("PATH", scene.path())).code(2).says(&["cannot start python or python3"]);
    scene.assert_empty();
}

#[test]
fn a_variable_with_a_nul_byte_is_refused_and_so_are_too_long_arguments() {
    let scene = Scene::new("open('started', 'w').close()");
    fs::write(scene.path().join("nul.env"), "A=x\0y\n").expect("cannot write the file");
    scene.run(&["--env-file", "nul.env"]).code(2).says(&["NUL"]);
    let long = "x".repeat(131_000);
    scene.run(&["--", &long, &long, &long, &long, &long]).code(2).says(&["put large input into a file"]);
    assert!(!scene.path().join("started").exists(), "a script ran");
}

#[test]
fn a_used_name_is_refused_and_its_job_stays_unchanged() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "1"]).code(0);
    let other = scene.run(&["--master", &master.url, "--task", "mine", "--worker-num", "2"]).code(2);
    other.says(&["another job is named \"mine\""]);
    let view = scene.run(&["--master", &master.url, "status", "mine", "-o", "json"]).code(0).view();
    assert_eq!(view.spec.worker_num, 1);
}
