//! Calls the master's HTTP API.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use e2e::Scene;
use e2e::requests::{client_of, wait_for};
use master_client::MasterClient;
use protocol::ids::{Generation, JobName};
use protocol::job::{JobRequest, JobSpec};
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView, ReplicaView};

/// Maximum time that this program waits for a change of a job. It exceeds the master's time limits for the end of a
/// run and of its pod.
const PATIENCE: Duration = Duration::from_secs(90);

/// A master's API. Each request opens a new connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) url: &'a str,
}

impl Api<'_> {
    pub(crate) fn submit(&self, request: &JobRequest) -> anyhow::Result<()> {
        wait_for(self.client().submit(&JobSpec::try_from(request.clone())?))?;
        Ok(())
    }

    pub(crate) fn patch(&self, job: &JobName, patch: JobPatch) -> anyhow::Result<()> {
        wait_for(self.client().patch(job, patch))?;
        Ok(())
    }

    /// Waits until `is_it` accepts the job's view. Returns the view.
    pub(crate) fn until(&self, job: &JobName, what: &str, is_it: impl Fn(&JobView) -> bool) -> anyhow::Result<JobView> {
        let begin = Instant::now();
        let mut view = wait_for(self.client().view(job))?;
        while !is_it(&view) {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: timeout after {} s, waiting for: {what}; the job is {view:?}", PATIENCE.as_secs());
            }
            view = wait_for(self.client().view_after(job, view.seq, Duration::from_secs(10)))?;
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
        wait_for(self.client().delete(job, None))?;
        self.forgotten(job)
    }

    /// Waits until the job's record is deleted.
    pub(crate) fn forgotten(&self, job: &JobName) -> anyhow::Result<()> {
        let begin = Instant::now();
        while let Ok(view) = wait_for(self.client().view(job)) {
            if begin.elapsed() > PATIENCE {
                bail!("{job}: not deleted within {} s: {view:?}", PATIENCE.as_secs());
            }
            // This request lasts at most 1 s. The master answers it at once when the job is deleted.
            let _ = wait_for(self.client().view_after(job, view.seq, Duration::from_secs(1)));
        }
        Ok(())
    }

    /// The value of one of the master's metrics.
    pub(crate) fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let all = self.scene.curl(&[&format!("{}/metrics", self.url)]);
        let value = all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.with_context(|| format!("no metric {name}: {all}"))
    }

    pub(crate) fn client(&self) -> MasterClient {
        client_of(self.url, None)
    }
}

/// The process id of a replica's exec.py.
pub(crate) fn pid_of(replica: &ReplicaView) -> anyhow::Result<u32> {
    replica.pid.with_context(|| format!("{} has no process", replica.replica))
}
