//! A simulated API server in this process. It stores objects and serves watches. A test can prepare answers, and read
//! the requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use kube::Client;
use master::kube::Cluster;
use master::mutex::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::objects::{Answer, Objects, Query, failure, status_object};

pub(crate) const NAMESPACE: &str = "training";
/// How long a step of these tests may take. Tests that wait for minutes use virtual time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3600);

/// A simulated API server. Clones share one server.
#[derive(Clone)]
pub(crate) struct ApiServer(Arc<Shared>);

struct Shared {
    state: Mutex<Held>,
    /// Notifies of every request and every change of an object.
    news: watch::Sender<()>,
    /// How often the watches were ended, and with which event.
    ends: watch::Sender<(u64, Option<Value>)>,
}

#[derive(Default)]
struct Held {
    objects: Objects,
    journal: Vec<Asked>,
    script: VecDeque<(Kind, Reply)>,
    on_pod: Option<fn(&mut Value)>,
    /// The number of watches so far.
    watches: u64,
    /// The silent watches: all watches of this plural with a smaller number.
    silent: BTreeMap<String, u64>,
}

/// Which watches report nothing, although their connections stay open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The present watches, as after the failure of a load balancer. A new watch reports all changes.
    Present,
    /// Also all new watches.
    Always,
}

/// A request that the server has received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    /// The path after the namespace: `pods` or `pods/NAME`.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Value,
    pub(crate) at: tokio::time::Instant,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Create,
    Get,
    List,
    Watch,
    Replace,
    Patch,
    Delete,
    DeleteAll,
}

/// A prepared answer.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Sends this answer, and does not carry out the request.
    Instead(Answer),
    /// Sends this answer with a `Retry-After` of this many seconds, and does not carry out the request.
    RetryAfter(Answer, u32),
    /// Carries out the request, but sends this answer.
    DoneAnd(Answer),
    /// Carries out the request after this time.
    Late(Duration),
    /// Never answers.
    Silence,
}

impl Asked {
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_trial(&self) -> bool {
        self.param("dryRun") == Some("All")
    }

