//! Tests of `client spawn`, which runs trainings of tf-spawner, without a cluster.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use e2e::programs::built;
use e2e::{Finished, Scene};

#[test]
fn a_training_of_tf_spawner_runs_on_this_machine() {
    let scene = Scene::new("");
    let commands = "echo prepared\npython /script/training-script.py\n";
    let script = "import os; print(os.environ['WORKER_NUMBER'], os.environ['TOT_WORKERS'], os.environ['KEY'])";
    for (name, text) in [("train.py", script), ("env", "KEY=a b\n"), ("entrypoint.sh", commands)] {
        fs::write(scene.path().join(name), text).expect("cannot write the file");
    }
    let line = ["spawn", "--master", "local", "-e", "env", "-c", "entrypoint.sh", "train.py"];
    let run = scene.run(&line).code(0);
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["worker-0 │ 0 2 a b", "worker-0 │ prepared", "worker-1 │ 1 2 a b", "worker-1 │ prepared"]);
    scene.assert_empty();
}

#[test]
fn a_bad_command_line_of_tf_spawner_is_refused_and_the_error_names_the_fault() {
    let scene = Scene::new("");
    let tf_spawner = scene.path().join("tf-spawner");
    symlink(built("client"), &tf_spawner).expect("cannot create a link");
    fs::write(scene.path().join("a.py"), "").expect("cannot write the file");
    let at = "--master=http://127.0.0.1:1";
    for (words, sentence) in [
        (vec![], "no script is given"),
        (vec!["no-such.py", at], "read no-such.py"),
        (vec!["-c", "no-such.sh", "a.py", at], "read no-such.sh"),
        (vec!["--pod-file", "no-such.yaml", "a.py", at], "read no-such.yaml"),
        (vec!["-n", "team", "a.py", at], "-n team cannot be used with the address of a master"),
        (vec!["-t", "a b", "a.py", at], "tag \"a b\" cannot be a label"),
        (vec!["-d", "run1", at], "there is no terminal: give -y"),
        (vec!["-w", "3", at], "no script is given"),
    ] {
        let mut command = Command::new(&tf_spawner);
        command.args(&words).current_dir(scene.path()).env_remove("MUSTER_MASTER");
        Finished::of(&mut command).code(2).says(&[sentence]);
    }
}
