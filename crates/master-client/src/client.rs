//! The requests about jobs, their code and the master itself: one function for each kind of request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::code::{CodeId, Manifest, MissingBlobs, Sha256};
use protocol::deletion::Deletion;
use protocol::dry_run::DryRun;
use protocol::history::{PastJob, PastJobs};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::master::{FolderQuery, MasterView};
use protocol::patch::JobPatch;
use protocol::progress::JobSeries;
use protocol::routes::{AGENT_PROGRAM, CODE, CODE_BLOBS, HISTORY, JOB_DRY_RUNS, JOBS, MASTER, PAST_JOB};
use protocol::stacks::JobStacks;
use protocol::timeline::Timeline;
use protocol::view::{JobList, JobView};
use reqwest::{Method, RequestBuilder, StatusCode};

use crate::error::MasterError;
use crate::kube_place::KubePlace;
use crate::master_url::MasterUrl;
use crate::token::Token;
use crate::transport::{Transport, Tunnel};

/// Time limit for sending code. At 300 KiB/s, the largest allowed code takes almost this long.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(4 * 60);

/// A client of one master. Clones share their connections.
#[derive(Debug, Clone)]
pub struct MasterClient {
    pub(crate) transport: Transport,
}

impl MasterClient {
    /// Creates a client. Nothing is sent yet.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub fn new(url: MasterUrl, token: Option<&Token>) -> Result<Self, MasterError> {
        Ok(Self { transport: Transport::new(url, token, None)? })
    }

    /// Like [`Self::new`], for the master in `place`, at the other end of `tunnel`.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub fn through(place: KubePlace, token: &Token, tunnel: impl Tunnel + 'static) -> Result<Self, MasterError> {
        let transport = Transport::new(MasterUrl::through(place), Some(token), Some(Arc::new(tunnel)))?;
        Ok(Self { transport })
    }

    /// The master's address.
    pub fn url(&self) -> &MasterUrl {
        &self.transport.url
    }

    /// The master's version and back end.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn about(&self) -> Result<MasterView, MasterError> {
        self.transport.get(MASTER).await
    }

    /// What the master is, and whether it sees this folder.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn about_folder(&self, folder: &FolderQuery) -> Result<MasterView, MasterError> {
        self.transport.json(self.request(Method::GET, MASTER).query(folder)).await
    }

    /// The agent's program, for a client that has no agent file.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn agent_program(&self) -> Result<Bytes, MasterError> {
        let answer = self.transport.send(self.request(Method::GET, AGENT_PROGRAM)).await?;
        answer.bytes().await.map_err(|error| self.transport.error(&error))
    }

    /// Submits a job. Repeating the request returns the same job.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn submit(&self, spec: &JobSpec) -> Result<SubmitOutcome, MasterError> {
        let (status, view) = self.transport.status_and_json(self.request(Method::POST, JOBS).json(spec)).await?;
        Ok(if status == StatusCode::CREATED { SubmitOutcome::New(view) } else { SubmitOutcome::Before(view) })
    }

    /// Asks the master whether it would accept a job.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn dry_run(&self, spec: &JobSpec, old: OldJob) -> Result<DryRun, MasterError> {
        let query = [("replace", old == OldJob::IsDeletedFirst)];
        self.transport.json(self.request(Method::POST, JOB_DRY_RUNS).query(&query).json(spec)).await
    }

    /// Sends the manifest of a job's code. Returns the blobs that the master does not have.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn put_manifest(&self, id: CodeId, manifest: &Manifest) -> Result<Vec<Sha256>, MasterError> {
        let request = self.request(Method::PUT, &of_code(CODE, id)).json(manifest).timeout(UPLOAD_TIMEOUT);
        Ok(self.transport.json::<MissingBlobs>(request).await?.missing)
    }

    /// Sends a stream of blobs of this code. Returns the blobs that the master still does not have.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn put_blobs(&self, id: CodeId, stream: Vec<u8>) -> Result<Vec<Sha256>, MasterError> {
        let request = self.request(Method::PUT, &of_code(CODE_BLOBS, id)).body(stream).timeout(UPLOAD_TIMEOUT);
        Ok(self.transport.json::<MissingBlobs>(request).await?.missing)
    }

    /// All jobs.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn list(&self) -> Result<JobList, MasterError> {
        self.transport.get(JOBS).await
    }

    /// Returns all jobs when one of them has changed since `seq`, or unchanged after `wait`. Waits at most
    /// [`LONG_POLL`](crate::LONG_POLL).
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn list_after(&self, seq: u64, wait: Duration) -> Result<JobList, MasterError> {
        self.transport.json(self.transport.long_poll(JOBS, seq, wait)).await
    }

    /// The series of a job, with this many newest reports of each script.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn progress(&self, name: &JobName, tail: usize) -> Result<JobSeries, MasterError> {
        self.transport.json(self.request(Method::GET, &of_job(name, "/series")).query(&[("tail", tail)])).await
    }

    /// The points of a job's series that the master has added later than `after`, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn series_after(&self, name: &JobName, after: Option<u64>) -> Result<JobSeries, MasterError> {
        self.transport.json(self.request(Method::GET, &of_job(name, "/series")).query(&[("after", after)])).await
    }

    /// Where the scripts of a job are now.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn stacks(&self, name: &JobName) -> Result<JobStacks, MasterError> {
        self.transport.get(&of_job(name, "/stacks")).await
    }

    /// The jobs that have ended.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn history(&self) -> Result<PastJobs, MasterError> {
        self.transport.get(HISTORY).await
    }

    /// The job with this uid, which has ended.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn past_job(&self, uid: &str) -> Result<PastJob, MasterError> {
        self.transport.get(&PAST_JOB.replace("{uid}", uid)).await
    }

    /// When a job reached each step, and how its time was spent.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn timeline(&self, name: &JobName) -> Result<Timeline, MasterError> {
        self.transport.get(&of_job(name, "/timeline")).await
    }

    /// One job now.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn view(&self, name: &JobName) -> Result<JobView, MasterError> {
        self.transport.get(&of_job(name, "")).await
    }

    /// Returns the job when it has changed since `seq`, or unchanged after `wait`. Waits at most
    /// [`LONG_POLL`](crate::LONG_POLL).
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn view_after(&self, name: &JobName, seq: u64, wait: Duration) -> Result<JobView, MasterError> {
        self.transport.json(self.transport.long_poll(&of_job(name, ""), seq, wait)).await
    }

    /// Changes a job's number of workers or its code, suspends it or resumes it.
    /// Returns before the change takes effect.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn patch(&self, name: &JobName, patch: JobPatch) -> Result<JobView, MasterError> {
        self.transport.json(self.request(Method::PATCH, &of_job(name, "")).json(&patch)).await
    }

    /// Asks the master to cancel a job, and returns before the job has stopped.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn cancel(&self, name: &JobName) -> Result<(), MasterError> {
        self.transport.send(self.request(Method::POST, &of_job(name, "/cancel"))).await.map(drop)
    }

    /// Asks the master to delete the job with this name, and with this uid if it is known. Returns before the job is
    /// deleted.
    ///
    /// # Errors
    /// See [`MasterError`].
    pub async fn delete(&self, name: &JobName, uid: Option<&str>) -> Result<Deletion, MasterError> {
        let request = self.request(Method::DELETE, &of_job(name, "")).query(&[("uid", uid)]);
        let answer = self.transport.send(request).await?.bytes().await;
        // An earlier master sends no body.
        Ok(answer.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.transport.request(method, path)
    }
}

