//! Tests of jobs that bring their code, and of pushes of new code. The pods are processes.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::code::submit_with_code;
use e2e::processes::signal;
use e2e::{Place, Running, Scene, Stage};
use protocol::agent::ExitOutcome;
use protocol::failure::Failure;
use protocol::view::{JobResult, JobState, JobView};
use rustix::process::Signal;
use serde_json::json;

/// In the first start, rank 0 writes a file and fails. In the second start, each rank prints whether the file exists.
const RESUMES: &str = "import os, signal, sys
import lib.own
if os.environ['MUSTER_RESTART_COUNT'] == '0':
    if os.environ['RANK'] != '0': signal.pause()
    open('state', 'w').close()
    sys.exit(1)
print(lib.own.NAME, os.path.basename(os.getcwd()).split('.')[0], sys.argv[1], os.path.exists('state'))
";

#[test]
fn the_replicas_share_a_folder_with_the_code_and_the_folder_survives_a_restart() {
    let stage = Stage::new(Place::Processes, "");
    let files = [("train.py", RESUMES), ("lib/own.py", "NAME = 'own'\n")];
    let options = json!({ "args": ["--fast"], "run_policy": { "max_restarts": 1, "backoff_seconds": 0 } });
    submit_with_code(stage.scene(), stage.url(), "brings", &files, options);
    let job = stage.finished("brings");
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}");
    let mut lines: Vec<String> = stage.verb(&["logs", "brings"]).code(0).stdout.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["worker-0 │ own brings --fast True", "worker-1 │ own brings --fast True"]);
    stage.verb(&["delete", "brings"]).code(0);
    stage.assert_nothing_runs();
}

#[test]
fn a_script_that_is_not_exec_py_and_has_a_syntax_error_fails_without_a_restart() {
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
    let folder = source(&stage);
    fs::write(folder.join("train.py"), "import own\nprint(own.NAME, __file__)\n").expect("cannot write the script");
    fs::write(folder.join("own.py"), "NAME = 'own'\n").expect("cannot write the module");
    let line = ["src/train.py", "--code", "src", "--worker-num", "2", "--snapshot", "--task"];
    let submit = |name| stage.verb(&[&line[..], &[name]].concat()).code(0);
    let first = submit("once").says(&["code of 2 files: sent 2 files,"]);
    assert_eq!(first.stdout.matches("own ").count(), 2, "{}", first.stdout);
    assert!(!submit("twice").stderr.contains("code of"), "the client sent code that the master has");
    // With a local master, no code is sent: the script runs in the user's folder.
    let local = stage.scene().run(&["src/train.py", "--code", "src", "--worker-num", "1", "--master", "local"]).code(0);
    assert!(local.stdout.contains("own ") && !local.stderr.contains("code of"), "{}{}", local.stdout, local.stderr);
}

/// Creates the folder `src` for the code of a job, and returns its path.
fn source(stage: &Stage) -> PathBuf {
    let folder = stage.scene().path().join("src");
    fs::create_dir(&folder).expect("cannot create the folder");
    folder
}

/// Writes the script of the code in this folder.
fn write(folder: &Path, text: &str) {
    fs::write(folder.join("train.py"), text).expect("cannot write the script");
}

/// Submits a job of two workers with this name, which runs a copy of `src/train.py` in the background.
fn submit(stage: &Stage, name: &str, flags: &[&str]) {
    let line = ["src/train.py", "--code", "src", "--snapshot", "--worker-num", "2", "--task", name, "-d"];
    stage.verb(&[&line[..], flags].concat()).code(0);
}

/// Starts `client push --watch` for this job.
fn watch(stage: &Stage, job: &str) -> Running {
    Running::of(&mut stage.client(&["push", job, "src", "--watch"]))
}

/// Returns a script that prints this number and the number of restarts, and then sleeps.
fn endless(number: u32) -> String {
    format!(
        "import os, time\nprint('number', {number}, os.environ['MUSTER_RESTART_COUNT'], flush=True)\ntime.sleep(600)\n"
    )
}

/// Returns the addresses of the pods. A new pod has another address.
fn pods(view: &JobView) -> Vec<Option<String>> {
    view.replicas.iter().map(|one| one.address.clone()).collect()
}

