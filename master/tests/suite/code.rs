//! Tests of the code that jobs bring: the store on disk, hostile uploads, and the routes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use master::code::{CodeError, CodeStore, Piece, UNUSED_TIME};
use proptest::prelude::*;
use protocol::code::{BlobError, CODE_BYTES_MAX, CodeFile, CodeId, Manifest, MissingBlobs, ScriptPath, Sha256};
use protocol::job::JobSpec;
use serde_json::{Value, json};

use crate::service::harness::{Answer, Master, client, spec};

/// The manifest of a job's code, and the contents of its files.
pub(crate) struct Code {
    manifest: Manifest,
    contents: Vec<Vec<u8>>,
}

impl Code {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let file = |(path, content): &(&str, &[u8])| CodeFile {
            path: path.parse().expect(path),
            sha256: Sha256::of(content),
            size: content.len() as u64,
            executable: false,
        };
        let manifest = Manifest::new(files.iter().map(file).collect()).expect("not a manifest");
        Self { manifest, contents: files.iter().map(|(_, content)| content.to_vec()).collect() }
    }

    /// Some code whose script is `train.py`.
    fn example() -> Self {
        Self::new(&[("train.py", b"print('hello')\n"), ("lib/a.py", b"A = 1\n"), ("lib/empty.py", b"")])
    }

    pub(crate) fn id(&self) -> CodeId {
        self.manifest.id()
    }

    pub(crate) fn manifest(&self) -> Value {
        serde_json::to_value(&self.manifest).expect("not JSON")
    }

    /// The stream of these blobs.
    pub(crate) fn stream(&self, blobs: &[Sha256]) -> Vec<u8> {
        let framed = |blob: &Sha256| {
            let content =
                self.contents.iter().find(|content| Sha256::of(content) == *blob).expect("not a blob of this code");
            [blob.as_bytes(), content.as_slice()].concat()
        };
        blobs.iter().flat_map(framed).collect()
    }
}

fn received(store: &CodeStore, id: CodeId, stream: &[u8]) -> Result<Vec<Sha256>, CodeError> {
    let mut pieces = stream.chunks(11).map(|piece| Piece::Bytes(Bytes::copy_from_slice(piece))).chain([Piece::End]);
    store.receive(id, || pieces.next())
}

/// Sends the blobs that the store does not have, and returns their number.
pub(crate) fn send(store: &CodeStore, code: &Code) -> usize {
    let missing = store.offer(code.id(), &code.manifest).expect("the manifest was refused");
    assert_eq!(received(store, code.id(), &code.stream(&missing)).expect("the blobs were refused"), []);
    missing.len()
}

/// All files below a folder.
fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("no folder").map(|entry| entry.expect("no entry").path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { BTreeSet::from([path]) };
    entries.flat_map(below).collect()
}

fn script(path: &str) -> ScriptPath {
    path.parse().expect(path)
}

#[test]
fn a_reopened_store_still_has_its_code_and_asks_only_for_changed_files() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::open(folder.path()).expect("no store"), Code::example());
    assert!(matches!(store.require(code.id(), &script("train.py")), Err(CodeError::Missing(_))));
    assert_eq!(send(&store, &code), 3);
    let store = CodeStore::open(folder.path()).expect("no store");
    assert_eq!(store.manifest(code.id()), Some(code.manifest.clone()));
    assert_eq!(store.blob(Sha256::of(b"A = 1\n")).expect("no blob").as_deref(), Some(b"A = 1\n".as_slice()));
    store.require(code.id(), &script("train.py")).expect("the code is missing");
    assert!(matches!(store.require(code.id(), &script("exec.py")), Err(CodeError::NoScript(_))));
    assert_eq!(send(&store, &code), 0);
    let changed = Code::new(&[("train.py", b"print('bye')\n"), ("lib/a.py", b"A = 1\n"), ("lib/empty.py", b"")]);
    assert_eq!(send(&store, &changed), 1, "wrong number of sent files after one file has changed");
}

#[test]
fn a_file_that_a_crash_has_shortened_is_sent_again() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::open(folder.path()).expect("no store"), Code::example());
    send(&store, &code);
    let blob = folder.path().join("blobs").join(Sha256::of(b"A = 1\n").to_string());
    std::fs::write(blob, "").expect("the file cannot be shortened");
    assert_eq!(store.manifest(code.id()), None);
    assert_eq!(send(&store, &code), 1);
}

