//! Measures the steps of a TensorFlow training in which the ranks change to other batch sizes.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::programs::{has_tensorflow, root};

use crate::sample::{Figure, Row};

/// Number of changes.
const CHANGES: usize = 50;

/// Trains with two ranks, if Python has TensorFlow. The Python program fails if a step is lost, or if TensorFlow traces
/// a function again.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    if !has_tensorflow() {
        writeln!(std::io::stderr(), "skipped: the rows about live changes of sizes: Python has no tensorflow")?;
        return Ok(vec![]);
    }
    let mut command = Command::new("python");
    command.arg(root().join("tests/src/bin/bench/live_changes.py")).arg(CHANGES.to_string());
    command.current_dir(root().join("examples/heterogeneous")).env("PYTHONPATH", root().join("agent/python"));
    let ran = command.stdin(Stdio::null()).output().context("start python")?;
    ensure!(ran.status.success(), "live_changes.py failed: {}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout)?;
    let lines: Option<Vec<[Duration; 3]>> = printed.lines().map(times).collect();
    let lines = lines.filter(|lines| lines.len() == CHANGES).with_context(|| format!("not the times: {printed}"))?;
    let column = |index: usize| Figure::Times(lines.iter().map(|times| times[index]).collect());
    let row = |what, index| Row::new(what, column(index)).against(column(2), "the ten steps around");
    Ok(vec![
        row("TensorFlow, live change of sizes, no step lost: a step of the vote (at most 1.10)", 0),
        row("the same: the first step with the new sizes", 1),
    ])
}

/// The times in a line: a step of the vote, the first step with the new sizes, and the median of the steps before and
/// after them.
fn times(line: &str) -> Option<[Duration; 3]> {
    let numbers: Option<Vec<u64>> = line.split(' ').map(|number| number.parse().ok()).collect();
    let times: Vec<Duration> = numbers?.into_iter().map(Duration::from_nanos).collect();
    times.try_into().ok()
}
