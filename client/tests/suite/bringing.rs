//! Jobs that bring their code: the client packs a folder, and sends the files that the master does not have.

use std::fs;
use std::path::Path;

use protocol::error::ErrorCode;
use protocol::master::BackendKind;
use serde_json::json;

use crate::support::fake_master::{FakeMaster, Script, refusal};
use crate::support::views::{pending, succeeded};
use crate::support::{Ended, finish, folder_with_script, until};

const IMAGE: [&str; 2] = ["--image", "python:3.11-slim"];

fn project() -> tempfile::TempDir {
    let folder = folder_with_script();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/train.py"), "import helper\n").unwrap();
    fs::write(folder.path().join("src/helper.py"), "").unwrap();
    fs::write(folder.path().join(".musterignore"), "/exec.py\n.*\n").unwrap();
    folder
}

#[track_caller]
fn submit(folder: &Path, master: &FakeMaster, more: &[&str]) -> Ended {
    master.run_in(folder, &[&["--task", "digits", "-d"], more].concat())
}

/// The requests so far, with `ID` in place of the code's id.
fn asked(master: &FakeMaster) -> Vec<String> {
    let id = master.submitted()["code"].as_str().unwrap().to_owned();
    master.asked().iter().map(|request| request.replace(&id, "ID")).collect()
}

#[test]
fn the_code_of_a_job_is_sent_once_and_the_named_image_is_not_modified() {
    let (folder, master) = (project(), FakeMaster::of(BackendKind::Kubernetes));
    let ended = submit(folder.path(), &master, &[&["src/train.py"], &IMAGE[..]].concat()).expect_code(0);
    ended.expect_stderr("code of 2 files: sent 2 files, 78 bytes, in ");
    let submit_and_send = ["POST /v1/jobs", "PUT /v1/code/ID", "PUT /v1/code/ID/blobs", "POST /v1/jobs"];
    assert_eq!(asked(&master), [&["GET /v1/master"], &submit_and_send[..]].concat());
    let submitted = master.submitted();
    assert_eq!(submitted["script"], "src/train.py");
    assert_eq!((&submitted["image"], &submitted["work_dir"]), (&json!("python:3.11-slim"), &json!(null)));
    let files = [("src/helper.py", ""), ("src/train.py", "import helper\n")];
    assert_eq!(master.files(), files.map(|(path, text)| (path.to_owned(), text.to_owned())));
    submit(folder.path(), &master, &[&["./src/train.py"], &IMAGE[..]].concat()).expect_code(0);
    assert_eq!(asked(&master)[5..], ["GET /v1/master", "POST /v1/jobs"], "the code was sent twice");
}

#[test]
fn a_job_whose_code_could_not_be_sent_was_not_submitted() {
    let code_refusal = Some(refusal(507, ErrorCode::CodeStoreFull, "no room for code"));
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], code_refusal, ..Script::default() });
    let ended = submit(project().path(), &master, &["src/train.py"]).expect_code(3);
    let ended = ended.expect_stderr("job digits was not submitted, because its code could not be sent\n");
    assert!(!ended.stderr.contains("may or may not"), "{}", ended.stderr);
}

#[test]
fn code_is_sent_again_if_the_master_is_away_for_a_moment() {
    let away = vec!["PUT /v1/code/*"];
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], away, ..Script::default() });
    let ended = submit(project().path(), &master, &["src/train.py"]).expect_code(0);
    ended.expect_stderr("; retrying\n").expect_stderr("code of 2 files: sent 2 files, ");
}

#[test]
fn code_is_sent_again_if_the_master_is_replaced_before_a_delete_or_between_the_manifest_and_the_files() {
    // The first replacement changes nothing, because no code was sent before.
    for (request, more) in [("POST /v1/dry-runs/jobs", &["--replace"][..]), ("PUT /v1/code/*", &[])] {
        let (views, replaced) = (vec![succeeded("digits")], vec![request; 2]);
        let master = FakeMaster::start(Script { views, replaced, ..Script::default() });
        submit(project().path(), &master, &[&["src/train.py"], more].concat()).expect_code(0);
        let sent = asked(&master).into_iter().filter(|request| request.starts_with("PUT")).collect::<Vec<_>>();
        assert_eq!(sent, ["PUT /v1/code/ID", "PUT /v1/code/ID/blobs", "PUT /v1/code/ID", "PUT /v1/code/ID/blobs"]);
    }
}

#[test]
fn code_that_the_master_loses_while_the_client_follows_the_job_is_sent_again() {
    let folder = project();
    let master = FakeMaster::start(Script {
        views: vec![pending("digits"), succeeded("digits")],
        backend: Some(BackendKind::Kubernetes),
        loses_code: true,
        ..Script::default()
    });
    // Not in the folder of the job, because the client would send the file too.
    let elsewhere = tempfile::tempdir().unwrap();
    let told = elsewhere.path().join("stderr");
    let mut following = master.client(folder.path(), &["--task", "digits", "src/train.py", "-o", "json"]);
    let following = following.args(IMAGE).stderr(fs::File::create(&told).unwrap()).spawn().unwrap();
    let sentence = "the master had lost the job's code; code of 2 files: sent 2 files,";
    until("the client sends the code again", || fs::read_to_string(&told).unwrap().contains(sentence));
    master.go_on();
    finish(following).expect_code(0);
    let sent = asked(&master).into_iter().filter(|request| request.starts_with("PUT")).collect::<Vec<_>>();
    assert_eq!(sent, ["PUT /v1/code/ID", "PUT /v1/code/ID/blobs", "PUT /v1/code/ID", "PUT /v1/code/ID/blobs"]);
    assert_eq!(master.files().len(), 2);
}

#[test]
fn a_script_is_sent_with_the_folder_of_the_flag_code_to_a_master_with_processes() {
    let (folder, master) = (project(), FakeMaster::of(BackendKind::Process));
    submit(folder.path(), &master, &["src/train.py", "--code", "src"]).expect_code(0);
    let submitted = master.submitted();
    assert_eq!((&submitted["script"], &submitted["work_dir"]), (&json!("train.py"), &json!(null)));
    assert_eq!(master.files().iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["helper.py", "train.py"]);
}

#[test]
fn code_that_cannot_be_sent_or_run_is_refused() {
    let folder = project();
    fs::write(folder.path().join("src/wrong.py"), "print(\n").unwrap();
    for (arguments, sentence, hint) in [
        (
            &["src/train.py"][..],
            "no image to run: a job that brings its code to Kubernetes needs --image",
            "give an image with Python",
        ),
        (&["src/train.py", "--push", "r:1"], "--push cannot be used with a script or --code", "leave out --push"),
        (&[".", "--image", "a"], "exec.py is left out of the files of ", "check .musterignore"),
        (&["none.py"], "find ", ""),
        (&["src/"], "no exec.py in ", "name the script too"),
        (&["src/wrong.py", "--image", "a"], "the script does not parse: ", "--no-syntax-check"),
    ] {
        let master = FakeMaster::of(BackendKind::Kubernetes);
        let ended = submit(folder.path(), &master, arguments).expect_code(2);
        ended.expect_stderr(&format!("error: {sentence}")).expect_stderr(hint);
        assert!(master.asked().iter().all(|request| request == "GET /v1/master"), "something was sent: {arguments:?}");
    }
    let unchecked = ["src/wrong.py", "--image", "a", "--no-syntax-check"];
    submit(folder.path(), &FakeMaster::of(BackendKind::Kubernetes), &unchecked).expect_code(0);
}
