//! Code that a job brings: how it arrives, and what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use protocol::agent::{CodeStatus, ExitOutcome, RunState};
use protocol::code::{Manifest, Sha256};
use protocol::error::ErrorCode;
use serde_json::{Value, json};

use crate::support::code::{Code, Place, files};
use crate::support::{Agent, supervised, wait_until};

#[test]
fn the_first_code_is_put_in_place_and_runs() {
    let place = Place::new(&["python3", "src/train.py"]);
    let texts = [
        ("src/train.py", "import helper\nprint(helper.NAME)"),
        ("src/helper.py", "NAME = 'h'"),
        ("run.sh", ""),
        ("empty", ""),
    ];
    let code = Code::of(&texts);
    assert_eq!(place.agent.status().code, CodeStatus::default());
    assert_eq!(place.deliver(&code), 3, "wrong number of blobs for four files, of which two are empty");
    assert_eq!(place.files(), files(&texts));
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run.sh"), mode("src/train.py")), (0o755, 0o644));
    let here = CodeStatus { staged: Some(code.id()), running: Some(code.id()) };
    assert_eq!(place.agent.status().code, here);
    assert_eq!(place.configure(&code, "1.1").status, 200);
    assert_eq!(place.agent.get("/run?generation=1.1").status, 200);
    assert_eq!(place.agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    assert_eq!(place.agent.logs("stdout"), b"h\n");
    assert_eq!(place.offer(&code), [], "the agent asks again for blobs of the code in place");
}

#[test]
fn if_a_start_is_requested_as_soon_as_the_status_shows_configured_the_run_has_the_new_code() {
    let place = Place::new(&["python3", "train.py"]);
    let many: Vec<String> = (0..500).map(|number| format!("a{number}.py")).collect();
    // The script is the last file that is put in place.
    let code = |text: &str| {
        let others = many.iter().map(|name| (name.as_str(), text));
        Code::of(&others.chain([("train.py", format!("print('{text}')").as_str())]).collect::<Vec<_>>())
    };
    let (old, new) = (code("old"), code("new"));
    for code in [&old, &new] {
        place.deliver(code);
    }
    let (path, configured) = (format!("/config?generation=1.1&code={}", new.id()), RunState::Configured);
    let answer = place.agent.send("POST", &path, "{}");
    place.agent.wait_for(configured);
    assert_eq!(place.agent.get("/run?generation=1.1").status, 200);
    place.agent.wait_for_exit();
    assert_eq!(place.agent.logs("stdout"), b"new\n");
    drop(answer);
}

#[test]
fn the_agent_sends_back_the_code_that_it_has_staged_or_put_in_place() {
    let place = Place::new(&["python3", "train.py"]);
    let large = "x".repeat(1024 * 1024 + 1);
    let old = Code::of(&[("train.py", "1"), ("large", &large), ("same", &large), ("empty", "")]);
    let new = Code::of(&[("train.py", "2"), ("large", &large), ("run.sh", "")]);
    place.deliver(&old);
    place.deliver(&new);
    assert_eq!(place.agent.status().code, CodeStatus { staged: Some(new.id()), running: Some(old.id()) });
    for code in [&old, &new] {
        let answer = place.agent.get(&format!("/code/{}", code.id()));
        assert_eq!(answer.status, 200);
        let end = answer.body.iter().position(|byte| *byte == b'\n').expect("no line feed after the manifest");
        assert_eq!(serde_json::from_slice::<Manifest>(&answer.body[..end]).unwrap(), code.manifest);
        let all: Vec<Sha256> = code.manifest.blobs().into_keys().collect();
        assert!(answer.body[end + 1..] == code.stream(&all), "the blobs differ");
    }
    place.configure(&new, "1.1");
    assert_eq!(place.agent.get(&format!("/code/{}", new.id())).status, 200);
}

#[test]
fn the_agent_sends_back_no_code_that_is_not_complete() {
    let place = Place::new(&["python3", "train.py"]);
    let (code, arriving) = (Code::of(&[("train.py", "1"), ("settings", "a")]), Code::of(&[("train.py", "2")]));
    let refusal = |code: &Code| place.agent.get(&format!("/code/{}", code.id())).refusal();
    assert_eq!(refusal(&code), (409, ErrorCode::CodeMissing));
    place.deliver(&code);
    place.offer(&arriving);
    assert_eq!(refusal(&arriving), (409, ErrorCode::CodeMissing));
    fs::write(place.path("settings"), "b").unwrap();
    assert_eq!(refusal(&code), (409, ErrorCode::CodeMissing), "a file that the script has changed is sent");
}

#[test]
fn an_interrupted_delivery_continues_with_the_missing_blobs() {
    let place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("a", "first"), ("b", "second"), ("train.py", "x")]);
    let missing = place.offer(&code);
    let whole = code.stream(&missing);
    assert_eq!(place.put(code.id(), "/blobs", &whole[..whole.len() - 1]).refusal(), (422, ErrorCode::BadCode));
    assert_eq!(place.files(), files(&[]), "files of an incomplete delivery are in place");
    let left = place.offer(&code);
    assert_eq!(left, missing[2..]);
    let answer = place.put(code.id(), "/blobs", &code.stream(&left));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(place.files().len(), 3);
}

