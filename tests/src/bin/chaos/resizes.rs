//! Changes the number of workers of a TensorFlow job at random moments. No step may be lost, and each epoch must use
//! each sample once. The weights must equal the weights of a run on one worker.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::Scene;
use e2e::processes::{parent, within};
use e2e::programs::{python_path, root};
use protocol::ids::JobName;
use protocol::job::JobRequest;
use protocol::patch::JobPatch;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use rustix::process::Signal;

use crate::api::{Api, pid_of};
use crate::say;
use crate::shots::send;
use crate::work::request;

/// Number of training steps for each change.
const STEPS_EACH: u32 = 10;
/// Number of samples in an epoch.
const SAMPLES: usize = 1500;
/// Number of samples in a step.
const BATCH: usize = 96;
/// Limits of the number of workers.
const WORKERS: RangeInclusive<u32> = 1..=4;
/// Maximum difference of a weight between the two runs. Weights differ because rounding depends on the order of sums.
const TOLERANCE: f64 = 1e-5;

/// The results that one training has written to its folder.
struct Outcome {
    /// The samples of each step, over all ranks.
    samples: BTreeMap<u32, BTreeSet<usize>>,
    weights: Vec<f64>,
}

/// Changes the number of workers `count` times.
pub(crate) fn campaign(count: u32, seed: u64) -> anyhow::Result<()> {
    let scene = Scene::of_example("elastic");
    fs::write(scene.path().join("exec.py"), include_str!("softmax.py"))?;
    let path = python_path();
    let steps = count * STEPS_EACH;
    let alone = alone(&scene, &path, steps)?;
    let master = scene.master_with(&[("PATH", &path)]);
    let api = Api { scene: &scene, url: &master.url };
    let begin = Instant::now();
    let random = fastrand::Rng::with_seed(seed);
    let mut resizes = Resizes { api, name: "resized".parse()?, random, deleted: 0, workers: WORKERS };
    let end = resizes.run(count)?;
    let each = begin.elapsed() / count;
    ensure!(
        end.state == JobState::Succeeded && end.restarts.is_empty(),
        "the job ended with {end:?}\n{}",
        api.logs(&end.name)
    );
    let evidence = || format!("{:?}\n{}", end.changes, api.logs(&end.name));
    let resized = Outcome::of(&scene.path().join("resized"), steps).with_context(evidence)?;
    ensure!(resized.samples == alone.samples, "the two runs used different samples");
    let difference = resized.difference(&alone);
    ensure!(difference <= TOLERANCE, "the weights differ by {difference:e}");
    say(&format!(
        "{count} changes of a gang of 1 to 4 workers ({} by deleting a pod), {:.1} s for each change, in {steps} steps \
         of TensorFlow and {} starts: 0 steps lost or repeated, every sample once in each of {} epochs, the same \
         weights as without changes ({difference:.1e})",
        resizes.deleted,
        each.as_secs_f64(),
        end.generation.map_or(0, |last| last.sequence),
        steps as usize / SAMPLES.div_ceil(BATCH),
    ));
    drop(master);
    scene.until_empty();
    Ok(())
}

/// Trains on one worker, without Muster.
fn alone(scene: &Scene, path: &str, steps: u32) -> anyhow::Result<Outcome> {
    let folder = scene.path().join("alone");
    fs::create_dir(&folder)?;
    fs::write(folder.join("limit"), steps.to_string())?;
    let ran = Command::new("python")
        .args(["exec.py", "alone", &steps.to_string()])
        .current_dir(scene.path())
        .env("PATH", path)
        .env("PYTHONPATH", root().join("agent/python"))
        .output()?;
    ensure!(ran.status.success(), "exec.py without Muster failed: {}", String::from_utf8_lossy(&ran.stderr));
    Outcome::of(&folder, steps)
}

/// The job whose number of workers changes.
pub(crate) struct Resizes<'a> {
    pub(crate) api: Api<'a>,
    pub(crate) name: JobName,
    pub(crate) random: fastrand::Rng,
    /// Number of deleted pods.
    pub(crate) deleted: u32,
    /// Limits of the number of workers.
    pub(crate) workers: RangeInclusive<u32>,
}

