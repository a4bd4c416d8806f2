//! Where the programs under test are.

use std::path::{Path, PathBuf};

/// The repository's root.
///
/// # Panics
/// When this crate is not in the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is one folder below the root").to_owned()
}

/// One of Muster's programs: those that were built beside this test, else those of `make build`.
///
/// # Panics
/// When they were not built.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let is_complete = |dir: &PathBuf| ["client", "master", "agent"].iter().all(|program| dir.join(program).is_file());
    let found = test.ancestors().skip(1).map(Path::to_owned).chain([root().join("dist")]).find(is_complete);
    let dir = found.expect("there are no programs to test: run `cargo build --workspace`, or `make test`");
    dir.join(name)
}

/// The agent that starts in any image: the static one, built in a folder beside the others, or that of `make build`.
///
/// # Panics
/// When it was not built.
pub fn static_agent() -> PathBuf {
    let target = format!("{}-unknown-linux-musl/debug/agent", std::env::consts::ARCH);
    let test = std::env::current_exe().expect("a test knows its own program");
    let mut known = test.ancestors().skip(1).map(|dir| dir.join(&target)).chain([root().join("dist/agent")]);
    known.find(|path| path.is_file()).expect("there is no static agent: run `make test` or `make build`")
}
