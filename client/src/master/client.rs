//! One function for each kind of request to the master. Every response has a deadline. In a log stream, the deadline
//! applies only to the headers. Callers retry with `patience.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::debug;
use protocol::code::{CodeId, Manifest, MissingBlobs, Sha256};
use protocol::deletion::Deletion;
use protocol::dry_run::DryRun;
use protocol::error::Problem;
use protocol::history::{PastJob, PastJobs};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::master::{FolderQuery, MasterView};
use protocol::origin::Warning;
use protocol::patch::JobPatch;
use protocol::progress::JobSeries;
use protocol::routes::{
    AGENT_PROGRAM, CODE, CODE_BLOBS, HISTORY, JOB_DRY_RUNS, JOBS, LONG_POLL_MAX_SECONDS, MASTER, PAST_JOB,
    TFJOB_DRY_RUNS, TFJOBS,
};
use protocol::stacks::JobStacks;
use protocol::tfjob::{TfJobAnswer, TfJobList, TfJobRequest};
use protocol::timeline::Timeline;
use protocol::view::{JobList, JobView};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::clock;
use crate::address::config::Token;
use crate::address::kube_place::KubePlace;
use crate::address::master_url::MasterUrl;
use crate::cluster::Forward;
use crate::ending::error::{MasterError, root_cause};

/// The target of the log messages about requests.
pub(crate) const LOG_TARGET: &str = module_path!();

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a whole response, and for the headers of a stream.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for sending code. At 300 KiB/s, the largest allowed code takes almost this long.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(4 * 60);
/// Idle time of a connection before TCP keepalive checks whether the peer is alive.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Maximum wait of one long poll.
pub(crate) const LONG_POLL: Duration =
    Duration::from_secs(if LONG_POLL_MAX_SECONDS < 30 { LONG_POLL_MAX_SECONDS } else { 30 });

/// A client of one master. Clones share their connections.
#[derive(Debug, Clone)]
pub(crate) struct MasterClient {
    http: Client,
    url: MasterUrl,
    /// The socket for all requests, if the client reaches the master through the Kubernetes API.
    forward: Option<Arc<Forward>>,
}

/// Starts to build an HTTP client whose requests name this program.
pub(crate) fn http() -> ClientBuilder {
    // reqwest needs a crypto provider even without TLS. An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().user_agent(concat!("muster-client/", env!("CARGO_PKG_VERSION")))
}

impl MasterClient {
    /// Creates a client. Nothing is sent yet.
    pub(crate) fn new(url: MasterUrl, token: Option<&Token>) -> Result<Self, MasterError> {
        Self::with(url, token, None)
    }

    /// Like [`Self::new`], for the master at the other end of `forward`.
    pub(crate) fn through(place: KubePlace, token: &Token, forward: Forward) -> Result<Self, MasterError> {
        Self::with(MasterUrl::through(place), Some(token), Some(Arc::new(forward)))
    }

    fn with(url: MasterUrl, token: Option<&Token>, forward: Option<Arc<Forward>>) -> Result<Self, MasterError> {
        let headers: HeaderMap = token.map(|token| (AUTHORIZATION, token.header())).into_iter().collect();
        let builder = http()
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            // A master never redirects, and the token must not be sent to another host.
            .redirect(reqwest::redirect::Policy::none());
        let builder = if url.is_loopback() { builder.no_proxy() } else { builder };
        // Without TLS, no certificates are needed.
        let builder = if url.is_https() { builder } else { builder.tls_certs_only([]) };
        let builder = match &forward {
            Some(forward) => builder.unix_socket(forward.socket()),
            None => builder,
        };
        let http = builder.build().map_err(|error| MasterError::Setup(root_cause(&error)))?;
        Ok(Self { http, url, forward })
    }

    /// The master's address.
    pub(crate) fn url(&self) -> &MasterUrl {
        &self.url
    }

    /// The master's version and back end.
    pub(crate) async fn about(&self) -> Result<MasterView, MasterError> {
        self.json(self.request(Method::GET, self.url.join(MASTER))).await
    }

