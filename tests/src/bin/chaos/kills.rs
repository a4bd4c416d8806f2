//! Kills random workers, but fewer than the jobs' budgets of restarts allow. Every job must do all its work. Its
//! number of counted restarts must match the kills.

use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::processes::{parent, pids};
use protocol::agent::ExitOutcome;
use protocol::failure::{FailedStart, Failure, Loss};
use protocol::ids::{JobName, ReplicaId};
use protocol::job::JobRequest;
use protocol::processes::NprocPerNode;
use protocol::view::{JobState, JobView};

use crate::api::{Api, pid_of};
use crate::lanes::{self, locked};
use crate::say;
use crate::shots::shoot;
use crate::work::{STEPS, Site, Traces, request};

/// Maximum restarts of a job. No job has that many kills.
const BUDGET: u32 = 1000;

/// The kind of jobs to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    /// Jobs with a fixed number of workers.
    Fixed,
    /// Jobs whose minimum number of workers is below the maximum.
    Elastic,
}

/// Counts of kills and of their effects.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    jobs: u32,
    of_runs: u32,
    of_agents: u32,
    /// Second kills in the same start, right after the first.
    second: u32,
    /// Kills that came too late, because the process had done its work. The campaign makes another kill for each of
    /// them.
    late: u32,
    /// Starts that failed because of a kill.
    starts: u32,
    restarts: u32,
}

/// Kills processes until `kills` kills have come in time.
pub(crate) fn campaign(kills: u32, seed: u64, jobs: Jobs) -> anyhow::Result<()> {
    let site = Site::new();
    let api = Api { scene: &site.scene, url: &site.master.url };
    let (left, number, total) = (AtomicU32::new(kills), AtomicU32::new(0), Mutex::new(Tally::default()));
    let begin = Instant::now();
    let outcome = lanes::run(seed, |random| {
        let asked = random.u32(3..=12);
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(asked)));
        let quota = before.unwrap_or_default().min(asked);
        if quota == 0 {
            return None;
        }
        let name = format!("shot-{:05}", number.fetch_add(1, Ordering::SeqCst));
        let tally = job(api, &name.parse().expect("the name is invalid"), (quota, jobs), random);
        Some(tally.map(|tally| {
            left.fetch_add(quota.saturating_sub(tally.kills()), Ordering::SeqCst);
            *locked(&total) += tally;
        }))
    });
    let Tally { jobs: number, of_runs, of_agents, second, late, starts, restarts } = *locked(&total);
    say(&format!(
        "{} kills in {number} {jobs:?} jobs, {of_runs} of exec.py and {of_agents} of agents; {starts} starts failed, \
         {restarts} restarts were counted; {second} kills came right after another; {late} further kills came too \
         late; {:.0} s",
        of_runs + of_agents,
        begin.elapsed().as_secs_f64(),
    ));
    let Site { master, scene } = site;
    drop(master);
    scene.until_empty();
    outcome
}

/// Runs a job. Kills its processes until the quota is reached or the job has ended.
fn job(api: Api<'_>, name: &JobName, (quota, jobs): (u32, Jobs), random: &mut fastrand::Rng) -> anyhow::Result<Tally> {
    let workers = random.u32(2..=4);
    let worker_min = (jobs == Jobs::Elastic).then(|| random.u32(1..workers));
    let nproc_per_node = Some(NprocPerNode::Number(random.u32(1..=2)));
    api.submit(&JobRequest { worker_min, nproc_per_node, ..request(name, STEPS, workers, BUDGET) })?;
    let mut tally = Tally { jobs: 1, ..Tally::default() };
    // The replicas that were killed in the previous start. If an agent is killed right after another kill, its failure
    // may appear only in the next start.
    let mut shadow = vec![];
    let mut last = None;
    while tally.kills() < quota {
        let view = api.running_anew(name, last)?;
        last = view.generation;
        if view.state.is_finished() {
            break;
        }
        thread::sleep(Duration::from_millis(random.u64(0..=80)));
        let Volley { hit, tally: shots } = Volley::at(&view, random)?;
        if hit.is_empty() {
            tally += shots;
            continue;
        }
        let judged = api.judged(&view)?;
        let Some(failed) = judged.restarts.failed_starts.iter().find(|failed| failed.generation == view.generation)
        else {
            // The job had done its work before the kill, so nothing was repeated.
            tally += Tally { late: shots.late + shots.kills(), ..Tally::default() };
            continue;
        };
        tally += Tally { starts: 1, ..shots };
        let suspects: Vec<ReplicaId> = hit.iter().chain(&shadow).copied().collect();
        ensure!(is_blamed(failed, &suspects), "{name}: {hit:?} were killed, but the failure is {failed:?}");
        shadow = hit;
    }
    let end = api.finished(name)?;
    tally.restarts = end.restarts.counted;
    ended_rightly(api, &end, tally)?;
    api.delete(name)?;
    Ok(tally)
}

