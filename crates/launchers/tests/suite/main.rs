//! Tests with a corpus of TFJobs in `tests/tfjob`. For each YAML file, a JSON file contains the expected job or
//! refusal. The first line of a YAML file may be a comment that contains the options of the request as JSON.

mod again;
mod environment;
mod programs;
mod status;
mod watched;

use std::fs;
use std::path::{Path, PathBuf};

use launchers::kubeflow::{Read, ReplicaHost, difference, object, read};
use launchers::template::Note;
use protocol::ids::UnixMillis;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::tfjob::{TfJobOptions, TfJobRequest};
use protocol::view::JobView;
use serde_json::{Value, json};

/// The namespace of the master that reads the corpus.
const NAMESPACE: &str = "team";
/// When the jobs of these tests were accepted: 2026-01-01T00:00:00Z.
const BEGIN: UnixMillis = UnixMillis(1_767_225_600_000);

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tfjob")
}

/// Reads a file of the corpus. Returns its job, or the reasons of the refusal.
pub(crate) fn read_file(name: &str) -> Result<Read, Vec<Note>> {
    let document = fs::read_to_string(corpus().join(name).with_extension("yaml")).expect("cannot read the file");
    read_text(&document)
}

/// Reads a document with the options in its first line.
fn read_text(document: &str) -> Result<Read, Vec<Note>> {
    let first = document.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let given: Value = serde_json::from_str(first).unwrap_or_default();
    let part = |name: &str| given.get(name).cloned().unwrap_or(json!({}));
    let options: TfJobOptions = serde_json::from_value(part("options")).expect("not options");
    let entrypoints = serde_json::from_value(part("entrypoints")).expect("not entrypoints");
    let place = match given["place"].as_str() {
        Some("processes") => ReplicaHost::Processes,
        Some("pods that may be root") => ReplicaHost::Pods { namespace: NAMESPACE.to_owned(), honours_root: true },
        _ => ReplicaHost::Pods { namespace: NAMESPACE.to_owned(), honours_root: false },
    };
    read(&TfJobRequest { document: document.to_owned(), entrypoints, options }, &place)
}

/// The golden form: the job, or the reasons of the refusal.
fn golden(outcome: Result<Read, Vec<Note>>) -> Value {
    match outcome {
        Ok(Read { spec, is_suspended }) => json!({ "spec": spec, "is_suspended": is_suspended }),
        Err(notes) => json!({ "refused": notes.iter().map(Note::to_string).collect::<Vec<_>>() }),
    }
}

/// The view of the job with this spec. `more` contains further fields of the view.
pub(crate) fn view_of(spec: &JobSpec, more: &Value) -> JobView {
    let mut view = json!({
        "name": spec.name, "uid": "u", "seq": 1, "state": "pending", "spec": spec, "replicas": [],
        "times": { "accepted": BEGIN },
    });
    view.as_object_mut().expect("not an object").extend(more.as_object().expect("not an object").clone());
    serde_json::from_value(view).expect("not a view")
}

/// The files of the corpus, without their extension.
fn names() -> Vec<String> {
    let files = fs::read_dir(corpus()).expect("cannot read the corpus");
    let names =
        files.map(|file| file.expect("no file").path()).filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    let mut names: Vec<String> =
        names.map(|path| path.file_stem().expect("not a name").to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_file_of_the_corpus_becomes_its_golden_job_or_refusal() {
    let names = names();
    assert!(names.len() >= 25, "{names:?}");
    for name in names {
        let expected = fs::read_to_string(corpus().join(&name).with_extension("json")).unwrap_or_default();
        let expected: Value = serde_json::from_str(&expected).unwrap_or_default();
        let found = golden(read_file(&name));
        assert_eq!(found.get("refused").is_some(), name.starts_with("broken_"), "{name}: {found:#}");
        assert_eq!(found, expected, "{name}: if the left value is correct, run the test `write_the_golden_files`");
    }
}

#[test]
fn if_the_user_of_one_image_is_unknown_all_replicas_run_as_the_default_user() {
    let document = r#"# {"entrypoints": {"mnist:2": {"command": ["python", "/mnist.py"], "user": "1000"}}}
{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: mnist}, spec: {tfReplicaSpecs: {
  Chief: {template: {spec: {containers: [{name: tensorflow, image: "mnist:2"}]}}},
  Worker: {template: {spec: {containers: [{name: tensorflow, image: "other:1", command: [python]}]}}}}}}"#;
    let read = read_text(document).expect("an invalid TFJob");
    assert_eq!(read.spec.pod.run_as, None);
    let warnings: Vec<&str> = read.warnings().iter().map(|warning| warning.sentence.as_str()).collect();
    let expected = "the processes of Chief, Worker run as user 65532";
    assert!(matches!(warnings[..], [one] if one.starts_with(expected)), "{warnings:?}");
}

#[test]
fn an_object_that_is_shown_can_be_applied_again_and_changes_nothing() {
    for name in names().into_iter().filter(|name| !name.starts_with("broken_")) {
        let document = fs::read_to_string(corpus().join(&name).with_extension("yaml")).expect("cannot read the corpus");
        let Read { spec, .. } = read_text(&document).expect("an invalid TFJob");
        let view = view_of(&spec, &json!({ "workers": spec.workers() }));
        let shown = object(&view, Some(NAMESPACE), UnixMillis(0)).expect("not a TFJob");
        let first = document.lines().next().unwrap_or_default();
        let again = read_text(&format!("{first}\n{shown:#}")).expect("an invalid TFJob").spec;
        assert_eq!(difference(&spec, spec.workers(), &again), Some(JobPatch::default()), "{name}: {shown:#}");
    }
}

#[test]
#[ignore = "writes files"]
fn write_the_golden_files() {
    for name in names() {
        let text = serde_json::to_string_pretty(&golden(read_file(&name))).expect("not JSON");
        fs::write(corpus().join(name).with_extension("json"), text + "\n").expect("cannot write a golden file");
    }
}

#[test]
fn a_value_of_a_wrong_type_never_makes_the_reader_panic() {
    // Each value of a valid document is replaced by values of other types.
    let document = fs::read_to_string(corpus().join("sidecars.yaml")).expect("cannot read the file");
    let whole: Value = serde_saphyr::from_str(&document).expect("not YAML");
    let mut pointers = vec![];
    collect(&whole, String::new(), &mut pointers);
    assert!(pointers.len() > 50, "{pointers:?}");
    for pointer in pointers {
        for wrong in [json!(null), json!(7), json!("text"), json!([]), json!({}), json!([[]]), json!(true)] {
            let mut broken = whole.clone();
            *broken.pointer_mut(&pointer).expect("no value") = wrong;
            // The document becomes a job or a refusal. Each reason of a refusal names a field.
            if let Err(notes) = read_text(&broken.to_string()) {
                assert!(notes.iter().all(|note| !note.path.is_empty()), "{pointer}: {notes:?}");
            }
        }
    }
}

fn collect(value: &Value, pointer: String, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            fields.iter().for_each(|(name, value)| collect(value, format!("{pointer}/{}", escaped(name)), into));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, value)| collect(value, format!("{pointer}/{place}"), into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    into.push(pointer);
}
