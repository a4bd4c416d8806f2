//! The way from a master to the API of the cluster that KUBECONFIG names, on which a test lets things go wrong.

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

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The answer comes so much later.
    Slow(Duration),
    /// 429, to come again after a second.
    TooMany,
    /// This status, and nothing is done.
    Refused(u16),
    /// What was asked for is done, and the answer is this status all the same.
    LostAnswer(u16),
    /// 410: what is asked about is forgotten.
    Gone,
    /// No answer; connections are closed as soon as something is asked.
    Down,
}

/// Which requests it concerns. A plural is that of the objects, such as `pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// All.
    Everything,
    /// The beginning of watches.
    Watches,
    /// What creates such objects, trials left out.
    Creating(&'static str),
    /// What replaces one.
    Replacing(&'static str),
    /// What deletes one or many.
    Deleting(&'static str),
}

/// An API server that misbehaves on demand. It ends with this.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    kubeconfig: NamedTempFile,
    upstream: Child,
    // What serves, and goes on while the test blocks its own thread.
    _runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    trouble: Mutex<Trouble>,
    /// Raised to break off every answer that is under way.
    cuts: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Trouble {
    fault: Option<(On, Fault)>,
    /// How many more requests it strikes.
    left: usize,
    struck: usize,
}

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

impl FaultProxy {
    /// One through which everything passes.
    ///
    /// # Panics
    /// When there is no kubectl, or no cluster.
    pub fn start() -> Self {
        // TLS and credentials are its business.
        let mut upstream = Command::new("kubectl")
            .args(["proxy", "--port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // It complains of each answer that is broken off.
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl is on the path");
        let mut line = String::new();
        let stdout = upstream.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut line).expect("kubectl says its address");
        let address = line.trim().rsplit(' ').next().expect("its last word").to_owned();
        let shared = Arc::new(Shared {
            upstream: address,
            client: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http(),
            trouble: Mutex::default(),
            cuts: watch::Sender::new(()),
        });
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let port = listener.local_addr().expect("it was bound").port();
        runtime.spawn(serve(listener, Arc::clone(&shared)));
        Self { shared, kubeconfig: kubeconfig(port), upstream, _runtime: runtime }
    }

    /// The value of KUBECONFIG for a master that is to come this way.
    pub fn kubeconfig(&self) -> &str {
        self.kubeconfig.path().to_str().expect("temporary files have plain names")
    }

    /// From now on these requests meet this fault, and no others any.
    pub fn misbehave(&self, on: On, fault: Fault) {
        self.misbehave_times(usize::MAX, on, fault);
    }

    /// The same, so many times.
    pub fn misbehave_times(&self, times: usize, on: On, fault: Fault) {
        *self.shared.lock() = Trouble { fault: Some((on, fault)), left: times, struck: 0 };
        if fault == Fault::Down {
            self.cut();
        }
    }

    /// From now on everything passes.
    pub fn behave(&self) {
        *self.shared.lock() = Trouble::default();
    }

    /// Breaks off every answer that is under way: all watches.
    pub fn cut(&self) {
        self.shared.cuts.send_replace(());
    }

    /// How many requests have met the fault.
    pub fn struck(&self) -> usize {
        self.shared.lock().struck
    }

    /// Waits until so many have.
    ///
    /// # Panics
    /// When they do not come in time.
    pub fn until_struck(&self, count: usize) {
        let is_struck = || (self.struck() >= count).then_some(());
        within(&format!("{count} requests meet the fault"), is_struck, || format!("{:?}", self.shared.lock()));
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // It may have ended with the cluster.
        let _ = self.upstream.kill();
        let _ = self.upstream.wait();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault that this request meets.
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
                // It is done when its head is here.
                self.forward(request).await?;
                status(code)
            }
            Some(Fault::Gone) => status(410),
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
        // An error closes the connection, which is what it is for.
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// What the API says in place of an answer.
fn status(code: u16) -> Result<Response<Body>, Error> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the test says so", "reason": "", "code": code,
    });
    let mut response = Response::builder().status(StatusCode::from_u16(code)?).header(CONTENT_TYPE, "application/json");
    if code == 429 {
        response = response.header(RETRY_AFTER, "1");
    }
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    Ok(response.body(body.boxed_unsync())?)
}

/// The body as it comes, until it is broken off.
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
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(config.to_string().as_bytes()).expect("write the kubeconfig");
    file
}
