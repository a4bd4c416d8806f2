//! The code that a job brings: golden JSON and ids, invalid manifests, and the stream of blobs.

use proptest::prelude::*;
use protocol::code::{
    BadManifest, BlobError, BlobPart, BlobReader, CODE_BYTES_MAX, CODE_FILES_MAX, CodeFile, CodePath, Manifest,
    MissingBlobs, ScriptPath, Sha256,
};
use serde_json::json;

use crate::common::{assert_golden, assert_tolerates_new_fields, read};

fn file(path: &str, content: &str) -> CodeFile {
    let size = content.len() as u64;
    CodeFile { path: path.parse().expect(path), sha256: Sha256::of(content.as_bytes()), size, executable: false }
}

fn manifest(files: &[(&str, &str)]) -> Manifest {
    Manifest::new(files.iter().map(|(path, content)| file(path, content)).collect()).expect("an invalid manifest")
}

/// A manifest of empty files with these paths, or the error.
fn of_paths(paths: &[&str]) -> Result<Manifest, BadManifest> {
    Manifest::new(paths.iter().map(|path| file(path, "")).collect())
}

#[test]
fn a_manifest_is_sorted_and_has_an_id() {
    let mut run = file("run.sh", "#!/bin/sh\n");
    run.executable = true;
    let manifest = Manifest::new(vec![run, file("a/b.py", "")]).expect("an invalid manifest");
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let shell = Sha256::of(b"#!/bin/sh\n").to_string();
    let golden = json!({"files": [
        {"path": "a/b.py", "sha256": empty, "size": 0},
        {"path": "run.sh", "sha256": shell, "size": 10, "executable": true},
    ]});
    assert_golden(&manifest, &golden);
    let lines = format!("{empty} 0 - a/b.py\n{shell} 10 x run.sh\n");
    assert_eq!(manifest.id().to_string(), Sha256::of(lines.as_bytes()).to_string());
    let has = |script: &str| manifest.has(&script.parse().expect("an invalid path"));
    assert!(has("run.sh") && !has("/run.sh") && !has(ScriptPath::default().as_str()));
}

#[test]
fn the_answer_to_a_manifest_lists_the_missing_blobs() {
    let answer = MissingBlobs { missing: vec![Sha256::of(b"")] };
    let golden = json!({"missing": ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]});
    assert_golden(&answer, &golden);
    assert_tolerates_new_fields::<MissingBlobs>(&golden);
}

#[test]
fn a_path_that_breaks_a_rule_is_refused_with_the_reason() {
    let long = "a/".repeat(512) + "a";
    let long_part = "a".repeat(256);
    for (path, wrong) in [
        ("", "it is empty"),
        ("/etc/passwd", "it is absolute; use a path in the job's folder"),
        ("..", "it has a part that is empty, '.' or '..'"),
        ("a/../../b", "it has a part that is empty, '.' or '..'"),
        ("./a", "it has a part that is empty, '.' or '..'"),
        ("a//b", "it has a part that is empty, '.' or '..'"),
        ("a/", "it has a part that is empty, '.' or '..'"),
        ("a\0b", "it contains a control character"),
        ("a\nb", "it contains a control character"),
        ("..\\a", "it contains a backslash"),
        (".Muster/x", "Muster itself uses the folder .muster"),
        (&long, "it is longer than 1024 bytes"),
        (&long_part, "it has a part longer than 255 bytes"),
    ] {
        let error = path.parse::<CodePath>().expect_err(path).to_string();
        assert!(error.ends_with(&format!("\": {wrong}")) && !error.contains('\n'), "{error}");
    }
    for path in ["a", "...", "-a/.b", "src/train model.py", "größe/名前.py", ".musterignore", "a:b"] {
        assert_eq!(path.parse::<CodePath>().expect(path).as_str(), path);
    }
}

#[test]
fn a_script_that_python_would_read_as_an_option_is_refused() {
    let error = "-c.py".parse::<ScriptPath>().expect_err("not refused").to_string();
    assert_eq!(error, "invalid path \"-c.py\": Python would read it as an option");
    assert!("src/-c.py".parse::<ScriptPath>().is_ok() && "../a.py".parse::<ScriptPath>().is_err());
    assert!("/src/a.py".parse::<ScriptPath>().is_ok() && "/src/../a.py".parse::<ScriptPath>().is_err());
    assert_eq!(ScriptPath::default().to_string(), "exec.py");
}

#[test]
fn files_that_cannot_exist_together_are_refused() {
    let path = |text: &str| text.parse::<CodePath>().expect(text);
    for (paths, error) in [
        (["a.py", "a.py"], BadManifest::SamePath(path("a.py"), path("a.py"))),
        (["É/a.py", "é/A.py"], BadManifest::SamePath(path("É/a.py"), path("é/A.py"))),
        (["a", "a/b"], BadManifest::FileAndFolder(path("a"), path("a/b"))),
        (["a-b", "A-B/c/d"], BadManifest::FileAndFolder(path("a-b"), path("A-B/c/d"))),
    ] {
        assert_eq!(of_paths(&paths), Err(error));
    }
    assert!(of_paths(&["A/b", "a/c", "a b", "a.b"]).is_ok());
    let sizes = vec![file("a", ""), CodeFile { size: 1, ..file("b", "") }];
    assert!(matches!(Manifest::new(sizes), Err(BadManifest::SizesDiffer(_))));
}