/// The kills during one start.
struct Volley {
    hit: Vec<ReplicaId>,
    tally: Tally,
}

impl Volley {
    /// Kills one exec.py, or with probability 1/5 its agent. With probability 1/10, also kills a second replica.
    fn at(view: &JobView, random: &mut fastrand::Rng) -> anyhow::Result<Self> {
        let mut volley = Self { hit: vec![], tally: Tally::default() };
        let mut targets: Vec<_> = view.replicas.iter().collect();
        random.shuffle(&mut targets);
        // An agent's process id can only be found while its exec.py runs.
        let agents: Vec<Option<u32>> = targets.iter().map(|target| target.pid.and_then(parent)).collect();
        let shots = if random.u8(..10) == 0 { 2 } else { 1 };
        for (target, agent) in targets.into_iter().zip(agents).take(shots) {
            let is_at_agent = random.u8(..5) == 0;
            let pid = if is_at_agent { agent } else { Some(pid_of(target)?) };
            let has_hit = pid.is_some_and(|pid| shoot(pid, view.name.as_str()));
            let tally = &mut volley.tally;
            let kind = match (has_hit, is_at_agent) {
                (false, _) => &mut tally.late,
                (true, true) => &mut tally.of_agents,
                (true, false) => &mut tally.of_runs,
            };
            *kind += 1;
            if has_hit {
                tally.second += u32::from(!volley.hit.is_empty());
                volley.hit.push(target.replica);
            }
            thread::sleep(Duration::from_millis(random.u64(0..=30)));
        }
        Ok(volley)
    }
}

/// Returns whether a kill of one of these replicas made the start fail.
fn is_blamed(failed: &FailedStart, suspects: &[ReplicaId]) -> bool {
    let is_right_kind = match &failed.failure {
        Failure::ReplicaExited { exit, .. } => exit.outcome == ExitOutcome::Signal(9),
        Failure::ReplicaLost { loss, .. } => *loss == Loss::Broken,
        Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => false,
    };
    is_right_kind && failed.counted && failed.failure.replica().is_some_and(|replica| suspects.contains(&replica))
}

fn ended_rightly(api: Api<'_>, end: &JobView, tally: Tally) -> anyhow::Result<()> {
    let name = &end.name;
    ensure!(end.state == JobState::Succeeded, "{name} did not succeed: {end:?}");
    let restarts = &end.restarts;
    // A second kill may hit the same start, the time between two starts, or the next start.
    let is_right = restarts.uncounted == 0 && (tally.starts..=tally.starts + tally.second).contains(&restarts.counted);
    ensure!(is_right, "{name}: the restarts do not match the kills: {tally:?}, but {restarts:?}");
    let traces = Traces::of(api.scene, name)?;
    let workers = if end.workers.is_some() { end.roster.len() } else { end.replicas.len() };
    traces.are_complete(name, workers * end.spec.nproc_per_node as usize)?;
    // An elastic job has a further start when a killed pod is replaced.
    let most = if end.workers.is_some() { usize::MAX } else { restarts.counted as usize + 1 };
    ensure!(traces.starts() <= most, "{name}: more than {most} starts: {traces:?}, but {restarts:?}");
    let logs = api.logs(name);
    ensure!(!logs.contains("VIOLATION"), "{name}: {logs}");
    let left = pids(api.scene.path(), name.as_str());
    ensure!(left.is_empty(), "{name} has left the processes {left:?}:\n{}", api.scene.processes());
    Ok(())
}

impl Tally {
    fn kills(&self) -> u32 {
        self.of_runs + self.of_agents
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        let Self { jobs, of_runs, of_agents, second, late, starts, restarts } = other;
        self.jobs += jobs;
        self.of_runs += of_runs;
        self.of_agents += of_agents;
        self.second += second;
        self.late += late;
        self.starts += starts;
        self.restarts += restarts;
    }
}