fn of_code(route: &str, id: CodeId) -> String {
    route.replace("{id}", &id.to_string())
}

/// The path of a job, or of a part of it.
pub(crate) fn of_job(name: &JobName, part: &str) -> String {
    format!("{JOBS}/{name}{part}")
}

/// What happens to the job on record that has the same name as the new job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldJob {
    /// The old job stays, so another job cannot have its name.
    Stays,
    /// The client deletes the old job before the submit.
    IsDeletedFirst,
}

/// The outcome of a submit.
#[derive(Debug)]
pub enum SubmitOutcome {
    /// This request created the job.
    New(JobView),
    /// An earlier request with the same content created the job.
    Before(JobView),
    /// An earlier TFJob created the job, and this TFJob changes the job.
    Changed {
        /// The job before the change takes effect.
        job: JobView,
        /// What the TFJob changes.
        change: JobPatch,
    },
}

impl SubmitOutcome {
    /// The job.
    pub fn view(&self) -> &JobView {
        match self {
            Self::New(view) | Self::Before(view) | Self::Changed { job: view, .. } => view,
        }
    }

    /// The outcome of a request that was repeated because the answer to an equal request was lost. The master may have
    /// created the job for the earlier request.
    pub fn after_doubt(self) -> Self {
        match self {
            Self::Before(view) if view.result.is_none() => Self::New(view),
            outcome @ (Self::New(_) | Self::Before(_) | Self::Changed { .. }) => outcome,
        }
    }
}