    /// Whether the request asks for a change.
    pub(crate) fn mutates(&self) -> bool {
        matches!(self.kind, Kind::Create | Kind::Replace | Kind::Patch | Kind::Delete | Kind::DeleteAll)
    }
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        let (news, ends) = (watch::Sender::default(), watch::Sender::default());
        Self(Arc::new(Shared { state: Mutex::default(), news, ends }))
    }

    /// A cluster that is reached without a network, so that tests can use virtual time.
    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(Client::new(self.router(), NAMESPACE), NAMESPACE.to_owned())
    }

    /// A cluster that is reached over HTTP, through all layers of kube's client.
    pub(crate) async fn cluster_over_http(&self) -> Cluster {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port");
        let address = listener.local_addr().expect("the listener has no address");
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        cluster_at(&format!("http://{address}"))
    }

    fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    /// Prepares an answer. Each request takes the first prepared answer for its kind of request, if there is one.
    pub(crate) fn script(&self, kind: Kind, reply: Reply) {
        self.lock().script.push_back((kind, reply));
    }

    /// Prepares the same answer several times.
    pub(crate) fn script_times(&self, times: usize, kind: Kind, reply: &Reply) {
        (0..times).for_each(|_| self.script(kind, reply.clone()));
    }

    /// Applies `change` to every pod that is created.
    pub(crate) fn on_pod(&self, change: fn(&mut Value)) {
        self.lock().on_pod = Some(change);
    }

    /// Writes an object, as another client would.
    pub(crate) fn put(&self, plural: &str, object: Value) -> Value {
        let written = self.lock().objects.put(plural, object);
        self.0.news.send_replace(());
        written
    }

    /// Writes an object, as another client would, before any watch reports it.
    pub(crate) fn put_unreported(&self, plural: &str, object: Value) -> Value {
        self.lock().objects.put_unreported(plural, object)
    }

    /// Removes an object, as another client would.
    pub(crate) fn remove(&self, plural: &str, name: &str) {
        assert!(self.lock().objects.remove(plural, name), "there is no object {name}");
        self.0.news.send_replace(());
    }

    pub(crate) fn object(&self, plural: &str, name: &str) -> Option<Value> {
        let (status, object) = self.lock().objects.get(plural, name);
        (status == StatusCode::OK).then_some(object)
    }

    /// From now on, these watches report nothing.
    pub(crate) fn silence(&self, plural: &str, silence: Silence) {
        let mut held = self.lock();
        let first = if silence == Silence::Present { held.watches } else { u64::MAX };
        held.silent.insert(plural.to_owned(), first);
    }

    /// All watches report all changes, also the changes during the silence.
    pub(crate) fn end_silence(&self, plural: &str) {
        self.lock().silent.remove(plural);
        self.0.news.send_replace(());
    }

    /// Ends every watch. `with` is the last event of each watch, if any.
    pub(crate) fn end_watches(&self, with: Option<Value>) {
        self.0.ends.send_modify(|(count, event)| (*count, *event) = (*count + 1, with));
    }

    /// Waits until no watch is open.
    pub(crate) async fn is_unwatched(&self) {
        timeout(DEADLINE, self.0.ends.closed()).await.expect("a watch is still open");
    }

    /// Forgets the history, so that a watch cannot resume from it.
    pub(crate) fn forget_history(&self) {
        self.lock().objects.forget();
    }

    /// Every request so far.
    pub(crate) fn journal(&self) -> Vec<Asked> {
        self.lock().journal.clone()
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.journal().iter().filter(|asked| asked.kind == kind).count()
    }

    /// The requests for changes, as text.
    pub(crate) fn mutations(&self) -> Vec<String> {
        let text = |asked: Asked| {
            format!("{:?} {}{}", asked.kind, asked.path, if asked.is_trial() { " (dry run)" } else { "" })
        };
        self.journal().into_iter().filter(Asked::mutates).map(text).collect()
    }

    /// Waits until `test` accepts the requests so far. `what` names the condition in the panic message.
    pub(crate) async fn until(&self, what: &str, test: impl Fn(&[Asked]) -> bool) {
        let mut news = self.0.news.subscribe();
        let asked = async {
            while !test(&self.lock().journal) {
                news.changed().await.expect("the server has ended");
            }
        };
        if timeout(DEADLINE, asked).await.is_err() {
            panic!("this did not happen in time: {what}; the requests are {:#?}", self.journal());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.state.lock()
    }

    fn scripted(&self, kind: Kind) -> Option<Reply> {
        let script = &mut self.lock().script;
        let place = script.iter().position(|(of, _)| *of == kind)?;
        script.remove(place).map(|(_, reply)| reply)
    }

    fn serve(&self, asked: &Asked) -> Response {
        let (plural, name) = asked.path.split_once('/').unwrap_or((&asked.path, ""));
        let limit = asked.param("limit").and_then(|limit| limit.parse().ok());
        let (selector, field) = (asked.param("labelSelector"), asked.param("fieldSelector"));
        let query = Query { plural, selector, field, limit, after: asked.param("continue") };
        if asked.kind == Kind::Watch {
            return self.watch(plural, asked);
        }
        let mut held = self.lock();
        let on_pod = held.on_pod.filter(|_| plural == "pods");
        let objects = &mut held.objects;
        let answer = match asked.kind {
            Kind::Create => {
                let mut object = asked.body.clone();
                on_pod.into_iter().for_each(|change| change(&mut object));
                objects.create(plural, object, asked.is_trial())
            }
            Kind::Get => objects.get(plural, name),
            Kind::List | Kind::Watch => objects.list_answer(&query),
            Kind::Replace => objects.replace(plural, name, asked.body.clone()),
            Kind::Patch => objects.patch(plural, name.trim_end_matches("/status"), &asked.body),
            Kind::Delete => objects.delete(plural, name, &asked.body),
            Kind::DeleteAll => objects.delete_all(&query),
        };
        drop(held);
        self.0.news.send_replace(());
        json_response(answer)
    }

    fn watch(&self, plural: &str, asked: &Asked) -> Response {
        let since: u64 = asked.param("resourceVersion").and_then(|version| version.parse().ok()).expect("no version");
        if !self.lock().objects.remembers(since) {
            return json_response(failure(410, "Expired", "too old resource version"));
        }
        let (news, ends) = (self.0.news.subscribe(), self.0.ends.subscribe());
        let selector = asked.param("labelSelector").map(str::to_owned);
        let number = {
            let mut held = self.lock();
            held.watches += 1;
            held.watches - 1
        };
        let watching =
            Watching { server: self.clone(), number, plural: plural.to_owned(), selector, since, news, ends };
        Body::from_stream(stream::unfold(Some(watching), Watching::step)).into_response()
    }
}

