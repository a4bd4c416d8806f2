//! A master with prepared answers. Records all requests.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use protocol::code::{BlobPart, BlobReader, Manifest, MissingBlobs, Sha256};
use protocol::dry_run::{DryRun, PodsOfKind};
use protocol::error::{ErrorCode, PROBLEM_JSON, Problem};
use protocol::ids::ReplicaId;
use protocol::master::{BackendKind, MasterView};
use protocol::output::LogLine;
use protocol::routes::{LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};
use protocol::view::JobView;

/// How often a long poll looks for a new view.
const CHANGE_INTERVAL: Duration = Duration::from_millis(5);

/// The answers of a fake master.
#[derive(Default)]
pub(crate) struct Script {
    /// The views of the job. Long polls return these views in turn. A submit returns the first view. A request that is
    /// not a long poll returns the newest view that was returned so far.
    pub(crate) views: Vec<JobView>,
    /// One answer for each log request. The last answer is repeated.
    pub(crate) logs: VecDeque<Logs>,
    /// The error with which the master refuses submits. `None` if the master accepts them.
    pub(crate) refusal: Option<Problem>,
    /// Whether an earlier command submitted the job.
    pub(crate) before: bool,
    /// Requests to which the master answers 503 once, such as `POST /v1/jobs`. An entry with `?` is the beginning of a
    /// request with a query.
    pub(crate) away: Vec<&'static str>,
    /// Requests whose answer is lost once, after the master has done what they ask for.
    pub(crate) lost: Vec<&'static str>,
    /// The error with which the master refuses code.
    pub(crate) code_refusal: Option<Problem>,
    /// Whether the master is of a version without dry runs.
    pub(crate) is_old: bool,
    /// Whether the master loses the job's code when it accepts the job. Further views come after [`FakeMaster::go_on`].
    pub(crate) loses_code: bool,
    /// The pods that a dry run shows.
    pub(crate) pods: Vec<PodsOfKind>,
    /// Whether submits are recorded but never answered.
    pub(crate) mute: bool,
    /// Whether the job is unknown, because it was deleted.
    pub(crate) deleted: bool,
    /// Whether the job still exists after a delete.
    pub(crate) lingers: bool,
    /// The name of an unreadable record. It is not shown as a job, but can be deleted.
    pub(crate) unreadable: Option<&'static str>,
    /// The master's back end.
    pub(crate) backend: Option<BackendKind>,
    /// The user that the master runs as.
    pub(crate) uid: Option<u32>,
    /// The agent that the master serves.
    pub(crate) agent: Option<Vec<u8>>,
    /// The required token.
    pub(crate) token: Option<String>,
    /// One answer for each change of the job.
    pub(crate) changes: VecDeque<Changed>,
}

/// The answer to a change of a job.
pub(crate) enum Changed {
    /// The change is refused.
    Refused(Problem),
    /// The change is accepted. The first field is the answer. The second field has the job's next views.
    Accepted(Box<JobView>, Vec<JobView>),
}

/// One answer to a log request.
#[derive(Clone)]
pub(crate) enum Logs {
    /// Lines of all replicas.
    Lines(Vec<LogLine>),
    /// The bytes of one replica.
    Raw(Vec<u8>),
    /// The bytes of one replica without their offset. Real masters always send the offset.
    RawNowhere(Vec<u8>),
}

/// A running fake master. It ends with the test's process.
pub(crate) struct FakeMaster {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    script: Mutex<Script>,
    newest: Mutex<usize>,
    asked: Mutex<Vec<String>>,
    submitted: Mutex<Option<serde_json::Value>>,
    code: Mutex<Code>,
}

/// The code that the master has received.
#[derive(Default)]
struct Code {
    manifest: Option<Manifest>,
    blobs: BTreeMap<Sha256, Vec<u8>>,
}

impl FakeMaster {
    pub(crate) fn start(script: Script) -> Self {
        Self::start_at("127.0.0.1:0", script)
    }

