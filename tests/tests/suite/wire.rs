//! Tests that today's programs read what the programs of each recorded version have written, and that the agent of that
//! version works with today's master. `tests/wire/2/README.md` describes the recorded files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use e2e::programs::root;
use e2e::{Finished, Master, Scene};
use flate2::read::GzDecoder;
use history::History;
use master::store::JobRecord;
use protocol::aged_output::{AgedPart, AgedReader};
use protocol::agent::{LastWords, RunStatus};
use protocol::batching::Notice;
use protocol::code::{Manifest, MissingBlobs};
use protocol::dry_run::DryRun;
use protocol::env::EnvName;
use protocol::error::Problem;
use protocol::history::{PastJob, PastJobs};
use protocol::job::JobRequest;
use protocol::join::{JoinAnswer, JoinRequest};
use protocol::master::MasterView;
use protocol::output::LogLine;
use protocol::patch::JobPatch;
use protocol::progress::JobSeries;
use protocol::stacks::{JobStacks, Stacks};
use protocol::timeline::Timeline;
use protocol::view::{JobList, JobView};
use protocol::warm::WarmRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Checks a body.
type Check = fn(&Value) -> Result<(), String>;

/// All kinds of messages: the method, the path, the request's body and the answer's body.
const KINDS: [(&str, &str, Check, Check); 30] = [
    ("GET", "/v1/master", empty, json::<MasterView>),
    ("GET", "/v1/jobs", empty, json::<JobList>),
    ("POST", "/v1/jobs", json::<JobRequest>, json::<JobView>),
    ("POST", "/v1/dry-runs/jobs", json::<JobRequest>, json::<DryRun>),
    ("GET", "/v1/jobs/*", empty, json::<JobView>),
    ("PATCH", "/v1/jobs/*", json::<JobPatch>, json::<JobView>),
    ("DELETE", "/v1/jobs/*", empty, empty),
    ("POST", "/v1/jobs/*/cancel", empty, empty),
    ("POST", "/v1/jobs/*/members", json::<JoinRequest>, json::<JoinAnswer>),
    ("GET", "/v1/jobs/*/logs", empty, lines::<LogLine>),
    ("GET", "/v1/jobs/*/series", empty, json::<JobSeries>),
    ("GET", "/v1/jobs/*/stacks", empty, json::<JobStacks>),
    ("GET", "/v1/jobs/*/timeline", empty, json::<Timeline>),
    ("GET", "/v1/history", empty, json::<PastJobs>),
    ("GET", "/v1/history/*", empty, json::<PastJob>),
    ("PUT", "/v1/code/*", json::<Manifest>, json::<MissingBlobs>),
    ("PUT", "/v1/code/*/blobs", blobs, json::<MissingBlobs>),
    ("GET", "/status", empty, json::<RunStatus>),
    ("POST", "/config", json::<BTreeMap<EnvName, Value>>, word),
    ("GET", "/run", empty, word),
    ("POST", "/warm", json::<WarmRequest>, word),
    ("POST", "/notice", json::<Notice>, word),
    ("POST", "/stacks", empty, json::<Stacks>),
    ("POST", "/stop", empty, word),
    ("POST", "/finish", empty, word),
    ("GET", "/healthz", empty, word),
    ("GET", "/reach", empty, word),
    ("GET", "/logs", empty, aged_output),
    ("PUT", "/code/*", json::<Manifest>, json::<MissingBlobs>),
    ("PUT", "/code/*/blobs", blobs, json::<MissingBlobs>),
];

/// The recorded files in a folder, with their names.
fn recorded(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder: PathBuf = root().join("tests/wire/2").join(folder);
    let entries = fs::read_dir(&folder).expect("nothing is recorded").map(|entry| entry.expect("cannot list").path());
    let file = |path: PathBuf| (path.file_name().expect("no name").to_string_lossy().into_owned(), path);
    let read = |(name, path)| (name, fs::read(path).expect("cannot read the file"));
    entries.map(file).map(read).collect()
}