/// One open watch.
struct Watching {
    server: ApiServer,
    number: u64,
    plural: String,
    selector: Option<String>,
    since: u64,
    news: watch::Receiver<()>,
    ends: watch::Receiver<(u64, Option<Value>)>,
}

impl Watching {
    async fn step(watching: Option<Self>) -> Option<(Result<String, std::io::Error>, Option<Self>)> {
        let mut this = watching?;
        loop {
            this.news.mark_unchanged();
            let query = Query::all(&this.plural, this.selector.as_deref());
            let change = {
                let held = this.server.lock();
                let is_silent = held.silent.get(&this.plural).is_some_and(|first| this.number < *first);
                held.objects.next(&query, this.since).filter(|_| !is_silent)
            };
            if let Some(change) = change {
                this.since = change.version;
                return Some((Ok(line(change.kind, &change.object)), Some(this)));
            }
            tokio::select! {
                _ = this.news.changed() => {}
                _ = this.ends.changed() => {
                    let event = this.ends.borrow().1.clone()?;
                    return Some((Ok(line("ERROR", &event)), None));
                }
            }
        }
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// The last event of a watch whose version is too old.
pub(crate) fn gone() -> Value {
    status_object(410, "Expired", "too old resource version")
}

/// A cluster behind this URL.
pub(crate) fn cluster_at(url: &str) -> Cluster {
    let config = kube::Config::new(url.parse().expect("not a URL"));
    Cluster::new(Client::try_from(config).expect("no client"), NAMESPACE.to_owned())
}

fn json_response((status, body): Answer) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn answer(State(server): State<ApiServer>, request: Request) -> Response {
    let asked = read(request).await;
    server.lock().journal.push(asked.clone());
    server.0.news.send_replace(());
    match server.scripted(asked.kind) {
        None => server.serve(&asked),
        Some(Reply::Instead(answer)) => json_response(answer),
        Some(Reply::RetryAfter(answer, seconds)) => {
            ([(header::RETRY_AFTER, seconds.to_string())], json_response(answer)).into_response()
        }
        Some(Reply::DoneAnd(answer)) => {
            server.serve(&asked);
            json_response(answer)
        }
        Some(Reply::Late(pause)) => {
            sleep(pause).await;
            server.serve(&asked)
        }
        Some(Reply::Silence) => std::future::pending().await,
    }
}

async fn read(request: Request) -> Asked {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let path = path.split_once(&format!("/namespaces/{NAMESPACE}/")).map_or(path.as_str(), |(_, rest)| rest).to_owned();
    let query: Vec<(String, String)> =
        form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let is_watch = query.iter().any(|(key, value)| key == "watch" && value == "true");
    let is_one = path.contains('/');
    let kind = match parts.method {
        Method::POST => Kind::Create,
        Method::PUT => Kind::Replace,
        Method::PATCH => Kind::Patch,
        Method::DELETE if is_one => Kind::Delete,
        Method::DELETE => Kind::DeleteAll,
        Method::GET if is_one => Kind::Get,
        Method::GET if is_watch => Kind::Watch,
        Method::GET => Kind::List,
        other => panic!("unexpected method {other}"),
    };
    let bytes = to_bytes(body, usize::MAX).await.expect("no whole request");
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Asked { kind, path, query, body, at: tokio::time::Instant::now() }
}