    /// Starts a fake master at this address.
    pub(crate) fn start_at(address: &str, script: Script) -> Self {
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            newest: Mutex::new(0),
            asked: Mutex::default(),
            submitted: Mutex::default(),
            code: Mutex::default(),
        });
        let router = Router::new().fallback(serve).with_state(shared.clone());
        Self { url: format!("http://{}", serve_aside(address, router)), shared }
    }

    /// Method, path and query of every request, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// The files of the last manifest, by path.
    pub(crate) fn files(&self) -> Vec<(String, String)> {
        let code = self.shared.code.lock().unwrap();
        let files = code.manifest.as_ref().expect("no manifest was sent").files().iter();
        let text = |blob: &Sha256| String::from_utf8(code.blobs[blob].clone()).unwrap();
        files.map(|file| (file.path.to_string(), text(&file.sha256))).collect()
    }

    /// Sends the views that a master without the job's code has held back.
    pub(crate) fn go_on(&self) {
        self.shared.script.lock().unwrap().loses_code = false;
    }

    /// The body of the submit.
    pub(crate) fn submitted(&self) -> serde_json::Value {
        self.shared.submitted.lock().unwrap().clone().expect("nothing was submitted")
    }
}

/// Starts a server that answers one request with the view of a master, and then refuses connections. Returns its
/// address.
pub(crate) fn gone_after_one_answer() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
        while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        let view = MasterView { version: "0".to_owned(), backend: BackendKind::Process, uid: None };
        let body = serde_json::to_string(&view).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    });
    address
}

/// Starts a server that answers every request with this text. Returns its address.
pub(crate) fn something_else(status: u16, body: &'static str) -> String {
    let status = StatusCode::from_u16(status).unwrap();
    let router = Router::new().fallback(move || async move { (status, body) });
    format!("http://{}", serve_aside("127.0.0.1:0", router))
}

fn serve_aside(address: &str, router: Router) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    address
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let method = request.method().as_str().to_owned();
    let uri = request.uri().clone();
    shared.asked.lock().unwrap().push(format!("{method} {uri}"));
    if !shared.knows(request.headers()) {
        return problem(401, ErrorCode::Unauthorized, "the token is missing or wrong");
    }
    let asked = format!("{method} {uri}");
    if take(&mut shared.script.lock().unwrap().away, &asked) {
        return problem(503, ErrorCode::Unavailable, "away for a moment");
    }
    let answer = answer_to(&shared, request).await;
    let is_lost = take(&mut shared.script.lock().unwrap().lost, &asked);
    if is_lost { problem(504, ErrorCode::Unavailable, "the gateway timed out") } else { answer }
}

/// Removes the entry for this request, if there is one. An entry without `?` is a whole request without its query.
fn take(entries: &mut Vec<&'static str>, asked: &str) -> bool {
    let path = asked.split('?').next().unwrap_or_default();
    let is_meant = |entry: &&'static str| *entry == path || entry.contains('?') && asked.starts_with(*entry);
    entries.iter().position(is_meant).map(|place| entries.remove(place)).is_some()
}

async fn answer_to(shared: &Shared, request: Request) -> Response {
    let (method, uri) = (request.method().as_str().to_owned(), request.uri().clone());
    let query = uri.query().unwrap_or_default();
    match (method.as_str(), uri.path()) {
        ("POST", "/v1/jobs" | "/v1/dry-runs/jobs") => {
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            if uri.path() == "/v1/dry-runs/jobs" {
                return shared.dry_run(&body);
            }
            *shared.submitted.lock().unwrap() = Some(body);
            if shared.script.lock().unwrap().mute {
                std::future::pending::<()>().await;
            }
            let lacks_code = shared.code.lock().unwrap().lacks(shared.submitted.lock().unwrap().as_ref().unwrap());
            if lacks_code { problem(409, ErrorCode::CodeMissing, "send the code first") } else { shared.submit() }
        }
        ("GET", "/v1/jobs") => {
            let jobs = shared.script.lock().unwrap().views.iter().map(JobView::summary).collect();
            json(StatusCode::OK, &protocol::view::JobList { jobs })
        }
        ("GET", "/v1/master") => {
            let uid = shared.script.lock().unwrap().uid;
            let backend = shared.script.lock().unwrap().backend.unwrap_or(BackendKind::Process);
            json(StatusCode::OK, &MasterView { version: "0".to_owned(), backend, uid })
        }
        ("GET", "/agent") => match shared.script.lock().unwrap().agent.clone() {
            Some(agent) => answer(StatusCode::OK, "application/octet-stream", agent.into()),
            None => problem(404, ErrorCode::UnknownRoute, "this master has no agent program"),
        },
        ("GET", path) if path.ends_with("/logs") => shared.logs(query),
        ("GET", path) => loop {
            if let Some(answer) = shared.view(path, query) {
                break answer;
            }
            // Waits for a newer view. If no change adds one, the wait ends when the client gives up or is killed.
            tokio::time::sleep(CHANGE_INTERVAL).await;
        },
        ("PUT", path) => {
            if let Some(refusal) = &shared.script.lock().unwrap().code_refusal {
                return problem(refusal.status, refusal.code, &refusal.detail);
            }
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            json(StatusCode::OK, &shared.code.lock().unwrap().take(&body, path.ends_with("/blobs")))
        }
        ("PATCH", _) => shared.change(),
        ("DELETE", path) => shared.delete(path),
        (_, path) => shared.cancel(path),
    }
}

