//! Tests of packing: which files are sent, and which folders are refused.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// A folder with these files and an exec.py.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files.iter().chain(&[("exec.py", "print()")]) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn packed(folder: &Path) -> Result<Packed, Error> {
    Packed::read(folder, &ScriptPath::default())
}

/// The paths that are sent.
fn sent(folder: &Path) -> Vec<String> {
    let packed = packed(folder).unwrap();
    packed.manifest.files().iter().map(|file| file.path.to_string()).collect()
}

fn refused(folder: &Path) -> (String, String) {
    let error = packed(folder).unwrap_err();
    (error.to_string(), error.hint.unwrap_or_default())
}

#[test]
fn a_folder_is_packed_with_its_executable_bits_and_each_content_once() {
    let folder = folder(&[("a/same.txt", "same"), ("b.txt", "same"), ("run.sh", "#!/bin/sh")]);
    fs::set_permissions(folder.path().join("run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    let packed = packed(folder.path()).unwrap();
    let files = packed.manifest().files();
    let shown: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.size, file.executable)).collect();
    assert_eq!(shown, [("a/same.txt", 4, false), ("b.txt", 4, false), ("exec.py", 7, false), ("run.sh", 9, true)]);
    let blobs: Vec<Sha256> = packed.manifest().blobs().into_keys().collect();
    assert_eq!(blobs.len(), 3);
    let strange = Sha256::of(b"not ours");
    let (same, rest) = (Sha256::of(b"same"), [same_stream(b"same"), same_stream(b"print()")].concat());
    assert_eq!(packed.stream(&[same, strange, Sha256::of(b"print()")]), (2, rest));
}

fn same_stream(content: &[u8]) -> Vec<u8> {
    [Sha256::of(content).as_bytes(), content].concat()
}

#[test]
fn files_of_git_and_of_virtual_environments_and_of_caches_and_of_muster_are_never_sent() {
    let files =
        [".git/config", "venv/a", "src/.venv/a", "src/__pycache__/a.pyc", ".muster/a", "src/.muster", "venv.py"];
    let folder = folder(&files.map(|path| (path, "")));
    assert_eq!(sent(folder.path()), ["exec.py", "src/.muster", "venv.py"]);
}

#[test]
fn files_that_usually_contain_secrets_are_named() {
    let folder = folder(&[(".env", "KEY=1"), ("keys/id_rsa", ""), ("env.py", "")]);
    let told = packed(folder.path()).unwrap().secrets().unwrap();
    assert!(told.starts_with("the code contains .env, keys/id_rsa: "), "{told}");
}

#[test]
fn only_the_first_of_musterignore_dockerignore_and_gitignore_is_used() {
    let files = [("a.log", ""), ("b.txt", ""), ("c/d.log", ""), (".gitignore", "*.log\n.gitignore\n")];
    let folder = folder(&files);
    assert_eq!(sent(folder.path()), ["b.txt", "exec.py"]);
    let told = "left out by .gitignore: .gitignore, a.log, c/d.log (a .musterignore replaces .gitignore)";
    assert_eq!(packed(folder.path()).unwrap().left_out().as_deref(), Some(told));
    // Docker's patterns begin at the root.
    fs::write(folder.path().join(".dockerignore"), "*.txt\nc\n!c/d.log\n.*\n").unwrap();
    assert_eq!(sent(folder.path()), [".dockerignore", "a.log", "c/d.log", "exec.py"]);
    fs::write(folder.path().join(".musterignore"), "/c\n.*\n").unwrap();
    assert_eq!(sent(folder.path()), ["a.log", "b.txt", "exec.py"]);
    assert_eq!(packed(folder.path()).unwrap().left_out(), None, "what a .musterignore names is no surprise");
}

#[test]
fn the_deepest_gitignore_decides_and_gitignores_above_the_folder_apply_only_in_a_repository() {
    let root = folder(&[
        (".git/config", ""),
        (".gitignore", "*.ckpt\n.gitignore\n"),
        ("train/exec.py", ""),
        ("train/a.ckpt", ""),
        ("train/keep/.gitignore", "!*.ckpt\nnotes\n"),
        ("train/keep/b.ckpt", ""),
        ("train/keep/notes", ""),
    ]);
    assert_eq!(sent(&root.path().join("train")), ["exec.py", "keep/b.ckpt"]);
    fs::remove_dir_all(root.path().join(".git")).unwrap();
    let sent = sent(&root.path().join("train"));
    assert_eq!(
        sent,
        ["a.ckpt", "exec.py", "keep/.gitignore", "keep/b.ckpt"],
        "without a repository, a .gitignore above was used"
    );
}

#[test]
fn a_link_within_the_folder_is_sent_as_its_target_and_a_link_without_target_is_not_sent() {
    let folder = folder(&[("lib/a.py", "A"), ("lib/deep/b.py", "B")]);
    symlink("lib/a.py", folder.path().join("a.py")).unwrap();
    symlink(folder.path().canonicalize().unwrap().join("lib/deep"), folder.path().join("linked")).unwrap();
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    assert_eq!(sent(folder.path()), ["a.py", "exec.py", "lib/a.py", "lib/deep/b.py", "linked/b.py"]);
}

