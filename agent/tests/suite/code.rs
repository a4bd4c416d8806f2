//! Code that a job brings: how it arrives, what is refused, and what stays in the working directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use protocol::agent::{CodeStatus, ExitOutcome, RunState};
use protocol::code::{CodeId, Manifest, MissingBlobs, Sha256};
use protocol::error::ErrorCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Agent, Response, supervised, wait_until};

/// The code of a test: its manifest, and the contents of its blobs.
struct Code {
    manifest: Manifest,
    contents: BTreeMap<Sha256, Vec<u8>>,
}

impl Code {
    fn of(files: &[(&str, &str)]) -> Self {
        let contents = files.iter().map(|(_, text)| (Sha256::of(text.as_bytes()), text.as_bytes().to_vec())).collect();
        let files: Vec<Value> = files
            .iter()
            .map(|(path, text)| {
                json!({
                    "path": path, "sha256": Sha256::of(text.as_bytes()), "size": text.len(),
                    "executable": path.ends_with(".sh"),
                })
            })
            .collect();
        Self { manifest: serde_json::from_value(json!({ "files": files })).unwrap(), contents }
    }

    fn id(&self) -> CodeId {
        self.manifest.id()
    }

    fn stream(&self, blobs: &[Sha256]) -> Vec<u8> {
        blobs.iter().flat_map(|blob| [blob.as_bytes().as_slice(), &self.contents[blob]].concat()).collect()
    }
}

/// An agent with its working directory.
struct Place {
    folder: TempDir,
    agent: Agent,
}

impl Place {
    fn new(command: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(&["--work-dir", folder.path().to_str().unwrap()], command);
        Self { folder, agent }
    }

