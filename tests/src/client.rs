//! A program under test, running or ended, with its output.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use protocol::view::JobView;
use rustix::process::Signal;

use crate::processes::within;

/// A running program. Dropping this kills the program.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Printed,
    stderr: Printed,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// The program's stdout, with invalid UTF-8 replaced.
    pub stdout: String,
    /// The program's stderr, with invalid UTF-8 replaced.
    pub stderr: String,
}

impl Running {
    /// Starts a program, without a stdin.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn of(program: &mut Command) -> Self {
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().expect("cannot start the program");
        let stdout = Printed::by(child.stdout.take().expect("the stream is not piped"));
        let stderr = Printed::by(child.stderr.take().expect("the stream is not piped"));
        Self { child, stdout, stderr }
    }

    /// Returns the program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `text` is on stdout at least `count` times.
    ///
    /// # Panics
    /// If the deadline passes, or if stdout ends earlier. The message contains the output.
    pub fn until_printed(&self, count: usize, text: &str) {
        let has_come = || {
            let is_last = self.stdout.has_ended();
            let has_come = self.stdout.text().matches(text).count() >= count;
            assert!(
                has_come || !is_last,
                "stdout ended before it contained {text:?} {count} times\n{}",
                self.printed()
            );
            has_come.then_some(())
        };
        within(&format!("{count} times {text:?} on stdout"), has_come, || self.printed());
    }

    /// Waits until `text` is on stderr.
    ///
    /// # Panics
    /// If the deadline passes. The message contains the output.
    pub fn until_said(&self, text: &str) {
        let has_come = || self.said(text).then_some(());
        within(&format!("{text:?} on stderr"), has_come, || self.printed());
    }

    /// Returns whether the program has already printed `text` on stderr.
    pub fn said(&self, text: &str) -> bool {
        self.stderr.text().contains(text)
    }

    /// Returns the stderr so far, with invalid UTF-8 replaced.
    pub fn said_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Returns the stdout so far, with invalid UTF-8 replaced.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Kills the program with `kill -9`, and waits for its end.
    ///
    /// # Panics
    /// If the program cannot be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("cannot kill the program");
        self.child.wait().expect("cannot wait for the program");
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    /// If the deadline passes. The message contains the output.
    pub fn ended(mut self) -> Finished {
        let child = &mut self.child;
        let status = within(
            "the program ends",
            || child.try_wait().expect("cannot wait for the process"),
            || format!("stdout:\n{}\nstderr:\n{}", self.stdout.text(), self.stderr.text()),
        );
        Finished { status, stdout: self.stdout.whole(), stderr: self.stderr.whole() }
    }

    fn printed(&self) -> String {
        format!("stdout:\n{}\nstderr:\n{}", self.stdout.text(), self.stderr.text())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The kill fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Runs a program to its end.
    ///
    /// # Panics
    /// If the program cannot be started, or does not end before the deadline.
    pub fn of(program: &mut Command) -> Self {
        Running::of(program).ended()
    }

    /// Asserts the exit code.
    ///
    /// # Panics
    /// If the exit code differs. The message contains the output.
    #[track_caller]
    pub fn code(self, expected: i32) -> Self {
        assert_eq!(self.status.code(), Some(expected), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that this signal killed the program.
    ///
    /// # Panics
    /// If the program ended in another way. The message contains the output.
    #[track_caller]
    pub fn by(self, expected: Signal) -> Self {
        let ended = self.status.signal();
        assert_eq!(ended, Some(expected.as_raw()), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that stderr contains all of `parts`.
    ///
    /// # Panics
    /// If a part is missing. The message contains the output.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} on stderr:\n{}\nstdout:\n{}", self.stderr, self.stdout);
        }
        self
    }

    /// Returns the lines of stdout whose text after the replica's name begins with `prefix`. Removes the name and the
    /// prefix.
    pub fn lines(&self, prefix: &str) -> Vec<String> {
        let behind_name = self.stdout.lines().filter_map(|line| line.split_once("│ "));
        behind_name.filter_map(|(_, text)| text.strip_prefix(prefix)).map(str::to_owned).collect()
    }

    /// Returns the job's view, which a client with `-o json` has printed on stdout.
    ///
    /// # Panics
    /// If stdout is not a view.
    pub fn view(&self) -> JobView {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// The bytes that a thread has read from a pipe so far.
#[derive(Debug)]
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Printed {
    /// Returns whether the thread has read the whole output.
    fn has_ended(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn by(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(vec![]));
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until the thread has read the whole output, and returns it. The program must have ended.
    fn whole(&mut self) -> String {
        self.reader.take().map(JoinHandle::join).transpose().expect("the reader has panicked");
        self.text()
    }
}
