//! Local masters that fail, and interrupts of local jobs: the client prints one sentence, and leaves nothing behind.
//! The end-to-end tests of the workspace test local masters that work.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::fake_master::{FakeMaster, Logs, Script};
use crate::support::views::{line, running};
use crate::support::{client_beside, command, finish, folder_with_script, interrupt, printed, signal, until};

/// Lets one test run at a time. A program cannot start while a child of another test has the program's file open for
/// writing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn missing_programs_are_named() {
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
fn a_master_that_dies_or_prints_no_address_is_an_error_and_leaves_nothing_behind() {
    let _alone = alone();
    for (says, sentence) in [
        ("echo 'cannot open the records' >&2; exit 7", "the local master ended before it listened (exit status: 7)"),
        ("echo 'good morning'", "the local master printed \"good morning\" instead of its address"),
        ("echo 'listening on nowhere'", "instead of its address"),
    ] {
        let (folder, _script, child) = started(says);
        let ended = finish(child).expect_code(3).expect_stderr(sentence);
        assert_eq!(ended.stdout, "");
        if sentence.contains("exit status") {
            ended.expect_stderr("cannot open the records");
        }
        assert_nothing_is_left(&folder.path().join("tmp"));
    }
}

#[test]
fn a_missing_or_full_folder_for_temporary_files_is_an_error_with_a_hint() {
    let _alone = alone();
    let script = folder_with_script();
    // Every write to /dev/full fails as on a full disk.
    let full = "for folder in \"$TMPDIR\"/muster-*; do ln -sf /dev/full \"$folder/master.log\"; done; exit 2";
    let (folder, client) = client_beside(&[("master", full), ("agent", "")]);
    let temporary = folder.path().join("tmp");
    let ended = |sentence: &str| {
        let child = command(&client, script.path()).env("TMPDIR", &temporary).spawn().unwrap();
        let ended = finish(child).expect_code(3).expect_stderr(sentence);
        ended.expect_stderr("\nhint: set TMPDIR to a writable folder with free space\n");
    };
    ended("error: prepare a folder for the local master: No such file or directory");
    std::fs::create_dir(&temporary).unwrap();
    let room = format!("; there is no space for its log in {}/muster-", temporary.display());
    ended(&format!("error: the local master ended before it listened (exit status: 2){room}"));
}

#[test]
fn doctor_checks_this_machine_if_no_cluster_is_chosen() {
    let _alone = alone();
    let (folder, client) = client_beside(&[("master", ""), ("agent", "")]);
    let checks = |more: &[&str]| {
        let mut doctor = command(&client, folder.path());
        doctor.args(["doctor", "-o", "json"]).args(more).env("HOME", folder.path());
        let ended = finish(doctor.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").spawn().unwrap());
        let shown: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let checks = shown["checks"].as_array().unwrap().iter();
        let pairs =
            checks.map(|check| format!("{} {}", check["name"].as_str().unwrap(), check["verdict"].as_str().unwrap()));
        (ended.code, pairs.collect::<Vec<String>>())
    };
    let (code, local) = checks(&[]);
    assert_eq!(code, Some(0), "{local:?}");
    for part in ["programs ok", "other terminals ok", "kubeconfig warn"] {
        assert!(local.iter().any(|check| check == part), "no {part:?} in {local:?}");
    }
    let (code, of_cluster) = checks(&["--master", "kube"]);
    assert_eq!((code, of_cluster[0].as_str()), (Some(1), "kubeconfig fail"));
    assert!(!of_cluster.iter().any(|check| check.starts_with("programs")), "{of_cluster:?}");
}

#[test]
fn a_local_master_does_not_get_the_variables_of_another_master() {
    let _alone = alone();
    let script = folder_with_script();
    let (_folder, client) = client_beside(&[("master", "env | grep ^MUSTER_ >&2; exit 7"), ("agent", "")]);
    let mut command = command(&client, script.path());
    let child = command.args(["--master", "local"]).env("MUSTER_LISTEN", "0.0.0.0:1").env("MUSTER_TOKEN", "x").spawn();
    let ended = finish(child.unwrap()).expect_code(3);
    assert!(!ended.stderr.contains("MUSTER_"), "{}", ended.stderr);
}

/// Starts a client whose local master is a shell script that runs `says` and then waits. The first folder contains the
/// pid file of that shell script.
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

/// Starts a local job, interrupts the client, and calls `then` when the client stops the job. Returns the rest of the
/// client's stderr.
fn interrupted(then: impl FnOnce(&TempDir, &Child)) -> String {
    let logs = [Logs::Lines(vec![line("worker-0", 6, "hello")]), Logs::Lines(Vec::new())].into();
    let views = vec![running("digits")];
    let master = FakeMaster::start(Script { views, logs, ..Script::default() });
    let (folder, _script, mut child) = started(&format!("echo 'listening on {}'", master.url));
    // The first line shows that the client follows the job.
    printed(&mut child, 1);
    signal(&child, Signal::INT);
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("stopping job digits") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "the client ended before it began to stop the job");
    }
    then(&folder, &child);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    drop(finish(child).expect_signal(Signal::INT));
    assert_nothing_is_left(&folder.path().join("tmp"));
    rest
}

#[test]
fn an_interrupt_before_the_master_listens_says_that_the_job_was_not_submitted() {
    let _alone = alone();
    let (folder, _script, child) = started("");
    until("the master runs", || pid(&folder).is_some());
    assert_eq!(interrupt(child, Signal::INT).stderr, "job digits was stopped before it was submitted\n");
    assert_nothing_is_left(&folder.path().join("tmp"));
}

#[test]
fn an_interrupt_before_the_job_is_accepted_says_that_the_job_was_not_submitted() {
    let _alone = alone();
    let master = FakeMaster::start(Script { mute: true, ..Script::default() });
    let (folder, _script, child) = started(&format!("echo 'listening on {}'", master.url));
    until("the submit is sent", || !master.asked().is_empty());
    let ended = interrupt(child, Signal::INT);
    assert_eq!(ended.stderr.lines().last(), Some("job digits was stopped before it was submitted"));
    assert_nothing_is_left(&folder.path().join("tmp"));
}

#[test]
fn a_second_interrupt_kills_the_job_with_its_master() {
    let _alone = alone();
    let rest = interrupted(|_, child| signal(child, Signal::INT));
    assert_eq!(rest.lines().last(), Some("job digits is killed when its local master stops"));
}

#[test]
fn the_death_of_the_master_is_reported_while_the_job_is_stopping() {
    let _alone = alone();
    let kill = |folder: &TempDir, _: &Child| kill_process(pid(folder).unwrap(), Signal::KILL).unwrap();
    let rest = interrupted(kill);
    // The job may reach further states before the master's death.
    assert_eq!(rest.lines().last(), Some("error: the local master ended (signal: 9 (SIGKILL))"));
}

#[track_caller]
fn assert_nothing_is_left(temporary: &Path) {
    let pid = std::fs::read_to_string(temporary.join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the master {pid} still runs");
    std::fs::remove_file(temporary.join("pid")).unwrap();
    let left: Vec<_> = std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new(), "files are left");
}