#[test]
fn code_beyond_the_limits_is_refused() {
    let sized = |size| Manifest::new(vec![CodeFile { size, ..file("a", "") }, file("b", "x")]);
    assert!(sized(CODE_BYTES_MAX - 1).is_ok());
    assert_eq!(sized(CODE_BYTES_MAX), Err(BadManifest::TooLarge(CODE_BYTES_MAX + 1)));
    assert_eq!(sized(u64::MAX), Err(BadManifest::TooLarge(u64::MAX)));
    let names: Vec<String> = (0..=CODE_FILES_MAX).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(of_paths(&names[1..]).is_ok());
    assert_eq!(of_paths(&names), Err(BadManifest::TooManyFiles(CODE_FILES_MAX + 1)));
}

#[test]
fn a_manifest_is_checked_when_it_is_read() {
    let zeros = "0".repeat(64);
    let entry = |path: &str, size: i64| json!({"path": path, "sha256": zeros, "size": size});
    for files in [
        json!([entry("../a", 0)]),
        json!([entry("a", -1)]),
        json!([entry("a", 0), entry("A", 0)]),
        json!([{"path": "a", "sha256": "AB".repeat(32), "size": 0}]),
        json!([{"path": "a", "sha256": "ab", "size": 0}]),
        json!([{"path": "a", "sha256": zeros, "size": 0, "link": "/etc/passwd"}]),
    ] {
        assert!(read::<Manifest>(&json!({"files": files})).is_err(), "not refused: {files}");
    }
    assert!(read::<Manifest>(&json!({"files": [entry("a", 0)]})).is_ok());
}

/// Reads a stream that arrives in pieces. Returns each blob with its content.
fn received(manifest: &Manifest, stream: &[u8], piece: usize) -> Result<Vec<(Sha256, Vec<u8>)>, BlobError> {
    let mut reader = BlobReader::new(manifest);
    let (mut done, mut current) = (Vec::new(), Vec::new());
    for mut input in stream.chunks(piece) {
        while let Some(part) = reader.next(&mut input)? {
            match part {
                BlobPart::Begin(_) => current.clear(),
                BlobPart::Content(bytes) => current.extend_from_slice(bytes),
                BlobPart::End(blob) => done.push((blob, std::mem::take(&mut current))),
            }
        }
        assert!(input.is_empty(), "the reader has not read all input");
    }
    reader.finish().map(|()| done)
}

fn framed(contents: &[&str]) -> Vec<u8> {
    contents.iter().flat_map(|text| [Sha256::of(text.as_bytes()).as_bytes(), text.as_bytes()].concat()).collect()
}

#[test]
fn blobs_arrive_whole_if_the_stream_arrives_in_pieces_of_any_size() {
    let manifest = manifest(&[("a", "hello"), ("b", ""), ("c", "hello"), ("d", "world!")]);
    let expected: Vec<_> = ["", "world!", "hello"].map(|text| (Sha256::of(text.as_bytes()), text.into())).into();
    for piece in 1..80 {
        assert_eq!(received(&manifest, &framed(&["", "world!", "hello"]), piece), Ok(expected.clone()));
    }
    assert_eq!(received(&manifest, &[], 1), Ok(vec![]));
}

#[test]
fn an_invalid_stream_of_blobs_is_refused() {
    let manifest = manifest(&[("a", "hello"), ("b", "world")]);
    let (hello, stranger) = (Sha256::of(b"hello"), Sha256::of(b"stranger"));
    let whole = framed(&["hello", "world"]);
    let mut changed = whole.clone();
    changed[Sha256::BYTES] ^= 1;
    let refused = |stream: &[u8]| received(&manifest, stream, 7).expect_err("not refused");
    assert_eq!(refused(&changed), BlobError::WrongContent(hello));
    assert_eq!(refused(&framed(&["hello", "hello"])), BlobError::Unexpected(hello));
    assert_eq!(refused(&framed(&["stranger"])), BlobError::Unexpected(stranger));
    assert_eq!(refused(&[whole.as_slice(), b"x"].concat()), BlobError::Truncated);
    for end in (1..whole.len()).filter(|end| *end != Sha256::BYTES + 5) {
        assert_eq!(refused(&whole[..end]), BlobError::Truncated);
    }
}

proptest! {
    /// Every part of a path that parses is the name of a file or a folder.
    #[test]
    fn a_path_stays_in_its_folder(text in "[a./\\\\\0\n~-]{0,12}") {
        if let Ok(path) = text.parse::<CodePath>() {
            let parts: Vec<_> = std::path::Path::new(path.as_str()).components().collect();
            prop_assert!(parts.iter().all(|part| matches!(part, std::path::Component::Normal(_))));
            prop_assert_eq!(parts.len(), text.split('/').count());
        }
    }

    #[test]
    fn a_stream_of_random_bytes_is_refused(stream in prop::collection::vec(any::<u8>(), 1..200), piece in 1..50_usize) {
        let manifest = manifest(&[("a", "hello"), ("b", "")]);
        prop_assert!(received(&manifest, &stream, piece).is_err());
    }
}
