//! A local master that does not do what it should: said in a sentence, and nothing of it is left.
//! One that does is started by the workspace's end-to-end tests.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::fake_master::{FakeMaster, Logs, Script};
use crate::support::views::{line, running};
use crate::support::{client_beside, command, finish, folder_with_script, signal, until};

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
fn a_folder_for_temporary_files_that_is_of_no_use_is_named() {
    let _alone = alone();
    let script = folder_with_script();
    // Whatever is written to /dev/full, its disk is full.
    let full = "for folder in \"$TMPDIR\"/muster-*; do ln -sf /dev/full \"$folder/master.log\"; done; exit 2";
    let (folder, client) = client_beside(&[("master", full), ("agent", "")]);
    let temporary = folder.path().join("tmp");
    let ended = |sentence: &str| {
        let child = command(&client, script.path()).env("TMPDIR", &temporary).spawn().unwrap();
        let ended = finish(child).expect_code(3).expect_stderr(sentence);
        ended.expect_stderr("\nhint: set TMPDIR to a folder that is there, can be written to and has room\n");
    };
    ended("error: prepare a folder for the local master: No such file or directory");
    std::fs::create_dir(&temporary).unwrap();
    let room = format!("; there is no room for its log in {}/muster-", temporary.display());
    ended(&format!("error: the local master ended before it listened (exit status: 2){room}"));
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

/// A client whose local master is a script that says this and stays, and the folder that holds its pid.
fn started(says: &str) -> (TempDir, TempDir, Child) {
    let master = format!("echo $$ > \"$TMPDIR/pid\"\n{says}\nexec cat >/dev/null");
    let (folder, client) = client_beside(&[("master", &master), ("agent", "")]);
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let script = folder_with_script();
    let mut command = command(&client, script.path());
    let child = command.args(["--task", "digits", "--master", "local"]).env("TMPDIR", &temporary).spawn().unwrap();
    (folder, script, child)
}

fn pid(folder: &TempDir) -> Option<Pid> {
    let text = std::fs::read_to_string(folder.path().join("tmp/pid")).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

/// Lets a local job run, interrupts it, does something more, and gives back what the client says from then on.
fn interrupted(then: impl FnOnce(&TempDir, &Child)) -> String {
    let logs = [Logs::Lines(vec![line("worker-0", 6, "hello")]), Logs::Lines(Vec::new())].into();
    let views = vec![running("digits")];
    let master = FakeMaster::start(Script { views, logs, ..Script::default() });
    let (folder, _script, mut child) = started(&format!("echo 'listening on {}'", master.url));
    // The first line says that the job is being followed.
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    printed.read_line(&mut String::new()).unwrap();
    signal(&child, Signal::INT);
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("stopping job digits") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "the client ended before it was stopping the job");
    }
    then(&folder, &child);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    drop(finish(child).expect_signal(Signal::INT));
    assert_nothing_is_left(&folder.path().join("tmp"));
    rest
}

#[test]
fn an_interrupt_before_the_master_listens_stops_a_job_that_was_not_submitted() {
    let _alone = alone();
    let (folder, _script, child) = started("");
    until("the master runs", || pid(&folder).is_some());
    signal(&child, Signal::INT);
    assert_eq!(finish(child).expect_signal(Signal::INT).stderr, "job digits was stopped before it was submitted\n");
    assert_nothing_is_left(&folder.path().join("tmp"));
}

#[test]
fn an_interrupt_before_the_job_is_known_says_that_it_was_not_submitted() {
    let _alone = alone();
    let master = FakeMaster::start(Script { mute: true, ..Script::default() });
    let (folder, _script, child) = started(&format!("echo 'listening on {}'", master.url));
    until("the job is submitted", || !master.asked().is_empty());
    signal(&child, Signal::INT);
    let ended = finish(child).expect_signal(Signal::INT);
    assert_eq!(ended.stderr.lines().last(), Some("job digits was stopped before it was submitted"));
    assert_nothing_is_left(&folder.path().join("tmp"));
}

#[test]
fn a_second_interrupt_ends_the_job_with_its_master() {
    let _alone = alone();
    let rest = interrupted(|_, child| signal(child, Signal::INT));
    assert_eq!(rest, "job digits ends with its master\n");
}

#[test]
fn a_master_that_dies_while_the_job_is_stopping_is_said_at_once() {
    let _alone = alone();
    let kill = |folder: &TempDir, _: &Child| kill_process(pid(folder).unwrap(), Signal::KILL).unwrap();
    let rest = interrupted(kill);
    assert_eq!(rest, "error: the local master ended (signal: 9 (SIGKILL))\n");
}

#[track_caller]
fn assert_nothing_is_left(temporary: &Path) {
    let pid = std::fs::read_to_string(temporary.join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the master {pid} is still there");
    std::fs::remove_file(temporary.join("pid")).unwrap();
    let left: Vec<_> = std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}
