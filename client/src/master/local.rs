//! The `local` master: a child of this process that lives as long as one job. It never outlives the client.
//!
//! When the child's stdin ends, the child ends everything that it has started, and exits. The kernel closes the pipe to
//! this stdin when the client dies, whatever the cause. The child has its own process group, so Ctrl-C in the terminal
//! reaches only the client.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use master_client::{MasterUrl, Token};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::address::config::{muster_variables, own_path};
use crate::ending::error::Error;
use crate::interrupt::Interrupts;
use crate::output::last_lines;
use crate::programs;

/// How long the master may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the master may take to stop everything it has started and to exit.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// The beginning of the master's first line on stdout.
const GREETING: &str = "listening on ";
/// Maximum lines shown of the master's log when the master dies.
const LOG_LINES_MAX: usize = 10;

/// The hint if the master cannot write its files.
pub(crate) const SET_TMPDIR: &str = "set TMPDIR to a writable folder with free space";

/// The child process.
pub(crate) struct LocalMaster {
    child: Child,
    /// The child's stdin. Closing stdin ends the child. Kept outside `child`, because `Child::wait` would close stdin.
    lifeline: Option<ChildStdin>,
    token: Token,
    folder: TempDir,
    /// The lock on the folder, which ends when the file is closed.
    _lock: File,
}

impl LocalMaster {
    /// Starts a master. The caller must shut the master down. Dropping the value kills the master.
    pub(crate) fn start() -> Result<Self, Error> {
        let program = programs::master()?;
        let failed = |error| Error::master("prepare a folder for the local master").hint(SET_TMPDIR).because(error);
        let (folder, lock) = locked_folder().map_err(failed)?;
        // Without a token, every user of this machine could run code as the current user while the job runs.
        let token = Token::random();
        write_private(&token_file(&folder), token.text()).map_err(failed)?;
        let log = File::create(log_file(&folder)).map_err(failed)?;
        let child = command(&program, &folder, log).spawn();
        let mut child = child.map_err(|error| Error::master(format!("start {}", program.display())).because(error))?;
        let lifeline = child.stdin.take();
        Ok(Self { child, lifeline, token, folder, _lock: lock })
    }

    /// Waits until the master listens, and returns its address.
    pub(crate) async fn listening(&mut self) -> Result<MasterUrl, Error> {
        let stdout = BufReader::new(self.child.stdout.take().expect("stdout is piped, and only this call takes it"));
        match tokio::time::timeout(START_TIMEOUT, greeting(stdout)).await {
            Ok(Ok(line)) if !line.is_empty() => {
                let url = line.strip_prefix(GREETING).and_then(|url| url.trim().parse().ok());
                url.ok_or_else(|| self.failed(&format!("printed \"{}\" instead of its address", line.trim_end())))
            }
            Ok(_) => {
                let status = self.ended().await;
                Err(self.failed(&format!("ended before it listened ({status})")))
            }
            Err(_) => Err(self.failed(&format!("did not listen within {} s", START_TIMEOUT.as_secs()))),
        }
    }

    /// The token that the master accepts.
    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// Resolves if the master exits unexpectedly.
    pub(crate) async fn died(&mut self) -> Error {
        let status = self.ended().await;
        self.failed(&format!("ended ({status})"))
    }

    /// Stops the master and everything that it has started. After [`END_TIMEOUT`] or an interrupt, kills the master.
    pub(crate) async fn shut_down(mut self, interrupts: &mut Interrupts) {
        drop(self.lifeline.take());
        tokio::select! {
            _ = self.child.wait() => {}
            () = tokio::time::sleep(END_TIMEOUT) => {}
            () = interrupts.next() => {}
        }
        // The error is ignored, because the kill fails if the master has already ended.
        let _ = self.child.kill().await;
        // The master removes the folder when it exits. If the master was killed, the client removes the folder.
        let _ = self.folder.close();
    }

    async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// The error of a master that ended or did not print its address. `what` is the end of the sentence.
    fn failed(&self, what: &str) -> Error {
        if has_no_room(&log_file(&self.folder)) {
            let folder = self.folder.path().display();
            return Error::master(format!("the local master {what}; there is no space for its log in {folder}"))
                .hint(SET_TMPDIR);
        }
        let log = std::fs::read(log_file(&self.folder)).unwrap_or_default();
        Error::master(format!("the local master {what}{}", last_lines(&log, LOG_LINES_MAX)))
    }
}

/// A new folder for the master's state, and the lock on it. systemd-tmpfiles removes old files from /tmp, but it skips
/// folders that a process has locked.
fn locked_folder() -> io::Result<(TempDir, File)> {
    let folder = tempfile::Builder::new().prefix("muster-").tempdir()?;
    let lock = File::open(folder.path())?;
    // Some file systems cannot lock folders. The job runs without the lock too.
    let _ = lock.try_lock_shared();
    Ok((folder, lock))
}

fn command(program: &Path, folder: &TempDir, log: File) -> Command {
    let mut command = Command::new(program);
    // The variables for another master must not configure the local master.
    for name in muster_variables() {
        command.env_remove(name);
    }
    command
        .env("PATH", programs::path_for_scripts(own_path()))
        .args(["--backend", "process", "--listen", "127.0.0.1:0", "--supervised", "--state-dir"])
        .args([folder.path().as_os_str(), OsStr::new("--token-file"), token_file(folder).as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Returns the first line. A task reads and drops the later lines, so that the child never blocks.
async fn greeting(mut stdout: BufReader<ChildStdout>) -> io::Result<String> {
    let mut line = String::new();
    stdout.read_line(&mut line).await?;
    tokio::spawn(async move { tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await });
    Ok(line)
}

fn token_file(folder: &TempDir) -> PathBuf {
    folder.path().join("token")
}

fn log_file(folder: &TempDir) -> PathBuf {
    folder.path().join("master.log")
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

/// Whether a file is empty because its disk is full. To find out, tries to append a newline.
fn has_no_room(path: &Path) -> bool {
    let is_empty = path.metadata().is_ok_and(|found| found.len() == 0);
    let written = || OpenOptions::new().append(true).open(path)?.write_all(b"\n");
    let is_full = |error: io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    is_empty && written().is_err_and(is_full)
}

#[cfg(test)]
mod tests {
    use std::fs::TryLockError;

    use super::*;

    #[test]
    fn the_folder_of_the_state_is_locked_against_cleaners_of_tmp() {
        let (folder, lock) = locked_folder().unwrap();
        let cleaner = File::open(folder.path()).unwrap();
        assert!(matches!(cleaner.try_lock(), Err(TryLockError::WouldBlock)), "the folder is not locked");
        drop(lock);
        cleaner.try_lock().unwrap();
    }
}
