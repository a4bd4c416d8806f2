//! Tests of a job on this machine that one command starts, without configuration.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::Command;

use e2e::processes::{pids, run_by, signal, within};
use e2e::scripts::STUBBORN;
use e2e::{Finished, Place, Running, Scene};
use protocol::view::{JobState, ReplicaState};
use rustix::process::Signal;

e2e::journeys_by_one_command!(Place::OwnMaster, #[cfg(unix)]);

#[test]
fn a_global_batch_is_divided_by_the_cpus_of_the_workers() {
    let scene = Scene::new(
        "import json, os, muster\nconfig = json.loads(os.environ['TF_CONFIG'])\njob = muster.Job()\nprint(job.rank, \
         job.global_batch, job.batch, os.environ['BATCH_SIZE'], config['batch_size_list'], config['model_dir'])",
    );
    let workers = ["--worker", "cpu=1:1", "--worker", "cpu=2:1"];
    let run = scene.run(&[&workers[..], &["--global-batch", "96", "--tf-config", "model_dir=/data"]].concat()).code(0);
    let run = run.says(&["without Kubernetes, cpu has one effect: it sets the first batch sizes"]);
    for line in ["worker-0 │ 0 96 32 32 [32,64] /data", "worker-1 │ 1 96 64 64 [32,64] /data"] {
        assert!(run.stdout.lines().any(|printed| printed == line), "{}", run.stdout);
    }
    scene.run(&workers).code(2).says(&["--worker cpu= cannot be used with a local master"]);
    let refused = scene.run(&[&workers[..], &["--global-batch", "1"]].concat()).code(2);
    refused.says(&["a global batch of 1 is too small for 2 workers", "--global-batch"]);
}

#[test]
fn an_evaluator_starts_again_alone_and_evaluates_after_the_training_has_succeeded() {
    let scene = Scene::new(
        "import os, sys, time\nrole = os.environ['MUSTER_ROLE']\nprint('begins', flush=True)\n\
         def wait(file):\n  while not os.path.exists(file): time.sleep(0.01)\n\
         if role == 'worker':\n  wait('again')\n  open('trained', 'w').close()\n  sys.exit()\n\
         try: open('first', 'x').close()\nexcept FileExistsError: pass\nelse: sys.exit(1)\n\
         open('again', 'w').close()\nwait('trained')\ntime.sleep(0.5)\nprint('evaluated')",
    );
    let run = scene.run(&["--worker-num", "1", "--evaluator-num", "1", "--max-restarts", "1"]).code(0);
    let run = run.says(&["evaluator-0 exited with code 1; it starts again alone"]);
    let count = |line: &str| run.stdout.lines().filter(|printed| *printed == line).count();
    let counts = ["worker-0    │ begins", "evaluator-0 │ begins", "evaluator-0 │ evaluated"].map(count);
    assert_eq!(counts, [1, 2, 1], "{}", run.stdout);
}

#[test]
fn ctrl_c_stops_the_job_and_leaves_no_process_behind() {
    let scene = Scene::new(STUBBORN);
    let client = Running::of(&mut scene.client(&["--worker-num", "3"]));
    client.until_printed(3, "ready");
    signal(client.pid(), Signal::INT);
    let run = client.ended().by(Signal::INT);
    scene.assert_empty();
    run.says(&["cancelled"]);
}

#[test]
fn ctrl_c_raises_keyboard_interrupt_and_names_the_replicas_that_were_killed() {
    let scene = Scene::new(
        "import os, signal, time\nif os.environ['RANK'] == '1':\n  signal.signal(signal.SIGINT, signal.SIG_IGN)\n  \
         signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntry:\n  print('ready', flush=True)\n  \
         while True: time.sleep(1000)\nexcept KeyboardInterrupt: print('saved')\nfinally: print('cleaned')",
    );
    let client = Running::of(&mut scene.client(&["--worker-num", "2", "--termination-grace", "3s"]));
    client.until_printed(2, "ready");
    signal(client.pid(), Signal::INT);
    let run = client.ended().by(Signal::INT);
    scene.assert_empty();
    let run = run.says(&["cancelled", "; killed before they had ended: worker-1 (more time: --termination-grace)"]);
    let of_first: Vec<&str> = run.stdout.lines().filter_map(|line| line.strip_prefix("worker-0 │ ")).collect();
    assert_eq!(of_first, ["ready", "saved", "cleaned"]);
}

#[test]
fn a_job_is_running_only_when_its_scripts_have_begun_after_slow_imports() {
    let scene = Scene::new("import os, slow, time\nwhile not os.path.exists('end'): time.sleep(0.01)");
    let installed = tempfile::tempdir().expect("cannot create a folder");
    let slow = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    fs::write(installed.path().join("slow.py"), slow).expect("cannot write the file");
    let mut client =
        scene.client(&["--worker-num", "2", "--task", "digits", "--preload=slow", "--start-timeout", "8s"]);
    let client = Running::of(client.env("PYTHONPATH", installed.path()));
    client.until_said("gang complete");
    let configured = || {
        assert!(!client.said("running: generation"), "{}", client.said_so_far());
        let view = scene.run(&["status", "digits", "-o", "json"]).view();
        let are = view.replicas.iter().all(|replica| replica.state == ReplicaState::Configured);
        (view.state == JobState::Starting && are && view.times.configured.is_some()).then_some(())
    };
    within("a start that waits for the imports", configured, || client.said_so_far());
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    client.until_said("running: generation 1.1, all 2 started");
    fs::write(scene.path().join("end"), "").expect("cannot write the file");
    client.ended().code(0);
}

#[test]
fn a_signal_that_is_ignored_from_the_start_does_not_end_the_job() {
    let without_interrupts = ["bash", "-c", "trap '' INT; exec \"$0\" \"$@\""];
    for (by, ignored) in [(&["nohup"][..], Signal::HUP), (&without_interrupts, Signal::INT)] {
        assert_job_continues_after(by, ignored);
    }
}

fn assert_job_continues_after(by: &[&str], ignored: Signal) {
    let scene = Scene::new(
        "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('went on')",
    );
    let client = Running::of(&mut run_by(by, &scene.client(&["--worker-num", "1"])));
    client.until_printed(1, "ready");
    signal(client.pid(), ignored);
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    assert_eq!(client.ended().code(0).lines("went on").len(), 1);
}

/// A command that runs a program in a new terminal.
const IN_A_TERMINAL: [&str; 3] = ["python3", "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"];

#[test]
fn a_terminal_shows_a_progress_bar_while_it_grows_and_a_pipe_gets_its_last_frame() {
    let scene = Scene::new(
        "import os, time\nfor n in (1, 2): os.write(1, b'\\r%d0%%|##' % n)\n\
         while not os.path.exists('go'): time.sleep(0.01)\nprint('\\r100%|####')",
    );
    let client = Running::of(&mut run_by(&IN_A_TERMINAL, &scene.client(&["--worker-num", "1"])));
    client.until_printed(1, "worker-0 │ 20%|##");
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    let shown = client.ended().code(0).stdout;
    assert!(shown.contains(" 100%|####"), "{shown}");
    let piped = scene.run(&["--worker-num", "1"]).code(0);
    assert_eq!(piped.stdout, "worker-0 │ 100%|####\n");
}

#[test]
fn a_host_with_python3_and_no_python_runs_the_job() {
    let scene = Scene::new("print('ran')");
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output();
    let python3 = String::from_utf8(found.expect("cannot start python3").stdout).expect("not a path in UTF-8");
    symlink(python3, scene.path().join("python3")).expect("cannot create a link");
    let run = Finished::of(scene.client(&["--worker-num", "2"]).env("PATH", scene.path())).code(0);
    assert_eq!(run.lines("ran").len(), 2, "{}", run.stdout);
}

#[test]
fn the_beginning_and_the_end_of_a_long_exception_of_a_script_are_shown() {
    let scene = Scene::new("raise ValueError('Attempt to convert (PerReplica:{\\n' + '[[1. 2. 3.]\\n' * 5000 + '})')");
    let run = scene.run(&["--worker-num", "1"]).code(1);
    run.says(&["ValueError: Attempt to convert (PerReplica:{", "…", "[[1. 2. 3.]", "})"]);
}

#[test]
fn a_script_has_no_terminal_even_if_its_client_has_a_terminal() {
    let scene = Scene::new("try: print('found', open('/dev/tty'))\nexcept OSError as error: print(error.strerror)");
    let run = Running::of(&mut run_by(&IN_A_TERMINAL, &scene.client(&["--worker-num", "1"]))).ended().code(0);
    assert!(run.stdout.contains("No such device or address"), "{}", run.stdout);
}

#[test]
fn killing_the_client_leaves_no_process_and_no_temporary_file_behind() {
    let scene = Scene::new(STUBBORN);
    let temporary = scene.path().join("tmp");
    fs::create_dir(&temporary).expect("cannot create the folder");
    let client = Running::of(scene.client(&["--worker-num", "2"]).env("TMPDIR", &temporary));
    client.until_printed(2, "ready");
    client.kill();
    scene.until_empty();
    assert_eq!(fs::read_dir(&temporary).expect("cannot read the folder").count(), 0, "temporary files are left behind");
}

#[test]
fn killing_the_local_master_fails_the_client_and_leaves_no_process_behind() {
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
fn after_an_eighth_of_a_gibibyte_without_a_newline_the_last_line_is_still_shown() {
    let scene = Scene::new(
        "import sys\nfor _ in range(128): sys.stdout.buffer.write(b'x' * 2**20)\nsys.stdout.buffer.write(b'\\nthe end\\n')",
    );
    let run = scene.run(&["--worker-num", "1"]).code(0);
    assert!(run.stdout.ends_with("worker-0 │ the end\n"), "{:?}", &run.stdout[run.stdout.len().saturating_sub(100)..]);
}

/// Prints lines. After SIGTERM, the script takes a moment to save its state, as a training does.
const PRINTS_AND_SAVES: &str = "import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    open('saved-' + os.environ['RANK'], 'x').close()
    sys.exit(0)
signal.signal(signal.SIGINT, save)
while True:
    print('line')
    time.sleep(0.01)
";

#[test]
fn a_closed_stdout_stops_a_local_job_as_an_interrupt_does() {
    let scene = Scene::new(PRINTS_AND_SAVES);
    let mut client = scene.client(&["--worker-num", "2", "--task", "piped"]).spawn().expect("cannot start the client");
    let mut lines = BufReader::new(client.stdout.take().expect("the stream is not piped")).lines();
    for worker in ["worker-0", "worker-1"] {
        assert!(lines.any(|line| line.expect("no text").starts_with(worker)), "{worker} has printed nothing");
    }
    drop(lines);
    let ended = client.wait_with_output().expect("cannot wait for the client");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("stopping job piped: stdout is closed"), "{said}");
    scene.assert_empty();
    for rank in 0..2 {
        assert!(scene.path().join(format!("saved-{rank}")).exists(), "rank {rank} could not save its state: {said}");
    }
    let past = scene.run(&["list", "--all"]).code(0).stdout;
    assert!(past.contains("piped") && past.contains("cancelled"), "{past}");
}

#[test]
fn a_local_job_goes_on_without_output_when_the_disk_of_stdout_is_full() {
    let scene = Scene::new("for number in range(3000): print('line', number)\nopen('finished', 'x').close()");
    let full = File::options().write(true).open("/dev/full").expect("there is no /dev/full");
    let mut client = scene.client(&["--worker-num", "1", "--task", "full"]);
    let ended = client.stdout(full).output().expect("cannot start the client");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(scene.path().join("finished").exists(), "{said}");
    let sentence = "could not write to stdout: No space left on device";
    assert_eq!(said.matches(sentence).count(), 1, "{said}");
    scene.assert_empty();
}

/// In the first start, makes children in several ways, prints `ready` and the process id of the agent, and waits. In the
/// second start, prints which of these children are left.
const MAKES_CHILDREN: &str = "import glob, multiprocessing, os, signal, time
def child(kind):
    if kind != 'plain': os.setsid()
    if kind == 'orphan' and os.fork(): os._exit(0)
    open('child-%d' % os.getpid(), 'x').close()
    while True: time.sleep(60)
if os.environ['MUSTER_RESTART_COUNT'] == '0':
    kinds = ['plain'] * 3 + ['session'] * 2 + ['orphan'] * 2
    make = multiprocessing.get_context('fork').Process
    for kind in kinds: make(target=child, args=(kind,)).start()
    while len(glob.glob('child-*')) < len(kinds): time.sleep(0.01)
    print('ready', os.getppid())
    signal.pause()
print('left', [name for name in glob.glob('child-*') if os.path.exists('/proc/' + name[6:])])
";

#[test]
fn no_process_of_a_killed_agent_is_left_when_the_job_starts_again() {
    let scene = Scene::new(MAKES_CHILDREN);
    let line = ["--worker-num", "1", "--max-restarts", "1", "--backoff", "0s"];
    let client = Running::of(&mut scene.client(&line));
    client.until_printed(1, "ready ");
    let agent = client.stdout().split_whitespace().last().and_then(|pid| pid.parse().ok());
    signal(agent.expect("not a process id"), Signal::KILL);
    assert_eq!(client.ended().code(0).lines("left "), ["[]"]);
    scene.assert_empty();
}
