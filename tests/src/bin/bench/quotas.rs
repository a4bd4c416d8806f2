//! Measures how much shorter steps become when batch sizes follow measured times. The ranks are real processes whose
//! CPU time is limited.
//!
//! Four workers share 1.2 cores. The ratio of the longest CPU time to the shortest (the heterogeneity level, HL) is 2,
//! 4 or 8, as in OmniLearn's `cpus_allocation.md`.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::processes::parent;
use e2e::programs::has_tensorflow;
use e2e::{Master, Scene};

use crate::cgroup::Limited;
use crate::elastic::site::{JOB, Site};
use crate::sample::{Figure, Row};

const RANKS: usize = 4;
const LEVELS: [Level; 3] = [
    Level { name: "HL2", times: [6.0, 6.0, 4.0, 8.0], ceiling: 1.5 },
    Level { name: "HL4", times: [4.5, 4.5, 3.0, 12.0], ceiling: 2.0 },
    Level { name: "HL8", times: [3.0, 3.0, 2.0, 16.0], ceiling: 3.0 },
];
const PERIOD_MS: f64 = 20.0;
const BATCH: &str = "256";
/// The first steps with new sizes are not measured.
const SKIPPED: usize = 2;
/// Runs of each level.
const RUNS: usize = 3;
const MODULE: &str = include_str!("limited_steps.py");

/// Ranks that compute without any library, and sum their signals over sockets to rank 0. Each sample needs the same
/// number of rounds. Rank 0 measures this number, and sends it to the other ranks.
const SPINNING: &str = r#"
import os, socket, struct, time
import muster

SAMPLE_MS = 2.5

def spin(rounds):
    while rounds: rounds -= 1

job = muster.Job()
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if job.rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(job.world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address)]
            break
        except OSError: time.sleep(0.01)
for peer in peers:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

def receive(peer):
    return struct.unpack("2d", peer.recv(16, socket.MSG_WAITALL))

def summed(numbers):
    if job.rank == 0:
        numbers = [sum(column) for column in zip(numbers, *map(receive, peers))]
    for peer in peers:
        peer.sendall(struct.pack("2d", *numbers))
    return numbers if job.rank == 0 else receive(peers[0])

began, rounds = time.process_time(), 5_000_000
spin(rounds)
of_sample = rounds * SAMPLE_MS / 1e3 / (time.process_time() - began)
of_sample = round(summed((of_sample if job.rank == 0 else 0.0, 0.0))[0])
job.started()
import limited_steps
step = 1
while True:
    with job.measure():
        spin(of_sample * job.batch)
    if job.step(step, summed(job.signal())): break
    step += 1
job.done()
"#;

/// How unequal the ranks are.
#[derive(Debug, Clone, Copy)]
struct Level {
    name: &'static str,
    /// Milliseconds of CPU time of each rank in each period.
    times: [f64; RANKS],
    /// The best possible speed-up: the mean of the times, divided by the shortest.
    ceiling: f64,
}

/// The mean step times of a run, and its last sizes.
struct Run {
    equal: Duration,
    balanced: Duration,
    sizes: String,
}

impl Run {
    fn speed_up(&self) -> f64 {
        self.equal.as_secs_f64() / self.balanced.as_secs_f64()
    }
}

/// Measures ranks that spin, and then ranks that train with TensorFlow, if Python has it.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    if let Err(error) = Limited::new("probe", 0.5) {
        writeln!(std::io::stderr(), "skipped: the rows about CPU quotas: {error:#}")?;
        return Ok(vec![]);
    }
    let mut rows = vec![];
    for level in LEVELS {
        rows.push(row("spinning", 0.95, level, &|| Ok(Scene::new(SPINNING)))?);
    }
    if !has_tensorflow() {
        writeln!(std::io::stderr(), "skipped: the rows about CPU quotas with TensorFlow: Python has no tensorflow")?;
        return Ok(rows);
    }
    for level in LEVELS.into_iter().skip(1) {
        rows.push(row("TensorFlow", 0.9, level, &tensorflow)?);
    }
    Ok(rows)
}

