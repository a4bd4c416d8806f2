//! Real TensorFlow: from the crash of one of four workers to the first step of the last one, with warm interpreters and
//! without.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use e2e::Scene;

use super::site::{Site, kill};
use crate::sample::{Figure, Row};

const WORKERS: usize = 4;
/// The line of `examples/elastic/exec.py` after which a step is complete.
const STEP: &str = "        step += 1\n";

/// Jobs with and without warm interpreters, in turn, twice.
pub(crate) fn compare(pairs: usize) -> anyhow::Result<Vec<Row>> {
    if pairs == 0 {
        return Ok(vec![]);
    }
    let (mut warm, mut cold) = (vec![], vec![]);
    for half in [pairs.div_ceil(2), pairs / 2] {
        warm.extend(crashes(&[], half)?);
        cold.extend(crashes(&["--no-preload"], half)?);
    }
    Ok(vec![Row {
        what: "TensorFlow, crash of 1 of 4, to the last first step".to_owned(),
        muster: Figure::Times(warm),
        bare: Some(Figure::Times(cold)),
        bare_is: "Muster with --no-preload",
    }])
}

fn crashes(flags: &[&str], count: usize) -> anyhow::Result<Vec<Duration>> {
    let scene = Scene::of_example("elastic");
    let exec_py = scene.path().join("exec.py");
    let script = fs::read_to_string(&exec_py)?;
    ensure!(script.contains(STEP), "examples/elastic/exec.py has no line {STEP:?}");
    // Python runs a module only at the first import.
    fs::write(&exec_py, script.replace(STEP, &format!("{STEP}        import starts\n")))?;
    let mut site = Site::of(scene)?;
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