/// Checks that a type reads a value, and keeps all its fields. Later types may have more fields.
fn keeps<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    let written = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    lost(value, &written).map_or(Ok(()), |path| Err(format!("{path} is not the same in {written}")))
}

/// The path of the first value that is not the same.
fn lost(before: &Value, now: &Value) -> Option<String> {
    let below = |name: String, (before, now)| lost(before, now).map(|path| format!("/{name}{path}"));
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            before.iter().find_map(|(name, value)| below(name.clone(), (value, now.get(name).unwrap_or(&Value::Null))))
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            before.iter().zip(now).enumerate().find_map(|(index, values)| below(index.to_string(), values))
        }
        _ => (before != now).then(String::new),
    }
}

fn json<T: DeserializeOwned + Serialize>(body: &Value) -> Result<(), String> {
    keeps::<T>(&body["json"])
}

fn lines<T: DeserializeOwned + Serialize>(body: &Value) -> Result<(), String> {
    let text = bytes(body);
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).map_err(|error| error.to_string()))
        .try_for_each(|line| keeps::<T>(&line?))
}

fn empty(body: &Value) -> Result<(), String> {
    if body.is_null() { Ok(()) } else { Err("there is a body".to_owned()) }
}

/// The master ignores what these answers say.
fn word(body: &Value) -> Result<(), String> {
    if body["text"].is_string() { Ok(()) } else { Err("the answer is not a word".to_owned()) }
}

/// The manifest is in another message, so this checks only that there is a SHA-256 and content.
fn blobs(body: &Value) -> Result<(), String> {
    if bytes(body).len() > 32 { Ok(()) } else { Err("there is no blob".to_owned()) }
}

fn aged_output(body: &Value) -> Result<(), String> {
    let output = bytes(body);
    let (mut reader, mut rest, mut written) = (AgedReader::default(), output.as_slice(), vec![]);
    while let Some(AgedPart { age, bytes }) = reader.next(&mut rest) {
        written.extend(AgedPart { age, bytes }.to_bytes());
    }
    if written == output { Ok(()) } else { Err("the output is not the same".to_owned()) }
}

/// The bytes of a body.
fn bytes(body: &Value) -> Vec<u8> {
    let text = |name: &str| body[name].as_str().unwrap_or_default();
    let digits = text("hex").as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16).expect("not hexadecimal");
    let of_json = body.get("json").map(|value| value.to_string().into_bytes()).unwrap_or_default();
    [text("text").as_bytes(), &digits.map(byte).collect::<Vec<_>>(), &of_json].concat()
}

/// Whether a path has this form. A `*` in the form means any text without a slash.
fn has_form(path: &str, form: &str) -> bool {
    let (path, form): (Vec<_>, Vec<_>) = (path.split('/').collect(), form.split('/').collect());
    path.len() == form.len() && path.iter().zip(form).all(|(part, form)| form == "*" || *part == form)
}

#[test]
fn todays_types_read_all_recorded_messages_and_keep_their_fields() {
    let mut missing: BTreeSet<(&str, &str)> = KINDS.iter().map(|(method, form, ..)| (*method, *form)).collect();
    for (file, text) in recorded("messages") {
        let exchanges: Vec<Value> = serde_json::from_slice(&text).expect("not a list");
        for exchange in exchanges {
            let (request, answer) = (&exchange["request"], &exchange["answer"]);
            let (method, target) = (request["method"].as_str().unwrap_or_default(), request["target"].as_str());
            let path = target.and_then(|target| target.split('?').next()).expect("no target");
            let kind = KINDS.iter().find(|(of_kind, form, ..)| *of_kind == method && has_form(path, form));
            let (of_kind, form, of_request, of_answer) = kind.unwrap_or_else(|| panic!("{file}: {method} {path}"));
            missing.remove(&(*of_kind, *form));
            let context = |error| panic!("{file}: {error}: {exchange:#}");
            of_request(&request["body"]).unwrap_or_else(context);
            if answer["is_complete"] == true {
                let is_error = answer["status"].as_u64().is_some_and(|status| status >= 400);
                (if is_error { json::<Problem> } else { *of_answer })(&answer["body"]).unwrap_or_else(context);
            }
            if let Ok(manifest) = serde_json::from_value::<Manifest>(request["body"]["json"].clone()) {
                assert!(path.ends_with(&manifest.id().to_string()), "{file}: another id: {exchange:#}");
            }
        }
    }
    assert_eq!(missing, BTreeSet::new(), "not recorded");
}