    /// What the master is, and whether it sees this folder.
    pub(crate) async fn about_folder(&self, folder: &FolderQuery) -> Result<MasterView, MasterError> {
        self.json(self.request(Method::GET, self.url.join(MASTER)).query(folder)).await
    }

    /// The agent's program, for a client that has no agent file.
    pub(crate) async fn agent_program(&self) -> Result<Bytes, MasterError> {
        let answer = self.send(self.request(Method::GET, self.url.join(AGENT_PROGRAM))).await?;
        answer.bytes().await.map_err(|error| self.transport_error(&error))
    }

    /// Submits a job. Repeating the request returns the same job.
    pub(crate) async fn submit(&self, spec: &JobSpec) -> Result<SubmitOutcome, MasterError> {
        let answer = self.send(self.request(Method::POST, self.url.join(JOBS)).json(spec)).await?;
        let is_new = answer.status() == StatusCode::CREATED;
        let view = self.parsed(answer).await?;
        Ok(if is_new { SubmitOutcome::New(view) } else { SubmitOutcome::Before(view) })
    }

    /// Asks the master whether it would accept a job.
    pub(crate) async fn dry_run(&self, spec: &JobSpec, old: OldJob) -> Result<DryRun, MasterError> {
        let query = [("replace", old == OldJob::IsDeletedFirst)];
        self.json(self.request(Method::POST, self.url.join(JOB_DRY_RUNS)).query(&query).json(spec)).await
    }

    /// Asks the master whether it would accept a TFJob.
    pub(crate) async fn dry_run_of_tfjob(&self, tfjob: &TfJobRequest) -> Result<DryRun, MasterError> {
        self.json(self.request(Method::POST, self.url.join(TFJOB_DRY_RUNS)).json(tfjob)).await
    }

    /// Submits a TFJob. Returns the job, and warnings about fields that have another meaning in Muster.
    pub(crate) async fn apply(&self, tfjob: &TfJobRequest) -> Result<(SubmitOutcome, Vec<Warning>), MasterError> {
        let answer = self.send(self.request(Method::POST, self.url.join(TFJOBS)).json(tfjob)).await?;
        let status = answer.status();
        let TfJobAnswer { job, change, warnings } = self.parsed(answer).await?;
        let submitted = match status {
            StatusCode::CREATED => SubmitOutcome::New(job),
            _ if change == JobPatch::default() => SubmitOutcome::Before(job),
            _ => SubmitOutcome::Changed { job, change },
        };
        Ok((submitted, warnings))
    }

    /// All TFJobs.
    pub(crate) async fn tfjobs(&self) -> Result<TfJobList, MasterError> {
        self.json(self.request(Method::GET, self.url.join(TFJOBS))).await
    }

    /// One job as a TFJob.
    pub(crate) async fn tfjob(&self, name: &JobName) -> Result<Value, MasterError> {
        self.json(self.request(Method::GET, self.job(name, "/tfjob"))).await
    }

    /// Sends the manifest of a job's code. Returns the blobs that the master does not have.
    pub(crate) async fn put_manifest(&self, id: CodeId, manifest: &Manifest) -> Result<Vec<Sha256>, MasterError> {
        let request = self.request(Method::PUT, self.code(CODE, id)).json(manifest);
        Ok(self.json::<MissingBlobs>(request.timeout(UPLOAD_TIMEOUT)).await?.missing)
    }

    /// Sends a stream of blobs of this code. Returns the blobs that the master still does not have.
    pub(crate) async fn put_blobs(&self, id: CodeId, stream: Vec<u8>) -> Result<Vec<Sha256>, MasterError> {
        let request = self.request(Method::PUT, self.code(CODE_BLOBS, id)).body(stream);
        Ok(self.json::<MissingBlobs>(request.timeout(UPLOAD_TIMEOUT)).await?.missing)
    }

    /// All jobs.
    pub(crate) async fn list(&self) -> Result<JobList, MasterError> {
        self.json(self.request(Method::GET, self.url.join(JOBS))).await
    }

