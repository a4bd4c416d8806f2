//! Starts torchrun with the scripts that Muster runs in this benchmark.

use std::net::TcpListener;
use std::process::Command;

use anyhow::bail;

use super::WORKERS;
use super::site::{Launcher, Site};

/// The intervals at which torchrun notices changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuning {
    /// torchrun's defaults.
    Default,
    /// Shorter intervals than the defaults.
    Fast,
}

/// A running torchrun. Dropping this kills torchrun but not its scripts. Dropping the [`Site`] kills the scripts.
pub(crate) struct Torchrun(Launcher);

/// Eight torchruns with one script each. A start needs at least four of them. The first torchrun hosts the rendezvous.
pub(crate) struct Torchruns {
    tuning: Tuning,
    port: u16,
    each: Vec<Torchrun>,
}

impl Torchrun {
    /// One torchrun that starts all scripts.
    pub(crate) fn of_all(site: &Site, tuning: Tuning) -> anyhow::Result<Self> {
        let mut command = command(site, tuning, free_port()?, "is_host=1");
        command.args(["--nnodes", "1", "--nproc_per_node", &WORKERS.to_string()]);
        Self::start(command)
    }

    fn start(mut command: Command) -> anyhow::Result<Self> {
        Ok(Self(Launcher::start(command.args(["--no_python", "python", "exec.py"]))?))
    }
}

impl Torchruns {
    pub(crate) fn start(site: &Site, tuning: Tuning) -> anyhow::Result<Self> {
        let mut started = Self { tuning, port: free_port()?, each: vec![] };
        for _ in 0..WORKERS {
            started.add(site)?;
        }
        Ok(started)
    }

    /// Adds a torchrun that joins the others.
    pub(crate) fn add(&mut self, site: &Site) -> anyhow::Result<()> {
        let is_host = if self.each.is_empty() { "is_host=1" } else { "is_host=0" };
        let mut command = command(site, self.tuning, self.port, is_host);
        command.args(["--nnodes", "4:8", "--nproc_per_node", "1"]);
        self.each.push(Torchrun::start(command)?);
        Ok(())
    }

    /// The process id of the newest torchrun.
    pub(crate) fn newest(&self) -> Option<u32> {
        self.each.last().map(|newest| newest.0.pid())
    }

    /// Kills the newest torchrun.
    pub(crate) fn kill_newest(&mut self) {
        self.each.pop();
    }
}

/// The version of PyTorch that torchrun uses.
///
/// # Errors
/// If torchrun is not installed.
pub(crate) fn version() -> anyhow::Result<String> {
    let site = Site::new("")?;
    // The first line of the file torchrun names its Python interpreter.
    let script =
        "read -r line < \"$(command -v torchrun)\" && exec ${line#??} -c 'import torch; print(torch.__version__)'";
    let output = site.command("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).output()?;
    if !output.status.success() {
        bail!("torchrun is not installed");
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn command(site: &Site, tuning: Tuning, port: u16, is_host: &str) -> Command {
    let tuned = match tuning {
        Tuning::Default => "",
        Tuning::Fast => ",last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2",
    };
    let mut command = site.command("torchrun");
    command.args(["--rdzv_backend", "c10d", "--rdzv_id", "bench", "--max_restarts", "100000"]);
    // No script has local rank 9, so these flags redirect no output. Without them, torch 1.13 fails with Python 3.11.
    command.args(["--redirects", "9:1", "--tee", "9:1"]);
    command.args(["--rdzv_endpoint", &format!("127.0.0.1:{port}"), "--rdzv_conf", &format!("{is_host}{tuned}")]);
    if tuning == Tuning::Fast {
        command.args(["--monitor_interval", "0.02"]);
    }
    command
}

/// Returns a port that is free on all addresses, because torchrun listens on all of them.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}