#[test]
fn a_link_out_of_the_folder_or_in_a_circle_is_refused_unless_a_pattern_excludes_it() {
    for (target, wrong) in [("/etc", "is a link to /etc, outside the folder"), (".", "is a link to itself, or")] {
        let folder = folder(&[("lib/a.py", "")]);
        symlink(target, folder.path().join("lib/link")).unwrap();
        let (sentence, hint) = refused(folder.path());
        assert!(sentence.contains(&format!("lib/link {wrong}")), "{sentence}");
        assert_eq!(
            hint,
            "put a copy in place of the link; or exclude it with a pattern in .musterignore, and name the data by its absolute path"
        );
        fs::write(folder.path().join(".musterignore"), "link/\n.*\n").unwrap();
        assert_eq!(sent(folder.path()), ["exec.py", "lib/a.py"]);
    }
    for (target, wrong) in [
        ("link", "/link is a link to itself, or to a folder that contains it"),
        ("exec.py/x", "the target of the link "),
    ] {
        let folder = folder(&[]);
        symlink(target, folder.path().join("link")).unwrap();
        let (sentence, _) = refused(folder.path());
        assert!(sentence.contains(wrong), "{sentence}");
    }
}

#[test]
fn names_that_cannot_be_sent_are_refused() {
    for (name, wrong) in [
        (b"a\nb.py".as_slice(), "cannot be sent: invalid path \"a\\nb.py\": it contains a control character"),
        (b"a\xff.py", "cannot be sent: \"a\\xFF.py\" is not valid UTF-8"),
        (b"EXEC.py", "\"EXEC.py\" and \"exec.py\" are the same path if upper and lower case do not matter"),
    ] {
        let folder = folder(&[]);
        fs::write(folder.path().join(OsStr::from_bytes(name)), "").unwrap();
        let (sentence, hint) = refused(folder.path());
        assert!(sentence.ends_with(wrong), "{sentence}");
        assert!(hint.starts_with("rename "), "{hint}");
    }
}

#[test]
fn a_folder_beyond_the_limits_is_refused_with_its_largest_parts() {
    let folder = folder(&[("small/a", "12345")]);
    for (path, bytes) in [("data/a.bin", 10 << 30), ("data/b.bin", 1 << 30), ("model.bin", 65 << 20)] {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A sparse file takes no space.
        fs::File::create(path).unwrap().set_len(bytes).unwrap();
    }
    let (sentence, hint) = refused(folder.path());
    let expected =
        "has 5 files with 11.0 GiB; a job brings at most 20000 files with 64.0 MiB (largest: data, model.bin, exec.py)";
    assert!(sentence.ends_with(expected), "{sentence}");
    assert_eq!(hint, "list in .musterignore what the job does not need, and mount data with --volume");
}

#[test]
fn too_many_files_are_refused_with_the_folder_that_has_most() {
    let found = |path: String| Found { path: path.into(), real: PathBuf::new(), size: 9, executable: false };
    let many: Vec<Found> = (0..=CODE_FILES_MAX).map(|number| found(format!("many/{number}"))).collect();
    let error = check_limits(Path::new("/here"), &many).unwrap_err().to_string();
    let expected =
        "/here has 20001 files with 175.7 KiB; a job brings at most 20000 files with 64.0 MiB (largest: many)";
    assert_eq!(error, expected);
}

#[test]
fn a_folder_whose_script_is_left_out_or_missing_is_refused() {
    let folder = folder(&[(".gitignore", "exec.py\n")]);
    let (sentence, hint) = refused(folder.path());
    assert!(sentence.starts_with("exec.py is left out of the files of "), "{sentence}");
    assert_eq!(hint, "check .musterignore; without this file, .dockerignore; without both, .gitignore");
    fs::remove_file(folder.path().join("exec.py")).unwrap();
    let (sentence, hint) = refused(folder.path());
    assert!(sentence.starts_with("no exec.py in "), "{sentence}");
    assert_eq!(hint, "give the folder that contains the job's script");
}

#[test]
fn the_error_for_an_invalid_pattern_names_the_pattern_and_its_file() {
    let folder = folder(&[(".dockerignore", "[a\n")]);
    assert!(refused(folder.path()).0.ends_with("/.dockerignore: invalid pattern \"[a\""));
}

#[test]
fn a_file_that_grew_after_it_was_listed_is_sent_as_read_and_a_vanished_or_too_large_file_is_refused() {
    let folder = folder(&[("grows.txt", "now longer than it was")]);
    let listed = |name: &str| Found { path: name.into(), real: folder.path().join(name), size: 1, executable: false };
    let (files, contents) = read::all(&[listed("grows.txt")]).unwrap();
    assert_eq!((files[0].size, contents[&files[0].sha256].len()), (22, 22));
    let error = read::all(&[listed("grows.txt"), listed("vanished.txt")]).unwrap_err().to_string();
    assert_eq!(error, format!("read {} for the job", folder.path().join("vanished.txt").display()));
    fs::File::create(folder.path().join("huge.bin")).unwrap().set_len(CODE_BYTES_MAX + 1).unwrap();
    let error = read::all(&[listed("huge.bin")]).unwrap_err().to_string();
    assert!(error.starts_with("the job's files grew beyond 64.0 MiB while they were read"), "{error}");
}
