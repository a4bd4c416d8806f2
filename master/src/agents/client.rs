//! The client for agents: one method for each route. Every call has a deadline. Connections are kept and reused.

mod code;
mod leased;
mod output;
mod unheard;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use protocol::agent::{FirstSignal, RunStatus};
use protocol::batching::Notice;
use protocol::error::{ErrorCode, Problem};
use protocol::ids::Generation;
use protocol::lease::{ClockMillis, Lease, Renewal};
use protocol::routes;
use protocol::stacks::Stacks;
use protocol::warm::WarmRequest;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

pub use self::leased::PartOfStart;
use self::leased::renewal;
pub use self::output::{LogPiece, LogStream};
use self::unheard::Unheard;
pub use self::unheard::UnheardAgent;
use crate::agents::token::AgentToken;

/// Maximum time to keep an unused connection. Each job's agents have their own addresses, so kept connections are
/// useless to the next job and would accumulate.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a request that an agent answers immediately.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of [`AgentClient::find`] and of [`AgentClient::reach`]. The sum of both times is less than an agent's
/// wait for the answer to its join message.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of [`AgentClient::stacks`].
pub const STACKS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of jobs whose agents are asked for stacks at once. The answers of one job may need 32 MiB of memory.
const STACKS_AT_ONCE: usize = 8;
/// Maximum bytes of an answer, except output. A list of 20,000 missing blobs fits. Without a limit, another program at
/// an agent's address could fill the master's memory.
const ANSWER_BYTES: usize = 2 * 1024 * 1024;
/// TCP keep-alive: the idle time before the first probe, the interval, and the number of probes. A run may print
/// nothing for hours, so silence alone does not show that the connection is broken.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Maximum time until sent bytes are acknowledged. If a node dies while its agent receives code, the call fails after
/// this time. Unanswered probes end a connection after the same time.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// Maximum duration of one long poll. Network devices may cut a connection that is idle for a minute.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(30);

/// A long poll of an agent's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    /// The number of the newest known status. The agent answers when its status has another number.
    pub after: u64,
    /// Maximum time until the answer, at most [`POLL_WAIT_MAX`]. Without a lease, only whole seconds are sent.
    pub wait: Duration,
    /// The agent's lease, which the poll renews, and the time of the agent's clock in the agent's newest answer.
    pub lease: Option<(Lease, ClockMillis)>,
}

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No complete answer: the agent has not started yet, has ended, or is cut off. The same call may succeed later.
    #[error("could not reach the agent at {agent}")]
    Unreachable {
        /// The agent's address.
        agent: SocketAddr,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The agent answered with an error that is not listed below, or its answer cannot be parsed.
    #[error("{detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The detail of the agent's answer.
        detail: String,
    },
    /// The agent does not have the job's code, cannot store it, or cannot run it.
    #[error("{detail}")]
    Unfit {
        /// The kind of error: `CodeMissing`, `BadCode`, `CodeStoreFull` or `NoPython`.
        code: ErrorCode,
        /// The detail of the agent's answer.
        detail: String,
    },
    /// The agent is shutting down with its pod and accepts no more requests.
    #[error("{0}")]
    Ending(
        /// The detail of the agent's answer.
        String,
    ),
}

/// The answer to a status request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAnswer {
    /// The status of the agent's run.
    Status(Box<RunStatus>),
    /// The agent has no `/status`: it is an agent of the first prototype, which has only `/config` and `/run`.
    SeedOnly,
}

/// The client for all agents. It reaches pods directly: no proxy, no redirect, no TLS.
#[derive(Debug, Clone)]
pub struct AgentClient {
    http: Client<HttpConnector, Full<Bytes>>,
    authorization: Option<HeaderValue>,
    interceptor: Option<Arc<dyn Interceptor>>,
    unheard: Unheard,
    stacks: Arc<Semaphore>,
}

/// A call that is not sent yet. The future sends it and resolves to the whole answer.
pub type PendingCall<'a> = BoxFuture<'a, Result<Bytes, AgentError>>;