impl Code {
    fn take(&mut self, body: &[u8], are_blobs: bool) -> MissingBlobs {
        if are_blobs {
            let mut reader = BlobReader::new(self.manifest.as_ref().expect("blobs came before the manifest"));
            let (mut input, mut content) = (body, Vec::new());
            while let Some(part) = reader.next(&mut input).unwrap() {
                match part {
                    BlobPart::Begin(_) => content.clear(),
                    BlobPart::Content(bytes) => content.extend_from_slice(bytes),
                    BlobPart::End(blob) => drop(self.blobs.insert(blob, std::mem::take(&mut content))),
                }
            }
            reader.finish().unwrap();
        } else {
            self.manifest = Some(serde_json::from_slice(body).unwrap());
        }
        let named = self.manifest.iter().flat_map(Manifest::blobs);
        MissingBlobs { missing: named.map(|(blob, _)| blob).filter(|blob| !self.blobs.contains_key(blob)).collect() }
    }

    /// Whether the job of this submit brings code that this master does not have.
    fn lacks(&self, submitted: &serde_json::Value) -> bool {
        let here = self.manifest.as_ref().map(|manifest| manifest.id().to_string());
        submitted["code"].as_str().is_some_and(|code| here.as_deref() != Some(code))
    }
}

impl Shared {
    fn knows(&self, headers: &HeaderMap) -> bool {
        let script = self.script.lock().unwrap();
        let Some(token) = &script.token else { return true };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        sent == Some(&format!("Bearer {token}"))
    }

    fn dry_run(&self, body: &serde_json::Value) -> Response {
        let script = self.script.lock().unwrap();
        if script.is_old {
            return problem(404, ErrorCode::UnknownRoute, "no route has this path");
        }
        if let Some(refusal) = &script.refusal {
            return problem(refusal.status, refusal.code, &refusal.detail);
        }
        let lacks_code = self.code.lock().unwrap().lacks(body);
        let pods = script.pods.clone();
        json(StatusCode::OK, &DryRun { lacks_code, pods, ..DryRun::default() })
    }

    fn submit(&self) -> Response {
        let mut script = self.script.lock().unwrap();
        let is_new = !script.before || std::mem::take(&mut script.deleted);
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        script.before |= script.lost.contains(&"POST /v1/jobs");
        match &script.refusal {
            Some(refusal) => problem(refusal.status, refusal.code, &refusal.detail),
            None if script.loses_code => {
                let mut code = self.code.lock().unwrap();
                code.blobs.clear();
                let wanted_code = code.manifest.as_ref().map(Manifest::id);
                json(status, &JobView { wanted_code, ..script.views[0].clone() })
            }
            None => json(status, &script.views[0]),
        }
    }

    fn change(&self) -> Response {
        let mut script = self.script.lock().unwrap();
        match script.changes.pop_front().expect("the test has no answer for this change") {
            Changed::Refused(refusal) => problem(refusal.status, refusal.code, &refusal.detail),
            Changed::Accepted(answer, next) => {
                script.views.extend(next);
                json(StatusCode::OK, &*answer)
            }
        }
    }