#[test]
fn a_file_with_wrong_bytes_is_found_when_it_is_read_and_is_sent_again() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::with_room(folder.path(), 4 * 4096).expect("no store"), Code::example());
    send(&store, &code);
    let blob = Sha256::of(b"A = 1\n");
    std::fs::write(folder.path().join("blobs").join(blob.to_string()), "A = 2\n").expect("the file cannot be damaged");
    assert_eq!(store.blob(blob).expect("the file cannot be read"), None);
    assert_eq!(store.manifest(code.id()), None);
    assert_eq!(send(&store, &code), 1, "wrong number of files that are sent again");
}

#[test]
fn code_that_no_job_uses_is_removed_after_a_while_and_shared_files_stay() {
    let folder = tempfile::tempdir().expect("no folder");
    let store = CodeStore::with_room(folder.path(), 9 * 4096).expect("no store");
    let used = Code::new(&[("exec.py", b"used"), ("shared.py", b"shared")]);
    let unused = Code::new(&[("exec.py", b"unused"), ("shared.py", b"shared")]);
    for code in [&used, &unused] {
        send(&store, code);
    }
    let (of_jobs, now) = (BTreeSet::from([used.id()]), SystemTime::now());
    store.sweep(&of_jobs, now).expect("the sweep failed");
    assert_eq!(store.manifest(unused.id()), Some(unused.manifest.clone()), "code that was sent just now is removed");
    store.sweep(&of_jobs, now + UNUSED_TIME + Duration::from_secs(60)).expect("the sweep failed");
    assert_eq!((store.manifest(unused.id()), store.manifest(used.id())), (None, Some(used.manifest.clone())));
    assert_eq!(files_below(folder.path()).len(), 3, "the store does not have exactly one manifest and two blobs");
}

#[test]
fn unused_code_stays_for_days_until_all_code_needs_more_than_half_of_the_room() {
    let folder = tempfile::tempdir().expect("no folder");
    let store = CodeStore::with_room(folder.path(), 16 * 4096).expect("no store");
    let now = SystemTime::now();
    // The manifest and the blob of each code need 4096 bytes.
    let codes = ["oldest", "older", "newer"].map(|text| Code::new(&[("exec.py", text.as_bytes())]));
    for (code, age) in codes.iter().zip([3, 2, 1]) {
        send(&store, code);
        let manifest =
            std::fs::File::options().append(true).open(folder.path().join("manifests").join(code.id().to_string()));
        manifest.and_then(|file| file.set_modified(now - age * UNUSED_TIME)).expect("cannot set the time");
    }
    let tomorrow = now + Duration::from_secs(24 * 3600);
    let kept = |store: &CodeStore| codes.each_ref().map(|code| store.manifest(code.id()).is_some());
    store.sweep(&BTreeSet::new(), tomorrow).expect("the sweep failed");
    assert_eq!(kept(&store), [true; 3]);
    let used = Code::new(&[("exec.py", &[7; 2 * 4096])]);
    send(&store, &used);
    store.sweep(&BTreeSet::from([used.id()]), tomorrow).expect("the sweep failed");
    assert_eq!(kept(&store), [false, true, true]);
    store.require(codes[1].id(), &script("exec.py")).expect("a job of yesterday cannot run again");
    assert_eq!(files_below(folder.path()).len(), 6, "the store does not have exactly three manifests and three blobs");
}

#[test]
fn a_sweep_that_cannot_read_the_manifest_of_used_code_keeps_the_files_of_this_code() {
    let folder = tempfile::tempdir().expect("no folder");
    let store = CodeStore::with_room(folder.path(), 4 * 4096).expect("no store");
    let (used, unused) = (Code::new(&[("exec.py", b"used")]), Code::new(&[("exec.py", b"unused")]));
    for code in [&used, &unused] {
        send(&store, code);
    }
    let manifest = folder.path().join("manifests").join(used.id().to_string());
    std::fs::remove_file(&manifest).expect("the manifest does not exist");
    std::fs::create_dir(&manifest).expect("cannot create a folder instead of the file");
    store.sweep(&BTreeSet::from([used.id()]), SystemTime::now() + 2 * UNUSED_TIME).expect_err("the sweep succeeded");
    assert!(store.blob(Sha256::of(b"used")).expect("no blob").is_some());
}