#[test]
fn pushed_code_runs_in_the_same_pods_and_a_push_of_bad_code_changes_nothing() {
    let stage = Stage::new(Place::Processes, "");
    let folder = source(&stage);
    write(&folder, &endless(1));
    submit(&stage, "pushed", &[]);
    let prints = |line: &str| {
        let count = || stage.verb(&["logs", "pushed"]).code(0).stdout.matches(line).count();
        e2e::within(line, || (count() == 2).then_some(()), || format!("{} lines", count()));
    };
    prints("number 1 0");
    stage.verb(&["push", "pushed", "src"]).code(0).says(&["job pushed has this code already"]);
    write(&folder, "print(\n");
    stage.verb(&["push", "pushed", "src"]).code(2).says(&["does not parse", "train.py, line 1"]);
    write(&folder, &endless(2));
    let before = pods(&stage.status("pushed"));
    stage
        .verb(&["push", "pushed", "src"])
        .code(0)
        .says(&["code of 1 file: sent 1 file,", "job pushed runs the new code after"]);
    prints("number 2 1");
    let view = stage.status("pushed");
    assert_eq!((pods(&view), view.restarts.total(), view.pushes), (before, 0, 1));
    stage.verb(&["cancel", "pushed"]).code(0);
    stage.finished("pushed");
    stage.verb(&["push", "pushed", "src", "--force"]).code(2).says(&["it takes no new code"]);
}

#[test]
fn a_script_that_does_not_parse_replaces_no_job() {
    let stage = Stage::new(Place::Processes, "");
    let folder = source(&stage);
    write(&folder, &endless(1));
    submit(&stage, "kept", &[]);
    let before = stage.status("kept").uid;
    write(&folder, "def broken(:\n");
    let (sent, in_place) = (["--snapshot"].as_slice(), [].as_slice());
    for (place, flags) in [(sent, ["-d"].as_slice()), (sent, &[]), (sent, &["--dry-run=server"]), (in_place, &["-d"])] {
        let line = ["src/train.py", "--code", "src", "--worker-num", "2", "--task", "kept", "--replace"];
        let refused = stage.verb(&[&line[..], place, flags].concat());
        refused.code(2).says(&["the script does not parse: "]).says(if place == sent {
            &["--no-syntax-check"]
        } else {
            &[]
        });
        let view = stage.status("kept");
        assert_eq!((&view.uid, &view.result), (&before, &None), "{flags:?}");
    }
    stage.verb(&["delete", "kept"]).code(0);
}

#[test]
fn a_rerun_of_a_job_whose_code_is_lost_is_refused_and_deletes_nothing() {
    let stage = Stage::new(Place::Processes, "");
    let folder = source(&stage);
    fs::write(folder.join("train.py"), "print('ran')\n").expect("cannot write the script");
    stage.verb(&["src/train.py", "--code", "src", "--snapshot", "--worker-num", "1", "--task", "lost"]).code(0);
    assert!(stage.verb(&["rerun", "lost"]).code(0).stdout.contains("ran"));
    let codes = stage.scene().path().join("state/code/manifests");
    for entry in fs::read_dir(codes).expect("no folder") {
        fs::remove_file(entry.expect("no entry").path()).expect("cannot remove the manifest");
    }
    for flags in [&[][..], &["--replace"]] {
        let hint = "hint: submit the script from its folder again";
        stage.verb(&[&["rerun", "lost"], flags].concat()).code(2).says(&[hint]);
    }
    assert_eq!(stage.status("lost").state, JobState::Succeeded);
}

#[test]
fn after_a_failure_a_halted_job_runs_pushed_code_in_the_same_pods() {
    let stage = Stage::new(Place::Processes, "");
    let folder = source(&stage);
    write(&folder, "raise ValueError('first')\n");
    submit(&stage, "mended", &["--on-failure", "wait"]);
    let output = stage.follow("mended");
    output.until_said("the job waits 10 min for new code; to send the code: client push mended");
    let status = stage.verb(&["status", "mended"]).code(0).stdout;
    assert!(status.contains("halted") && status.contains("to send the code: client push mended"), "{status}");
    let why = stage.verb(&["why", "mended"]).code(0).stdout;
    assert!(why.starts_with("job mended is halted") && why.contains("ValueError: first"), "{why}");
    let before = pods(&stage.status("mended"));
    write(&folder, "raise ValueError('second')\n");
    let watch = watch(&stage, "mended");
    watch.until_said("(start 1.2)");
    write(&folder, &endless(3));
    output.until_printed(2, "number 3 2");
    let view = stage.status("mended");
    assert_eq!((pods(&view), view.restarts.total(), view.pushes), (before, 0, 2));
    stage.verb(&["cancel", "mended"]).code(0);
    watch.ended().code(0).says(&["job mended is halted: worker-", "job mended runs the new code after"]);
}

