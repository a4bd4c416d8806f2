//! Talking to agents: one method a route. Every call has a deadline; connections are kept and used again.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use protocol::agent::RunStatus;
use protocol::error::Problem;
use protocol::ids::Generation;
use protocol::routes;
use reqwest::{Method, RequestBuilder, Response, StatusCode};

/// Most time that a request may take which an agent answers at once.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one long poll waits. Under the minute after which an idle connection may be cut on its way.
const POLL_SECONDS: u64 = 30;

/// Why an agent did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No answer: it may not be up yet, or not be there any more. The same call may work later.
    #[error("reach the agent at {agent}")]
    Unreachable {
        /// Where.
        agent: SocketAddr,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It answered with an error, and would again.
    #[error("{detail}")]
    Refused {
        /// The answer's status.
        status: u16,
        /// Its sentence.
        detail: String,
    },
}

/// What an agent said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAnswer {
    /// This of its run.
    Status(Box<RunStatus>),
    /// That it has no such route: the first prototype's agent, which knows `/config` and `/run` alone.
    SeedOnly,
}

/// A part of a run's output.
#[derive(Debug)]
pub struct LogStream<S> {
    /// The absolute offset of the first byte.
    pub offset: u64,
    /// The bytes, as they come.
    pub bytes: S,
}

/// The client of all agents.
#[derive(Debug, Clone)]
pub struct AgentClient {
    http: reqwest::Client,
}

impl AgentClient {
    /// A client without connections. Pods are reached directly: no proxy, no redirect.
    ///
    /// # Panics
    /// Never: what it is built with is constant.
    pub fn new() -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CALL_TIMEOUT)
            .tcp_nodelay(true)
            .build()
            .expect("a client without TLS and proxies can always be built");
        Self { http }
    }

    /// `GET /status`; with `after`, a long poll that answers when the status is newer.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn status(&self, agent: SocketAddr, after: Option<u64>) -> Result<AgentAnswer, AgentError> {
        let mut request = self.request(Method::GET, agent, routes::AGENT_STATUS).timeout(CALL_TIMEOUT);
        if let Some(after) = after {
            request = request.query(&[("after", after), ("wait", POLL_SECONDS)]);
            request = request.timeout(CALL_TIMEOUT + Duration::from_secs(POLL_SECONDS));
        }
        let response = send(agent, request).await;
        match response {
            Err(AgentError::Refused { status: 404 | 405, .. }) => Ok(AgentAnswer::SeedOnly),
            Err(error) => Err(error),
            Ok(response) => match response.json::<RunStatus>().await {
                Ok(status) => Ok(AgentAnswer::Status(Box::new(status))),
                // The prototype answers `OK` to whatever it is asked.
                Err(error) if error.is_decode() => Ok(AgentAnswer::SeedOnly),
                Err(source) => Err(AgentError::Unreachable { agent, source }),
            },
        }
    }

    /// `POST /config` with a JSON object.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn configure(&self, agent: SocketAddr, generation: Generation, body: Bytes) -> Result<(), AgentError> {
        let request = self.request(Method::POST, agent, routes::AGENT_CONFIG).timeout(CALL_TIMEOUT);
        let request = request.query(&[("generation", generation)]).header("content-type", "application/json");
        self.acknowledged(agent, request.body(body)).await
    }

    /// `GET /run`.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn run(&self, agent: SocketAddr, generation: Generation) -> Result<(), AgentError> {
        let request = self.request(Method::GET, agent, routes::AGENT_RUN).timeout(CALL_TIMEOUT);
        self.acknowledged(agent, request.query(&[("generation", generation)])).await
    }

    /// `POST /stop`. Without a generation, whatever runs.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn stop(
        &self,
        agent: SocketAddr,
        generation: Option<Generation>,
        grace: Duration,
    ) -> Result<(), AgentError> {
        let mut request = self.request(Method::POST, agent, routes::AGENT_STOP).timeout(CALL_TIMEOUT);
        request = request.query(&[("grace", grace.as_secs())]);
        if let Some(generation) = generation {
            request = request.query(&[("generation", generation)]);
        }
        self.acknowledged(agent, request).await
    }

    /// `POST /finish`.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn finish(&self, agent: SocketAddr) -> Result<(), AgentError> {
        let request = self.request(Method::POST, agent, routes::AGENT_FINISH).timeout(CALL_TIMEOUT);
        self.acknowledged(agent, request).await
    }

    /// `GET /logs`: both streams from `offset` to the end of the run.
    ///
    /// # Errors
    /// [`AgentError`]; the stream's own errors are of the connection.
    pub async fn logs(
        &self,
        agent: SocketAddr,
        offset: u64,
    ) -> Result<LogStream<impl Stream<Item = Result<Bytes, AgentError>> + Send + use<>>, AgentError> {
        let request = self.request(Method::GET, agent, routes::AGENT_LOGS);
        let query = [("stream", "both"), ("follow", "true"), ("offset", &offset.to_string())];
        let response = send(agent, request.query(&query)).await?;
        let first = response.headers().get(routes::LOG_OFFSET_HEADER);
        let offset = first.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(offset);
        let bytes = response.bytes_stream().map_err(move |source| AgentError::Unreachable { agent, source }).boxed();
        Ok(LogStream { offset, bytes })
    }

    fn request(&self, method: Method, agent: SocketAddr, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{agent}{path}"))
    }

    /// The body is read to its end, so that the connection can be used again.
    async fn acknowledged(&self, agent: SocketAddr, request: RequestBuilder) -> Result<(), AgentError> {
        let response = send(agent, request).await?;
        response.bytes().await.map(drop).map_err(|source| AgentError::Unreachable { agent, source })
    }
}

impl Default for AgentClient {
    fn default() -> Self {
        Self::new()
    }
}

async fn send(agent: SocketAddr, request: RequestBuilder) -> Result<Response, AgentError> {
    let response = request.send().await.map_err(|source| AgentError::Unreachable { agent, source })?;
    if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
}

async fn refusal(response: Response) -> AgentError {
    let status = response.status();
    let body = response.text().await.unwrap_or_default();
    let detail = match serde_json::from_str::<Problem>(&body) {
        Ok(problem) => problem.detail,
        Err(_) => fallback(status),
    };
    AgentError::Refused { status: status.as_u16(), detail }
}

fn fallback(status: StatusCode) -> String {
    format!("its agent answered {status}")
}