#[test]
fn a_blob_that_the_disk_has_damaged_is_requested_again() {
    let place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("a", "first"), ("train.py", "x")]);
    let missing = place.offer(&code);
    let whole = code.stream(&missing);
    place.put(code.id(), "/blobs", &whole[..whole.len() - 1]);
    let here = place.path(".muster/incoming").join(missing[0].to_string());
    let content = fs::read(&here).unwrap();
    fs::write(&here, vec![b'?'; content.len()]).unwrap();
    assert_eq!(place.offer(&code), missing);
    let answer = place.put(code.id(), "/blobs", &whole);
    assert_eq!((answer.status, answer.text()), (200, r#"{"missing":[]}"#.to_owned()));
    assert_eq!(place.files(), files(&[("a", "first"), ("train.py", "x")]));
}

#[test]
fn a_start_after_an_abandoned_start_has_its_own_code() {
    let place = Place::new(&["python3", "train.py"]);
    let many: Vec<String> = (0..2000).map(|number| format!("a{number}.py")).collect();
    let code = |text: &str| {
        let script = format!("print('{text}')");
        let others = many.iter().map(|name| (name.as_str(), text));
        Code::of(&others.chain([("train.py", script.as_str())]).collect::<Vec<_>>())
    };
    let (old, new) = (code("old"), Code::of(&[("train.py", "print('new')"), ("taken", "")]));
    place.deliver(&new);
    place.deliver(&old);
    // The config fails, so that `/run` moves the files. The caller of `/run` disconnects while the files are moved.
    fs::create_dir(place.path("a0.py")).unwrap();
    assert_eq!(place.configure(&old, "1.1").problem().code, ErrorCode::BadCode);
    fs::remove_dir(place.path("a0.py")).unwrap();
    let abandoned = place.agent.send("GET", "/run?generation=1.1", "");
    wait_until("the first file moves", || place.path("a0.py").is_file().then_some(()));
    drop(abandoned);
    let answer = place.configure(&new, "1.2");
    if answer.status == 200 {
        assert_eq!(place.agent.get("/run?generation=1.2").status, 200);
        place.agent.wait_for_exit();
        assert_eq!(place.agent.logs("stdout"), b"new\n");
    } else {
        assert_eq!(answer.problem().code, ErrorCode::CodeMissing);
    }
}

#[test]
fn a_config_with_code_that_has_not_arrived_is_refused_and_accepted_after_the_delivery() {
    let place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("train.py", "print('ran')")]);
    assert_eq!(place.configure(&code, "1.1").refusal(), (409, ErrorCode::CodeMissing));
    assert_eq!(place.agent.status().state, RunState::Idle, "a refused config has changed the state");
    assert_eq!(place.put(code.id(), "/blobs", b"").refusal(), (409, ErrorCode::CodeMissing));
    place.deliver(&code);
    assert_eq!(place.configure(&code, "1.1").status, 200);
    let other = Code::of(&[("train.py", "print('other')")]);
    place.deliver(&other);
    assert_eq!(
        place.configure(&other, "1.1").refusal(),
        (409, ErrorCode::Conflict),
        "wrong answer to other code for the same start"
    );
}

