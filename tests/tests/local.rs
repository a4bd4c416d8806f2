//! One job on this machine, by one command with nothing configured.

use std::fs;

use e2e::processes::{pids, signal, within};
use e2e::scripts::STUBBORN;
use e2e::{Place, Running, Scene};
use rustix::process::Signal;

e2e::journeys_by_one_command!(Place::OwnMaster, #[cfg(unix)]);

#[test]
fn ctrl_c_stops_the_job_and_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let client = Running::of(&mut scene.client(&["--worker-num", "3"]));
    client.until_printed(3, "ready");
    signal(client.pid(), Signal::INT);
    let run = client.ended().code(1);
    scene.assert_empty();
    run.says(&["cancelled"]);
}

#[test]
fn killing_the_client_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let temporary = scene.path().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    let client = Running::of(scene.client(&["--worker-num", "2"]).env("TMPDIR", &temporary));
    client.until_printed(2, "ready");
    client.kill();
    scene.until_empty();
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0, "no file either");
}

#[test]
fn killing_the_local_master_fails_the_client_and_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let client = Running::of(&mut scene.client(&["--worker-num", "2"]));
    client.until_printed(2, "ready");
    let masters = pids(scene.path(), "master --backend");
    assert_eq!(masters.len(), 1, "{}", scene.processes());
    signal(masters[0], Signal::KILL);
    let run = client.ended().code(3);
    scene.until_empty();
    run.says(&["error: "]);
}

#[test]
fn a_gibibyte_without_a_newline_is_survived_and_the_newest_is_kept() {
    let scene = Scene::new(
        "import sys\nfor _ in range(1024): sys.stdout.buffer.write(b'x' * 2**20)\nsys.stdout.buffer.write(b'\\nthe end\\n')",
    );
    let run = scene.run(&["--worker-num", "1"]).code(0);
    assert!(run.stdout.ends_with("worker-0 │ the end\n"), "{:?}", &run.stdout[run.stdout.len().saturating_sub(100)..]);
}

#[test]
fn a_reader_that_leaves_early_ends_the_job_quietly() {
    let scene = Scene::new("while True: print('line')");
    let mut client = scene.client(&["--worker-num", "1"]).spawn().expect("the client starts");
    drop(client.stdout.take());
    let code = within("the client ends", || client.try_wait().expect("wait"), || scene.processes());
    assert_eq!(code.code(), Some(1));
    scene.assert_empty();
}