#[test]
fn with_push_watch_each_saved_change_runs_on_all_workers_and_the_last_change_wins() {
    let stage = Stage::new(Place::Processes, "");
    let folder = source(&stage);
    let save = |number: u32| fs::write(folder.join("train.py"), endless(number)).expect("cannot write the script");
    save(0);
    submit(&stage, "watched", &["--no-preload"]);
    let output = stage.follow("watched");
    let runs = |number: u32| output.until_printed(2, &format!("number {number} "));
    runs(0);
    let before = pods(&stage.status("watched"));
    let other = watch(&stage, "watched");
    other.until_said("watching ");
    signal(other.pid(), Signal::INT);
    other.ended().by(Signal::INT).says(&["no longer watching files for job watched; the job keeps running"]);

    let watch = watch(&stage, "watched");
    watch.until_said("watching ");
    for number in 1..10 {
        save(number);
        runs(number);
    }
    fs::write(folder.join("train.py"), "print(\n").expect("cannot write the script");
    watch.until_said("error: the script does not parse");
    fs::create_dir_all(folder.join("__pycache__/new")).expect("cannot create the folder");
    fs::write(folder.join("__pycache__/new/train.pyc"), "").expect("cannot write a file that is not sent");
    // These changes come so fast that some are perhaps not pushed. The last change must run in the end.
    (10..=20).for_each(save);
    runs(20);
    let next = stage.status("watched").generation.expect("the job has no start").next();
    // The client must also watch a new folder.
    fs::create_dir(folder.join("lib")).expect("cannot create the folder");
    fs::write(folder.join("lib/own.py"), "NAME = 1\n").expect("cannot write the module");
    watch.until_said(&format!("(start {next})"));
    let view = stage.status("watched");
    assert_eq!((pods(&view), view.restarts.total()), (before, 0));
    stage.verb(&["cancel", "watched"]).code(0);
    let watched = watch.ended().code(0).says(&["cancelled after"]);
    let pushes = watched.stderr.matches("job watched runs the new code after").count();
    assert_eq!(
        pushes,
        usize::try_from(view.pushes).expect("too many pushes"),
        "the number of lines about pushes differs from the number of pushes: {}",
        watched.stderr
    );
}

#[test]
fn with_push_watch_a_job_in_its_users_folder_restarts_when_its_source_changes() {
    let save = |number: u32| format!("{}open('state', 'w').write('{number}')\n", endless(number).replace("600", "0"));
    let script = |number: u32| format!("{}time.sleep(600)\n", save(number));
    let scene = Scene::new(&script(1));
    std::os::unix::fs::symlink("/etc", scene.path().join("data")).expect("cannot create a link to data elsewhere");
    let job = Running::of(&mut scene.client(&["--task", "local", "--worker-num", "2"]));
    job.until_printed(2, "number 1 0");
    let watch = Running::of(&mut scene.client(&["push", "local", "--watch"]));
    watch.until_said("watching ");
    fs::write(scene.path().join("state"), "of the job").expect("cannot write a file that is no source");
    fs::write(scene.path().join("exec.py"), script(2)).expect("cannot write the script");
    job.until_printed(2, "number 2 1");
    watch.until_said("job local runs the new code after");
    assert_eq!(scene.run(&["status", "local", "-o", "json"]).code(0).view().pushes, 1);
    // The job's master ends with the job's client. So stop this client until `watch` has seen the job's end.
    signal(job.pid(), Signal::STOP);
    scene.run(&["cancel", "local"]).code(0);
    watch.ended().code(0).says(&["cancelled after"]);
    signal(job.pid(), Signal::CONT);
    job.ended().code(1);
}