#[test]
fn invalid_manifests_are_refused_and_create_no_file() {
    let place = Place::new(&["python3", "train.py"]);
    let (good, blob) = (Code::of(&[("train.py", "x")]), Sha256::of(b"x"));
    let file = |path: &str, size: u64| json!({ "path": path, "sha256": blob, "size": size });
    let all = |files: &[Value]| json!({ "files": files }).to_string();
    let bad_paths = ["/etc/x", "../x", "a/../../x", "a//b", "./a", "", "a\0b", "a\nb", "a\\b", ".muster/x", ".MUSTER"];
    let mut manifests: Vec<String> = bad_paths.iter().map(|path| all(&[file("ok", 1), file(path, 1)])).collect();
    manifests.extend([
        all(&[file("a.py", 1), file("A.py", 1)]),
        all(&[file("a", 1), file("a/b", 1)]),
        all(&[file("a", 64 << 20), file("b", 1)]),
        all(&[json!({ "path": "a", "sha256": blob, "size": 1, "link": "/etc/passwd" })]),
        "{".to_owned(),
    ]);
    for manifest in manifests {
        assert_eq!(place.put(good.id(), "", manifest.as_bytes()).refusal(), (422, ErrorCode::BadCode), "{manifest}");
    }
    let other = Code::of(&[("train.py", "y")]);
    assert_eq!(
        place.put(good.id(), "", serde_json::to_string(&other.manifest).unwrap().as_bytes()).refusal(),
        (422, ErrorCode::BadCode),
        "wrong answer to a manifest with another id"
    );
    assert_eq!(place.put("..", "", b"{}").status, 404);
    assert_eq!(place.agent.post(&format!("/code/{}", good.id()), "").status, 405);
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 0);
}

#[test]
fn invalid_blobs_are_refused_and_put_nothing_in_place() {
    let place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("train.py", "content"), ("b", "other")]);
    let missing = place.offer(&code);
    let good = code.stream(&missing);
    let mut wrong = good.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let unknown = [Sha256::of(b"unknown").as_bytes().as_slice(), b"unknown"].concat();
    let longer = [good.as_slice(), b"and more"].concat();
    let twice = [good.as_slice(), &good].concat();
    for (what, stream) in [
        ("truncated", good[..good.len() - 1].to_vec()),
        ("wrong", wrong),
        ("unknown", unknown),
        ("longer", longer),
        ("twice", twice),
        ("half a name", vec![0; 16]),
    ] {
        assert_eq!(place.put(code.id(), "/blobs", &stream).refusal(), (422, ErrorCode::BadCode), "{what}");
        assert_eq!(place.files(), files(&[]), "{what}");
    }
    place.deliver(&code);
    assert_eq!(place.files().len(), 2);
}

#[test]
fn a_delivery_to_a_folder_that_cannot_be_written_fails_with_the_reason() {
    let place = Place::new(&["python3", "train.py"]);
    fs::write(place.path(".muster"), "a file").unwrap();
    let code = Code::of(&[("train.py", "x")]);
    let answer = place.put(code.id(), "", serde_json::to_string(&code.manifest).unwrap().as_bytes());
    assert_eq!(answer.refusal(), (500, ErrorCode::Internal));
    assert!(answer.problem().detail.starts_with("cannot keep the job's code in the working directory: "));
}

#[test]
fn a_config_is_refused_if_its_path_has_no_python() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = supervised();
    program.args(["--", "python", "train.py"]);
    program.current_dir(folder.path()).env("PATH", folder.path());
    let place = Place { folder, agent: Agent::from_program(program) };
    let code = Code::of(&[("train.py", "print('ran')")]);
    place.deliver(&code);
    assert_eq!(place.configure(&code, "1.1").refusal(), (422, ErrorCode::NoPython));
    let program = "import os, sys; print(os.path.dirname(sys.executable), end='')";
    let found = Command::new("python3").args(["-c", program]).output().unwrap();
    let path = json!({ "PATH": String::from_utf8(found.stdout).unwrap() }).to_string();
    let configured = place.agent.post(&format!("/config?generation=1.1&code={}", code.id()), &path);
    assert_eq!(configured.status, 200, "wrong answer to a config whose PATH has Python");
}
