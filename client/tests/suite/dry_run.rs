//! `--dry-run`, and the check of a job that replaces another job.

use std::fs::File;

use protocol::dry_run::PodsOfKind;
use protocol::error::ErrorCode;
use protocol::master::BackendKind;
use serde_json::json;

use crate::support::fake_master::{FakeMaster, Script, refusal};
use crate::support::views::{running, succeeded};
use crate::support::{Ended, client, finish, folder_with_script, run};

const IMAGE: [&str; 2] = ["--image", "python:3.11-slim"];

fn in_kubernetes(script: Script) -> FakeMaster {
    FakeMaster::start(Script { backend: Some(BackendKind::Kubernetes), views: vec![running("digits")], ..script })
}

#[track_caller]
fn submit(master: &FakeMaster, more: &[&str]) -> Ended {
    let folder = folder_with_script();
    std::fs::write(folder.path().join("train.py"), "print('hello')\n").unwrap();
    master.run_in(folder.path(), &[&["--task", "digits"], more].concat())
}

/// Asserts that the master was asked neither to submit nor to delete a job.
#[track_caller]
fn assert_nothing_changed(master: &FakeMaster) {
    let changes = |request: &&String| request.starts_with("DELETE") || *request == "POST /v1/jobs";
    assert_eq!(master.asked().iter().find(changes), None, "{:?}", master.asked());
}

#[test]
fn the_old_job_stays_if_the_master_refuses_the_job_that_would_replace_it() {
    let of_job = |code, detail| Script { refusal: Some(refusal(422, code, detail)), ..Script::default() };
    let of_pods = |detail| of_job(ErrorCode::BadPod, detail);
    let of_code =
        |status, code, detail| Script { code_refusal: Some(refusal(status, code, detail)), ..Script::default() };
    let old_agent = "the master names no image of the agent";
    for (script, code, sentence) in [
        (of_pods("3 pods do not fit into quota \"team\", which allows 2"), 2, "do not fit into quota"),
        (of_pods("no PriorityClass with name urgent was found"), 2, "no PriorityClass"),
        (of_pods("violates PodSecurity \"restricted:latest\""), 2, "violates PodSecurity"),
        (of_job(ErrorCode::BadCode, old_agent), 2, old_agent),
        (of_code(507, ErrorCode::CodeStoreFull, "no space for code"), 3, "no space for code"),
        (of_code(400, ErrorCode::BadRequest, "the upload ended early"), 2, "the upload ended early"),
    ] {
        let master = in_kubernetes(script);
        let ended = submit(&master, &[&["train.py", "--replace", "-d"], &IMAGE[..]].concat()).expect_code(code);
        ended.expect_stderr(sentence);
        assert_nothing_changed(&master);
    }
}

#[test]
fn a_master_of_another_version_without_dry_runs_neither_creates_nor_deletes_a_job() {
    let master = in_kubernetes(Script { is_old: true, ..Script::default() });
    for last in [&["--dry-run=server"][..], &["--replace", "-d"]] {
        let ended = submit(&master, &[&["train.py", "--image", "x:1"], last].concat()).expect_code(3);
        ended.expect_stderr("use the same version of both");
    }
    assert_nothing_changed(&master);
}

#[test]
fn the_code_of_a_job_that_replaces_another_is_sent_before_the_old_job_is_deleted() {
    let master = FakeMaster::with(vec![succeeded("digits")]);
    submit(&master, &["train.py", "--replace", "-d"]).expect_code(0);
    let asked = master.asked();
    let place =
        |part: &str| asked.iter().position(|request| request.contains(part)).unwrap_or_else(|| panic!("{asked:?}"));
    assert!(place("/blobs") < place("DELETE"), "{asked:?}");
    assert_eq!(asked.iter().filter(|request| request.contains("/v1/dry-runs/")).count(), 2, "{asked:?}");
}

#[test]
fn a_dry_run_of_the_server_prints_one_pod_of_each_kind_and_neither_builds_nor_submits() {
    let kind = |count, name| PodsOfKind { count, first: json!({"kind": "Pod", "metadata": {"name": name}}) };
    let pods = vec![kind(2, "digits-worker-0"), kind(1, "digits-ps-0")];
    let master = in_kubernetes(Script { pods, ..Script::default() });
    let ended = submit(&master, &["--image", "r.example.com/digits:1", "--dry-run=server"]).expect_code(0);
    let workers = "---\n# 2 pods such as this one\nkind: Pod\nmetadata:\n  name: digits-worker-0\n";
    assert_eq!(ended.stdout, format!("{workers}---\n# 1 pod\nkind: Pod\nmetadata:\n  name: digits-ps-0\n"));
    assert_eq!(ended.stderr, "job digits would be created (dry run)\n");
    assert_eq!(master.asked(), ["GET /v1/master", "POST /v1/dry-runs/jobs?replace=false"]);
    let ended = submit(&master, &["train.py", "--image", "x:1", "--dry-run=server", "-o", "json"]).expect_code(0);
    let answer: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&answer["lacks_code"], &answer["pods"][0]["count"]), (&json!(true), &json!(2)));
    ended.expect_stderr("job digits would be created, after the upload of its code (dry run)");
    assert!(!master.was_asked("PUT"), "{:?}", master.asked());
}

