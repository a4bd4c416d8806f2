//! Finds the programs under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the repository's root.
///
/// # Panics
/// If this crate is not in the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate has no parent folder").to_owned()
}

/// Returns all files in a folder and its subfolders, except in folders with the name `target`.
///
/// # Panics
/// If the folder cannot be read.
pub fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())).flatten() {
        let path = entry.path();
        if !path.is_dir() {
            found.push(path);
        } else if entry.file_name() != "target" {
            found.extend(files_in(&path));
        }
    }
    found
}

/// Returns the path of one of Muster's programs. Prefers programs built beside this test over the programs of `make
/// build`.
///
/// # Panics
/// If the programs are not built.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program is unknown");
    let is_complete = |dir: &PathBuf| ["client", "master", "agent"].iter().all(|program| dir.join(program).is_file());
    let found = test.ancestors().skip(1).map(Path::to_owned).chain([root().join("dist")]).find(is_complete);
    let dir = found.expect("no programs to test: run `cargo build --workspace` or `make test`");
    dir.join(name)
}

/// Returns the path of the static agent of a release, which runs in any image. Prefers an agent built beside this test
/// over the agent of `make build`.
///
/// # Panics
/// If the agent is not built.
pub fn static_agent() -> PathBuf {
    let target = format!("{}-unknown-linux-musl/agent/agent", std::env::consts::ARCH);
    let test = std::env::current_exe().expect("the path of this program is unknown");
    let mut known = test.ancestors().skip(1).map(|dir| dir.join(&target)).chain([root().join("dist/agent")]);
    known.find(|path| path.is_file()).expect("no static agent: run `make test` or `make build`")
}

/// Returns a command that runs a program of `tests/prototype`, which imitates the first prototype.
pub fn prototype(file: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/prototype").join(file)).args(args);
    command
}

/// Returns whether `python` on the PATH has TensorFlow.
///
/// # Panics
/// If there is no Python.
pub fn has_tensorflow() -> bool {
    let find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)";
    Command::new("python").args(["-c", find]).status().expect("cannot start python").success()
}

/// Returns a PATH with the real Python. `python` on the PATH may be a wrapper script, which is slow to start.
///
/// # Panics
/// If there is no Python.
pub fn python_path() -> String {
    let asked = Command::new("python").args(["-c", "import sys; print(sys.executable)"]).output();
    let program = String::from_utf8(asked.expect("cannot start python").stdout).expect("not a path in UTF-8");
    let folder = Path::new(program.trim()).parent().expect("the path of python has no folder");
    format!("{}:/usr/bin:/bin", folder.display())
}