/// Measures a level. `least` is the wanted share of the best possible speed-up.
fn row(what: &str, least: f64, level: Level, scene: &dyn Fn() -> anyhow::Result<Scene>) -> anyhow::Result<Row> {
    let Level { name, times, ceiling } = level;
    let runs: Vec<Run> = (0..RUNS).map(|_| run(scene()?, times)).collect::<Result<_, _>>()?;
    let mut speed_ups: Vec<f64> = runs.iter().map(Run::speed_up).collect();
    speed_ups.sort_by(f64::total_cmp);
    let (worst, median) = (speed_ups[0], speed_ups[RUNS / 2]);
    let sizes: Vec<&str> = runs.iter().map(|run| run.sizes.as_str()).collect();
    let what = format!(
        "{name}, {what}: speed-up {median:.2} of {ceiling}, worst {worst:.2} (at least {:.2}), sizes {}",
        least * ceiling,
        sizes.join("; ")
    );
    let times = |of: fn(&Run) -> Duration| Figure::Times(runs.iter().map(of).collect());
    Ok(Row::new(what, times(|run| run.balanced)).against(times(|run| run.equal), "a step with equal sizes"))
}

/// The example, with a computation whose time is proportional to the number of samples.
fn tensorflow() -> anyhow::Result<Scene> {
    let scene = Scene::of_example("heterogeneous");
    let path = scene.path().join("exec.py");
    let mut script = fs::read_to_string(&path)?;
    for (old, new) in [
        ("\n\ntable = np", "\nwide, back = tf.ones((64, 4096)) / 64, tf.ones((4096, 64)) / 4096\n\ntable = np"),
        ("tf.tanh(h @ mix)", "tf.tanh(tf.tanh(h @ wide) @ back)"),
        ("\ntry:\n", "\nimport limited_steps\ntry:\n"),
        ("job.leave()", "job.done()"),
    ] {
        ensure!(script.contains(old), "examples/heterogeneous/exec.py has no {old:?}");
        script = script.replace(old, new);
    }
    fs::write(&path, script)?;
    Ok(scene)
}

/// Runs a job whose first sizes are equal. Its ranks get these milliseconds of CPU time in each period.
fn run(scene: Scene, times: [f64; RANKS]) -> anyhow::Result<Run> {
    // Dropped last, after the processes of the site.
    let groups: Vec<Limited> = (0..RANKS)
        .map(|rank| Limited::new(&rank.to_string(), times[rank] / PERIOD_MS))
        .collect::<anyhow::Result<_>>()?;
    let mut site = Site::of(scene)?;
    fs::write(site.scene.path().join("limited_steps.py"), MODULE)?;
    let workers = RANKS.to_string();
    let flags = ["--worker-num", &workers, "--global-batch", BATCH, "--env", "TF_NUM_INTRAOP_THREADS=1"];
    let rounds = ["--", "--steps", "1000000", "--rounds", "400"];
    let master = site.muster(&[&flags[..], &rounds].concat());
    let gang = site.gang_of(RANKS)?;
    for (group, pid) in groups.iter().zip(gang.pids) {
        for pid in with_agent(pid, &master) {
            group.add(pid)?;
        }
    }
    fs::write(site.scene.path().join("go"), "")?;
    site.scene.run(&["--master", &master.url, "wait", JOB]).code(0);
    let noted = fs::read_to_string(site.scene.path().join("steps.txt"))?;
    step_times(&noted).with_context(|| format!("no change of sizes:\n{noted}"))
}

/// A script's process, and its ancestors up to its agent.
fn with_agent(pid: u32, master: &Master) -> Vec<u32> {
    std::iter::successors(Some(pid), |pid| parent(*pid).filter(|parent| *parent != master.pid() && *parent > 1))
        .collect()
}

/// The mean times of the steps with the first sizes, and of the steps with the last sizes.
fn step_times(noted: &str) -> Option<Run> {
    let steps: Vec<(u64, &str)> = noted
        .lines()
        .map(|line| line.split_once(' ').and_then(|(end, sizes)| Some((end.parse().ok()?, sizes))))
        .collect::<Option<_>>()?;
    let (first, last) = (steps.first()?.1, steps.last()?.1);
    let mean = |sizes: &str| -> Option<Duration> {
        let ends: Vec<u64> =
            steps.iter().filter(|(_, used)| *used == sizes).map(|(end, _)| *end).skip(SKIPPED).collect();
        let count = u32::try_from(ends.len()).ok()?.checked_sub(1).filter(|count| *count > 0)?;
        Some(Duration::from_nanos(ends.last()? - ends.first()?) / count)
    };
    (first != last).then_some(Run { equal: mean(first)?, balanced: mean(last)?, sizes: last.to_owned() })
}
