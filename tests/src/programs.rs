//! Where the programs under test are.

use std::path::{Path, PathBuf};

/// The repository's root.
///
/// # Panics
/// When this crate is not in the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is one folder below the root").to_owned()
}

/// A program that was built beside this test: `client`, `master` or `agent`.
///
/// # Panics
/// When it was not built.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let found = test.ancestors().skip(1).map(|dir| dir.join(name)).find(|program| program.is_file());
    found
        .unwrap_or_else(|| panic!("there is no {name} beside this test: run `cargo build --workspace`, or `make test`"))
}