    fn cancel(&self, path: &str) -> Response {
        let script = self.script.lock().unwrap();
        match script.views.first() {
            Some(view) if path == format!("/v1/jobs/{}/cancel", view.name) => StatusCode::ACCEPTED.into_response(),
            Some(_) | None => problem(404, ErrorCode::UnknownJob, "there is no such job"),
        }
    }

    fn delete(&self, path: &str) -> Response {
        let mut script = self.script.lock().unwrap();
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_job = !script.deleted && script.views.first().is_some_and(|view| view.name.as_str() == name);
        if !is_job && script.unreadable != Some(name) {
            return problem(404, ErrorCode::UnknownJob, &format!("there is no job \"{name}\""));
        }
        script.deleted = !script.lingers;
        StatusCode::ACCEPTED.into_response()
    }

    fn view(&self, path: &str, query: &str) -> Option<Response> {
        let script = self.script.lock().unwrap();
        let known = script.views.first().filter(|view| path == format!("/v1/jobs/{}", view.name));
        if script.deleted || known.is_none() {
            let name = path.rsplit('/').next().unwrap_or_default();
            return Some(problem(404, ErrorCode::UnknownJob, &format!("there is no job \"{name}\"")));
        }
        let after =
            query.split('&').find_map(|part| part.strip_prefix("after=")).map(|seq| seq.parse::<u64>().unwrap());
        let mut newest = self.newest.lock().unwrap();
        let index = match after {
            None => *newest,
            Some(_) if script.loses_code => return None,
            Some(seq) => script.views.iter().position(|view| view.seq > seq)?,
        };
        *newest = (*newest).max(index);
        Some(json(StatusCode::OK, &script.views[index]))
    }

    fn logs(&self, query: &str) -> Response {
        let mut script = self.script.lock().unwrap();
        let is_last = script.logs.len() <= 1;
        if is_last && query.contains("follow=true") && !script.loses_code {
            // A real master ends the stream when the job has ended. So the job's last view is the newest now.
            *self.newest.lock().unwrap() = script.views.len() - 1;
        }
        let logs = if is_last { script.logs.front().cloned() } else { script.logs.pop_front() };
        match logs.unwrap_or_else(|| Logs::Lines(Vec::new())) {
            Logs::Lines(mut lines) => {
                lines.retain(|line| line.offset > offset_of(line.replica, query));
                let body: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
                answer(StatusCode::OK, "application/x-ndjson", body.into())
            }
            Logs::Raw(bytes) => {
                let offset = query.split('&').find_map(|part| part.strip_prefix("offset="));
                let offset: usize = offset.map(|number| number.parse().unwrap()).unwrap_or(0);
                let positions = [(LOG_OFFSET_HEADER, offset.to_string()), (LOG_DROPPED_HEADER, "0".to_owned())];
                let bytes = bytes[offset..].to_vec().into();
                (positions, answer(StatusCode::OK, "application/octet-stream", bytes)).into_response()
            }
            Logs::RawNowhere(bytes) => answer(StatusCode::OK, "application/octet-stream", bytes.into()),
        }
    }
}

/// The replica's offset in the query parameter `from`.
fn offset_of(replica: ReplicaId, query: &str) -> u64 {
    let from = query.split('&').find_map(|part| part.strip_prefix("from=")).unwrap_or_default();
    let from = from.replace("%3A", ":").replace("%2C", ",");
    let mut offsets = from.split(',').filter_map(|pair| pair.split_once(':'));
    let found = offsets.find(|(name, _)| *name == replica.to_string());
    found.map(|(_, offset)| offset.parse().unwrap()).unwrap_or(0)
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    answer(status, "application/json", serde_json::to_vec(value).unwrap().into())
}

fn problem(status: u16, code: ErrorCode, detail: &str) -> Response {
    let problem = Problem { status, code, detail: detail.to_owned() };
    answer(StatusCode::from_u16(status).unwrap(), PROBLEM_JSON, serde_json::to_vec(&problem).unwrap().into())
}

fn answer(status: StatusCode, media_type: &'static str, body: Body) -> Response {
    (status, [(header::CONTENT_TYPE, media_type)], body).into_response()
}
