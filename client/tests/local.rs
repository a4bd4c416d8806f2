//! A local master that does not do what it should: said in a sentence, and nothing of it is left.
//! One that does is started by the workspace's end-to-end tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod support;
use support::{client_beside, command, finish, folder_with_script};

/// A program that is being written cannot be started, and another test's child may hold it open for a moment.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn programs_that_are_not_beside_the_client_are_named() {
    let _alone = alone();
    let script = folder_with_script();
    for (programs, missing) in [(&[][..], "master"), (&[("master", "exit 0")], "agent")] {
        let (folder, client) = client_beside(programs);
        let ended = finish(command(&client, script.path()).spawn().unwrap()).expect_code(3);
        let folder = folder.path().canonicalize().unwrap();
        let ended = ended.expect_stderr(&format!("error: there is no program \"{missing}\" in {}", folder.display()));
        ended.expect_stderr("hint: make build puts client, master and agent side by side");
    }
}

#[test]
fn a_master_that_dies_or_says_something_else_is_shown_and_leaves_nothing() {
    let _alone = alone();
    let script = folder_with_script();
    for (master, sentence) in [
        ("echo 'cannot open the records' >&2; exit 7", "the local master ended before it listened (exit status: 7)"),
        ("echo 'good morning'; exec cat >/dev/null", "the local master said \"good morning\" and not where it listens"),
        ("echo 'listening on nowhere'; exec cat >/dev/null", "and not where it listens"),
    ] {
        let remember = "echo $$ > \"$TMPDIR/pid\"";
        let (folder, client) = client_beside(&[("master", &format!("{remember}\n{master}")), ("agent", "")]);
        let temporary = folder.path().join("tmp");
        std::fs::create_dir(&temporary).unwrap();
        let child = command(&client, script.path()).env("TMPDIR", &temporary).spawn().unwrap();
        let ended = finish(child).expect_code(3).expect_stderr(sentence);
        assert_eq!(ended.stdout, "");
        if sentence.contains("exit status") {
            ended.expect_stderr("cannot open the records");
        }
        assert_nothing_is_left(&temporary);
    }
}

#[test]
fn a_local_master_is_not_given_the_variables_of_another() {
    let _alone = alone();
    let script = folder_with_script();
    let (_folder, client) = client_beside(&[("master", "env | grep ^MUSTER_ >&2; exit 7"), ("agent", "")]);
    let mut command = command(&client, script.path());
    let child = command.args(["--master", "local"]).env("MUSTER_LISTEN", "0.0.0.0:1").env("MUSTER_TOKEN", "x").spawn();
    let ended = finish(child.unwrap()).expect_code(3);
    assert!(!ended.stderr.contains("MUSTER_"), "{}", ended.stderr);
}

#[track_caller]
fn assert_nothing_is_left(temporary: &Path) {
    let pid = std::fs::read_to_string(temporary.join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the master {pid} is still there");
    std::fs::remove_file(temporary.join("pid")).unwrap();
    let left: Vec<_> = std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}
