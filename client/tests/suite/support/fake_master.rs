//! A master with prepared answers, and the clients that ask it. Records all requests.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
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
use serde_json::Value;

use super::views::succeeded;
use super::{Ended, client, finish, folder_with_script, parameter, serve_aside};

/// How often a request without an answer is looked at again.
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
    /// request with a query, and an entry with `*` is the beginning of any request.
    pub(crate) away: Vec<&'static str>,
    /// Requests before which another master without the job's code replaces this master.
    pub(crate) replaced: Vec<&'static str>,
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
    answering: Arc<Mutex<Answering>>,
    /// Where clients run, unless a test gives them another folder. It has an exec.py.
    folder: tempfile::TempDir,
}

impl FakeMaster {
    pub(crate) fn start(script: Script) -> Self {
        Self::start_at("127.0.0.1:0", script)
    }

    /// A master with these views of its job.
    pub(crate) fn with(views: Vec<JobView>) -> Self {
        Self::start(Script { views, ..Script::default() })
    }

    /// A master with this back end. The job digits succeeds there.
    pub(crate) fn of(backend: BackendKind) -> Self {
        Self::start(Script { views: vec![succeeded("digits")], backend: Some(backend), ..Script::default() })
    }

    /// Starts a fake master at this address.
    pub(crate) fn start_at(address: &str, script: Script) -> Self {
        let answering = Answering { script, newest: 0, asked: vec![], submitted: None, code: Code::default() };
        let answering = Arc::new(Mutex::new(answering));
        let url = serve_at(address, Router::new().fallback(serve).with_state(Arc::clone(&answering)));
        Self { url, answering, folder: folder_with_script() }
    }

    /// A client of this master.
    pub(crate) fn client(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = client(folder);
        command.args(["--master", &self.url]).args(arguments);
        command
    }

    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.client(self.folder.path(), arguments).spawn().unwrap()
    }

    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        finish(self.spawn(arguments))
    }

    #[track_caller]
    pub(crate) fn run_in(&self, folder: &Path, arguments: &[&str]) -> Ended {
        finish(self.client(folder, arguments).spawn().unwrap())
    }

    /// Submits the job digits.
    #[track_caller]
    pub(crate) fn submit(&self, more: &[&str]) -> Ended {
        self.run(&[&["--task", "digits"], more].concat())
    }

    /// Method, path and query of every request, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.answering.lock().unwrap().asked.clone()
    }

    /// Whether a request contained this text.
    pub(crate) fn was_asked(&self, part: &str) -> bool {
        self.asked().iter().any(|request| request.contains(part))
    }

    /// The files of the last manifest, by path.
    pub(crate) fn files(&self) -> Vec<(String, String)> {
        let Code { manifest, blobs } = &self.answering.lock().unwrap().code;
        let files = manifest.as_ref().expect("no manifest was sent").files().iter();
        let text = |blob: &Sha256| String::from_utf8(blobs[blob].clone()).unwrap();
        files.map(|file| (file.path.to_string(), text(&file.sha256))).collect()
    }

    /// From now on, answers 503 once to each of these requests.
    pub(crate) fn go_away(&self, requests: Vec<&'static str>) {
        self.answering.lock().unwrap().script.away = requests;
    }

    /// Sends the views that a master without the job's code has held back.
    pub(crate) fn go_on(&self) {
        self.answering.lock().unwrap().script.loses_code = false;
    }

    /// The body of the submit.
    pub(crate) fn submitted(&self) -> Value {
        self.answering.lock().unwrap().submitted.clone().expect("nothing was submitted")
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
        let view = MasterView {
            version: "0".to_owned(),
            backend: BackendKind::Process,
            uid: None,
            python: None,
            same_folder: false,
        };
        let body = serde_json::to_string(&view).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    });
    address
}

/// Starts a server that answers every request with this text. Returns its address.
pub(crate) fn something_else(status: u16, body: &'static str) -> String {
    let status = StatusCode::from_u16(status).unwrap();
    serve_at("127.0.0.1:0", Router::new().fallback(move || async move { (status, body) }))
}

fn serve_at(address: &str, router: Router) -> String {
    let listener = TcpListener::bind(address).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    serve_aside(|| tokio::net::TcpListener::from_std(listener).unwrap(), router);
    url
}

async fn serve(State(answering): State<Arc<Mutex<Answering>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    answering.lock().unwrap().asked.push(format!("{} {}", head.method, head.uri));
    loop {
        if let Some(answer) = answering.lock().unwrap().respond(&head, &body) {
            return answer;
        }
        // If no change brings an answer, the wait ends when the client gives up or is killed.
        tokio::time::sleep(CHANGE_INTERVAL).await;
    }
}