#[test]
fn a_dry_run_of_the_client_prints_the_request_and_asks_the_master_only_for_its_back_end() {
    let master = in_kubernetes(Script::default());
    let ended = submit(&master, &["--image", "digits:1", "--dry-run=client", "-o", "json"]).expect_code(0);
    let request: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&request["name"], &request["image"]), (&json!("digits"), &json!("digits_pod:1")));
    assert_eq!(ended.stderr, "job digits: checked on this machine, nothing was submitted (dry run)\n");
    assert_eq!(master.asked(), ["GET /v1/master"]);
    let ended = submit(&master, &["--image", "digits:1", "--dry-run=client"]).expect_code(0);
    assert!(ended.stdout.starts_with("---\nabout:\n  source: digits\nchief_num: 0\n"), "{}", ended.stdout);
}

#[test]
fn without_a_running_master_only_the_client_can_check_a_job() {
    let folder = folder_with_script();
    let ended = run(folder.path(), &["--task", "digits", "--dry-run=client"]).expect_code(0);
    assert!(ended.stdout.contains(&format!("work_dir: {}\n", folder.path().display())), "{}", ended.stdout);
    let refused = run(folder.path(), &["--dry-run=server"]).expect_code(2);
    refused.expect_stderr("error: --dry-run=server needs a running master").expect_stderr("--dry-run=client");
    std::fs::remove_file(folder.path().join("exec.py")).unwrap();
    run(folder.path(), &["--dry-run=client"]).expect_code(2).expect_stderr("error: no exec.py in ");
}

#[test]
fn dry_run_needs_one_of_its_two_values_after_an_equals_sign() {
    let folder = folder_with_script();
    for arguments in [&["--dry-run"][..], &["--dry-run", "server"], &["--dry-run=none"], &["--dry-run=client", "-d"]] {
        let refused = run(folder.path(), arguments).expect_code(2);
        assert!(refused.stderr.starts_with("error: ") && refused.stderr.contains("--dry-run"), "{}", refused.stderr);
    }
    let sentence = "error: write the value after an equals sign: --dry-run=<client|server>\n";
    run(folder.path(), &["--dry-run"]).expect_code(2).expect_stderr(sentence);
}

