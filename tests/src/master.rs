//! A master under test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use testkit::chaos::STRIKE_VARIABLE;

use crate::programs::built;

/// A master that runs until it is dropped.
#[derive(Debug)]
pub struct Master {
    child: Child,
    dir: PathBuf,
    /// Where it serves.
    pub url: String,
}

impl Master {
    /// Starts one in this folder, with these arguments and variables, on a free port.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serving(any, dir, args, variables).unwrap_or_else(|end| does_not_serve(dir, end))
    }

    fn serving(listen: SocketAddr, dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Result<Self, ExitStatus> {
        let is_struck = variables.iter().any(|(name, _)| *name == STRIKE_VARIABLE);
        let mut child = Command::new(built(if is_struck { "chaos-master" } else { "master" }))
            .args(["--listen", &listen.to_string()])
            .args(args)
            .current_dir(dir)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::options().create(true).append(true).open(log(dir)).expect("its log"))
            .spawn()
            .expect("the master starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut line).expect("the master says its address");
        if line.is_empty() {
            return Err(child.wait().expect("it ends, for it has closed its stdout"));
        }
        let url = line.trim().strip_prefix("listening on ");
        let url = url.unwrap_or_else(|| panic!("the first line names the address: {line:?}"));
        Ok(Self { child, dir: dir.to_owned(), url: url.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with `kill -9`.
    ///
    /// # Panics
    /// When it has ended before.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// How it has ended; none where it still runs.
    ///
    /// # Panics
    /// When it cannot be looked at.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be looked at")
    }

    /// Starts another in the place of this one, which has ended, at the same address.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn follow_up(&mut self, args: &[&str]) {
        self.try_follow_up(args, &[]).unwrap_or_else(|end| does_not_serve(&self.dir, end));
    }

    /// The same, with these variables, for one that may end before it serves.
    ///
    /// # Errors
    /// How it ended.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn try_follow_up(&mut self, args: &[&str], variables: &[(&str, &str)]) -> Result<(), ExitStatus> {
        let address = self.url.strip_prefix("http://").and_then(|address| address.parse().ok());
        *self = Self::serving(address.expect("an address"), &self.dir, args, variables)?;
        Ok(())
    }

    /// What it and those before it in this folder have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(log(&self.dir)).unwrap_or_default()
    }
}

fn does_not_serve<T>(dir: &Path, end: ExitStatus) -> T {
    panic!("the master ends before it serves, with {end}:\n{}", fs::read_to_string(log(dir)).unwrap_or_default())
}

fn log(dir: &Path) -> PathBuf {
    dir.join("master.log")
}

impl Drop for Master {
    fn drop(&mut self) {
        // It may have been killed by its test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
