//! Whole pages. They can be read without JavaScript, which only keeps them up to date.

use std::sync::Arc;

use askama::Template;
use protocol::ids::{JobName, ReplicaId, UnixMillis};
use protocol::output::LogLine;
use protocol::view::{JobResult, JobState, JobView};

use super::actions::PageAction;
use super::feed::{NewLines, Snapshot, Watching};
use super::log_lines::Line;
use super::parts::{Content, Filter, JobShown, KnownToFeed, Part, html, plain};
use super::tab::place;
use super::tf_config::tf_config;
use crate::request::again::new_name;

/// The frame of every page. [`page`] fills in the body.
#[derive(Default, Template)]
#[template(path = "page.html")]
struct Page<'a> {
    /// The relative path from this page up to the list, such as `../`. Paths are relative, so that pages do not contain
    /// the key.
    up: &'a str,
    title: &'a str,
    /// The master.
    place: &'a str,
    /// The stream of events, as a path relative to this page. Empty if the page does not change.
    events: &'a str,
    /// The place in the output after which the stream continues.
    last: &'a str,
    body: String,
}

fn page(mut frame: Page<'_>, body: &impl Template) -> String {
    frame.body = html(body);
    html(&frame)
}

#[derive(Template)]
#[template(path = "list.html")]
struct List<'a> {
    filter: &'a Filter,
    states: [JobState; JobState::ALL.len()],
    trouble: &'a str,
    jobs: &'a str,
}

/// The list of jobs.
pub(super) fn list(at: &str, snapshot: &Snapshot, filter: &Filter) -> String {
    let (trouble, jobs) = (snapshot.html(&Part::Trouble), snapshot.html(&Part::Jobs(filter.clone())));
    let frame = Page { up: "", title: "Jobs", place: at, events: "events", ..Page::default() };
    page(frame, &List { filter, states: JobState::ALL, trouble: &trouble, jobs: &jobs })
}

#[derive(Template)]
#[template(path = "job.html")]
struct Job<'a> {
    name: &'a str,
    is_past: bool,
    sections: Vec<(&'static str, Arc<str>)>,
    lines: &'a [Arc<Line>],
}

/// A job, with the replicas from the number `from` on.
pub(super) fn job(at: &str, name: &JobName, watching: &Watching, snapshot: &Snapshot, from: usize) -> String {
    let NewLines { lines, end, .. } = watching.feed.lines_from(u64::MAX);
    let last = place(watching.feed.id, end);
    let events = format!("../events?job={name}&from={from}");
    let sections = Part::of_job(from).into_iter().map(|part| (part.id(), snapshot.html(&part))).collect();
    let frame = Page { up: "../", title: name.as_str(), place: at, events: &events, last: &last, ..Page::default() };
    page(frame, &Job { name: name.as_str(), is_past: false, sections, lines: &lines })
}

/// A job of the history, with the replicas from the number `from` on. `lines` is the end of its output.
pub(super) fn past_job(at: &str, job: JobShown, last_output: &str, from: usize) -> String {
    let (name, times) = (job.view.name.clone(), &job.view.times);
    let now = times.finished.or(times.ended).unwrap_or(UnixMillis(0));
    let lines = end_of_output(&job.view, last_output);
    let known = KnownToFeed { content: Content::Job(Box::new(job)), trouble: None, at: now };
    let sections = Part::of_job(from).into_iter().map(|part| (part.id(), part.html(&known).into())).collect();
    let frame = Page { up: "../", title: name.as_str(), place: at, ..Page::default() };
    page(frame, &Job { name: name.as_str(), is_past: true, sections, lines: &lines })
}

/// The last lines of the replica whose failure ended the job.
fn end_of_output(view: &JobView, last_output: &str) -> Vec<Arc<Line>> {
    let Some(JobResult::Failed { failure }) = &view.result else { return vec![] };
    let Some(replica) = failure.replica() else { return vec![] };
    let line = |line: &str| LogLine { replica, time: None, offset: 0, line: line.to_owned(), unfinished: false };
    last_output.lines().map(|text| Arc::new(Line::new(&line(text)))).collect()
}

#[derive(Template)]
#[template(path = "logs.html")]
struct Logs<'a> {
    name: &'a str,
    /// The replica. `None` for the output of all replicas.
    replica: Option<ReplicaId>,
    facts: Vec<(&'static str, String)>,
    search: &'a str,
    lines: Vec<Line>,
    command: String,
}

