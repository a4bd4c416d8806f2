//! Sends requests to one master and reads the answers. Every answer has a deadline. In a stream, the deadline applies
//! only to the headers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;
use protocol::error::Problem;
use protocol::routes::LONG_POLL_MAX_SECONDS;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::clock;
use crate::error::{MasterError, TunnelTrouble, root_cause};
use crate::master_url::MasterUrl;
use crate::token::Token;

/// The target of the log messages about requests.
pub const LOG_TARGET: &str = module_path!();

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a whole response, and for the headers of a stream.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time of a connection before TCP keepalive checks whether the peer is alive.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Maximum wait of one long poll.
pub const LONG_POLL: Duration =
    Duration::from_secs(if LONG_POLL_MAX_SECONDS < 30 { LONG_POLL_MAX_SECONDS } else { 30 });

/// Starts to build an HTTP client whose requests name this program.
pub fn http() -> ClientBuilder {
    // reqwest needs a crypto provider even without TLS. An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().user_agent(concat!("muster-client/", env!("CARGO_PKG_VERSION")))
}

/// A Unix socket that leads to a master that has no address of its own, for example through the Kubernetes API. Requests
/// use the socket, whatever their URL.
pub trait Tunnel: fmt::Debug + Send + Sync {
    /// The socket's path.
    fn socket(&self) -> &Path;

    /// Why the last connection failed; `None` if a later connection has reached the master. Failed requests report this
    /// trouble.
    fn trouble(&self) -> Option<Arc<TunnelTrouble>>;
}

type SharedTunnel = Option<Arc<dyn Tunnel>>;

/// The way to one master. Clones share their connections.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    http: Client,
    pub(crate) url: MasterUrl,
    /// The way for all requests, if the master has no address of its own.
    tunnel: SharedTunnel,
}

impl Transport {
    /// Nothing is sent yet.
    pub(crate) fn new(url: MasterUrl, token: Option<&Token>, tunnel: SharedTunnel) -> Result<Self, MasterError> {
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
        let builder = match &tunnel {
            Some(tunnel) => builder.unix_socket(tunnel.socket()),
            None => builder,
        };
        let http = builder.build().map_err(|error| MasterError::Setup(root_cause(&error)))?;
        Ok(Self { http, url, tunnel })
    }

    /// Begins a request for this path, whose whole answer has a deadline.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url.join(path)).timeout(ANSWER_TIMEOUT)
    }

    /// Gets the JSON at this path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, MasterError> {
        self.json(self.request(Method::GET, path)).await
    }

    /// Begins a request for what is at this path when it has changed since `seq`, or unchanged after `wait`. Waits at
    /// most [`LONG_POLL`].
    pub(crate) fn long_poll(&self, path: &str, seq: u64, wait: Duration) -> RequestBuilder {
        let wait = wait.min(LONG_POLL);
        let query = [("after", seq), ("wait", wait.as_secs())];
        self.request(Method::GET, path).query(&query).timeout(ANSWER_TIMEOUT + wait)
    }

    /// Opens a stream of this media type. The headers have a deadline; the body may take as long as a job.
    pub(crate) async fn stream(
        &self,
        path: &str,
        query: &[(&str, String)],
        media_type: &str,
    ) -> Result<Response, MasterError> {
        let request = self.http.get(self.url.join(path)).query(query);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(request)).await;
        let answer = answer.map_err(|_| MasterError::Silent { url: self.url.to_string().into() })??;
        let found = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if found.starts_with(media_type) { Ok(answer) } else { Err(self.not_a_master(answer.status())) }
    }

    /// Sends a request and reads the JSON of the answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, MasterError> {
        Ok(self.status_and_json(request).await?.1)
    }

    /// Like [`Self::json`], with the status of the answer.
    pub(crate) async fn status_and_json<T>(&self, request: RequestBuilder) -> Result<(StatusCode, T), MasterError>
    where
        T: DeserializeOwned,
    {
        let answer = self.send(request).await?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.error(&error))?;
        Ok((status, serde_json::from_slice(&body).map_err(|_| self.not_a_master(status))?))
    }

    /// Sends a request and waits for the headers of a successful answer.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, MasterError> {
        let request = request.build().map_err(|error| self.error(&error))?;
        let (asked, begun) = (format!("{} {}", request.method(), request.url()), Instant::now());
        let answer = self.http.execute(request).await.map_err(|error| {
            let error = self.error(&error);
            debug!("{asked}: {error}");
            error
        })?;
        clock::learn(answer.headers());
        let status = answer.status();
        debug!("{asked}: {} after {} ms", status.as_u16(), begun.elapsed().as_millis());
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|error| self.error(&error))?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if problem.status == status.as_u16() => Err(MasterError::Refused(problem)),
            Ok(_) | Err(_) => Err(self.not_a_master(status)),
        }
    }

    /// The error for a failure of the connection.
    pub(crate) fn error(&self, error: &reqwest::Error) -> MasterError {
        if let Some(trouble) = self.tunnel.as_ref().and_then(|tunnel| tunnel.trouble()) {
            return MasterError::NoWay(trouble);
        }
        let url = self.url.to_string().into();
        if error.is_timeout() && !error.is_connect() {
            return MasterError::Silent { url };
        }
        let reason = if error.is_timeout() { "no connection in time".into() } else { root_cause(error).into() };
        if error.is_connect() {
            MasterError::NotConnected { url, reason }
        } else {
            MasterError::Unreachable { url, reason }
        }
    }

    /// The error for a response that no master sends.
    pub(crate) fn not_a_master(&self, status: StatusCode) -> MasterError {
        MasterError::NotAMaster { url: self.url.to_string().into(), status: status.as_u16() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_place::KubePlace;

    /// A tunnel whose socket nobody serves.
    #[derive(Debug)]
    struct Broken(Option<Arc<TunnelTrouble>>);

    impl Tunnel for Broken {
        fn socket(&self) -> &Path {
            Path::new("/nonexistent")
        }

        fn trouble(&self) -> Option<Arc<TunnelTrouble>> {
            self.0.clone()
        }
    }

    async fn error_of(trouble: Option<TunnelTrouble>) -> MasterError {
        let tunnel = Arc::new(Broken(trouble.map(Arc::new)));
        let transport = Transport::new(MasterUrl::through(KubePlace::default()), None, Some(tunnel)).unwrap();
        transport.get::<u32>("/v1/jobs").await.unwrap_err()
    }

    #[tokio::test]
    async fn a_request_through_a_tunnel_reports_the_trouble_of_the_tunnel() {
        for is_passing in [true, false] {
            let trouble = TunnelTrouble { sentence: "the pod is away".to_owned(), hint: None, is_passing };
            let error = error_of(Some(trouble)).await;
            assert_eq!((error.to_string().as_str(), error.is_transient()), ("the pod is away", is_passing));
        }
        let error = error_of(None).await.to_string();
        assert!(error.starts_with("the master at kube cannot be reached: No such file"), "{error}");
    }
}
