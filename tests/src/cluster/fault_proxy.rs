//! A proxy between a master and the API of the cluster in KUBECONFIG. Tests tell the proxy to answer requests
//! with faults.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::processes::within;

/// What the proxy does with a request, instead of only forwarding the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Waits for this time, and then forwards the request.
    Slow(Duration),
    /// Answers 429 with `Retry-After: 1`.
    TooMany,
    /// Answers this status without forwarding the request.
    Refused(u16),
    /// Forwards the request, but answers this status.
    LostAnswer(u16),
    /// Answers 410: the requested version is too old.
    Gone,
    /// Answers this JSON with 200.
    Instead(&'static str),
    /// Closes connections without an answer.
    Down,
}

/// The requests that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// All requests.
    Everything,
    /// Requests that begin a watch.
    Watches,
    /// Requests that read this path.
    Reading(&'static str),
    /// Requests that create an object of this kind, such as `pods`. Excludes dry runs.
    Creating(&'static str),
    /// Requests that replace an object of this kind, such as `pods`.
    Replacing(&'static str),
    /// Requests that delete one object or more of this kind, such as `pods`.
    Deleting(&'static str),
}

/// A proxy to the API server that produces faults on demand. Dropping this ends the proxy.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    kubeconfig: NamedTempFile,
    upstream: Child,
    // The threads of this runtime run the proxy while the test blocks its own thread.
    _runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    trouble: Mutex<Trouble>,
    /// Each message breaks off all answers in progress.
    cuts: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Trouble {
    fault: Option<(On, Fault)>,
    /// Number of further requests that the fault affects.
    left: usize,
    /// Number of requests that the fault has affected.
    struck: usize,
}

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

impl FaultProxy {
    /// Starts a proxy that forwards everything.
    ///
    /// # Panics
    /// If kubectl cannot start a proxy.
    pub fn start() -> Self {
        // kubectl handles TLS and credentials.
        let mut upstream = Command::new("kubectl")
            .args(["proxy", "--port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // kubectl logs an error for each broken answer.
            .stderr(Stdio::null())
            .spawn()
            .expect("cannot start kubectl");
        let mut line = String::new();
        let stdout = upstream.stdout.take().expect("the stream is not piped");
        BufReader::new(stdout).read_line(&mut line).expect("cannot read the stdout of kubectl");
        let address = line.trim().rsplit(' ').next().expect("the line has no last word").to_owned();
        let shared = Arc::new(Shared {
            upstream: address,
            client: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http(),
            trouble: Mutex::default(),
            cuts: watch::Sender::new(()),
        });
        let runtime = Runtime::new().expect("cannot start the runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("no free port");
        let port = listener.local_addr().expect("the socket has no address").port();
        runtime.spawn(serve(listener, Arc::clone(&shared)));
        Self { shared, kubeconfig: kubeconfig(port), upstream, _runtime: runtime }
    }

    /// Returns the value of KUBECONFIG for a master that uses this proxy.
    pub fn kubeconfig(&self) -> &str {
        self.kubeconfig.path().to_str().expect("the path is not UTF-8")
    }

    /// From now on, this fault affects these requests. An earlier fault ends.
    pub fn misbehave(&self, on: On, fault: Fault) {
        self.misbehave_times(usize::MAX, on, fault);
    }

    /// Like [`Self::misbehave`], but the fault affects only the next `times` of these requests.
    pub fn misbehave_times(&self, times: usize, on: On, fault: Fault) {
        *self.shared.lock() = Trouble { fault: Some((on, fault)), left: times, struck: 0 };
        if fault == Fault::Down {
            self.cut();
        }
    }

    /// Ends the fault. The proxy forwards all requests.
    pub fn behave(&self) {
        *self.shared.lock() = Trouble::default();
    }

    /// Breaks off all answers in progress, such as watches.
    pub fn cut(&self) {
        self.shared.cuts.send_replace(());
    }

    /// Returns the number of requests that the fault has affected.
    pub fn struck(&self) -> usize {
        self.shared.lock().struck
    }

    /// Waits until the fault has affected `count` requests.
    ///
    /// # Panics
    /// If the deadline passes.
    pub fn until_struck(&self, count: usize) {
        let is_struck = || (self.struck() >= count).then_some(());
        within(&format!("the fault affects {count} requests"), is_struck, || format!("{:?}", self.shared.lock()));
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // The kill fails if kubectl has already ended.
        let _ = self.upstream.kill();
        let _ = self.upstream.wait();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault that affects this request, if any. Counts the requests that a fault affects.
    fn strike(&self, request: &Request<Incoming>) -> Option<Fault> {
        let mut trouble = self.lock();
        let (on, fault) = trouble.fault?;
        if trouble.left == 0 || !on.concerns(request.method(), request.uri()) {
            return None;
        }
        trouble.left -= 1;
        trouble.struck += 1;
        Some(fault)
    }

    async fn answer_until_cut(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let mut cuts = self.cuts.subscribe();
        tokio::select! {
            answer = self.answer(request) => answer,
            _ = cuts.changed() => Err(broken_off()),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        match self.strike(&request) {
            None => self.forward(request).await,
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                self.forward(request).await
            }
            Some(Fault::TooMany) => status(429),
            Some(Fault::Refused(code)) => status(code),
            Some(Fault::LostAnswer(code)) => {
                // When the answer's headers arrive here, the API server has applied the request.
                self.forward(request).await?;
                status(code)
            }
            Some(Fault::Gone) => status(410),
            Some(Fault::Instead(json)) => json_answer(200, json),
            Some(Fault::Down) => Err(broken_off()),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = format!("http://{}{path}", self.upstream).parse()?;
        head.headers.remove(CONNECTION);
        let body = Full::new(body.collect().await?.to_bytes());
        let (mut head, body) = self.client.request(Request::from_parts(head, body)).await?.into_parts();
        for of_connection in [CONNECTION, TRANSFER_ENCODING] {
            head.headers.remove(of_connection);
        }
        Ok(Response::from_parts(head, cuttable(body, self.cuts.subscribe())))
    }
}

impl On {
    fn concerns(self, method: &Method, uri: &Uri) -> bool {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        // `…/namespaces/NAMESPACE/pods` or `…/namespaces/NAMESPACE/pods/NAME`.
        let is_of = |plural: &str| path.rsplit('/').take(2).any(|part| part == plural);
        match self {
            Self::Everything => true,
            Self::Watches => query.contains("watch=true"),
            Self::Reading(wanted) => method == Method::GET && path == wanted,
            Self::Creating(plural) => method == Method::POST && is_of(plural) && !query.contains("dryRun"),
            Self::Replacing(plural) => method == Method::PUT && is_of(plural),
            Self::Deleting(plural) => method == Method::DELETE && is_of(plural),
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        let answer = service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { shared.answer_until_cut(request).await }
        });
        // If `answer` returns an error, hyper closes the connection. Faults such as `Down` need this.
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// Returns an error answer in the form of the Kubernetes API.
fn status(code: u16) -> Result<Response<Body>, Error> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the test injects this fault", "reason": "", "code": code,
    });
    json_answer(code, status.to_string())
}

fn json_answer(code: u16, json: impl Into<Bytes>) -> Result<Response<Body>, Error> {
    let mut response = Response::builder().status(StatusCode::from_u16(code)?).header(CONTENT_TYPE, "application/json");
    if code == 429 {
        response = response.header(RETRY_AFTER, "1");
    }
    let body = Full::new(json.into()).map_err(|never| match never {});
    Ok(response.body(body.boxed_unsync())?)
}

/// Streams the body until it ends, or until [`FaultProxy::cut`] breaks it off.
fn cuttable(body: Incoming, cuts: watch::Receiver<()>) -> Body {
    let frames = stream::unfold((body, cuts), |(mut body, mut cuts)| async {
        let frame = tokio::select! {
            _ = cuts.changed() => Some(Err(broken_off())),
            frame = body.frame() => frame.map(|frame| frame.map_err(Error::from)),
        };
        frame.map(|frame| (frame, (body, cuts)))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn broken_off() -> Error {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

fn kubeconfig(port: u16) -> NamedTempFile {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
        "clusters": [{ "name": "proxy", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "users": [{ "name": "proxy", "user": {} }],
        "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy" } }],
    });
    let mut file = NamedTempFile::new().expect("cannot create a temporary file");
    file.write_all(config.to_string().as_bytes()).expect("cannot write the kubeconfig");
    file
}