/// Removes the entry for this request, if there is one. An entry without `?` is a whole request without its query.
fn take(entries: &mut Vec<&'static str>, asked: &str) -> bool {
    let path = asked.split('?').next().unwrap_or_default();
    let is_beginning = |entry: &str| entry.strip_suffix('*').is_some_and(|beginning| asked.starts_with(beginning));
    let is_meant = |entry: &&'static str| {
        *entry == path || is_beginning(entry) || entry.contains('?') && asked.starts_with(*entry)
    };
    entries.iter().position(is_meant).map(|place| entries.remove(place)).is_some()
}

/// The code that the master has received.
#[derive(Default)]
struct Code {
    manifest: Option<Manifest>,
    blobs: BTreeMap<Sha256, Vec<u8>>,
}

impl Code {
    fn take(&mut self, body: &[u8], are_blobs: bool) -> MissingBlobs {
        if are_blobs {
            let mut reader = BlobReader::new(self.manifest.as_ref().expect("there is a manifest"));
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
    fn lacks(&self, submitted: &Value) -> bool {
        let here = self.manifest.as_ref().map(|manifest| manifest.id().to_string());
        submitted["code"].as_str().is_some_and(|code| here.as_deref() != Some(code))
    }
}

struct Answering {
    script: Script,
    /// The place of the newest view that was returned.
    newest: usize,
    asked: Vec<String>,
    submitted: Option<Value>,
    code: Code,
}

impl Answering {
    /// The answer to a request. `None` if there is no answer yet.
    fn respond(&mut self, head: &Parts, body: &[u8]) -> Option<Response> {
        let asked = format!("{} {}", head.method, head.uri);
        if !self.knows(&head.headers) {
            return Some(problem(&refusal(401, ErrorCode::Unauthorized, "the token is missing or wrong")));
        }
        if take(&mut self.script.away, &asked) {
            return Some(problem(&refusal(503, ErrorCode::Unavailable, "away for a moment")));
        }
        if take(&mut self.script.replaced, &asked) {
            self.code = Code::default();
        }
        let answer = self.answer(head, body)?;
        let is_lost = take(&mut self.script.lost, &asked);
        let lost = || problem(&refusal(504, ErrorCode::Unavailable, "the gateway timed out"));
        Some(if is_lost { lost() } else { answer })
    }

    fn answer(&mut self, head: &Parts, body: &[u8]) -> Option<Response> {
        let query = head.uri.query().unwrap_or_default();
        Some(match (head.method.as_str(), head.uri.path()) {
            ("POST", "/v1/dry-runs/jobs") => self.dry_run(&serde_json::from_slice(body).unwrap()),
            ("POST", "/v1/jobs") => {
                self.submitted = Some(serde_json::from_slice(body).unwrap());
                return (!self.script.mute).then(|| self.submit());
            }
            ("GET", "/v1/jobs") => {
                let jobs = self.script.views.iter().map(JobView::summary).collect();
                json(StatusCode::OK, &protocol::view::JobList { seq: 0, jobs })
            }
            ("GET", "/v1/history") => json(StatusCode::OK, &protocol::history::PastJobs::default()),
            ("GET", "/v1/master") => {
                let Script { backend, uid, .. } = self.script;
                let backend = backend.unwrap_or(BackendKind::Process);
                json(
                    StatusCode::OK,
                    &MasterView { version: "0".to_owned(), backend, uid, python: None, same_folder: false },
                )
            }
            ("GET", "/agent") => match self.script.agent.clone() {
                Some(agent) => answer(StatusCode::OK, "application/octet-stream", agent.into()),
                None => problem(&refusal(404, ErrorCode::UnknownRoute, "this master has no agent program")),
            },
            ("GET", path) if path.ends_with("/logs") => self.logs(query),
            ("GET", path) => return self.view(path, query),
            ("PUT", path) => match &self.script.code_refusal {
                Some(refusal) => problem(refusal),
                None if path.ends_with("/blobs") && self.code.manifest.is_none() => {
                    problem(&refusal(404, ErrorCode::CodeMissing, "send the manifest first"))
                }
                None => json(StatusCode::OK, &self.code.take(body, path.ends_with("/blobs"))),
            },
            ("PATCH", _) => self.change(),
            ("DELETE", path) => self.delete(path),
            (_, path) => self.cancel(path),
        })
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.script.token else { return true };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        sent == Some(&format!("Bearer {token}"))
    }

    fn dry_run(&self, body: &Value) -> Response {
        match &self.script {
            Script { is_old: true, .. } => problem(&refusal(404, ErrorCode::UnknownRoute, "no route has this path")),
            Script { refusal: Some(refusal), .. } => problem(refusal),
            Script { pods, .. } => {
                let (lacks_code, pods) = (self.code.lacks(body), pods.clone());
                json(StatusCode::OK, &DryRun { lacks_code, pods, ..DryRun::default() })
            }
        }
    }

    fn submit(&mut self) -> Response {
        if self.submitted.as_ref().is_some_and(|submitted| self.code.lacks(submitted)) {
            return problem(&refusal(409, ErrorCode::CodeMissing, "send the code first"));
        }
        let script = &mut self.script;
        let is_new = !script.before || std::mem::take(&mut script.deleted);
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        script.before |= script.lost.contains(&"POST /v1/jobs");
        match &script.refusal {
            Some(refusal) => problem(refusal),
            None if script.loses_code => {
                self.code.blobs.clear();
                let wanted_code = self.code.manifest.as_ref().map(Manifest::id);
                json(status, &JobView { wanted_code, ..script.views[0].clone() })
            }
            None => json(status, &script.views[0]),
        }
    }

    fn change(&mut self) -> Response {
        match self.script.changes.pop_front().expect("the test has no answer for this change") {
            Changed::Refused(refusal) => problem(&refusal),
            Changed::Accepted(answer, next) => {
                self.script.views.extend(next);
                json(StatusCode::OK, &*answer)
            }
        }
    }

    fn cancel(&self, path: &str) -> Response {
        match self.script.views.first() {
            Some(view) if path == format!("/v1/jobs/{}/cancel", view.name) => StatusCode::ACCEPTED.into_response(),
            Some(_) | None => problem(&refusal(404, ErrorCode::UnknownJob, "there is no such job")),
        }
    }

    /// Whether the job with this name is known.
    fn has(&self, name: &str) -> bool {
        !self.script.deleted && self.script.views.first().is_some_and(|view| view.name.as_str() == name)
    }

    fn delete(&mut self, path: &str) -> Response {
        let name = path.trim_start_matches("/v1/jobs/");
        if !self.has(name) && self.script.unreadable != Some(name) {
            return unknown_job(name);
        }
        self.script.deleted = !self.script.lingers;
        StatusCode::ACCEPTED.into_response()
    }

    fn view(&mut self, path: &str, query: &str) -> Option<Response> {
        let name = path.trim_start_matches("/v1/jobs/");
        if !self.has(name) {
            return Some(unknown_job(name.rsplit('/').next().unwrap_or_default()));
        }
        let index = match parameter(query, "after") {
            None => self.newest,
            Some(_) if self.script.loses_code => return None,
            Some(seq) => {
                let seq: u64 = seq.parse().unwrap();
                self.script.views.iter().position(|view| view.seq > seq)?
            }
        };
        self.newest = self.newest.max(index);
        Some(json(StatusCode::OK, &self.script.views[index]))
    }

    fn logs(&mut self, query: &str) -> Response {
        let script = &mut self.script;
        let is_last = script.logs.len() <= 1;
        if is_last && query.contains("follow=true") && !script.loses_code {
            // A real master ends the stream when the job has ended. So the job's last view is the newest now.
            self.newest = script.views.len() - 1;
        }
        let logs = if is_last { script.logs.front().cloned() } else { script.logs.pop_front() };
        match logs.unwrap_or_else(|| Logs::Lines(Vec::new())) {
            Logs::Lines(mut lines) => {
                let from = parameter(query, "from").unwrap_or_default();
                lines.retain(|line| line.offset > offset_of(line.replica, &from));
                let body: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
                answer(StatusCode::OK, "application/x-ndjson", body.into())
            }
            Logs::Raw(bytes) => {
                let offset: usize = parameter(query, "offset").map_or(0, |number| number.parse().unwrap());
                let positions = [(LOG_OFFSET_HEADER, offset.to_string()), (LOG_DROPPED_HEADER, "0".to_owned())];
                let bytes = bytes[offset..].to_vec().into();
                (positions, answer(StatusCode::OK, "application/octet-stream", bytes)).into_response()
            }
            Logs::RawNowhere(bytes) => answer(StatusCode::OK, "application/octet-stream", bytes.into()),
        }
    }
}

/// The replica's offset in the value of the query parameter `from`.
fn offset_of(replica: ReplicaId, from: &str) -> u64 {
    let mut offsets = from.split(',').filter_map(|pair| pair.split_once(':'));
    let found = offsets.find(|(name, _)| *name == replica.to_string());
    found.map_or(0, |(_, offset)| offset.parse().unwrap())
}

/// An error of a master.
pub(crate) fn refusal(status: u16, code: ErrorCode, detail: &str) -> Problem {
    Problem { status, code, detail: detail.to_owned() }
}

fn unknown_job(name: &str) -> Response {
    problem(&refusal(404, ErrorCode::UnknownJob, &format!("there is no job \"{name}\"")))
}

fn problem(problem: &Problem) -> Response {
    answer(StatusCode::from_u16(problem.status).unwrap(), PROBLEM_JSON, serde_json::to_vec(problem).unwrap().into())
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    answer(status, "application/json", serde_json::to_vec(value).unwrap().into())
}

fn answer(status: StatusCode, media_type: &'static str, body: Body) -> Response {
    (status, [(header::CONTENT_TYPE, media_type)], body).into_response()
}
