//! Runs many jobs one after another on one master. The resources of the master must not grow with the number of jobs.
//! The exceptions are a limited amount of memory, and the tasks of jobs that are not deleted.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use e2e::{Master, Scene};
use protocol::ids::JobName;
use protocol::job::{JobRequest, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::JobState;

use crate::api::Api;
use crate::say;

/// Maximum growth in bytes per deleted job. Because of the allocator, even a master without leaks grows a little.
const GROWTH: f64 = 20.0 * 1024.0;
/// Maximum growth in bytes per kept job: two replicas, their records and the headers of their logs.
const GROWTH_KEPT: f64 = 150.0 * 1024.0;

/// Whether a job is deleted after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    /// The job is deleted. Every second job has a time to live of 0 s. A request deletes the other jobs.
    Forgotten,
    /// The job is not deleted.
    Kept,
}

/// Resources of a master.
#[derive(Debug, Clone, Copy)]
struct Sample {
    resident: u64,
    descriptors: u64,
    threads: u64,
    tasks: u64,
}

/// Runs `jobs` jobs that are deleted, and `jobs` jobs that are kept.
pub(crate) fn campaign(jobs: u32) -> anyhow::Result<()> {
    run(jobs, Afterwards::Forgotten)?;
    run(jobs, Afterwards::Kept)
}

fn run(jobs: u32, afterwards: Afterwards) -> anyhow::Result<()> {
    let scene = Scene::new("");
    symlink("/bin/true", scene.path().join("python"))?;
    let path = scene.path().display().to_string();
    let master = scene.master_with(&[("PATH", &path)]);
    let api = Api { scene: &scene, url: &master.url };
    let begin = Instant::now();
    let mut samples = vec![];
    for number in 0..jobs {
        job(api, number, afterwards).with_context(|| format!("job {number}"))?;
        samples.push(Sample::of(&master, api)?);
    }
    let seconds = begin.elapsed().as_secs_f64();
    // The first fifth of the jobs is left out, because these jobs fill caches and start threads.
    judge(&samples[samples.len() / 5..], afterwards, seconds)
}

fn job(api: Api<'_>, number: u32, afterwards: Afterwards) -> anyhow::Result<()> {
    let name: JobName = format!("night-{number:05}").parse()?;
    let forgets_itself = afterwards == Afterwards::Forgotten && number.is_multiple_of(2);
    let run_policy = RunPolicy { ttl_after_finished_seconds: forgets_itself.then_some(0), ..RunPolicy::default() };
    api.submit(&JobRequest { run_policy, ..JobRequest::new(name.clone(), Strategy::AllReduce) })?;
    if forgets_itself {
        return api.forgotten(&name);
    }
    let end = api.finished(&name)?;
    ensure!(end.state == JobState::Succeeded, "{end:?}");
    match afterwards {
        Afterwards::Forgotten => api.delete(&name),
        Afterwards::Kept => Ok(()),
    }
}

impl Sample {
    fn of(master: &Master, api: Api<'_>) -> anyhow::Result<Self> {
        let process = format!("/proc/{}", master.pid());
        let status = fs::read_to_string(format!("{process}/status"))?;
        let field = |name: &str| {
            let value =
                status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
            value.with_context(|| format!("no {name} in {status}"))
        };
        Ok(Self {
            resident: field("VmRSS:")? * 1024,
            descriptors: fs::read_dir(format!("{process}/fd"))?.count() as u64,
            threads: field("Threads:")?,
            tasks: api.metric("muster_tasks ")?,
        })
    }
}

fn judge(samples: &[Sample], afterwards: Afterwards, seconds: f64) -> anyhow::Result<()> {
    let (first, last) = samples.first().zip(samples.last()).context("no samples")?;
    let slope = |of: fn(&Sample) -> u64| slope(&samples.iter().map(of).collect::<Vec<_>>());
    let resident = slope(|sample| sample.resident);
    let line = |what: &str, of: fn(&Sample) -> u64, unit: u64| {
        let per_job = slope(of) / unit as f64;
        say(&format!(
            "  {what:<14} {:>7} at first, {:>7} at last, {per_job:+.3} per job",
            of(first) / unit,
            of(last) / unit
        ));
    };
    say(&format!(
        "the last {} jobs (the first fifth is left out), {afterwards:?}, {seconds:.0} s for all jobs:",
        samples.len()
    ));
    line("resident KiB", |sample| sample.resident, 1024);
    line("descriptors", |sample| sample.descriptors, 1);
    line("threads", |sample| sample.threads, 1);
    line("tasks", |sample| sample.tasks, 1);
    let most = match afterwards {
        Afterwards::Forgotten => GROWTH,
        Afterwards::Kept => GROWTH_KEPT,
    };
    ensure!(resident < most, "the master grows by {resident:.0} bytes per job");
    ensure!(slope(|sample| sample.descriptors) < 0.01, "the master leaks descriptors of ended jobs");
    ensure!(slope(|sample| sample.threads) < 0.05, "the master leaks threads of ended jobs");
    if afterwards == Afterwards::Forgotten {
        ensure!(slope(|sample| sample.tasks) < 0.01, "the master leaks tasks of deleted jobs");
    }
    Ok(())
}

/// Returns by how much a series grows from one value to the next, by least squares.
#[expect(clippy::cast_precision_loss, reason = "sizes and counts are far below 2^52")]
fn slope(values: &[u64]) -> f64 {
    let count = values.len() as f64;
    let (mean_x, mean_y) = ((count - 1.0) / 2.0, values.iter().sum::<u64>() as f64 / count);
    let deviations = || values.iter().enumerate().map(|(x, y)| (x as f64 - mean_x, *y as f64 - mean_y));
    let (xy, xx) = (deviations().map(|(x, y)| x * y).sum::<f64>(), deviations().map(|(x, _)| x * x).sum::<f64>());
    if xx > 0.0 { xy / xx } else { 0.0 }
}