#[test]
fn a_tfjob_whose_script_does_not_parse_is_refused_unless_the_check_is_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    let tfjob = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: { name: digits }\nspec:\n  tfReplicaSpecs:\n    \
                 Worker:\n      template: { spec: { containers: [{ name: tensorflow, image: \"a:1\", command: \
                 [python, train.py] }] } }\n";
    std::fs::write(folder.path().join("tfjob.yaml"), tfjob).unwrap();
    std::fs::write(folder.path().join("train.py"), "print(\n").unwrap();
    let master = in_kubernetes(Script::default());
    let apply = ["apply", "-f", "tfjob.yaml", "--code", ".", "--dry-run=client"];
    let refused = master.run_in(folder.path(), &apply).expect_code(2);
    refused
        .expect_stderr("error: the script does not parse: ")
        .expect_stderr("(train.py, line 1)")
        .expect_stderr("--no-syntax-check");
    master.run_in(folder.path(), &[&apply[..], &["--no-syntax-check"]].concat()).expect_code(0);
}

const TFJOB: &str = "apiVersion: kubeflow.org/v1
kind: TFJob
metadata: { name: digits }
spec:
  tfReplicaSpecs:
    Worker:
      template:
        spec:
          containers: [{ name: tensorflow, image: \"a:1\", command: [python, train.py] }]
";
const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: { name: data }\n---\n";

/// Creates a folder with a script and this TFJob.
fn folder_with_tfjob(document: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tfjob.yaml"), document).unwrap();
    std::fs::write(folder.path().join("train.py"), "print('hello')\n").unwrap();
    folder
}

const DRY_APPLY: [&str; 4] = ["apply", "-f", "tfjob.yaml", "--dry-run=client"];

#[test]
fn a_dry_run_of_the_client_refuses_the_tfjobs_that_apply_refuses() {
    let two_mistakes = TFJOB.replace("spec:\n  tf", "spec:\n  wibble: 3\n  tf").replace("Worker:", "Wrker:");
    for (document, sentence) in [
        (
            two_mistakes.clone(),
            "tfjob.yaml: the TFJob is refused: spec.tfReplicaSpecs.Wrker: this replica type is not known",
        ),
        (two_mistakes, "; spec.wibble: this field is not known"),
        (TFJOB.replace("Worker:", "Worker:\n      replicas: \"2\""), "replicas: \"2\" is not a whole number"),
        (TFJOB.replace("TFJob", "PyTorchJob"), "kind: \"PyTorchJob\" is not supported: use TFJob"),
        (TFJOB.replace("python,", "echo,"), "\"echo\" is a program of the image: without a cluster, use one of"),
        (format!("{TFJOB}---\n{TFJOB}"), "2 TFJobs are given, but a local master runs only one"),
        (TFJOB.replace("digits", "20201"), "metadata.name: it must be a string: write \"20201\""),
        (TFJOB.replace("train.py", "other.py"), "there is no other.py in "),
        (CLAIM.replace("---\n", ""), "kind: \"PersistentVolumeClaim\" is not supported: use TFJob"),
        (format!("{CLAIM}{CLAIM}"), "there is no TFJob in tfjob.yaml, only PersistentVolumeClaim"),
    ] {
        let refused = run(folder_with_tfjob(&document).path(), &DRY_APPLY).expect_code(2);
        refused.expect_stderr(sentence);
    }
}

#[test]
fn a_dry_run_of_the_client_checks_the_pods_of_a_tfjob_for_a_cluster_without_asking_it() {
    let of_node = TFJOB.replace("containers:", "hostNetwork: true\n          containers:");
    let folder = folder_with_tfjob(&of_node);
    let path = "spec.tfReplicaSpecs.Worker.template.spec.hostNetwork";
    let here = run(folder.path(), &DRY_APPLY).expect_code(0);
    here.expect_stderr(&format!("{path}: it has no meaning here"))
        .expect_stderr(&format!("in a cluster, the TFJob is refused: {path}: it gives the pod access to its node"));
    let in_cluster = [&DRY_APPLY[..], &["--master", "kube:team"]].concat();
    run(folder.path(), &in_cluster).expect_code(2).expect_stderr(path);
    let master = in_kubernetes(Script::default());
    master.run_in(folder.path(), &DRY_APPLY).expect_code(2).expect_stderr(path);
    // The program is in the image, and the TFJob names the namespace of its master.
    let of_image = TFJOB.replace("python, train.py", "/opt/train").replace("digits }", "digits, namespace: team }");
    run(folder_with_tfjob(&of_image).path(), &in_cluster).expect_code(0);
}

#[test]
fn objects_beside_a_tfjob_are_left_out_and_a_sentence_says_what_to_do_with_them() {
    let folder = folder_with_tfjob(&format!("{CLAIM}{TFJOB}"));
    let left_out = "PersistentVolumeClaim data (tfjob.yaml, object 1)";
    let told = format!("left out {left_out}: without a cluster, only TFJobs have a meaning");
    let here = run(folder.path(), &DRY_APPLY).expect_code(0).expect_stderr(&told);
    assert!(here.stdout.contains("kind: TFJob") && !here.stdout.contains("Claim"), "{}", here.stdout);
    // As from kustomize build.
    let file = File::open(folder.path().join("tfjob.yaml")).unwrap();
    let mut piped = client(folder.path());
    let piped = finish(piped.args(["apply", "-f", "-", "--dry-run=client"]).stdin(file).spawn().unwrap());
    piped.expect_code(0).expect_stderr(&told.replace("tfjob.yaml", "stdin"));
    let master = in_kubernetes(Script::default());
    let ended = master.run_in(folder.path(), &DRY_APPLY).expect_code(0);
    ended.expect_stderr(&format!("left out {left_out}: if the TFJobs need them, run kubectl apply for them first"));
}

#[test]
fn a_url_of_a_file_is_refused_with_a_command_that_reads_the_url() {
    let url = "https://example.com/tfjob.yaml";
    let refused = run(folder_with_tfjob(TFJOB).path(), &["apply", "-f", url]).expect_code(2);
    refused.expect_stderr("hint: curl -fsSL https://example.com/tfjob.yaml | client apply -f -");
}