    /// Returns all jobs when one of them has changed since `seq`, or unchanged after `wait`. Waits at most
    /// [`LONG_POLL`].
    pub(crate) async fn list_after(&self, seq: u64, wait: Duration) -> Result<JobList, MasterError> {
        self.json(self.long_poll(self.url.join(JOBS), seq, wait)).await
    }

    /// The series of a job, with this many newest reports of each script.
    pub(crate) async fn progress(&self, name: &JobName, tail: usize) -> Result<JobSeries, MasterError> {
        self.json(self.request(Method::GET, self.job(name, "/series")).query(&[("tail", tail)])).await
    }

    /// The points of a job's series that the master has added later than `after`, in milliseconds since the Unix epoch.
    pub(crate) async fn series_after(&self, name: &JobName, after: Option<u64>) -> Result<JobSeries, MasterError> {
        self.json(self.request(Method::GET, self.job(name, "/series")).query(&[("after", after)])).await
    }

    /// Where the scripts of a job are now.
    pub(crate) async fn stacks(&self, name: &JobName) -> Result<JobStacks, MasterError> {
        self.json(self.request(Method::GET, self.job(name, "/stacks"))).await
    }

    /// The jobs that have ended.
    pub(crate) async fn history(&self) -> Result<PastJobs, MasterError> {
        self.json(self.request(Method::GET, self.url.join(HISTORY))).await
    }

    /// The job with this uid, which has ended.
    pub(crate) async fn past_job(&self, uid: &str) -> Result<PastJob, MasterError> {
        self.json(self.request(Method::GET, self.url.join(&PAST_JOB.replace("{uid}", uid)))).await
    }

    /// When a job reached each step, and how its time was spent.
    pub(crate) async fn timeline(&self, name: &JobName) -> Result<Timeline, MasterError> {
        self.json(self.request(Method::GET, self.job(name, "/timeline"))).await
    }

    /// One job now.
    pub(crate) async fn view(&self, name: &JobName) -> Result<JobView, MasterError> {
        self.json(self.request(Method::GET, self.job(name, ""))).await
    }

    /// Returns the job when it has changed since `seq`, or unchanged after `wait`. Waits at most [`LONG_POLL`].
    pub(crate) async fn view_after(&self, name: &JobName, seq: u64, wait: Duration) -> Result<JobView, MasterError> {
        self.json(self.long_poll(self.job(name, ""), seq, wait)).await
    }

    /// Changes a job's number of workers or its code, suspends it or resumes it.
    /// Returns before the change takes effect.
    pub(crate) async fn patch(&self, name: &JobName, patch: JobPatch) -> Result<JobView, MasterError> {
        self.json(self.request(Method::PATCH, self.job(name, "")).json(&patch)).await
    }

    /// Asks the master to cancel a job, and returns before the job has stopped.
    pub(crate) async fn cancel(&self, name: &JobName) -> Result<(), MasterError> {
        self.send(self.request(Method::POST, self.job(name, "/cancel"))).await.map(drop)
    }

    /// Asks the master to delete the job with this name, and with this uid if it is known. Returns before the job is
    /// deleted.
    pub(crate) async fn delete(&self, name: &JobName, uid: Option<&str>) -> Result<Deletion, MasterError> {
        let request = self.request(Method::DELETE, self.job(name, "")).query(&[("uid", uid)]);
        let answer = self.send(request).await?.bytes().await;
        // An earlier master sends no body.
        Ok(answer.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default())
    }