#[test]
fn a_sweep_reads_no_manifest_if_all_code_is_used() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, used) = (CodeStore::with_room(folder.path(), 2 * 4096).expect("no store"), Code::new(&[("a.py", b"")]));
    send(&store, &used);
    let manifest = folder.path().join("manifests").join(used.id().to_string());
    std::fs::remove_file(&manifest).expect("the manifest does not exist");
    std::fs::create_dir(&manifest).expect("cannot create a folder instead of the file");
    store.sweep(&BTreeSet::from([used.id()]), SystemTime::now() + 2 * UNUSED_TIME).expect("the sweep reads a manifest");
}

#[test]
fn files_that_no_manifest_names_are_removed_when_the_store_is_opened() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::open(folder.path()).expect("no store"), Code::example());
    send(&store, &code);
    std::fs::remove_file(folder.path().join("manifests").join(code.id().to_string())).expect("no manifest");
    CodeStore::open(folder.path()).expect("no store");
    assert_eq!(files_below(folder.path()), BTreeSet::new());
}

#[test]
fn code_that_exceeds_the_room_of_the_store_is_refused_and_fits_after_other_code_is_removed() {
    let folder = tempfile::tempdir().expect("no folder");
    let store = CodeStore::with_room(folder.path(), 4 * 4096).expect("no store");
    let small = Code::new(&[("exec.py", b"small"), ("b.py", b"b")]);
    send(&store, &small);
    let large = Code::new(&[("exec.py", &[7; 2 * 4096])]);
    let refused = store.offer(large.id(), &large.manifest).expect_err("code that exceeds the room is accepted");
    assert!(matches!(refused, CodeError::Full { needed: 12288, most: 16384 }), "{refused}");
    store.sweep(&BTreeSet::new(), SystemTime::now() + 2 * UNUSED_TIME).expect("the sweep failed");
    assert_eq!(send(&store, &large), 1);
}

#[test]
fn a_broken_upload_leaves_no_blob_behind_and_can_be_repeated() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::open(folder.path()).expect("no store"), Code::example());
    let missing = store.offer(code.id(), &code.manifest).expect("the manifest was refused");
    let before = files_below(folder.path());
    let mut pieces = [Piece::Bytes(code.stream(&missing).into())].into_iter();
    assert!(matches!(store.receive(code.id(), || pieces.next()), Err(CodeError::Aborted)));
    assert_eq!(files_below(folder.path()), before);
    assert_eq!(send(&store, &code), 3);
}

#[test]
fn two_uploads_of_the_same_code_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().expect("no folder");
    let (store, code) = (CodeStore::open(folder.path()).expect("no store"), Code::example());
    let missing = store.offer(code.id(), &code.manifest).expect("the manifest was refused");
    let stream = code.stream(&missing);
    let mut outer = [Piece::Bytes(stream.clone().into()), Piece::End].into_iter();
    let mut sent_within = false;
    let received_around = store.receive(code.id(), || {
        if !std::mem::replace(&mut sent_within, true) {
            assert_eq!(received(&store, code.id(), &stream).expect("not accepted"), []);
        }
        outer.next()
    });
    assert_eq!(received_around.expect("not accepted"), []);
    assert_eq!(store.manifest(code.id()), Some(code.manifest));
}

/// A change that makes a stream wrong.
#[derive(Debug, Clone)]
enum Damage {
    Cut(usize),
    Flip(usize),
    Append(Vec<u8>),
    Repeat,
    /// Appends a blob that the manifest does not name.
    Stranger(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        any::<usize>().prop_map(Damage::Flip),
        bytes().prop_map(Damage::Append),
        Just(Damage::Repeat),
        bytes().prop_map(Damage::Stranger),
    ]
}

/// The stream after this damage.
fn damaged(stream: &[u8], damage: &Damage) -> Vec<u8> {
    let mut stream = stream.to_vec();
    match damage {
        // The cut is within the last blob, which is not empty.
        Damage::Cut(by) => stream.truncate(stream.len() - 1 - by % 4),
        Damage::Flip(at) => {
            let at = at % stream.len();
            stream[at] ^= 0x40;
        }
        Damage::Append(more) => stream.extend(more),
        Damage::Repeat => stream.extend(stream.clone()),
        Damage::Stranger(content) => stream.extend([Sha256::of(content).as_bytes(), content.as_slice()].concat()),
    }
    stream
}

