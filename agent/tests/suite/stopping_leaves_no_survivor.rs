//! No process of a run survives, however the run ends and whatever it has started.

use std::os::unix::fs::PermissionsExt;
use std::thread;

use crate::support::{Agent, children_of, process_state, signal, wait_until, wait_until_gone};
use protocol::agent::{ExitOutcome, RunState};
use rustix::process::Signal;

/// A script that ignores SIGTERM. It has a child in its process group, and an orphaned grandchild in another group and
/// session. With MODE=leave, it exits with code 7 when the file GO exists.
const STUBBORN: &str = r#"
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def sleep_for_ever(name):
    # Use one write, because other processes write to the same pipe.
    os.write(1, f"{name}={os.getpid()}\n".encode())
    while True: time.sleep(1000)
if os.fork() == 0:
    sleep_for_ever("child")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sleep_for_ever("detached")
    os._exit(0)
os.wait()
if os.environ.get("MODE") == "leave":
    while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
    sys.exit(7)
sleep_for_ever("main")
"#;

#[test]
fn a_run_that_ignores_sigterm_is_killed_after_the_grace_with_all_its_descendants() {
    let agent = Agent::of_python(STUBBORN);
    agent.go();
    let pids = ["main", "child", "detached"].map(|name| agent.wait_for_pid(name));
    assert_eq!(agent.post("/stop?grace=0.3", "").status, 202);
    let report = agent.wait_for_exit();
    assert_eq!((report.outcome, report.stopped), (ExitOutcome::Signal(9), true));
    assert_eq!(pids.map(process_state), [None; 3], "the state is exited, but processes of the run are left");
    assert_eq!(children_of(agent.pid()), [0; 0]);
    assert_eq!(agent.post("/stop", "").status, 200, "wrong answer to a stop after the end of the run");
}

#[test]
fn the_descendants_of_a_run_that_ends_by_itself_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let agent = Agent::of_python(STUBBORN);
    agent.go_with(&format!(r#"{{"MODE":"leave","GO":{go:?}}}"#));
    let pids = ["child", "detached"].map(|name| agent.wait_for_pid(name));
    std::fs::write(&go, "").unwrap();
    let report = agent.wait_for_exit();
    assert_eq!((report.outcome, report.stopped), (ExitOutcome::Code(7), false));
    assert_eq!(pids.map(process_state), [None; 2]);
}

/// A script that succeeds and leaves two processes behind: one that saves something after SIGTERM, and one that ignores
/// SIGTERM.
const WITH_UPLOADS: &str = r#"
import os, signal, time
def child(handler):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, handler)
        os.write(writer, b"x")
        while True: time.sleep(1000)
def save(*_):
    os.write(1, b"saved\n")
    os._exit(0)
reader, writer = os.pipe()
child(save)
child(signal.SIG_IGN)
while len(os.read(reader, 1) + os.read(reader, 1)) < 2: pass
"#;

#[test]
fn the_background_processes_of_a_script_that_succeeded_get_sigterm_and_their_number_is_said() {
    let agent = Agent::of_python(WITH_UPLOADS);
    agent.go();
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    assert_eq!(children_of(agent.pid()), [0; 0]);
    let said = "[muster: the script has ended: SIGTERM to 2 background processes, SIGKILL 2 s later]\n";
    let output = String::from_utf8(agent.logs("both")).unwrap();
    let mut lines: Vec<&str> = output.split_inclusive('\n').collect();
    lines.sort_unstable();
    assert_eq!(lines, [said, "saved\n"]);
}

/// A script that saves after Ctrl-C.
const SAVES_AFTER_CTRL_C: &str = r#"
import os, time
try:
    os.write(1, b"ready\n")
    while True: time.sleep(1000)
except KeyboardInterrupt:
    os.write(1, b"saved\n")
finally:
    os.write(1, b"cleaned\n")
"#;

#[test]
fn an_interrupt_raises_keyboard_interrupt_in_a_python_script() {
    let agent = Agent::of_python(SAVES_AFTER_CTRL_C);
    agent.go();
    agent.wait_for_output("ready");
    assert_eq!(agent.post("/stop?grace=60&interrupt=true", "").status, 202);
    let report = agent.wait_for_exit();
    assert_eq!((report.outcome, report.stopped), (ExitOutcome::Code(0), true));
    assert_eq!(agent.logs("both"), b"ready\nsaved\ncleaned\n");
}

/// A script that sets a handler for SIGTERM, and then forks two children as a DataLoader does. The handler prints the
/// id of its process.
const WITH_LOADERS: &str = r#"
import os, signal, sys, time
def save(*_):
    os.write(1, f"saved by {os.getpid()}\n".encode())
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
for _ in range(2):
    if os.fork() == 0:
        while True: time.sleep(1000)
os.write(1, f"main={os.getpid()}\n".encode())
while True: time.sleep(1000)
"#;