    /// A stream of a job's output. The headers have a deadline; the body may take as long as the job.
    pub(crate) async fn logs(
        &self,
        name: &JobName,
        query: &[(&str, String)],
        media_type: &str,
    ) -> Result<Response, MasterError> {
        let request = self.http.get(self.job(name, "/logs")).query(query);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(request)).await;
        let answer = answer.map_err(|_| MasterError::Silent { url: self.url.to_string().into() })??;
        let found = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if found.starts_with(media_type) { Ok(answer) } else { Err(self.not_a_master(answer.status())) }
    }

    /// The error for a failure of the transport.
    pub(crate) fn transport_error(&self, error: &reqwest::Error) -> MasterError {
        if let Some(trouble) = self.forward.as_ref().and_then(|forward| forward.trouble()) {
            return MasterError::NoWay(trouble);
        }
        if error.is_timeout() && !error.is_connect() {
            return MasterError::Silent { url: self.url.to_string().into() };
        }
        let reason = if error.is_timeout() { "no connection in time".into() } else { root_cause(error).into() };
        let url = self.url.to_string().into();
        if error.is_connect() {
            MasterError::NotConnected { url, reason }
        } else {
            MasterError::Unreachable { url, reason }
        }
    }

    /// The error for a log stream that ended before its job. This happens when the master shuts down.
    pub(crate) fn log_stream_ended_early(&self) -> MasterError {
        let reason = "the log stream ended before the job".into();
        MasterError::Unreachable { url: self.url.to_string().into(), reason }
    }

    /// The error for a response that no master sends.
    pub(crate) fn not_a_master(&self, status: StatusCode) -> MasterError {
        MasterError::NotAMaster { url: self.url.to_string().into(), status: status.as_u16() }
    }

    fn code(&self, route: &str, id: CodeId) -> Url {
        self.url.join(&route.replace("{id}", &id.to_string()))
    }

    fn job(&self, name: &JobName, rest: &str) -> Url {
        self.url.join(&format!("{JOBS}/{name}{rest}"))
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url).timeout(ANSWER_TIMEOUT)
    }

    fn long_poll(&self, url: Url, seq: u64, wait: Duration) -> RequestBuilder {
        let wait = wait.min(LONG_POLL);
        let query = [("after", seq), ("wait", wait.as_secs())];
        self.request(Method::GET, url).query(&query).timeout(ANSWER_TIMEOUT + wait)
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, MasterError> {
        let answer = self.send(request).await?;
        self.parsed(answer).await
    }

    async fn parsed<T: DeserializeOwned>(&self, answer: Response) -> Result<T, MasterError> {
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.transport_error(&error))?;
        serde_json::from_slice(&body).map_err(|_| self.not_a_master(status))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, MasterError> {
        let request = request.build().map_err(|error| self.transport_error(&error))?;
        let (asked, begun) = (format!("{} {}", request.method(), request.url()), Instant::now());
        let answer = self.http.execute(request).await.map_err(|error| {
            let error = self.transport_error(&error);
            debug!("{asked}: {error}");
            error
        })?;
        clock::learn(answer.headers());
        let status = answer.status();
        debug!("{asked}: {} after {} ms", status.as_u16(), begun.elapsed().as_millis());
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|error| self.transport_error(&error))?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if problem.status == status.as_u16() => Err(MasterError::Refused(problem)),
            Ok(_) | Err(_) => Err(self.not_a_master(status)),
        }
    }
}

/// What happens to the job on record that has the same name as the new job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OldJob {
    /// The old job stays, so another job cannot have its name.
    Stays,
    /// The client deletes the old job before the submit.
    IsDeletedFirst,
}

/// The outcome of a submit.
#[derive(Debug)]
pub(crate) enum SubmitOutcome {
    /// This request created the job.
    New(JobView),
    /// An earlier request with the same content created the job.
    Before(JobView),
    /// An earlier TFJob created the job, and this TFJob changes the job.
    Changed {
        /// The job before the change takes effect.
        job: JobView,
        change: JobPatch,
    },
}

impl SubmitOutcome {
    /// The job.
    pub(crate) fn view(&self) -> &JobView {
        match self {
            Self::New(view) | Self::Before(view) | Self::Changed { job: view, .. } => view,
        }
    }

    /// The outcome of a request that was repeated because the answer to an equal request was lost. The master may have
    /// created the job for the earlier request.
    pub(crate) fn after_doubt(self) -> Self {
        match self {
            Self::Before(view) if view.result.is_none() => Self::New(view),
            outcome @ (Self::New(_) | Self::Before(_) | Self::Changed { .. }) => outcome,
        }
    }
}
