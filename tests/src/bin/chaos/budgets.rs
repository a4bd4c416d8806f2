//! Kills replicas of each job once more than its budget of restarts allows. After the last kill, the job must fail with
//! the right reason and must not restart.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::ensure;
use e2e::processes::pids;
use protocol::ids::JobName;
use protocol::view::{JobResult, JobView};

use crate::api::{Api, pid_of};
use crate::lanes::{self, locked};
use crate::say;
use crate::shots::shoot;
use crate::work::{STEPS_WITHOUT_END, Site, Traces, request};

/// Runs `jobs` jobs. Kills replicas of each job once more than its budget allows.
pub(crate) fn campaign(jobs: u32, seed: u64) -> anyhow::Result<()> {
    let site = Site::new();
    let api = Api { scene: &site.scene, url: &site.master.url };
    let (number, kills) = (AtomicU32::new(0), Mutex::new(0));
    let begin = Instant::now();
    let outcome = lanes::run(seed, |random| {
        let own = number.fetch_add(1, Ordering::SeqCst);
        let name = format!("spent-{own:05}").parse().expect("the name is invalid");
        (own < jobs).then(|| {
            let of_job = job(api, &name, random)?;
            *locked(&kills) += of_job;
            Ok(())
        })
    });
    say(&format!(
        "{jobs} jobs, {} kills in total, in each job one more than its budget of restarts; {:.0} s",
        *locked(&kills),
        begin.elapsed().as_secs_f64(),
    ));
    outcome
}

/// Runs a job. Returns the number of kills.
fn job(api: Api<'_>, name: &JobName, random: &mut fastrand::Rng) -> anyhow::Result<u32> {
    let (workers, budget) = (random.u32(2..=4), random.u32(0..=3));
    api.submit(&request(name, STEPS_WITHOUT_END, workers, budget))?;
    let mut last = None;
    let mut shot = None;
    for _ in 0..=budget {
        let view = api.running_anew(name, last)?;
        last = view.generation;
        let target = &view.replicas[random.usize(..view.replicas.len())];
        ensure!(shoot(pid_of(target)?, name.as_str()), "{name}: {} ended before it was killed", target.replica);
        shot = Some(target.replica);
        api.judged(&view)?;
    }
    let end = api.finished(name)?;
    let blamed = match &end.result {
        Some(JobResult::Failed { failure }) => failure.replica(),
        Some(JobResult::Succeeded | JobResult::Cancelled) | None => None,
    };
    ensure!(
        blamed == shot && end.restarts.counted == budget,
        "{name}: {shot:?} was killed last, but the job is {end:?}"
    );
    says_why(api, &end)?;
    stays_ended(api, &end)?;
    api.delete(name)?;
    Ok(budget + 1)
}

fn says_why(api: Api<'_>, end: &JobView) -> anyhow::Result<()> {
    let why = api.scene.run(&["--master", api.url, "why", end.name.as_str()]).code(0).stdout;
    let restarts = match end.restarts.counted {
        0 => String::new(),
        1 => ", after 1 restart".to_owned(),
        more => format!(", after {more} restarts"),
    };
    let Some(JobResult::Failed { failure }) = &end.result else { return Ok(()) };
    let expected = format!("job {} failed{restarts}: {failure}", end.name);
    ensure!(why.starts_with(&expected), "expected {expected:?}, got {why}");
    Ok(())
}

/// Checks that no process of the job runs, and that the job had at most one start more than its counted restarts.
fn stays_ended(api: Api<'_>, end: &JobView) -> anyhow::Result<()> {
    let traces = Traces::of(api.scene, &end.name)?;
    let most = end.restarts.counted as usize + 1;
    ensure!(traces.starts() <= most, "{}: more than {most} starts: {traces:?}, and {end:?}", end.name);
    let left = pids(api.scene.path(), end.name.as_str());
    ensure!(left.is_empty(), "{} has left the processes {left:?}:\n{}", end.name, api.scene.processes());
    Ok(())
}