#[test]
fn todays_master_reads_all_recorded_records_and_writes_the_same() {
    let of_cluster = fs::read(root().join("tests/wire/2/kubernetes/record.json")).expect("no record");
    let of_cluster: Value = serde_json::from_slice(&of_cluster).expect("not JSON");
    let of_cluster = of_cluster["data"]["record"].as_str().expect("no record").as_bytes().to_owned();
    for (file, text) in recorded("records").into_iter().chain([("kubernetes".to_owned(), of_cluster)]) {
        let value: Value = serde_json::from_slice(&text).expect("not JSON");
        let name = value["spec"]["name"].as_str().and_then(|name| name.parse().ok()).expect("no name");
        let record = JobRecord::read(&name, &text).unwrap_or_else(|error| panic!("{file}: {error:?}"));
        let written = serde_json::to_value(&record).expect("a record always serializes");
        assert_eq!(lost(&value, &written), None, "{file}: {value:#}\n{written:#}");
    }
}

#[test]
fn the_history_of_today_shows_all_recorded_jobs() {
    let folder = tempfile::tempdir().expect("cannot create a folder");
    let files = recorded("history");
    for (file, text) in &files {
        let path = folder.path().join(file);
        fs::write(&path, text).expect("cannot write the file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("cannot change the mode");
    }
    let history = History::at(folder.path().to_owned());
    let list = history.list().expect("cannot read the folder");
    assert_eq!((list.jobs.len(), list.skipped), (files.len(), vec![]));
    for (file, text) in &files {
        let uid = file.rsplit('.').nth(1).expect("no uid");
        let job = history.read(uid).unwrap_or_else(|error| panic!("{error}")).expect("no such job");
        let line = text.split(|byte| *byte == b'\n').nth(1).expect("no second line");
        let before: Value = serde_json::from_slice(line).expect("not JSON");
        let now = serde_json::to_value(&job).expect("a job always serializes");
        assert_eq!(lost(&before, &now), None, "{file}: {before:#}\n{now:#}");
    }
}

#[test]
fn todays_types_read_the_recorded_last_words_of_agents() {
    for (file, text) in recorded("last-words") {
        let words: Value = serde_json::from_slice(&text).expect("not JSON");
        keeps::<LastWords>(&words).unwrap_or_else(|error| panic!("{file}: {error}: {words:#}"));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_recorded_agent_runs_a_job_to_its_end_under_todays_master() {
    let scene = Scene::new("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n");
    let packed = fs::File::open(root().join("tests/wire/2/agent.gz")).expect("no agent is recorded");
    let (mut program, agent) = (vec![], scene.path().join("old-agent"));
    GzDecoder::new(packed).read_to_end(&mut program).expect("cannot unpack the agent");
    fs::write(&agent, program).expect("cannot write the agent");
    fs::set_permissions(&agent, Permissions::from_mode(0o755)).expect("cannot change the mode");
    let args = ["--state-dir", "state", "--agent-binary", &agent.display().to_string()];
    let master = Master::start(scene.path(), &args, &[]);
    let run = Finished::of(&mut scene.client(&["--master", &master.url, "--task", "old", "--worker-num", "2"])).code(0);
    let mut ranks = run.lines("rank ");
    ranks.sort();
    assert_eq!(ranks, ["0 of 2", "1 of 2"], "{}\n{}", run.stderr, master.log());
}
