//! Measures real TensorFlow: from the crash of one of four workers until all workers have finished their first step.
//! The jobs run with and without warm interpreters.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use e2e::Scene;

use super::site::{Site, kill};
use crate::sample::{Figure, Row};

pub(crate) const WORKERS: usize = 4;
/// The line of `examples/elastic/exec.py` after which a step is complete.
pub(crate) const STEP: &str = "        step += 1\n";

/// Measures jobs with and without warm interpreters in turn, twice.
pub(crate) fn compare(pairs: usize) -> anyhow::Result<Vec<Row>> {
    if pairs == 0 {
        return Ok(vec![]);
    }
    let (mut warm, mut cold) = (vec![], vec![]);
    for half in [pairs.div_ceil(2), pairs / 2] {
        warm.extend(crashes(&[], half)?);
        cold.extend(crashes(&["--no-preload"], half)?);
    }
    let row = Row::new("TensorFlow, crash of 1 of 4, until all have made a step", Figure::Times(warm));
    Ok(vec![row.against(Figure::Times(cold), "Muster with --no-preload")])
}

/// Returns a site with an example. The script of the example notes its first step, which is complete after the line
/// `step`.
pub(crate) fn site(example: &str, step: &str) -> anyhow::Result<Site> {
    let scene = Scene::of_example(example);
    let exec_py = scene.path().join("exec.py");
    let script = fs::read_to_string(&exec_py)?;
    ensure!(script.contains(step), "examples/{example}/exec.py has no line {step:?}");
    let indent = &step[..step.len() - step.trim_start().len()];
    // Python runs a module only at the first import, so the script notes only its first step.
    fs::write(&exec_py, script.replace(step, &format!("{step}{indent}import starts\n")))?;
    Site::of(scene)
}

fn crashes(flags: &[&str], count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut site = site("elastic", STEP)?;
    let workers = format!("2:{WORKERS}");
    let endless = ["--", "--steps", "100000000"];
    let _master = site.muster(&[&["--worker-num", &workers], flags, &endless].concat());
    let mut gang = site.gang_of(WORKERS)?;
    let mut times = vec![];
    // The first crash is not measured: the warm interpreters may still import TensorFlow.
    for crash in 0..=count {
        let event = kill(gang.pids[crash % WORKERS]);
        gang = site.gang_of(WORKERS)?;
        times.push(gang.since(event)?);
    }
    Ok(times.split_off(1.min(times.len())))
}
