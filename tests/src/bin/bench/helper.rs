//! Measures the time that the helper `muster.py` takes in each step of a training.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::programs::root;

use crate::sample::{Figure, Row};

/// A program that prints the median times of three kinds of steps, in nanoseconds. A socket takes the place of an
/// agent. In steps of the first kind, the ranks do not vote on sizes. Each step of the second kind belongs to a vote.
/// Steps of the third kind call functions that do nothing.
const CALLS: &str = r#"
import contextlib, os, socket, threading, time
import numpy
agent, inherited = socket.socketpair()
os.environ["MUSTER_FD"] = f"{inherited.fileno()}:{os.fstat(inherited.fileno()).st_ino}"
inherited.detach()
import muster

def drain():
    while agent.recv(65536): pass

threading.Thread(target=drain, daemon=True).start()

class Nothing:
    def take(self): return (), ()
    def measure(self): return contextlib.nullcontext()
    def signal(self): return (0.0, 0.0)
    def step(self, step, summed): return False

def median(job, sampler, steps, is_voting=False):
    times = []
    for number in steps:
        if is_voting and number % 2 == 0:
            job._on_notice({"split": {"version": number, "sizes": [96]}})
        began = time.perf_counter_ns()
        indexes, weights = sampler.take()
        with job.measure(): pass
        job.step(number, job.signal())
        times.append(time.perf_counter_ns() - began)
    return sorted(times)[len(times) // 2]

job, nothing = muster.Job(global_batch=96), Nothing()
job.started()
sampler = job.sampler(2_000, seed=1)
quiet = median(job, sampler, range(10_000))
voting = median(job, sampler, range(10_000, 20_000), is_voting=True)
assert job._split == 19_998, job._split
print(quiet, voting, median(nothing, nothing, range(10_000)))
"#;

/// Measures 10,000 steps.
pub(crate) fn calls() -> anyhow::Result<Vec<Row>> {
    let ran = Command::new("python3").args(["-c", CALLS]).env("PYTHONPATH", root().join("agent/python")).output()?;
    ensure!(ran.status.success(), "the calls of muster.py failed: {}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout)?;
    let medians: Option<Vec<u64>> = printed.split_whitespace().map(|number| number.parse().ok()).collect();
    let [quiet, voting, bare] = medians.with_context(|| format!("not three numbers: {printed}"))?[..] else {
        anyhow::bail!("not three numbers: {printed}")
    };
    let time = |nanoseconds| Figure::Moment(Duration::from_nanos(nanoseconds));
    let row = |what: &str, muster| Row::new(what, time(muster)).against(time(bare), "four calls that do nothing");
    Ok(vec![
        row("muster.py: take, measure, signal and step together (at most 50 µs)", quiet),
        row("the same, while the ranks vote on sizes (at most 50 µs)", voting),
    ])
}
