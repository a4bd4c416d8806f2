//! A master under test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
        Self::start_on(any, dir, args, variables)
    }

    fn start_on(listen: SocketAddr, dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(built("master"))
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
        let Some(url) = line.trim().strip_prefix("listening on ") else {
            panic!("the first line names the address: {line:?}\n{}", fs::read_to_string(log(dir)).unwrap_or_default())
        };
        Self { child, dir: dir.to_owned(), url: url.to_owned() }
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

    /// Starts another in the place of this one, which was killed, at the same address.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn follow_up(&mut self, args: &[&str]) {
        let address = self.url.strip_prefix("http://").and_then(|address| address.parse().ok());
        *self = Self::start_on(address.expect("an address"), &self.dir, args, &[]);
    }

    /// What it and those before it in this folder have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(log(&self.dir)).unwrap_or_default()
    }
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