/// An invalid or reserved path, or a path that collides with `train.py` or `lib/a.py`.
fn hostile_path() -> impl Strategy<Value = String> {
    prop_oneof![
        "/[a-z/]{0,9}",
        "(\\.\\./){1,4}[a-z]{1,5}",
        "[a-z]{1,3}/\\.\\./[a-z]{1,3}",
        "[a-z]{0,3}\0[a-z]{0,3}",
        "[a-z]{0,3}[\n\\\\][a-z]{0,3}",
        "(?i:train)\\.PY",
        "lib",
        "LIB/A\\.py/[a-z]",
        "train\\.py/[a-z]{1,3}",
        "\\.muster/[a-z]{0,3}",
        "[a-z]{256}",
        "",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// If one blob of a stream is refused, the good blobs of the stream are not stored either.
    #[test]
    fn a_hostile_stream_is_refused_as_a_whole(damage in damage()) {
        let folder = tempfile::tempdir().expect("no folder");
        let (store, code) = (CodeStore::open(&folder.path().join("code")).expect("no store"), Code::example());
        // `Damage::Cut` needs a last blob that is not empty.
        let order = [b"".as_slice(), b"A = 1\n", b"print('hello')\n"].map(Sha256::of);
        store.offer(code.id(), &code.manifest).expect("the manifest was refused");
        let before = files_below(folder.path());
        let refused = received(&store, code.id(), &damaged(&code.stream(&order), &damage));
        prop_assert!(matches!(refused, Err(CodeError::Blobs(_))), "{:?}", refused);
        prop_assert_eq!(files_below(folder.path()), before);
        prop_assert_eq!(store.manifest(code.id()), None);
        send(&store, &code);
    }

    #[test]
    fn a_manifest_with_a_hostile_path_cannot_be_parsed(path in hostile_path()) {
        let mut manifest = Code::example().manifest();
        let files = manifest["files"].as_array_mut().expect("not a list");
        files.push(json!({"path": path, "sha256": Sha256::of(b"").to_string(), "size": 0}));
        prop_assert!(serde_json::from_value::<Manifest>(manifest).is_err());
    }
}

async fn put(master: &Master, path: &str, body: Vec<u8>) -> Answer {
    Answer::of(client().put(master.url(path)).body(body)).await
}

async fn put_manifest(master: &Master, id: CodeId, manifest: &Value) -> Answer {
    put(master, &format!("/v1/code/{id}"), manifest.to_string().into()).await
}

fn missing(answer: &Answer) -> Vec<Sha256> {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_value::<MissingBlobs>(answer.json()).expect("not missing blobs").missing
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_accepted_only_after_its_code_has_been_sent() {
    let (master, code) = (Master::serving(None).await, Code::example());
    let job = JobSpec { code: Some(code.id()), script: script("train.py"), ..spec("brought", 1) };
    let job = serde_json::to_value(&job).expect("not JSON");
    let refused = master.post("/v1/jobs", &job).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "code_missing"));
    let manifest = code.manifest();
    let asked_for = missing(&put_manifest(&master, code.id(), &manifest).await);
    assert_eq!(asked_for.len(), 3);
    assert_eq!(master.post("/v1/jobs", &job).await.code(), "code_missing", "a job without blobs is accepted");
    let blobs = format!("/v1/code/{}/blobs", code.id());
    let (first, rest) = asked_for.split_at(1);
    assert_eq!(
        missing(&put(&master, &blobs, code.stream(first)).await),
        rest,
        "the answer does not list exactly the missing blobs"
    );
    assert_eq!(missing(&put(&master, &blobs, code.stream(rest)).await), []);
    assert_eq!(master.post("/v1/jobs", &job).await.status, 201);
    let mut other = job.clone();
    other["code"] = json!("0".repeat(64));
    assert_eq!(master.post("/v1/jobs", &other).await.code(), "job_exists", "the job's name is used twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_script_is_not_in_its_code_is_refused() {
    let (master, code) = (Master::serving(None).await, Code::example());
    send(master.jobs.code(), &code);
    let job = JobSpec { code: Some(code.id()), ..spec("brought", 1) };
    let refused = master.post("/v1/jobs", &serde_json::to_value(&job).expect("not JSON")).await;
    assert_eq!((refused.status, refused.code().as_str()), (422, "bad_code"));
    assert_eq!(refused.json()["detail"], "the code has no file exec.py");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_uploads_are_refused_with_the_reason() {
    let (master, code) = (Master::serving(None).await, Code::example());
    let manifest = code.manifest();
    let other = put_manifest(&master, Code::new(&[]).id(), &manifest).await;
    assert_eq!((other.status, other.code().as_str()), (422, "bad_code"));
    let blobs = format!("/v1/code/{}/blobs", code.id());
    let unknown = put(&master, &blobs, vec![]).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "code_missing"));
    missing(&put_manifest(&master, code.id(), &manifest).await);
    let wrong = put(&master, &blobs, vec![0; 100]).await;
    assert_eq!((wrong.status, wrong.code().as_str()), (422, "bad_code"));
    let blob_error = BlobError::Unexpected("0".repeat(64).parse().expect("not a SHA-256"));
    assert_eq!(wrong.json()["detail"], format!("the blobs are refused: {blob_error}"));
    let no_id = put(&master, "/v1/code/..%2f..", b"{}".into()).await;
    assert_eq!((no_id.status, no_id.code().as_str()), (422, "bad_code"));
    let too_large = json!({"files": [{"path": "a", "sha256": "0".repeat(64), "size": CODE_BYTES_MAX + 1}]});
    let too_large = put_manifest(&master, code.id(), &too_large).await;
    assert_eq!((too_large.status, too_large.code().as_str()), (422, "bad_request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_may_be_longer_than_other_bodies_and_needs_the_token() {
    let master = Master::serving(Some("secret")).await;
    let stem = "d".repeat(250);
    let paths: Vec<String> = (0..19_000).map(|number| format!("{stem}/{number}")).collect();
    let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), b"".as_slice())).collect();
    let code = Code::new(&files);
    let body = serde_json::to_vec(&code.manifest).expect("not JSON");
    assert!(body.len() > 4 << 20, "{}", body.len());
    let request = || client().put(master.url(&format!("/v1/code/{}", code.id())));
    assert_eq!(Answer::of(request().body("{}")).await.status, 401);
    let answer = Answer::of(request().bearer_auth("secret").body(body)).await;
    assert_eq!(missing(&answer), [Sha256::of(b"")]);
    assert!(Arc::clone(master.jobs.code()).manifest(code.id()).is_none());
}

