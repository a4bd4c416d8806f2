//! One job on this machine, by one command with nothing configured.

use std::collections::BTreeSet;
use std::fs;

use e2e::processes::{pids, signal, within};
use e2e::{Finished, Scene};
use protocol::view::JobResult;
use rustix::process::Signal;
use serde_json::Value;

/// Says that it runs, and then neither ends nor listens to SIGTERM, as a TensorFlow program.
const STUBBORN: &str = r#"
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w").close()
while True: time.sleep(60)
"#;

#[test]
fn four_workers_see_one_cluster_of_four_addresses() {
    let scene = Scene::of_example("hello");
    let run = scene.run(&["--strategy", "AllReduce", "--worker-num", "4"]).code(0);
    scene.assert_empty();
    let configs: Vec<Value> =
        run.lines("TF_CONFIG ").iter().map(|text| serde_json::from_str(text).expect("TF_CONFIG is JSON")).collect();
    assert_eq!(configs.len(), 4, "{}", run.stdout);
    let clusters: BTreeSet<String> = configs.iter().map(|config| config["cluster"].to_string()).collect();
    assert_eq!(clusters.len(), 1, "all see the same cluster: {clusters:?}");
    let workers = configs[0]["cluster"]["worker"].as_array().expect("a list of workers");
    assert_eq!(workers.iter().map(Value::to_string).collect::<BTreeSet<_>>().len(), 4, "distinct: {workers:?}");
    let indexes: BTreeSet<u64> = configs.iter().filter_map(|config| config["task"]["index"].as_u64()).collect();
    assert_eq!(indexes, BTreeSet::from([0, 1, 2, 3]));
    let closing = run.stderr.lines().last().unwrap_or_default();
    assert!(closing.starts_with("succeeded in "), "the last line says how it ended: {closing}");
}

#[test]
fn ctrl_c_stops_the_job_and_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let client = scene.client(&["--worker-num", "3"]).spawn().expect("the client starts");
    scene.until_running(3);
    signal(client.id(), Signal::INT);
    let run = Finished::after(client).code(1);
    scene.assert_empty();
    assert!(run.stderr.contains("cancelled"), "{}", run.stderr);
}

#[test]
fn killing_the_client_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let temporary = scene.path().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    let mut client = scene.client(&["--worker-num", "2"]).env("TMPDIR", &temporary).spawn().expect("it starts");
    scene.until_running(2);
    client.kill().expect("it runs");
    client.wait().expect("it ends");
    scene.until_empty();
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0, "no file either");
}

#[test]
fn killing_the_local_master_fails_the_client_and_leaves_nothing_behind() {
    let scene = Scene::new(STUBBORN);
    let client = scene.client(&["--worker-num", "2"]).spawn().expect("the client starts");
    scene.until_running(2);
    let masters = pids(scene.path(), "master --backend");
    assert_eq!(masters.len(), 1, "{}", scene.processes());
    signal(masters[0], Signal::KILL);
    let run = Finished::after(client).code(3);
    scene.until_empty();
    assert!(run.stderr.contains("error: "), "{}", run.stderr);
}

#[test]
fn the_first_failure_is_named_and_stops_the_others_at_once() {
    let exec_py = format!(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n  while not os.path.exists('ready'): time.sleep(0.01)\n  \
         print('out of luck', file=sys.stderr); sys.exit(3)\n{STUBBORN}"
    );
    let scene = Scene::new(&exec_py);
    let run = scene.run(&["--worker-num", "3"]).code(1);
    scene.assert_empty();
    assert!(run.stderr.contains("worker-1 exited with code 3"), "{}", run.stderr);
    assert!(run.stderr.contains("out of luck"), "{}", run.stderr);
}

#[test]
fn a_run_that_kills_itself_is_told_from_one_that_exits() {
    let scene = Scene::new("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)");
    let run = scene.run(&["--worker-num", "1"]).code(1);
    assert!(run.stderr.contains("worker-0 was killed by signal 11 (SIGSEGV)"), "{}", run.stderr);
}

#[test]
fn when_the_chief_ends_the_servers_are_stopped_and_the_job_succeeds() {
    let exec_py = format!(
        "import os, time\nif os.environ['MUSTER_ROLE'] == 'chief':\n  while not os.path.exists('ready'): time.sleep(0.01)\n  \
         print('trained'); raise SystemExit\n{STUBBORN}"
    );
    let scene = Scene::new(&exec_py);
    let run = scene.run(&["--strategy", "ParameterServer", "--ps-num", "1", "--worker-num", "2"]).code(0);
    scene.assert_empty();
    assert_eq!(run.stdout, "chief-0  │ trained\n");
}

#[test]
fn a_daemon_that_a_run_leaves_behind_is_ended_with_it() {
    let scene = Scene::new(
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    open('daemon', 'w').close()\n    time.sleep(600)\n  os._exit(0)\nwhile not os.path.exists('daemon'): time.sleep(0.01)\n",
    );
    scene.run(&["--worker-num", "1"]).code(0);
    scene.assert_empty();
}

#[test]
fn variables_and_arguments_reach_exec_py() {
    let scene =
        Scene::new("import os, sys; print('got', os.environ['A'], os.environ['B'], os.environ['C'], sys.argv[1:])");
    fs::write(scene.path().join("job.env"), "A='from file'\nB='from file'\n").expect("write");
    let args = ["--worker-num", "1", "--env-file", "job.env", "--env", "B=x=y", "--env", "C", "--", "--steps", "3"];
    let run = Finished::of(scene.client(&args).env("C", "passed on")).code(0);
    assert_eq!(run.stdout, "worker-0 │ got from file x=y passed on ['--steps', '3']\n");
}

#[test]
fn json_is_all_that_stdout_holds_when_asked_for() {
    let scene = Scene::of_example("hello");
    let view = scene.run(&["--worker-num", "2", "-o", "json"]).code(0).view();
    assert_eq!(view.result, Some(JobResult::Succeeded));
    assert_eq!(view.replicas.len(), 2);
}

#[test]
fn output_that_is_no_text_is_shown_and_does_no_harm() {
    let scene = Scene::new("import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb\\n')");
    let run = scene.run(&["--worker-num", "1"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ a\u{fffd}\u{fffd}b\n");
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
