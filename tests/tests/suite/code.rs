//! Jobs that bring their code to a master whose pods are processes.

use std::fs;

use e2e::code::submit_with_code;
use e2e::{Place, Stage};
use protocol::agent::ExitOutcome;
use protocol::failure::Failure;
use protocol::view::{JobResult, JobState};
use serde_json::json;

/// In the first start, rank 0 writes a file and fails. The second start shows who has the file.
const RESUMES: &str = "import os, signal, sys
import lib.own
if os.environ['MUSTER_RESTART_COUNT'] == '0':
    if os.environ['RANK'] != '0': signal.pause()
    open('state', 'w').close()
    sys.exit(1)
print(lib.own.NAME, os.path.basename(os.getcwd()), sys.argv[1], os.path.exists('state'))
";

#[test]
fn each_replica_has_the_code_in_a_folder_of_its_own_which_stays_for_restarts() {
    let stage = Stage::new(Place::Processes, "");
    let files = [("train.py", RESUMES), ("lib/own.py", "NAME = 'own'\n")];
    let options = json!({ "args": ["--fast"], "run_policy": { "max_restarts": 1, "backoff_seconds": 0 } });
    submit_with_code(stage.scene(), stage.url(), "brings", &files, options);
    let job = stage.finished("brings");
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}");
    let mut lines: Vec<String> = stage.verb(&["logs", "brings"]).code(0).stdout.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["worker-0 │ own work --fast True", "worker-1 │ own work --fast False"]);
    stage.verb(&["delete", "brings"]).code(0);
    stage.assert_nothing_runs();
}

#[test]
fn a_syntax_error_in_a_script_of_another_name_is_not_restarted() {
    let stage = Stage::new(Place::Processes, "");
    let options = json!({ "run_policy": { "max_restarts": 3, "backoff_seconds": 0 } });
    submit_with_code(stage.scene(), stage.url(), "broken", &[("src/train.py", "x = 1\nfoo bar\n")], options);
    let job = stage.finished("broken");
    let Some(JobResult::Failed { failure: Failure::ReplicaExited { exit, .. } }) = &job.result else {
        panic!("{job:#?}")
    };
    let reason = "src/train.py has a syntax error: src/train.py, line 2: invalid syntax".to_owned();
    assert_eq!((&exit.outcome, job.restarts.total()), (&ExitOutcome::NotStarted(reason), 0));
}

#[test]
fn the_client_sends_a_folder_once_and_the_job_runs_its_script() {
    let stage = Stage::new(Place::Processes, "");
    let folder = stage.scene().path().join("src");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("train.py"), "import own\nprint(own.NAME, __file__)\n").expect("a script");
    fs::write(folder.join("own.py"), "NAME = 'own'\n").expect("a module");
    let submit = |name| {
        let line = ["src/train.py", "--code", "src", "--worker-num", "2", "--task", name, "--master", stage.url()];
        stage.scene().run(&line).code(0)
    };
    let first = submit("once").says(&["code of 2 files: sent 2 of them"]);
    assert_eq!(first.stdout.matches("own ").count(), 2, "{}", first.stdout);
    assert!(!submit("twice").stderr.contains("code of"), "the master has the code");
    // With a local master, the script runs in its folder.
    let local = stage.scene().run(&["src/train.py", "--code", "src", "--worker-num", "1", "--master", "local"]).code(0);
    assert!(local.stdout.contains("own ") && !local.stderr.contains("code of"), "{}{}", local.stdout, local.stderr);
}