/// The newest lines of output of one replica, or of all replicas.
pub(super) fn logs(at: &str, view: &JobView, replica: Option<ReplicaId>, search: &str, mut lines: Vec<Line>) -> String {
    let name = view.name.as_str();
    let lower_case = search.to_lowercase();
    lines.retain(|line| line.contains(&lower_case));
    let events = format!("../../../events?job={name}&logs={}", replica.map_or("all".to_owned(), |it| it.to_string()));
    let title = replica.map_or_else(|| format!("Output of {name}"), |replica| format!("{replica} of {name}"));
    // A search shows a fixed result.
    let events = if search.is_empty() { events.as_str() } else { "" };
    let only = replica.map(|replica| format!(" --replica {replica}")).unwrap_or_default();
    let command = crate::output::command_line::command(&format!("logs {name}{only}"));
    let facts = replica.map(|replica| facts_of(view, replica)).unwrap_or_default();
    let frame = Page { up: "../../../", title: &title, place: at, events, ..Page::default() };
    page(frame, &Logs { name, replica, facts, search, lines, command })
}

fn facts_of(view: &JobView, id: ReplicaId) -> Vec<(&'static str, String)> {
    let Some(replica) = view.replicas.iter().find(|replica| replica.replica == id) else { return vec![] };
    let mut facts = vec![("state", replica.state.as_str().to_owned()), ("pod", replica.pod.clone())];
    facts.extend(replica.address.as_ref().map(|address| ("address", address.clone())));
    facts.extend(replica.pid.map(|pid| ("process", pid.to_string())));
    let end = crate::output::exit_or_reason(replica);
    facts.extend((!end.is_empty()).then_some(("exit or reason", end)));
    facts.into_iter().map(|(label, value)| (label, plain(&value))).collect()
}

#[derive(Template)]
#[template(path = "tf_config.html")]
struct TfConfigPage<'a> {
    name: &'a str,
    replica: ReplicaId,
    replicas: Vec<ReplicaId>,
    text: Option<String>,
}

/// TF_CONFIG of one replica.
pub(super) fn tf_config_of(at: &str, view: &JobView, replica: ReplicaId) -> String {
    let name = view.name.as_str();
    let replicas = view.replicas.iter().map(|replica| replica.replica).take(super::parts::ROWS_MAX).collect();
    let title = format!("TF_CONFIG of {replica}");
    let frame = Page { up: "../../../", title: &title, place: at, ..Page::default() };
    page(frame, &TfConfigPage { name, replica, replicas, text: tf_config(view, replica) })
}

#[derive(Template)]
#[template(path = "ask.html")]
struct Ask<'a> {
    name: &'a str,
    /// The last part of the path of the job's page.
    path: &'a str,
    uid: &'a str,
    action: PageAction,
    /// The present number of workers, for an action that changes this number.
    workers: Option<String>,
    /// The name of the new job, for an action that submits a job. The form contains the name, so an answer that is sent
    /// twice submits only one job.
    task: Option<JobName>,
}

/// The question before an action. `path` is the last part of the path of the job's page.
pub(super) fn ask(at: &str, view: &JobView, path: &str, action: PageAction) -> String {
    let name = view.name.as_str();
    let range = view.workers.map(|workers| format!("{}:{}", workers.min, workers.max));
    let workers = range.filter(|_| action == PageAction::Scale);
    let task = (action == PageAction::Rerun).then(|| new_name(&view.name));
    let title = format!("{} {name}", action.verb());
    let frame = Page { up: "../../", title: &title, place: at, ..Page::default() };
    page(frame, &Ask { name, path, uid: &view.uid, action, workers, task })
}

#[derive(Template)]
#[template(path = "message.html")]
struct Message<'a> {
    title: &'a str,
    text: &'a str,
    hint: &'a str,
    /// The relative path up to the list.
    up: &'a str,
}

/// A page that only says something. `up` leads to the list.
pub(super) fn message(up: &str, at: &str, title: &str, text: &str, hint: &str) -> String {
    let frame = Page { up, title, place: at, ..Page::default() };
    page(frame, &Message { title, text: &plain(text), hint: &plain(hint), up })
}
