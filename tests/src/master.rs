//! A master under test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use testkit::chaos::STRIKE_VARIABLE;

use crate::programs::built;

/// A running master. Dropping this kills the master.
#[derive(Debug)]
pub struct Master {
    child: Child,
    dir: PathBuf,
    /// The master's URL.
    pub url: String,
}

impl Master {
    /// Starts a master in this folder, with these arguments and variables, on a free port.
    ///
    /// # Panics
    /// If the master ends before it serves.
    pub fn start(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serving(any, dir, args, variables).unwrap_or_else(|end| does_not_serve(dir, end))
    }

    fn serving(listen: SocketAddr, dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Result<Self, ExitStatus> {
        // Only chaos-master can be struck by a fault.
        let is_struck = variables.iter().any(|(name, _)| *name == STRIKE_VARIABLE);
        let mut child = Command::new(built(if is_struck { "chaos-master" } else { "master" }))
            .args(["--listen", &listen.to_string()])
            .args(args)
            .current_dir(dir)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::options().create(true).append(true).open(log(dir)).expect("cannot open the log"))
            .spawn()
            .expect("cannot start the master");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("the stream is not piped");
        BufReader::new(stdout).read_line(&mut line).expect("cannot read the master's stdout");
        if line.is_empty() {
            return Err(child.wait().expect("cannot wait for the master"));
        }
        let url = line.trim().strip_prefix("listening on ");
        let url = url.unwrap_or_else(|| panic!("the master's first line has no address: {line:?}"));
        Ok(Self { child, dir: dir.to_owned(), url: url.to_owned() })
    }

    /// Returns the master's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the master with `kill -9`, and waits for its end.
    ///
    /// # Panics
    /// If the master cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("cannot kill the master");
        self.child.wait().expect("cannot wait for the master");
    }

    /// Returns the master's exit status, or `None` while the master runs.
    ///
    /// # Panics
    /// If the process cannot be waited for.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("cannot wait for the process")
    }

    /// Starts a new master at the same address. The old master must have ended.
    ///
    /// # Panics
    /// If the new master ends before it serves.
    pub fn follow_up(&mut self, args: &[&str]) {
        self.try_follow_up(args, &[]).unwrap_or_else(|end| does_not_serve(&self.dir, end));
    }

    /// Like [`Self::follow_up`], but sets these variables, and the new master may end before it serves.
    ///
    /// # Errors
    /// The new master's exit status, if it ends before it serves.
    ///
    /// # Panics
    /// If the new master cannot be started.
    pub fn try_follow_up(&mut self, args: &[&str], variables: &[(&str, &str)]) -> Result<(), ExitStatus> {
        let address = self.url.strip_prefix("http://").and_then(|address| address.parse().ok());
        *self = Self::serving(address.expect("no address"), &self.dir, args, variables)?;
        Ok(())
    }

    /// Returns the log of this master and of earlier masters in the same folder.
    pub fn log(&self) -> String {
        fs::read_to_string(log(&self.dir)).unwrap_or_default()
    }
}

fn does_not_serve<T>(dir: &Path, end: ExitStatus) -> T {
    panic!("the master ended before it served: {end}:\n{}", fs::read_to_string(log(dir)).unwrap_or_default())
}

fn log(dir: &Path) -> PathBuf {
    dir.join("master.log")
}

impl Drop for Master {
    fn drop(&mut self) {
        // The kill fails if the test has killed the master.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