/// The code with its id, packed.
fn packed(store: &CodeStore, code: &Code) -> Vec<u8> {
    send(store, code);
    store.pack(code.id(), usize::MAX).expect("the code is missing").expect("the code is too large")
}

#[test]
fn packed_code_fills_an_empty_store_and_code_that_is_too_large_is_not_packed() {
    let folders = [tempfile::tempdir().expect("no folder"), tempfile::tempdir().expect("no folder")];
    let [first, second] = folders.each_ref().map(|folder| CodeStore::open(folder.path()).expect("no store"));
    let code = Code::example();
    let packed = packed(&first, &code);
    assert_eq!(first.pack(code.id(), packed.len()).expect("the code is missing"), Some(packed.clone()));
    assert_eq!(first.pack(code.id(), packed.len() - 1).expect("the code is missing"), None);
    assert!(matches!(second.pack(code.id(), usize::MAX), Err(CodeError::Missing(_))));
    second.unpack(code.id(), &packed).expect("the code was refused");
    assert_eq!(second.manifest(code.id()), Some(code.manifest.clone()));
    assert_eq!(second.blob(Sha256::of(b"A = 1\n")).expect("no blob").as_deref(), Some(b"A = 1\n".as_slice()));
}

#[test]
fn packed_code_that_was_changed_shortened_or_has_another_id_is_refused() {
    let folders = [tempfile::tempdir().expect("no folder"), tempfile::tempdir().expect("no folder")];
    let [first, second] = folders.each_ref().map(|folder| CodeStore::open(folder.path()).expect("no store"));
    let code = Code::example();
    let whole = packed(&first, &code);
    for length in 0..whole.len() {
        assert!(second.unpack(code.id(), &whole[..length]).is_err(), "{length} of {} bytes were enough", whole.len());
    }
    let other = Code::new(&[("train.py", b"print('bye')\n")]);
    assert!(second.unpack(code.id(), &packed(&first, &other)).is_err());
    assert_eq!(second.manifest(code.id()), None);
    // The fields before byte 10 are a header without effect on the content.
    for place in 10..whole.len() {
        let mut changed = whole.clone();
        changed[place] ^= 0x10;
        // Some bits only fill the last byte of the compressed content.
        if second.unpack(code.id(), &changed).is_ok() {
            let again = second.pack(code.id(), usize::MAX).expect("the code is missing");
            assert_eq!(again, Some(whole.clone()), "the change of byte {place} was not noticed");
        }
    }
}
