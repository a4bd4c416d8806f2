//! Shared by the tests: prepared jobs, a master that serves them, and functions that run the client with a deadline.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) mod browser;
pub(crate) mod docker;
pub(crate) mod fake_master;
pub(crate) mod live_master;
pub(crate) mod page;
pub(crate) mod recorded_engine;
pub(crate) mod terminal;
pub(crate) mod views;

/// Deadline of a command. All commands of these tests are much faster.
const DEADLINE: Duration = Duration::from_secs(180);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Checks the exit code. Shows all output if it differs.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Checks that the command ended by a signal.
    #[track_caller]
    pub(crate) fn expect_signal(self, signal: rustix::process::Signal) -> Self {
        let ended = (self.code, self.signal);
        assert_eq!(ended, (None, Some(signal.as_raw())), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Checks that stderr contains a text.
    #[track_caller]
    pub(crate) fn expect_stderr(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "no {part:?} in stderr:\n{}", self.stderr);
        self
    }
}

/// A folder with an exec.py.
pub(crate) fn folder_with_script() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("exec.py"), "print('hello')\n").unwrap();
    folder
}

/// The client that was built with these tests.
pub(crate) fn client(folder: &Path) -> Command {
    command(Path::new(env!("CARGO_BIN_EXE_client")), folder)
}

/// A command in a folder, without Muster's variables and without a terminal.
pub(crate) fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for name in [
        "MUSTER_MASTER",
        "MUSTER_TOKEN",
        "MUSTER_NOTIFY",
        "MUSTER_LOAD",
        "MUSTER_LOAD_CLUSTER",
        "NO_COLOR",
        "CLICOLOR_FORCE",
    ] {
        command.env_remove(name);
    }
    // Tests must not see each other's local masters, or the user's.
    command.env("XDG_RUNTIME_DIR", folder.join("runtime")).env("XDG_STATE_HOME", folder.join("state"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the client to its end.
#[track_caller]
pub(crate) fn run<S: AsRef<OsStr>>(folder: &Path, arguments: &[S]) -> Ended {
    finish(client(folder).args(arguments).spawn().unwrap())
}

/// Waits for a command and collects its output. Kills the command after the deadline.
#[track_caller]
pub(crate) fn finish(mut child: Child) -> Ended {
    let stdout = child.stdout.take().map(read_aside);
    let stderr = child.stderr.take().map(read_aside);
    let status = wait(&mut child);
    let text = |reader: Option<thread::JoinHandle<String>>| reader.map(|it| it.join().unwrap()).unwrap_or_default();
    Ended { code: status.code(), signal: status.signal(), stdout: text(stdout), stderr: text(stderr) }
}

fn read_aside(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[track_caller]
fn wait(child: &mut Child) -> ExitStatus {
    let (done, watch) = mpsc::channel::<()>();
    let pid = rustix::process::Pid::from_child(child);
    let guard = thread::spawn(move || {
        if watch.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let status = child.wait().unwrap();
    drop(done);
    guard.join().unwrap();
    status
}

/// Waits until a condition is true.
#[track_caller]
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {} s", DEADLINE.as_secs());
        thread::yield_now();
    }
}

/// Interrupts a command with this signal, and waits for its end, which must be by the same signal.
#[track_caller]
pub(crate) fn interrupt(child: Child, kind: rustix::process::Signal) -> Ended {
    signal(&child, kind);
    finish(child).expect_signal(kind)
}

/// The next lines that a command prints on stdout. Drops what it had printed after them.
pub(crate) fn printed(child: &mut Child, lines: usize) -> String {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..lines {
        stdout.read_line(&mut text).unwrap();
    }
    child.stdout = Some(stdout.into_inner());
    text
}

/// Serves a router in a thread, which ends with the test's process. `listen` makes the listener in the thread's runtime.
pub(crate) fn serve_aside<L: axum::serve::Listener>(listen: impl FnOnce() -> L + Send + 'static, router: axum::Router)
where
    L::Addr: std::fmt::Debug,
{
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { axum::serve(listen(), router).await.unwrap() });
    });
}

/// The value of a parameter in the query of a request.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://host/?{query}")).unwrap();
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Sends a signal to a command.
pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// A folder with a copy of the client and these shell scripts as other programs, for tests of the local master.
pub(crate) fn client_beside(programs: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let client = folder.path().join("client");
    // `cp` makes the copy. If this process wrote the file, a child of another test could keep it open for writing. The
    // program could not start then.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_client")).arg(&client).status().unwrap();
    assert!(copied.success());
    for (name, script) in programs {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    (folder, client)
}
