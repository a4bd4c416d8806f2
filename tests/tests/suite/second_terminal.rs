//! Tests that commands in a second terminal find the local master of a running job. For these commands, the client that
//! starts a local master writes a file with the master's address.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use e2e::scripts::STUBBORN;
use e2e::{Place, Running, Scene, Stage, within};
use rustix::process::Signal;
use serde_json::Value;

/// Prints `ready`. When the test writes the file `go`, prints `went on` and ends.
const AWAITS_GO: &str =
    "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('went on')";

/// Starts a job with this name and one worker, and waits until its script runs. Returns the job's client.
fn started(scene: &Scene, job: &str) -> Running {
    let client = Running::of(&mut scene.client(&["--task", job, "--worker-num", "1"]));
    client.until_printed(1, "ready");
    client
}

/// Returns the paths of the files with the addresses of local masters.
fn files(scene: &Scene) -> Vec<PathBuf> {
    let folder = fs::read_dir(scene.path().join("runtime/muster"));
    folder.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("cannot read the mode").mode() & 0o777
}

/// Returns the address of the only local master that runs.
fn url(scene: &Scene) -> String {
    let text = fs::read(&files(scene)[0]).expect("cannot read the file");
    serde_json::from_slice::<Value>(&text).expect("not JSON")["url"].as_str().expect("no address").to_owned()
}

#[test]
fn a_second_client_can_list_and_show_and_cancel_a_local_job() {
    let scene = Scene::new(STUBBORN);
    let client = started(&scene, "digits");
    let [file] = &files(&scene)[..] else { panic!("not one file: {:?}", files(&scene)) };
    assert_eq!((mode(file), mode(&scene.path().join("runtime/muster"))), (0o600, 0o700));

    for master in [&[][..], &["--master", "local"], &["--master", &url(&scene)]] {
        let list = scene.run(&[master, &["list"]].concat()).code(0);
        assert!(list.stdout.contains("digits"), "{master:?}: {}", list.stdout);
        assert_eq!(list.stderr, "", "{master:?}");
    }
    assert_eq!(scene.run(&["status", "digits", "-o", "json"]).code(0).view().replicas.len(), 1);
    assert_eq!(scene.run(&["logs", "digits"]).code(0).stdout, "worker-0 │ ready\n");
    scene.run(&["cancel", "digits"]).code(0);
    client.ended().code(1).says(&["cancelled"]);

    assert_eq!(files(&scene), Vec::<PathBuf>::new());
    scene.run(&["list"]).code(0).says(&["no job runs; client list --all shows 1 that has ended"]);
    scene.run(&["logs", "letters"]).code(2).says(&[
        "no master is given",
        "hint: give --master URL or set MUSTER_MASTER; you have no running local master",
    ]);
}

#[test]
fn status_shows_what_a_script_reports() {
    let scene = Scene::new(&format!(
        "import muster\njob = muster.Job(global_batch=4)\njob.started()\nfor step in 1, 2, 3:\n  \
         job.log(loss=1 / step)\n  job.step(step, job.signal())\n{AWAITS_GO}"
    ));
    let client = started(&scene, "reports");
    let shown = || scene.run(&["status", "reports"]).code(0).stdout;
    let line = "progress    step 3, loss 0.3333, ";
    within("the newest step is shown", || shown().contains(line).then_some(()), shown);
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    client.ended().code(0);
}

#[test]
fn status_shows_numbers_that_a_script_prints() {
    let scene =
        Scene::new(&format!("for epoch in range(3): print(f'{{epoch + 1}}/3 - loss: {{0.5 ** epoch}}')\n{AWAITS_GO}"));
    let flags = ["--worker-num", "1", "--task", "prints", "--metric", "loss=loss: ([0-9.]+)"];
    let client = Running::of(&mut scene.client(&flags));
    client.until_printed(1, "ready");
    let shown = || scene.run(&["status", "prints"]).code(0).stdout;
    within("the newest number is shown", || shown().contains("progress    loss 0.25\n").then_some(()), shown);
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    client.ended().code(0);
}

#[test]
fn a_script_that_fails_twice_at_the_same_step_is_not_started_a_third_time() {
    let scene = Scene::new(
        "import muster\njob = muster.Job(global_batch=4)\njob.started()\nprint('begins')\nfor step in 1, 2, 3:\n  \
         job.step(step, job.signal())\nraise ValueError('no such column')",
    );
    let flags = ["--worker-num", "1", "--max-restarts", "3", "--backoff", "0s"];
    let run = scene.run(&flags).code(1);
    assert_eq!(run.lines("begins").len(), 2, "{}", run.stdout);
    run.says(&["--retry-same"]);
    let all = scene.run(&[flags.as_slice(), &["--retry-same"]].concat()).code(1);
    assert_eq!(all.lines("begins").len(), 4, "{}", all.stdout);
    assert!(!all.stderr.contains("--retry-same"), "{}", all.stderr);
}