/// Wraps every call to an agent except [`AgentClient::logs`] and [`AgentClient::held_code`]. Tests use it to make calls
/// fail or wait.
#[async_trait]
pub trait Interceptor: Send + Sync + std::fmt::Debug {
    /// Sends `call`, which is a request for `uri`. May also fail without sending it.
    async fn intercept(&self, agent: SocketAddr, uri: &Uri, call: PendingCall<'_>) -> Result<Bytes, AgentError>;
}

impl AgentClient {
    /// A client without connections and without a token.
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CALL_TIMEOUT));
        connector.set_keepalive(Some(KEEP_ALIVE));
        connector.set_keepalive_interval(Some(KEEP_ALIVE_PROBE));
        connector.set_keepalive_retries(Some(KEEP_ALIVE_PROBES));
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        let (unheard, stacks) = (Unheard::default(), Arc::new(Semaphore::new(STACKS_AT_ONCE)));
        Self { http, authorization: None, interceptor: None, unheard, stacks }
    }

    /// The same client, with an interceptor around its calls.
    pub fn intercepted_by(self, interceptor: Arc<dyn Interceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }

    /// The same client with this token. Both clients share their connections.
    pub fn with_token(&self, token: &AgentToken) -> Self {
        let mut authorization = HeaderValue::try_from(token.bearer()).expect("hexadecimal digits make a header");
        authorization.set_sensitive(true);
        Self { authorization: Some(authorization), ..self.clone() }
    }

    /// Counts an agent while it is asked for its first answer. All clones of this client count together.
    pub fn asked(&self) -> UnheardAgent {
        self.unheard.ask()
    }

    /// `GET /status`. With `poll`, this is a long poll.
    pub async fn status(&self, agent: SocketAddr, poll: Option<Poll>) -> Result<AgentAnswer, AgentError> {
        let path = routes::AGENT_STATUS;
        let (path, limit) = match poll {
            None => (path.to_owned(), CALL_TIMEOUT),
            Some(Poll { after, wait, lease: None }) => {
                (format!("{path}?after={after}&wait={}", wait.as_secs()), wait + CALL_TIMEOUT)
            }
            Some(Poll { after, wait, lease: Some((lease, heard)) }) => {
                let renewal = renewal(Some(Renewal { fence: lease.fence(), heard }));
                (format!("{path}?after={after}&wait_ms={}{renewal}", wait.as_millis()), wait + lease.answer())
            }
        };
        match self.call(get(agent, &path), limit).await {
            // An agent of the prototype answers in one of two ways: 404 or 405 for unknown routes, or `OK` for all
            // routes.
            Err(AgentError::Refused { status: 404 | 405, .. }) => Ok(AgentAnswer::SeedOnly),
            Ok(body) if body.trim_ascii() == b"OK" => Ok(AgentAnswer::SeedOnly),
            Err(error) => Err(error),
            Ok(body) => {
                serde_json::from_slice(&body).map(AgentAnswer::Status).map_err(|error| no_answer_of_an_agent(&error))
            }
        }
    }

    /// `GET /healthz`: succeeds if the agent with this boot id answers.
    pub async fn find(&self, agent: SocketAddr, boot_id: &str) -> Result<(), AgentError> {
        let path = format!("{}?boot_id={boot_id}", routes::HEALTHZ);
        self.call(get(agent, &path), FIND_TIMEOUT).await.map(drop)
    }

    /// `GET /reach`: succeeds if the agent can connect to this address.
    ///
    /// # Errors
    /// [`AgentError`]. If the agent cannot connect, the error is [`AgentError::Refused`] with status 502.
    pub async fn reach(&self, agent: SocketAddr, address: SocketAddr) -> Result<(), AgentError> {
        let path = format!("{}?address={address}", routes::AGENT_REACH);
        self.call(get(agent, &path), FIND_TIMEOUT).await.map(drop)
    }

    /// `POST /warm`.
    pub async fn warm(&self, agent: SocketAddr, request: &WarmRequest) -> Result<(), AgentError> {
        let body = serde_json::to_vec(request).expect("texts always serialize");
        self.call(post(agent, routes::AGENT_WARM, body.into()), CALL_TIMEOUT).await.map(drop)
    }

    /// `GET /run`.
    ///
    /// Returns whether the script has begun. If not, the start waits for imports, and the status shows when it begins.
    pub async fn run(&self, agent: SocketAddr, generation: Generation) -> Result<bool, AgentError> {
        let path = format!("{}?generation={generation}", routes::AGENT_RUN);
        Ok(self.call(get(agent, &path), CALL_TIMEOUT).await? != routes::START_WAITS)
    }

    /// `POST /notice`. Passes a notice to the script of this start.
    pub async fn notify(&self, agent: SocketAddr, generation: Generation, notice: &Notice) -> Result<(), AgentError> {
        let path = format!("{}?generation={generation}", routes::AGENT_NOTICE);
        let body = serde_json::to_vec(notice).expect("numbers always serialize");
        self.call(post(agent, &path, body.into()), CALL_TIMEOUT).await.map(drop)
    }

    /// Waits until the agents of one more job may be asked for stacks. The turn ends when the permit is dropped. All
    /// clones of this client share the limit.
    pub async fn turn_for_stacks(&self) -> SemaphorePermit<'_> {
        self.stacks.acquire().await.expect("nothing closes this semaphore")
    }

    /// `POST /stacks`: the stacks of the run of this generation.
    pub async fn stacks(&self, agent: SocketAddr, generation: Option<Generation>) -> Result<Stacks, AgentError> {
        let query = generation.map(|generation| format!("?generation={generation}")).unwrap_or_default();
        let path = format!("{}{query}", routes::AGENT_STACKS);
        let body = self.call(post(agent, &path, Bytes::new()), STACKS_TIMEOUT).await?;
        serde_json::from_slice(&body).map_err(|error| no_answer_of_an_agent(&error))
    }

    /// `POST /stop`. Stops the run of this generation. Without a generation, stops any run. The time is that from the
    /// first signal to SIGKILL. An agent of an earlier version always sends SIGTERM first.
    pub async fn stop(
        &self,
        agent: SocketAddr,
        generation: Option<Generation>,
        first: FirstSignal,
        grace: Duration,
    ) -> Result<(), AgentError> {
        let interrupt = if first == FirstSignal::Int { "&interrupt=true" } else { "" };
        let generation = generation.map(|generation| format!("&generation={generation}")).unwrap_or_default();
        let path = format!("{}?grace={}{interrupt}{generation}", routes::AGENT_STOP, grace.as_secs());
        self.call(post(agent, &path, Bytes::new()), CALL_TIMEOUT).await.map(drop)
    }

    /// `POST /finish`.
    pub async fn finish(&self, agent: SocketAddr) -> Result<(), AgentError> {
        self.call(post(agent, routes::AGENT_FINISH, Bytes::new()), CALL_TIMEOUT).await.map(drop)
    }

    /// Sends one request and reads its whole answer, so that the connection can be reused.
    async fn call(&self, request: Call, limit: Duration) -> Result<Bytes, AgentError> {
        let agent = request.agent;
        let uri = request.request.uri().clone();
        let exchange = async { collect(agent, self.send(request).await?).await };
        let answer = async { timeout(limit, exchange).await.map_err(|late| unreachable(agent, late))? };
        match &self.interceptor {
            None => answer.await,
            Some(interceptor) => interceptor.intercept(agent, &uri, Box::pin(answer)).await,
        }
    }

    async fn send(&self, Call { agent, mut request }: Call) -> Result<Response<Incoming>, AgentError> {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let response = self.http.request(request).await.map_err(|error| unreachable(agent, error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(refusal(status, &collect(agent, response).await?)),
        }
    }
}

