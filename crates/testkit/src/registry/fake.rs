//! A registry in this process. A test gives the answer for each path.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{TestImage, digest};

/// An answer of the registry.
#[derive(Debug, Clone)]
pub struct FakeAnswer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The required value of `Authorization`. For any other value, the registry answers 401, with the same headers.
    pub wants: Option<String>,
    /// Where the answer stops.
    pub stops: Stops,
}

/// Where an answer stops, while its connection stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stops {
    /// Nowhere.
    Never,
    /// Before its status.
    BeforeStatus,
    /// Before its body.
    BeforeBody,
}

impl FakeAnswer {
    /// Status 200 with this body.
    pub fn ok(body: Vec<u8>) -> Self {
        Self { status: 200, headers: vec![], body, wants: None, stops: Stops::Never }
    }

    /// This status without a body.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::ok(vec![]) }
    }
}

/// A request to the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The path with its query.
    pub path: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Default)]
struct Contents {
    answers: BTreeMap<String, FakeAnswer>,
    received: Vec<Received>,
}

/// A registry on the loopback interface. Dropping the value stops it.
pub struct FakeRegistry {
    address: SocketAddr,
    contents: Arc<Mutex<Contents>>,
    task: JoinHandle<()>,
}

impl FakeRegistry {
    /// Starts an empty registry.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port");
        let address = listener.local_addr().expect("a listener has an address");
        let contents = Arc::new(Mutex::new(Contents::default()));
        let router = Router::new().fallback(answer).with_state(Arc::clone(&contents));
        let serve = async move { axum::serve(listener, router).await.expect("the registry cannot accept connections") };
        Self { address, contents, task: tokio::spawn(serve) }
    }

    /// The host and port. The names of this registry's images begin with them.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Sets the answer for a path. A path without `?` stands for all queries.
    pub async fn set(&self, path: &str, answer: FakeAnswer) {
        self.contents.lock().await.answers.insert(path.to_owned(), answer);
    }

    /// Stores an image under this path and tag, such as `mnist:1`. Returns the image's full name.
    pub async fn push(&self, name: &str, image: &TestImage) -> String {
        let (path, _) = name.split_once(':').expect("a name has a tag");
        self.set(&format!("/v2/{path}/blobs/{}", digest(&image.config)), FakeAnswer::ok(image.config.clone())).await;
        self.push_manifest(name, &image.manifest).await
    }

    /// Stores a manifest or an index. Returns the image's full name.
    pub async fn push_manifest(&self, name: &str, manifest: &[u8]) -> String {
        let (path, tag) = name.split_once(':').expect("a name has a tag");
        for reference in [tag, &digest(manifest)] {
            let headers = vec![("docker-content-digest", digest(manifest))];
            let answer = FakeAnswer { headers, ..FakeAnswer::ok(manifest.to_vec()) };
            self.set(&format!("/v2/{path}/manifests/{reference}"), answer).await;
        }
        format!("{}/{name}", self.host())
    }

    /// All requests so far.
    pub async fn received(&self) -> Vec<Received> {
        self.contents.lock().await.received.clone()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(contents): State<Arc<Mutex<Contents>>>, request: Request) -> Response {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let authorization = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut contents = contents.lock().await;
    let found = contents.answers.get(&path).or_else(|| contents.answers.get(request.uri().path())).cloned();
    contents.received.push(Received { path, authorization: authorization.clone() });
    drop(contents);
    let FakeAnswer { status, headers, body, wants, stops } = found.unwrap_or_else(|| FakeAnswer::status(404));
    if stops == Stops::BeforeStatus {
        std::future::pending::<()>().await;
    }
    let is_refused = wants.is_some() && wants != authorization;
    let mut response = Response::builder().status(if is_refused { 401 } else { status });
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let body = match stops {
        Stops::BeforeBody => Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, Infallible>>()),
        Stops::Never | Stops::BeforeStatus if is_refused => Body::empty(),
        Stops::Never | Stops::BeforeStatus => Body::from(body),
    };
    response.body(body).expect("the test's headers are valid")
}
