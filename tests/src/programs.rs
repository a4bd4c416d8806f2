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

/// The agent that starts in any image: the static one, built beside the others, or that of `make build`.
///
/// # Panics
/// When it was not built.
pub fn static_agent() -> PathBuf {
    built_statically("agent", "agent")
}

/// The master that starts in an image of its own: built beside the others, or that of `make images`.
///
/// # Panics
/// When it was not built.
pub fn static_master() -> PathBuf {
    built_statically("debug", "master")
}

fn built_statically(profile: &str, name: &str) -> PathBuf {
    let target = format!("{}-unknown-linux-musl/{profile}/{name}", std::env::consts::ARCH);
    let test = std::env::current_exe().expect("a test knows its own program");
    let beside = test.ancestors().skip(1).map(|dir| dir.join(&target));
    let mut known = beside.chain(["dist", "dist/image"].map(|dir| root().join(dir).join(name)));
    let found = known.find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("there is no static {name}: run `make build image-programs`"))
}