#[test]
fn clients_that_wait_for_a_local_job_see_its_result() {
    let scene = Scene::new(AWAITS_GO);
    let client = started(&scene, "digits");
    let follower = Running::of(&mut scene.client(&["logs", "digits", "-f"]));
    follower.until_printed(1, "ready");
    let waiter = Running::of(&mut scene.client(&["wait", "digits", "-v"]));
    waiter.until_said("GET ");
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    client.ended().code(0);
    waiter.ended().code(0).says(&["succeeded"]);
    let follower = follower.ended().code(0);
    assert_eq!(follower.lines("went on").len(), 1, "{}", follower.stdout);
    scene.until_empty();
}

#[test]
fn with_two_local_masters_a_list_shows_all_jobs_and_a_name_or_a_flag_chooses_the_master() {
    let scene = Scene::new(STUBBORN);
    let _first = started(&scene, "digits");
    let first = url(&scene);
    let _second = started(&scene, "letters");
    let list = scene.run(&["list"]).code(0);
    assert!(list.stdout.contains("digits") && list.stdout.contains("letters"), "{}", list.stdout);
    for job in ["digits", "letters"] {
        assert_eq!(scene.run(&["status", job, "-o", "json"]).code(0).view().name.as_str(), job);
    }
    let list = scene.run(&["list", "--master", &first]).code(0);
    assert!(list.stdout.contains("digits") && !list.stdout.contains("letters"), "{}", list.stdout);
}

#[test]
fn the_next_command_ignores_and_removes_the_file_of_a_killed_client() {
    let scene = Scene::new(STUBBORN);
    let client = started(&scene, "digits");
    client.kill();
    assert_eq!(files(&scene).len(), 1, "wrong number of files after the kill of the client");
    scene.run(&["list"]).code(0).says(&["no job runs"]);
    assert_eq!(files(&scene), Vec::<PathBuf>::new());
    scene.until_empty();
}

#[test]
fn the_file_or_folder_of_a_local_master_is_ignored_if_others_can_read_it() {
    let scene = Scene::new(STUBBORN);
    let _client = started(&scene, "digits");
    for (path, own) in [(files(&scene).remove(0), 0o600), (scene.path().join("runtime/muster"), 0o700)] {
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("cannot change the mode");
        set(own | 0o044);
        let ignored = format!("ignored {}: it must belong to you, and no other user may read", path.display());
        scene.run(&["list"]).code(0).says(&[&ignored, "no job runs"]);
        set(own);
        scene.run(&["list"]).code(0);
    }
}

#[test]
fn if_no_folder_for_the_file_of_a_local_master_is_usable_the_job_still_runs() {
    let scene = Scene::new("print('ran')");
    fs::write(scene.path().join("runtime"), "").expect("cannot write the file");
    fs::write(scene.path().join("state-home"), "").expect("cannot write the file");
    let run = scene.run(&["--worker-num", "1"]).code(0);
    assert_eq!(run.lines("ran").len(), 1);
    run.says(&["commands in other terminals cannot find this job: "]);
}

#[test]
fn a_client_that_is_ended_by_sigterm_removes_its_file() {
    let scene = Scene::new(STUBBORN);
    let client = started(&scene, "digits");
    e2e::processes::signal(client.pid(), Signal::TERM);
    client.ended().by(Signal::TERM);
    within("the file is removed", || files(&scene).is_empty().then_some(()), || format!("{:?}", files(&scene)));
}

#[test]
fn a_verb_whose_reader_has_gone_ends_quietly_and_the_job_keeps_running() {
    let stage = Stage::new(Place::Processes, "import time\nwhile True:\n    print('line')\n    time.sleep(0.01)\n");
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("cannot make a pipe");
        drop(reader);
        let ended = stage.client(args).stdout(writer).output().expect("cannot start the client");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let submit = ["--strategy", "AllReduce", "--worker-num", "2", "--task", "piped"];
    let (code, said) = unread(&submit);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no longer following job piped; the job keeps running\nto continue: "), "{said}");
    for verb in [
        &["status", "piped"][..],
        &["status", "piped", "-o", "json"],
        &["why", "piped"],
        &["timeline", "piped"],
        &["stacks", "piped"],
        &["logs", "piped"],
        &["logs", "piped", "-f"],
        &["logs", "piped", "-f", "--replica", "worker-0"],
        &["list"],
        &["list", "--all"],
        &["list", "--watch"],
        &["top", "--once"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (code, said) = unread(verb);
        assert_eq!(code, Some(1), "{verb:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error:"), "{verb:?}: {said}");
    }
    assert_eq!(stage.status("piped").result, None);
    stage.verb(&["delete", "piped"]).code(0);
}
