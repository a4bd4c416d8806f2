//! Calls the master's HTTP API with curl.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use e2e::Scene;
use protocol::ids::{Generation, JobName};
use protocol::job::JobRequest;
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView, ReplicaView};

/// Maximum time that this program waits for a change of a job. It exceeds the master's time limits for the end of a
/// run and of its pod.
const PATIENCE: Duration = Duration::from_secs(90);

/// A master's API. curl runs in the scene's folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) url: &'a str,
}

impl Api<'_> {
    pub(crate) fn submit(&self, request: &JobRequest) -> anyhow::Result<()> {
        let body = serde_json::to_string(request)?;
        let answer =
            self.scene.curl(&["-H", "content-type: application/json", "-d", &body, &format!("{}/v1/jobs", self.url)]);
        serde_json::from_str::<JobView>(&answer).map(drop).with_context(|| answer)
    }

    pub(crate) fn patch(&self, job: &JobName, patch: JobPatch) -> anyhow::Result<()> {
        let body = serde_json::to_string(&patch)?;
        let answer = self.scene.curl(&["-X", "PATCH", "-d", &body, &format!("{}/v1/jobs/{job}", self.url)]);
        serde_json::from_str::<JobView>(&answer).map(drop).with_context(|| answer)
    }

    /// Waits until `is_it` accepts the job's view. Returns the view.
    pub(crate) fn until(&self, job: &JobName, what: &str, is_it: impl Fn(&JobView) -> bool) -> anyhow::Result<JobView> {
        let begin = Instant::now();
        let mut view = self.view(job, "")?;
        while !is_it(&view) {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: timeout after {} s, waiting for: {what}; the job is {view:?}", PATIENCE.as_secs());
            }
            view = self.view(job, &format!("?after={}&wait=10", view.seq))?;
        }
        Ok(view)
    }

    /// Waits until the job has finished, and returns its view.
    pub(crate) fn finished(&self, job: &JobName) -> anyhow::Result<JobView> {
        self.until(job, "the job has finished", |view| view.state.is_finished())
    }

    /// Waits until all replicas run in a start later than `after`, or until the job has finished. Returns the view.
    pub(crate) fn running_anew(&self, job: &JobName, after: Option<Generation>) -> anyhow::Result<JobView> {
        let runs = |view: &JobView| {
            let is_new = view.generation > after;
            view.state == JobState::Running && is_new && view.replicas.iter().all(|replica| replica.pid.is_some())
        };
        self.until(job, "all replicas run in a new start", |view| view.state.is_finished() || runs(view))
    }

    /// Waits until the start in `before` or a later start has failed, or until the job has finished. Returns the view.
    pub(crate) fn judged(&self, before: &JobView) -> anyhow::Result<JobView> {
        let is_judged =
            |view: &JobView| view.restarts.failed_starts.iter().any(|failed| failed.generation >= before.generation);
        self.until(&before.name, "a start has failed", |view| view.state.is_finished() || is_judged(view))
    }

    /// The job's output.
    pub(crate) fn logs(&self, job: &JobName) -> String {
        self.scene.curl(&[&format!("{}/v1/jobs/{job}/logs", self.url)])
    }

    /// Deletes the job, and waits until its record is deleted.
    pub(crate) fn delete(&self, job: &JobName) -> anyhow::Result<()> {
        self.scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/{job}", self.url)]);
        self.forgotten(job)
    }

    /// Waits until the job's record is deleted.
    pub(crate) fn forgotten(&self, job: &JobName) -> anyhow::Result<()> {
        let begin = Instant::now();
        while let Ok(view) = self.view(job, "") {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: not deleted within {} s: {view:?}", PATIENCE.as_secs());
            }
            // This request lasts at most 1 s. The master answers it at once when the job is deleted.
            let _ = self.view(job, &format!("?after={}&wait=1", view.seq));
        }
        Ok(())
    }

    /// The value of one of the master's metrics.
    pub(crate) fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let all = self.scene.curl(&[&format!("{}/metrics", self.url)]);
        let value = all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.with_context(|| format!("no metric {name}: {all}"))
    }

    fn view(&self, job: &JobName, query: &str) -> anyhow::Result<JobView> {
        let answer = self.scene.curl(&["--max-time", "60", &format!("{}/v1/jobs/{job}{query}", self.url)]);
        serde_json::from_str(&answer).with_context(|| format!("{job}: {answer}"))
    }
}

/// The process id of a replica's exec.py.
pub(crate) fn pid_of(replica: &ReplicaView) -> anyhow::Result<u32> {
    replica.pid.with_context(|| format!("{} has no process", replica.replica))
}