impl Resizes<'_> {
    /// Runs the job to its end, with this number of changes. Returns the job's last view.
    fn run(&mut self, count: u32) -> anyhow::Result<JobView> {
        fs::create_dir(self.folder())?;
        self.allow(0)?;
        let workers = *WORKERS.end();
        let steps = u64::from(count * STEPS_EACH);
        self.api.submit(&JobRequest {
            worker_min: Some(*WORKERS.start()),
            args: vec![self.name.to_string(), steps.to_string()],
            run_policy: RunPolicy { max_restarts: 0, ..RunPolicy::default() },
            ..request(&self.name, steps, workers, 0)
        })?;
        let mut view = self.training_with(workers, None)?;
        for number in 1..=count {
            // Allow only a part of all steps, so that the job cannot end before the last change.
            self.allow(number * STEPS_EACH - STEPS_EACH / 2)?;
            thread::sleep(Duration::from_millis(self.random.u64(0..=100)));
            view = self.change(&view)?;
        }
        self.allow(count * STEPS_EACH)?;
        self.api.finished(&self.name)
    }

    /// Changes the number of workers, or with probability 1/4 deletes a pod. Returns the job's view when all workers
    /// train in a later start.
    pub(crate) fn change(&mut self, view: &JobView) -> anyhow::Result<JobView> {
        let mut workers = u32::try_from(view.roster.len())?;
        if self.random.u8(..4) == 0 {
            self.delete_a_pod(view)?;
        } else {
            workers = self.other_than(workers);
            self.api.patch(&self.name, JobPatch { worker_num: Some(workers), ..JobPatch::default() })?;
        }
        self.training_with(workers, Some(view))
    }

    fn folder(&self) -> PathBuf {
        self.api.scene.path().join(self.name.as_str())
    }

    /// Lets the job train up to this step.
    fn allow(&self, step: u32) -> anyhow::Result<()> {
        let (new, limit) = (self.folder().join("limit.new"), self.folder().join("limit"));
        fs::write(&new, step.to_string())?;
        Ok(fs::rename(new, limit)?)
    }

    fn other_than(&mut self, workers: u32) -> u32 {
        let others: Vec<u32> = self.workers.clone().filter(|other| *other != workers).collect();
        others[self.random.usize(..others.len())]
    }

    /// Ends a pod by SIGTERM to its agent, like a cluster that deletes a pod.
    fn delete_a_pod(&mut self, view: &JobView) -> anyhow::Result<()> {
        let member = view.roster[self.random.usize(..view.roster.len())];
        let replica =
            view.replicas.iter().find(|replica| replica.replica == member).context("the member is not a replica")?;
        let agent = parent(pid_of(replica)?).context("the script has no agent")?;
        ensure!(send(Signal::TERM, agent, self.name.as_str()), "{member} ended before its pod was deleted");
        self.deleted += 1;
        Ok(())
    }

    /// Waits until this many workers train, in a later start than the start of `before`.
    pub(crate) fn training_with(&self, workers: u32, before: Option<&JobView>) -> anyhow::Result<JobView> {
        let last = before.and_then(|view| view.generation);
        let is_it = |view: &JobView| {
            let runs = |replica| view.replicas.iter().any(|view| view.replica == replica && view.pid.is_some());
            view.state == JobState::Running
                && view.generation > last
                && view.roster.len() == workers as usize
                && view.roster.iter().all(|member| runs(*member))
        };
        let what = format!("{workers} workers run");
        let view = self.api.until(&self.name, &what, |view| view.state.is_finished() || is_it(view))?;
        ensure!(is_it(&view), "the job ended early: {view:?}\n{}", self.api.logs(&self.name));
        let journal =
            self.folder().join(format!("{}.0.journal", view.generation.context("the running job has no generation")?));
        within("the script trains", || journal.exists().then_some(()), || self.api.logs(&self.name));
        Ok(view)
    }
}

impl Outcome {
    /// Reads the journals. Fails if a step is missing, if two starts made the same step, or if an epoch used a sample
    /// twice.
    fn of(folder: &Path, steps: u32) -> anyhow::Result<Self> {
        let mut samples: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
        let mut made_by: BTreeMap<u32, String> = BTreeMap::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let Some((start, _rank)) = name.strip_suffix(".journal").and_then(|name| name.rsplit_once('.')) else {
                continue;
            };
            for line in fs::read_to_string(folder.join(&name))?.lines() {
                let (step, indexes): (u32, Vec<usize>) = serde_json::from_str(line).with_context(|| name.clone())?;
                let first = made_by.entry(step).or_insert_with(|| start.to_owned());
                ensure!(first == start, "two starts made step {step}: {first} and {start}");
                let own = samples.entry(step).or_default();
                for index in indexes {
                    ensure!(own.insert(index), "step {step} used sample {index} twice");
                }
            }
        }
        ensure!(made_by.keys().copied().eq(1..=steps), "the steps are not exactly 1 to {steps}: {:?}", made_by.keys());
        let mut epoch = BTreeSet::new();
        for (step, own) in &samples {
            for index in own {
                ensure!(epoch.insert(*index), "step {step} used sample {index}, which its epoch had used before");
            }
            if epoch.len() == SAMPLES {
                epoch.clear();
            }
        }
        let weights = serde_json::from_str(&fs::read_to_string(folder.join("weights.json"))?)?;
        Ok(Self { samples, weights })
    }

    /// Returns the largest difference between a weight and the same weight of `other`.
    fn difference(&self, other: &Self) -> f64 {
        let pairs = self.weights.iter().zip(&other.weights);
        pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    }
}