#[derive(Debug)]
struct Call {
    agent: SocketAddr,
    request: Request<Full<Bytes>>,
}

fn get(agent: SocketAddr, path: &str) -> Call {
    Call { agent, request: request(Method::GET, agent, path, Bytes::new()) }
}

fn post(agent: SocketAddr, path: &str, body: Bytes) -> Call {
    Call { agent, request: request(Method::POST, agent, path, body) }
}

fn request(method: Method, agent: SocketAddr, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("http://{agent}{path}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .expect("a socket address and a path of an agent's route make a valid URL")
}

impl Default for AgentClient {
    fn default() -> Self {
        Self::new()
    }
}

async fn collect(agent: SocketAddr, response: Response<Incoming>) -> Result<Bytes, AgentError> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    body.map(Collected::to_bytes).map_err(|source| AgentError::Unreachable { agent, source })
}

fn unreachable(agent: SocketAddr, error: impl std::error::Error + Send + Sync + 'static) -> AgentError {
    AgentError::Unreachable { agent, source: Box::new(error) }
}

fn no_answer_of_an_agent(error: &serde_json::Error) -> AgentError {
    let detail = format!("could not parse the agent's answer: {error}");
    AgentError::Refused { status: StatusCode::OK.as_u16(), detail }
}

fn refusal(status: StatusCode, body: &[u8]) -> AgentError {
    match serde_json::from_slice(body) {
        // A proxy in front of an agent may also answer 503, but a proxy's answer does not contain this code.
        Ok(Problem { code: ErrorCode::Unavailable, detail, .. }) => AgentError::Ending(detail),
        Ok(Problem {
            code: code @ (ErrorCode::CodeMissing | ErrorCode::BadCode | ErrorCode::CodeStoreFull | ErrorCode::NoPython),
            detail,
            ..
        }) => AgentError::Unfit { code, detail },
        Ok(Problem { detail, .. }) => AgentError::Refused { status: status.as_u16(), detail },
        Err(_) => AgentError::Refused { status: status.as_u16(), detail: format!("the agent answered {status}") },
    }
}