    fn offer(&self, code: &Code) -> Vec<Sha256> {
        let answer = self.put(code.id(), "", serde_json::to_string(&code.manifest).unwrap().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice::<MissingBlobs>(&answer.body).unwrap().missing
    }

    fn put(&self, id: impl std::fmt::Display, route: &str, body: &[u8]) -> Response {
        self.agent.request_bytes("PUT", &format!("/code/{id}{route}"), body)
    }

    /// Delivers code as a whole, and returns the number of blobs that were sent.
    fn deliver(&self, code: &Code) -> usize {
        let missing = self.offer(code);
        if !missing.is_empty() {
            let answer = self.put(code.id(), "/blobs", &code.stream(&missing));
            assert_eq!((answer.status, answer.text()), (200, r#"{"missing":[]}"#.to_owned()));
        }
        missing.len()
    }

    fn configure(&self, code: &Code, generation: &str) -> Response {
        self.agent.post(&format!("/config?generation={generation}&code={}", code.id()), "{}")
    }

    /// Delivers code, and configures a start with it.
    fn push(&self, code: &Code, generation: &str) {
        self.deliver(code);
        assert_eq!(self.configure(code, generation).status, 200);
    }

    /// Another agent for the same working directory, with this folder for arriving code unless it is empty.
    fn next_agent(&self, code_dir: &str) -> Agent {
        let flags = ["--work-dir", self.folder.path().to_str().unwrap(), "--code-dir", code_dir];
        Agent::start(if code_dir.is_empty() { &flags[..2] } else { &flags }, &["python3", "train.py"])
    }

    /// An agent whose code arrives in this place's folder and belongs into `shared`.
    fn sharing(&self, shared: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--work-dir", shared.to_str().unwrap(), "--code-dir", self.folder.path().to_str().unwrap()];
        Self { folder, agent: Agent::start(&flags, &["python3", "train.py"]) }
    }

    /// The files of the working directory with their contents, without the agent's own folder.
    fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(self.folder.path(), "", &mut found);
        found
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() && name != ".muster" => collect(&entry.path(), &format!("{name}/"), found),
            kind if kind.is_file() => drop(found.insert(name, fs::read_to_string(entry.path()).unwrap())),
            _ => {}
        }
    }
}

fn files(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

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
fn later_code_waits_until_a_start_names_it_and_leaves_files_of_the_script_alone() {
    let place = Place::new(&["python3", "train.py"]);
    let old = Code::of(&[("train.py", "1"), ("same.py", "same"), ("gone/deep/a.py", "a"), ("now_folder", "f")]);
    place.deliver(&old);
    fs::create_dir(place.path("checkpoints")).unwrap();
    for (name, text) in [("checkpoints/1", "weights"), ("gone/log", "log")] {
        fs::write(place.path(name), text).unwrap();
    }
    let same_before = fs::metadata(place.path("same.py")).unwrap().ino();
    let before = place.files();
    let new = Code::of(&[("train.py", "2"), ("same.py", "same"), ("now_folder/x", "x"), ("copy.py", "same")]);
    assert_eq!(place.deliver(&new), 2, "wrong number of blobs that are not in place yet");
    assert_eq!(place.files(), before);
    assert_eq!(place.agent.status().code, CodeStatus { staged: Some(new.id()), running: Some(old.id()) });
    assert_eq!(place.configure(&new, "1.1").status, 200);
    let expected = [
        ("train.py", "2"),
        ("same.py", "same"),
        ("now_folder/x", "x"),
        ("copy.py", "same"),
        ("checkpoints/1", "weights"),
        ("gone/log", "log"),
    ];
    assert_eq!(place.files(), files(&expected));
    assert_eq!(fs::metadata(place.path("same.py")).unwrap().ino(), same_before, "a file was replaced by an equal file");
    assert!(!place.path("gone/deep").exists());
    assert_eq!(place.agent.status().code, CodeStatus { staged: Some(new.id()), running: Some(new.id()) });
    // A later start can use the old code again.
    assert_eq!(place.deliver(&old), 3);
    assert_eq!(place.configure(&old, "1.2").status, 200);
    assert_eq!(fs::read_to_string(place.path("gone/deep/a.py")).unwrap(), "a");
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
fn a_file_that_the_push_changes_has_a_later_time() {
    let place = Place::new(&["python3", "train.py"]);
    place.deliver(&Code::of(&[("train.py", "1")]));
    // Python compares whole seconds.
    let modified = || fs::metadata(place.path("train.py")).unwrap().mtime();
    for (text, generation) in [("2", "1.1"), ("3", "1.2"), ("4", "1.3")] {
        let before = modified();
        place.push(&Code::of(&[("train.py", text)]), generation);
        assert!(modified() > before, "the time of the changed file is not later");
    }
}

#[test]
fn a_push_keeps_what_the_script_wrote_and_names_the_files_that_both_changed() {
    let place = Place::new(&["python3", "train.py"]);
    let quiet = "import sys";
    let of = |train: &str, more: &[(&str, &str)]| Code::of(&[&[("train.py", train)], more].concat());
    place.deliver(&of(quiet, &[("best.txt", "old"), ("both", "1"), ("gone", "g"), ("left", "l"), ("missing", "m")]));
    for (name, text) in [("best.txt", "0.9"), ("both", "script"), ("gone", "script"), ("new", "script"), ("log", "x")] {
        fs::write(place.path(name), text).unwrap();
    }
    fs::remove_file(place.path("missing")).unwrap();
    let next = "import os";
    place.push(&of(next, &[("best.txt", "old"), ("both", "2"), ("missing", "m"), ("new", "n")]), "1.1");
    let stayed = [("best.txt", "0.9"), ("gone", "script"), ("log", "x"), ("missing", "m")];
    assert_eq!(place.files(), files(&[&stayed[..], &[("train.py", next), ("both", "2"), ("new", "n")]].concat()));
    assert_eq!(place.agent.get("/run?generation=1.1").status, 200);
    assert_eq!(place.agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    let said = "[muster: kept gone, which the new code no longer has: the script had changed it]\n\
                [muster: the new code replaces both, which the script had changed]\n\
                [muster: the new code replaces new, which the script had changed]\n";
    assert_eq!(String::from_utf8(place.agent.logs("stderr")).unwrap(), said);
    // A later push keeps the file too.
    place.push(&of(quiet, &[("best.txt", "old")]), "1.2");
    assert_eq!(fs::read_to_string(place.path("best.txt")).unwrap(), "0.9");
}

#[test]
fn a_later_agent_of_the_same_folder_keeps_what_the_script_wrote_and_restores_what_is_missing() {
    let mut place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("train.py", "import sys"), ("best.txt", "old"), ("lost.py", "")]);
    place.deliver(&code);
    fs::write(place.path("best.txt"), "0.9").unwrap();
    fs::write(place.path("weights"), "w").unwrap();
    place.agent = place.next_agent("");
    assert_eq!(place.deliver(&code), 0, "code that is in place was sent again");
    fs::remove_file(place.path("lost.py")).unwrap();
    place.agent = place.next_agent("");
    place.deliver(&code);
    let kept = [("best.txt", "0.9"), ("weights", "w"), ("lost.py", "")];
    assert_eq!(place.files(), files(&[&kept[..], &[("train.py", "import sys")]].concat()));
    // Other code waits for a start, because agents that share the folder may run the code that is there.
    place.agent = place.next_agent("");
    let next = Code::of(&[("train.py", "import os"), ("best.txt", "old"), ("lost.py", "")]);
    place.deliver(&next);
    assert_eq!(fs::read_to_string(place.path("train.py")).unwrap(), "import sys");
    assert_eq!(place.configure(&next, "1.1").status, 200);
    assert_eq!(place.files(), files(&[&kept[..], &[("train.py", "import os")]].concat()));
}

#[test]
fn agents_that_share_a_folder_put_the_same_code_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let places: Vec<Place> = (0..4).map(|_| Place::new(&["python3", "train.py"])).collect();
    let agents = places.iter().map(|own| own.sharing(folder.path())).collect::<Vec<_>>();
    let many: Vec<String> = (0..200).map(|number| format!("a{number}.py")).collect();
    let code = |text: &str| {
        Code::of(&many.iter().map(|name| (name.as_str(), text)).chain([("train.py", "")]).collect::<Vec<_>>())
    };
    for (code, generation) in [(code("old"), "1.1"), (code("new"), "1.2")] {
        std::thread::scope(|scope| {
            let put = |agent: &Place| {
                agent.deliver(&code);
                assert_eq!(agent.configure(&code, generation).status, 200);
            };
            let threads: Vec<_> = agents.iter().map(|agent| scope.spawn(move || put(agent))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let text = fs::read_to_string(folder.path().join("a199.py")).unwrap();
        fs::write(folder.path().join("a0.py"), "of the script").unwrap();
        assert_eq!(text, if generation == "1.1" { "old" } else { "new" });
        assert!(agents.iter().all(|agent| agent.agent.status().code.running == Some(code.id())));
    }
    let said: usize = agents.iter().map(|agent| agent.agent.logs("stderr").len()).sum();
    assert_eq!(said, "[muster: the new code replaces a0.py, which the script had changed]\n".len());
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
fn a_link_in_place_of_a_folder_is_named_and_links_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "precious").unwrap();
    let place = Place::new(&["python3", "train.py"]);
    let old = Code::of(&[("train.py", "1"), ("data/x", "x")]);
    place.deliver(&old);
    fs::remove_dir_all(place.path("data")).unwrap();
    symlink(outside.path(), place.path("data")).unwrap();
    let new = Code::of(&[("train.py", "2"), ("data/y", "y")]);
    place.deliver(&new);
    let answer = place.configure(&new, "1.1");
    assert_eq!(answer.refusal(), (422, ErrorCode::BadCode));
    assert!(answer.problem().detail.contains("/data\" is in the way"), "{}", answer.text());
    assert_eq!(fs::read_to_string(place.path("train.py")).unwrap(), "1", "a refused config has changed the script");
    // Code without files in `data` leaves the link and the folder behind the link alone.
    let without = Code::of(&[("train.py", "3"), ("link", "l")]);
    symlink(outside.path().join("x"), place.path("link")).unwrap();
    place.deliver(&without);
    assert_eq!(place.configure(&without, "1.2").status, 200);
    assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "precious");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    fs::create_dir(place.path("taken")).unwrap();
    fs::write(place.path("taken/by"), "the script").unwrap();
    let taken = Code::of(&[("train.py", "4"), ("taken", "t")]);
    place.deliver(&taken);
    assert!(place.configure(&taken, "1.3").problem().detail.contains("/taken\" is in the way"));
}

#[test]
fn a_folder_of_the_code_becomes_a_file_unless_the_script_has_files_in_it() {
    let place = Place::new(&["python3", "train.py"]);
    place.deliver(&Code::of(&[("train.py", "1"), ("data/deep/x", "x"), ("data/y", "y")]));
    fs::write(place.path("data/deep/log"), "log").unwrap();
    let before = place.files();
    let new = Code::of(&[("train.py", "2"), ("data", "one file")]);
    place.deliver(&new);
    let answer = place.configure(&new, "1.1");
    assert!(answer.problem().detail.contains("/data\" is in the way"), "{}", answer.text());
    assert_eq!(place.files(), before, "a refused config has changed files");
    fs::remove_file(place.path("data/deep/log")).unwrap();
    assert_eq!(place.configure(&new, "1.1").status, 200);
    assert_eq!(place.files(), files(&[("train.py", "2"), ("data", "one file")]));
}

#[test]
fn a_delivery_to_a_folder_that_cannot_be_written_fails_with_the_reason() {
    let place = Place::new(&["python3", "train.py"]);
    fs::write(place.path(".muster"), "a file").unwrap();
    let code = Code::of(&[("train.py", "x")]);
    let answer = place.put(code.id(), "", serde_json::to_string(&code.manifest).unwrap().as_bytes());
    assert_eq!(answer.refusal(), (507, ErrorCode::CodeStoreFull));
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
