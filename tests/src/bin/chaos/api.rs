//! A campaign's way to its master: the HTTP API, by curl.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use e2e::Scene;
use protocol::ids::{Generation, JobName};
use protocol::job::JobRequest;
use protocol::view::{JobState, JobView, ReplicaView};

/// Most time that anything of a job may take. A run that its agent does not stop is given 17 s, its pod 17 s more.
const PATIENCE: Duration = Duration::from_secs(90);

/// A master, asked from a folder.
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

    /// The job, as soon as `is_it` holds for it.
    pub(crate) fn until(&self, job: &JobName, what: &str, is_it: impl Fn(&JobView) -> bool) -> anyhow::Result<JobView> {
        let begin = Instant::now();
        let mut view = self.view(job, "")?;
        while !is_it(&view) {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: not within {} s: {what}; it is {view:?}", PATIENCE.as_secs());
            }
            view = self.view(job, &format!("?after={}&wait=10", view.seq))?;
        }
        Ok(view)
    }

    /// The job, once it has finished.
    pub(crate) fn finished(&self, job: &JobName) -> anyhow::Result<JobView> {
        self.until(job, "it has finished", |view| view.state.is_finished())
    }

    /// The job, once all its replicas run in a start later than this one, or once it has finished.
    pub(crate) fn running_anew(&self, job: &JobName, after: Option<Generation>) -> anyhow::Result<JobView> {
        let runs = |view: &JobView| {
            let is_new = view.generation > after;
            view.state == JobState::Running && is_new && view.replicas.iter().all(|replica| replica.pid.is_some())
        };
        self.until(job, "all run in a new start", |view| view.state.is_finished() || runs(view))
    }

    /// The job, once the start that `before` shows is judged, or once it has finished.
    pub(crate) fn judged(&self, before: &JobView) -> anyhow::Result<JobView> {
        let is_judged =
            |view: &JobView| view.restarts.failed_starts.iter().any(|failed| failed.generation >= before.generation);
        self.until(&before.name, "a start is judged", |view| view.state.is_finished() || is_judged(view))
    }

    /// All that the job has printed.
    pub(crate) fn logs(&self, job: &JobName) -> String {
        self.scene.curl(&[&format!("{}/v1/jobs/{job}/logs", self.url)])
    }

    /// Deletes the job, and waits until it is forgotten.
    pub(crate) fn delete(&self, job: &JobName) -> anyhow::Result<()> {
        self.scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/{job}", self.url)]);
        self.forgotten(job)
    }

    /// Waits until the job is forgotten.
    pub(crate) fn forgotten(&self, job: &JobName) -> anyhow::Result<()> {
        let begin = Instant::now();
        while let Ok(view) = self.view(job, "") {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: not forgotten within {} s: {view:?}", PATIENCE.as_secs());
            }
            // An answer comes at once when it goes.
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
    replica.pid.with_context(|| format!("{} runs", replica.replica))
}