#[test]
fn a_handler_set_before_a_fork_runs_only_in_the_main_process() {
    let stop: fn(&Agent) = |agent| assert_eq!(agent.post("/stop?grace=60", "").status, 202);
    for stop in [stop, |agent| signal(agent.pid(), Signal::TERM)] {
        let agent = Agent::start(&["--termination-grace", "60"], &["python3", "-u", "-c", WITH_LOADERS]);
        agent.go();
        let main = agent.wait_for_pid("main");
        let report = thread::scope(|scope| {
            let exit = scope.spawn(|| agent.wait_for_exit());
            stop(&agent);
            exit.join().unwrap()
        });
        assert_eq!((report.outcome, report.stopped), (ExitOutcome::Code(75), true));
        let output = String::from_utf8(agent.logs("both")).unwrap();
        assert_eq!(output, format!("main={main}\nsaved by {main}\n"));
    }
}

#[test]
fn sigterm_reaches_a_python_program_that_a_waiting_shell_has_started() {
    let python = r#"
import os, signal, sys
def save(*_):
    os.write(1, b"saved\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\n")
while True: signal.pause()
"#;
    let dir = tempfile::tempdir().unwrap();
    let entry = dir.path().join("entry");
    let script = format!("#!/bin/sh\ntrap : TERM\npython3 -c '{python}'\nexit 9\n");
    std::fs::write(&entry, &script).unwrap();
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o755)).unwrap();
    for command in [vec!["sh", "-c", &script], vec!["bash", "-c", &script], vec![entry.to_str().unwrap()]] {
        let agent = Agent::start(&[], &command);
        agent.go();
        agent.wait_for_output("ready");
        assert_eq!(agent.post("/stop?grace=60", "").status, 202);
        assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(9), "{command:?}");
        assert_eq!(agent.logs("both"), b"ready\nsaved\n");
    }
}

#[test]
fn a_second_stop_can_shorten_the_grace_but_not_lengthen_it() {
    let agent = Agent::of_python(STUBBORN);
    agent.go();
    agent.wait_for_pid("main");
    assert_eq!(agent.post("/stop?grace=1000", "").status, 202);
    assert_eq!(agent.status().state, RunState::Stopping);
    assert_eq!(agent.post("/finish", "").status, 409);
    assert_eq!(agent.post("/config", "{}").status, 409);
    assert_eq!(agent.post("/stop?grace=0.1", "").status, 202);
    assert_eq!(agent.post("/stop?grace=2000", "").status, 202);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Signal(9));
}

#[test]
fn a_start_request_after_the_stop_of_its_generation_starts_nothing() {
    let agent = Agent::of_shell("echo started");
    agent.post("/config?generation=1.1", "{}");
    assert_eq!(agent.post("/stop?generation=1.1", "").status, 200);
    let report = agent.wait_for_exit();
    assert_eq!(
        (report.outcome, report.stopped),
        (ExitOutcome::NotStarted("stopped before it started".to_owned()), true)
    );
    assert_eq!(agent.get("/run?generation=1.1").status, 200);
    assert_eq!(agent.post("/stop?generation=1.0", "").status, 412);
    assert_eq!((agent.status().state, agent.logs("both")), (RunState::Exited, Vec::new()));
}

#[test]
fn orphans_of_a_living_run_are_reaped() {
    // The script starts two hundred processes whose parents end first.
    let agent = Agent::of_shell("for i in $(seq 200); do (true &) ; done; echo done; exec sleep 1000");
    agent.go();
    agent.wait_for_output("done");
    let main = agent.status().pid.unwrap();
    wait_until("the end of all children except the main process", || {
        (children_of(agent.pid()) == [main]).then_some(())
    });
}

#[test]
fn thirty_nested_processes_in_separate_sessions_are_all_killed() {
    let script = r#"
import os, time
for depth in range(30):
    if os.fork():
        time.sleep(1000)
    os.setsid()
print("ready")
time.sleep(1000)
"#;
    let agent = Agent::of_python(script);
    agent.go();
    agent.wait_for_output("ready");
    assert_eq!(agent.post("/stop?grace=0", "").status, 202);
    agent.wait_for_exit();
    assert_eq!(children_of(agent.pid()), [0; 0]);
}

#[test]
fn the_end_of_the_master_ends_the_agent_and_every_process_of_its_run() {
    let mut agent = Agent::of_python(STUBBORN);
    agent.go();
    let pids = ["main", "child", "detached"].map(|name| agent.wait_for_pid(name));
    drop(agent.stdin.take());
    assert_eq!(agent.wait_for_end().code(), Some(137));
    assert_eq!(pids.map(process_state), [None; 3]);
}

#[test]
fn the_main_process_of_a_killed_agent_is_killed() {
    let agent = Agent::of_shell("echo main=$$; exec sleep 1000");
    agent.go();
    let main = agent.wait_for_pid("main");
    signal(agent.pid(), Signal::KILL);
    wait_until_gone(main);
}

#[test]
fn a_run_that_ignores_sigterm_is_killed_after_the_grace_of_its_agent() {
    let mut agent = Agent::start(&["--termination-grace", "3"], &["python3", "-u", "-c", STUBBORN]);
    agent.go();
    let pids = ["main", "child", "detached"].map(|name| agent.wait_for_pid(name));
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait_for_end().code(), Some(137));
    assert_eq!(pids.map(process_state), [None; 3]);
}

#[test]
fn sigterm_ends_an_idle_agent_with_exit_code_0() {
    let mut agent = Agent::of_shell("true");
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait_for_end().code(), Some(0));
}
