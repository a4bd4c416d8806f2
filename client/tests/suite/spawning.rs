//! Command lines of tf-spawner: the choice of the master, the submitted job, and the question that `-d` asks.

use protocol::master::BackendKind;
use protocol::origin::Origin;
use protocol::view::JobView;
use serde_json::json;
use std::fs;

use crate::support::fake_master::{FakeMaster, Script, something_else};
use crate::support::terminal::Terminal;
use crate::support::views::pending;
use crate::support::{client, finish};

const NOT_FOUND: &str = r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
    "reason": "NotFound", "code": 404, "message": "not found"}"#;

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The job of the training with tag Run_1.
fn run_1() -> JobView {
    let mut view = pending("run-1");
    view.spec_mut().origin = Some(Origin::Spawner { attempt: "Run_1".to_owned() });
    view
}

fn master() -> FakeMaster {
    let backend = Some(BackendKind::Kubernetes);
    FakeMaster::start(Script { views: vec![run_1()], backend, ..Script::default() })
}

#[test]
fn without_an_address_the_master_is_in_the_namespace_of_the_flag_else_of_the_context_else_in_default() {
    let folder = folder(&[("train.py", "")]);
    let refused_in = |context: &serde_json::Value, more: &[&str], namespace: &str| {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "dev",
            "clusters": [{ "name": "c", "cluster": { "server": something_else(404, NOT_FOUND) } }],
            "contexts": [{ "name": "dev", "context": context }],
            "users": [{ "name": "u", "user": {} }],
        });
        fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let mut client = client(folder.path());
        client.args([&["spawn", "train.py"], more].concat()).env("KUBECONFIG", folder.path().join("kubeconfig"));
        let ended = finish(client.spawn().unwrap());
        ended.expect_stderr(&format!("there is no Secret muster in namespace {namespace}, so"));
    };
    let of_vision = json!({ "cluster": "c", "user": "u", "namespace": "vision" });
    refused_in(&of_vision, &[], "vision");
    refused_in(&of_vision, &["-n", "speech"], "speech");
    refused_in(&of_vision, &["-n", "speech", "--master", "kube:text"], "speech");
    refused_in(&json!({ "cluster": "c", "user": "u" }), &[], "default");
}

#[test]
fn the_pod_file_of_the_folder_is_used_and_variables_that_look_secret_get_a_hint() {
    let pod = "kind: Pod\nspec: { containers: [{ name: main, image: \"mnist:2\", env: }] }\n";
    let folder = folder(&[("train.py", ""), ("pod.yaml", pod), ("env", "S3_SECRET_KEY=x\nS3_USER=y\nLD_PRELOAD=/z\n")]);
    let master = master();
    let ended = master.run_in(folder.path(), &["spawn", "-t", "Run_1", "-e", "env", "train.py"]).expect_code(0);
    assert_eq!(ended.stdout, "generated with label training_attempt=Run_1\nrun-1-worker-0\nrun-1-worker-1\n");
    let hint =
        "everybody who may see the job can read S3_SECRET_KEY: put this variable into a Secret, and name the Secret";
    let ended = ended.expect_stderr(hint).expect_stderr("LD_PRELOAD can make programs run other code before");
    assert!(!ended.stderr.contains("S3_USER"), "{}", ended.stderr);
    let submitted = master.submitted();
    assert_eq!(submitted["groups"][0]["template"]["container"], "main");
    assert_eq!(
        (&submitted["name"], &submitted["worker_num"], &submitted["image"]),
        (&json!("run-1"), &json!(2), &json!(null))
    );
}

#[test]
fn a_missing_script_has_a_hint_with_a_command_for_the_same_master() {
    let master = master();
    let ended = master.run(&["spawn"]).expect_code(2);
    ended.expect_stderr(&format!("for example client spawn -w 3 train.py --master {};", master.url));
}

#[test]
fn a_script_that_does_not_parse_is_refused_unless_the_check_is_turned_off() {
    let folder = folder(&[("train.py", "print(\n"), ("train", "print(\n")]);
    let spawned = |more: &[&str]| {
        let master = master();
        (master.run_in(folder.path(), &[&["spawn", "-t", "Run_1"], more].concat()), master)
    };
    let (refused, master) = spawned(&["train.py"]);
    let refused =
        refused.expect_code(2).expect_stderr("error: the script does not parse: ").expect_stderr("(train.py, line 1)");
    refused.expect_stderr("--no-syntax-check");
    assert_eq!(master.asked(), ["GET /v1/master"]);
    for unchecked in [&["train.py", "--no-syntax-check"][..], &["train"]] {
        spawned(unchecked).0.expect_code(0);
    }
}

#[test]
fn a_tag_that_is_taken_is_refused_with_the_command_that_deletes_the_training() {
    let folder = folder(&[("train.py", "")]);
    let script =
        Script { views: vec![run_1()], before: true, backend: Some(BackendKind::Kubernetes), ..Script::default() };
    let master = FakeMaster::start(script);
    let ended = master.run_in(folder.path(), &["spawn", "-t", "Run_1", "train.py"]).expect_code(2);
    let ended = ended.expect_stderr("error: a training with tag Run_1 exists, as job run-1");
    ended.expect_stderr("hint: use another tag: -t TAG or -r; or delete the training: client spawn -d Run_1 ");
    let other = master.run_in(folder.path(), &["spawn", "-t", "run-1", "train.py"]).expect_code(2);
    other.expect_stderr("error: tag run-1 makes the job's name run-1, and another job has this name");
}

#[test]
fn a_training_whose_first_submit_was_accepted_without_an_answer_is_started() {
    let folder = folder(&[("train.py", "")]);
    let script = Script { views: vec![run_1()], lost: vec!["POST /v1/jobs"], ..Script::default() };
    let master = FakeMaster::start(script);
    let ended = master.run_in(folder.path(), &["spawn", "-t", "Run_1", "train.py"]).expect_code(0);
    assert_eq!(ended.stdout, "generated with label training_attempt=Run_1\nrun-1-worker-0\nrun-1-worker-1\n");
    ended.expect_stderr("the gateway timed out; retrying\n");
}

#[test]
fn only_y_at_the_terminal_deletes_a_training() {
    for (typed, is_deleted) in [("yes\n", false), ("\n", false), ("y\n", true)] {
        let (folder, master) = (folder(&[]), master());
        let (terminal, child) = Terminal::start(&mut master.client(folder.path(), &["spawn", "-d", "Run_1"]));
        terminal.until_shown("delete the training with tag Run_1, job run-1? y/[n]");
        terminal.type_in(typed.as_bytes());
        finish(child).expect_code(0);
        assert_eq!(master.was_asked("DELETE /v1/jobs/run-1?"), is_deleted, "{typed:?}: {}", terminal.screen());
    }
}
