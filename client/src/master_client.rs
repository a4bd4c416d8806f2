//! The master's routes as functions. No retries (`patience.rs`), no printing; every request has a deadline.

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::debug;
use protocol::error::Problem;
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::routes::{AGENT_PROGRAM, JOBS, LONG_POLL_MAX_SECONDS, MASTER};
use protocol::view::{JobList, JobView, MasterView};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;

use crate::config::Token;
use crate::master_url::MasterUrl;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For a whole answer, and for the first bytes of a stream.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection whose other end has vanished is noticed after about this time, also when nobody sends.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The longest that one long poll is asked to wait.
pub(crate) const LONG_POLL: Duration =
    Duration::from_secs(if LONG_POLL_MAX_SECONDS < 30 { LONG_POLL_MAX_SECONDS } else { 30 });

/// Why the master gave no answer, or not the one wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MasterError {
    /// The HTTP client could not be made, for example because the system has no certificates.
    #[error("prepare to speak to the master: {0}")]
    Setup(String),
    /// No connection, or one that broke.
    #[error("the master at {url} cannot be reached: {reason}")]
    Unreachable {
        /// Its address.
        url: MasterUrl,
        /// In the system's words.
        reason: String,
    },
    /// A connection, and no answer.
    #[error("the master at {url} did not answer in time")]
    Silent {
        /// Its address.
        url: MasterUrl,
    },
    /// It said no.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// Something else listens there.
    #[error("{url} answers, but not as a Muster master (HTTP status {status})")]
    NotAMaster {
        /// The address.
        url: MasterUrl,
        /// The status of what it answered.
        status: u16,
    },
}

impl MasterError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        let gateway_trouble = |status: u16| matches!(status, 502..=504);
        match self {
            Self::Unreachable { .. } | Self::Silent { .. } => true,
            Self::Refused(problem) => gateway_trouble(problem.status),
            Self::NotAMaster { status, .. } => gateway_trouble(*status),
            Self::Setup(_) => false,
        }
    }

    /// Whether the master says that there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }
}

/// A master and the means to speak to it. A clone shares its connections.
#[derive(Debug, Clone)]
pub(crate) struct MasterClient {
    http: Client,
    url: MasterUrl,
}

impl MasterClient {
    /// Prepares to speak to the master at `url`; nothing is sent yet.
    pub(crate) fn new(url: MasterUrl, token: Option<&Token>) -> Result<Self, MasterError> {
        // reqwest asks for a provider also where nothing is encrypted. An error says that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let headers: HeaderMap = token.map(|token| (AUTHORIZATION, token.header())).into_iter().collect();
        let builder = Client::builder()
            .user_agent(concat!("muster-client/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            // A master redirects nobody, and the token must not travel.
            .redirect(reqwest::redirect::Policy::none());
        let builder = if url.is_loopback() { builder.no_proxy() } else { builder };
        // Without TLS, a machine without certificates is good enough, and none need be read.
        let builder = if url.is_https() { builder } else { builder.tls_certs_only([]) };
        let http = builder.build().map_err(|error| MasterError::Setup(root_cause(&error)))?;
        Ok(Self { http, url })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &MasterUrl {
        &self.url
    }

    /// What the master says of itself.
    pub(crate) async fn about(&self) -> Result<MasterView, MasterError> {
        self.json(self.request(Method::GET, self.url.join(MASTER))).await
    }

    /// The agent's program, which the master gives to who has none.
    pub(crate) async fn agent_program(&self) -> Result<Bytes, MasterError> {
        let answer = self.send(self.request(Method::GET, self.url.join(AGENT_PROGRAM))).await?;
        answer.bytes().await.map_err(|error| self.transport_error(&error))
    }

    /// Submits a job. The same again is the same job.
    pub(crate) async fn submit(&self, spec: &JobSpec) -> Result<Submitted, MasterError> {
        let answer = self.send(self.request(Method::POST, self.url.join(JOBS)).json(spec)).await?;
        let is_new = answer.status() == StatusCode::CREATED;
        let view = self.parsed(answer).await?;
        Ok(if is_new { Submitted::New(view) } else { Submitted::Before(view) })
    }

    /// All jobs.
    pub(crate) async fn list(&self) -> Result<JobList, MasterError> {
        self.json(self.request(Method::GET, self.url.join(JOBS))).await
    }

    /// One job as it is now.
    pub(crate) async fn view(&self, name: &JobName) -> Result<JobView, MasterError> {
        self.json(self.request(Method::GET, self.job(name, ""))).await
    }

    /// One job when it has changed since `seq`, or as it is after `wait`, at most [`LONG_POLL`].
    pub(crate) async fn view_after(&self, name: &JobName, seq: u64, wait: Duration) -> Result<JobView, MasterError> {
        let wait = wait.min(LONG_POLL);
        let query = [("after", seq), ("wait", wait.as_secs())];
        let request = self.request(Method::GET, self.job(name, "")).query(&query).timeout(ANSWER_TIMEOUT + wait);
        self.json(request).await
    }

    /// Stops a job; it is not over when this returns.
    pub(crate) async fn cancel(&self, name: &JobName) -> Result<(), MasterError> {
        self.send(self.request(Method::POST, self.job(name, "/cancel"))).await.map(drop)
    }

    /// Stops and forgets a job; it is not gone when this returns.
    pub(crate) async fn delete(&self, name: &JobName) -> Result<(), MasterError> {
        self.send(self.request(Method::DELETE, self.job(name, ""))).await.map(drop)
    }

    /// A stream of a job's output, whose head must come in time and whose body may take as long as the job.
    pub(super) async fn logs(
        &self,
        name: &JobName,
        query: &[(&str, String)],
        media_type: &str,
    ) -> Result<Response, MasterError> {
        let request = self.http.get(self.job(name, "/logs")).query(query);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(request)).await;
        let answer = answer.map_err(|_| MasterError::Silent { url: self.url.clone() })??;
        let found = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if found.starts_with(media_type) { Ok(answer) } else { Err(self.not_a_master(answer.status())) }
    }

    /// What a failure of the transport means.
    pub(super) fn transport_error(&self, error: &reqwest::Error) -> MasterError {
        if error.is_timeout() && !error.is_connect() {
            return MasterError::Silent { url: self.url.clone() };
        }
        let reason = if error.is_timeout() { "no connection in time".to_owned() } else { root_cause(error) };
        MasterError::Unreachable { url: self.url.clone(), reason }
    }

    /// What it means that a stream has ended in order and its job goes on: the master is shutting down.
    pub(crate) fn log_stream_ended_early(&self) -> MasterError {
        let reason = "its log stream ended before the job".to_owned();
        MasterError::Unreachable { url: self.url.clone(), reason }
    }

    /// What an answer of another shape means.
    pub(super) fn not_a_master(&self, status: StatusCode) -> MasterError {
        MasterError::NotAMaster { url: self.url.clone(), status: status.as_u16() }
    }

    fn job(&self, name: &JobName, rest: &str) -> Url {
        self.url.join(&format!("{JOBS}/{name}{rest}"))
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url).timeout(ANSWER_TIMEOUT)
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

/// A job that is on record.
#[derive(Debug)]
pub(crate) enum Submitted {
    /// By this request.
    New(JobView),
    /// By an earlier one that asked for the same.
    Before(JobView),
}

/// The innermost cause: reqwest's outer ones repeat the URL and name its own layers.
fn root_cause(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
