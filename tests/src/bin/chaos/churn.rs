//! Runs jobs that bring their code, on the cluster in KUBECONFIG and with an installed master. Meanwhile, deletes a
//! random pod every 2 s, and the master's pod every 17 s. Every client must exit with 0.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::Scene;
use e2e::cluster::{Image, Namespace, OURS};

use crate::{lanes, say};

/// Image of the scripts.
const BASE: &str = "python:3.11-slim";
/// Interval between two deletions of a pod of a job.
const POD_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two deletions of the master's pod.
const MASTER_INTERVAL: Duration = Duration::from_secs(17);
/// Selects the master's pod.
const MASTER: &str = "app.kubernetes.io/component=master";
/// How each second job is submitted: with a fixed number of workers, or with a range.
const WORKERS: [&str; 2] = ["3", "2:3"];

/// Runs jobs one after another in each lane, for this many seconds. The jobs that run at the end of this time are no
/// longer disturbed.
pub(crate) fn campaign(seconds: u32, seed: u64) -> anyhow::Result<()> {
    let site = Site::new();
    let (pods, masters, jobs) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds.into());
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(seed);
            every(POD_INTERVAL, end, || pods.fetch_add(site.delete_pod(OURS, &mut random), Ordering::Relaxed));
        });
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(seed);
            every(MASTER_INTERVAL, end, || masters.fetch_add(site.delete_pod(MASTER, &mut random), Ordering::Relaxed));
        });
        lanes::run(seed, |_| (Instant::now() < end).then(|| site.job(jobs.fetch_add(1, Ordering::Relaxed))))
    });
    say(&format!(
        "{} jobs, {} deleted pods of jobs, {} deleted pods of the master; {:.0} s",
        jobs.into_inner(),
        pods.into_inner(),
        masters.into_inner(),
        begin.elapsed().as_secs_f64(),
    ));
    outcome
}

/// Calls `act` at this interval until `end`.
fn every<T>(interval: Duration, end: Instant, mut act: impl FnMut() -> T) {
    let mut next = Instant::now() + interval;
    while next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        act();
        next += interval;
    }
}

/// A namespace with an installed master.
struct Site {
    // Declared before the image, so the pods are deleted first.
    namespace: Namespace,
    _master: Image,
    scene: Scene,
}

impl Site {
    fn new() -> Self {
        let site = Self { namespace: Namespace::new(), _master: Image::of_master(), scene: Scene::new("") };
        let image = site._master.of_nodes();
        site.scene.run(&["install", "--master", &site.place(), "--image", &image]).code(0);
        site
    }

    fn place(&self) -> String {
        format!("kube:{}", self.namespace.name())
    }

    /// Deletes a random pod with these labels. Returns the number of deleted pods.
    fn delete_pod(&self, labels: &str, random: &mut fastrand::Rng) -> u32 {
        let live = "--field-selector=status.phase!=Succeeded,status.phase!=Failed";
        let listed = self.namespace.try_kubectl(&["get", "pods", "-l", labels, live, "-o", "name"]);
        let names: Vec<&str> = listed.lines().filter(|name| name.starts_with("pod/")).collect();
        let Some(name) = random.choice(names) else { return 0 };
        self.namespace.try_kubectl(&["delete", name, "--wait=false"]);
        1
    }

    /// Submits a job with code of its own, and follows it to its end.
    fn job(&self, number: u32) -> anyhow::Result<()> {
        let name = format!("churn-{number}");
        let folder = self.scene.path().join(&name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("exec.py"), format!("import time\nprint('job {number}', flush=True)\ntime.sleep(3)\n"))?;
        let (place, code) = (self.place(), format!("./{name}"));
        let workers = WORKERS[number as usize % WORKERS.len()];
        let submit = ["--master", &place, &code, "--image", BASE, "--task", &name, "--worker-num", workers];
        let limits = ["--max-restarts", "100", "--deadline", "10m"];
        let ended = self.scene.client(&[&submit[..], &limits].concat()).output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{name}, of {workers} workers: {}: {said}", ended.status);
        Ok(())
    }
}
