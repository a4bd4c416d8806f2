//! Measures the time that the helper `muster.py` takes in each step of a training.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::programs::root;

use crate::sample::{Figure, Row};

/// A program that prints two medians in nanoseconds. The first is for one call of `signal` and one of `step`, with a
/// socket in place of an agent. The second is for two calls that do nothing.
const CALLS: &str = r#"
import os, socket, threading, time
agent, inherited = socket.socketpair()
os.environ["MUSTER_FD"] = f"{inherited.fileno()}:{os.fstat(inherited.fileno()).st_ino}"
inherited.detach()
import muster

def drain():
    while agent.recv(65536): pass

threading.Thread(target=drain, daemon=True).start()
job = muster.Job(global_batch=96)
job.started()

class Nothing:
    def signal(self): return (0.0, 0.0)
    def step(self, step, summed): return False

def median(job):
    times = []
    for number in range(10_000):
        began = time.perf_counter_ns()
        job.step(number, job.signal())
        times.append(time.perf_counter_ns() - began)
    return sorted(times)[len(times) // 2]

print(median(job), median(Nothing()))
"#;

/// Measures 10,000 steps.
pub(crate) fn calls() -> anyhow::Result<Vec<Row>> {
    let ran = Command::new("python3").args(["-c", CALLS]).env("PYTHONPATH", root().join("agent/python")).output()?;
    ensure!(ran.status.success(), "the calls of muster.py failed: {}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout)?;
    let medians: Option<Vec<u64>> = printed.split_whitespace().map(|number| number.parse().ok()).collect();
    let [muster, bare] = medians.with_context(|| format!("not two numbers: {printed}"))?[..] else {
        anyhow::bail!("not two numbers: {printed}")
    };
    let time = |nanoseconds| Figure::Moment(Duration::from_nanos(nanoseconds));
    let row = Row::new("muster.py: signal and step together (at most 50 µs)", time(muster));
    Ok(vec![row.against(time(bare), "two calls that do nothing")])
}
