//! Measures the time until a job continues without an agent that has stopped answering. The time includes the agent's
//! lease.

use std::time::Duration;

use anyhow::Context as _;
use e2e::processes::{parent, signal};
use e2e::{Master, programs};
use rustix::process::Signal;

use super::WORKERS;
use super::site::{HELLO, JOB, Launcher, Site, strike};
use crate::sample::{Figure, Row};

/// Maximum number of agents that are stopped by SIGSTOP. Each measurement takes seconds.
const SILENCES: usize = 10;
/// Number of agents of one job that are stopped. With so few, the master replaces each agent without a pause.
const SILENCES_OF_A_JOB: usize = 4;
const ELASTIC: [&str; 2] = ["--worker-num", "4:8"];

/// Stops agents of jobs with 4 to 8 workers and a lease of 1 s. Measures the time to the last script of the next start.
pub(crate) fn stopped(pairs: usize) -> anyhow::Result<Vec<Row>> {
    let count = pairs.min(SILENCES);
    let row = |on: &str, times: Vec<Duration>| {
        let what = format!("4:8 on {on}, agent stopped, lease 1 s, until the others have restarted");
        Row::new(what, Figure::Times(times))
    };
    Ok(vec![row("one machine", processes(count)?), row("bare machines", machines(count)?)])
}

fn processes(count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = vec![];
    for first in (0..count).step_by(SILENCES_OF_A_JOB) {
        let mut site = Site::new(HELLO)?;
        let _master = site.muster(&[&ELASTIC[..], &["--on-unreachable", "replace", "--lease", "1s"]].concat());
        let mut gang = site.gang_of(WORKERS)?;
        for _ in first..count.min(first + SILENCES_OF_A_JOB) {
            let event = strike(parent(gang.pids[0]).context("the script has no agent")?, Signal::STOP);
            gang = site.next_gang()?;
            times.push(gang.since(event)?);
            if gang.world < WORKERS {
                gang = site.gang_of(WORKERS)?;
            }
        }
    }
    Ok(times)
}

/// Starts agents that join. Each agent has its own loopback address, so for the master, each agent is a machine.
fn machines(count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut site = Site::new(HELLO)?;
    let master = Master::start(site.scene.path(), &["--state-dir", "state", "--backend", "joined"], &[]);
    let agents = (0..WORKERS).map(|number| machine(&site, &master, number)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut times = vec![];
    for silence in 0..count {
        site.gang_of(WORKERS)?;
        let pid = agents[silence % WORKERS].pid();
        let event = strike(pid, Signal::STOP);
        times.push(site.gang_of(WORKERS - 1)?.since(event)?);
        // The agent ends its script and joins again.
        signal(pid, Signal::CONT);
    }
    Ok(times)
}

/// Starts an agent that joins the master.
fn machine(site: &Site, master: &Master, number: usize) -> anyhow::Result<Launcher> {
    let address = format!("127.0.0.{}:0", number + 2);
    let mut command = site.command(&programs::built("agent").display().to_string());
    command.args(["--join", &master.url, "--task", JOB, "--address", &address, "--max-restarts", "100000"]);
    command.args(ELASTIC).args(["--lease", "1", "--", "python", "exec.py"]).env("MUSTER_TOKEN", "secret");
    Launcher::start(&mut command)
}
