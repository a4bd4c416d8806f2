//! Measures two ranks on one machine that multiply matrices with NumPy: with the default of OMP_NUM_THREADS, and with a
//! thread for each processor in each rank.

use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context as _;
use e2e::Scene;

use crate::sample::{Figure, RUNS, Row};

/// Prints how many nanoseconds the rank needed, after both ranks have imported NumPy.
const MULTIPLIES: &str = r#"
import os, time, numpy
a = numpy.random.default_rng(0).random((512, 512))
a @ a
open(f"ready-{os.environ['RUN']}-{os.environ['RANK']}", "w").close()
while not all(os.path.exists(f"ready-{os.environ['RUN']}-{rank}") for rank in (0, 1)): time.sleep(0.01)
began = time.perf_counter_ns()
for _ in range(200): a @ a
print("took", time.perf_counter_ns() - began)
"#;

/// Measures pairs of jobs, one after the other.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    let scene = Scene::new(MULTIPLIES);
    let all = format!("OMP_NUM_THREADS={}", available_parallelism()?);
    let (mut with_default, mut with_all) = (vec![], vec![]);
    for run in 0..RUNS {
        with_default.push(slower_rank(&scene, &["--env", &format!("RUN={run}d")])?);
        with_all.push(slower_rank(&scene, &["--env", &format!("RUN={run}a"), "--env", &all])?);
    }
    let row = Row::new("200 products of matrices in each of 2 ranks on one machine", Figure::Times(with_default));
    Ok(vec![row.against(Figure::Times(with_all), "a thread for each processor in each rank")])
}

fn slower_rank(scene: &Scene, flags: &[&str]) -> anyhow::Result<Duration> {
    let run = scene.run(&[&["--worker-num", "2"], flags].concat()).code(0);
    let times = run.stdout.lines().filter_map(|line| line.split_once("took ")?.1.parse().ok());
    times.max().map(Duration::from_nanos).context("no rank printed its time")
}
