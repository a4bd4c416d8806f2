//! Runs every fuzz target on the inputs of its corpus. `make fuzz` searches for new inputs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "../../../../fuzz/fuzz_targets/config_body.rs"]
mod config_body;
#[path = "../../../../fuzz/fuzz_targets/http_guard.rs"]
mod http_guard;
#[path = "../../../../fuzz/fuzz_targets/image_reference.rs"]
mod image_reference;
#[path = "../../../../fuzz/fuzz_targets/pod_status.rs"]
mod pod_status;
#[path = "../../../../fuzz/fuzz_targets/query.rs"]
mod query;
#[path = "../../../../fuzz/fuzz_targets/record.rs"]
mod record;
#[path = "../../../../fuzz/fuzz_targets/tfjob.rs"]
mod tfjob;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("could not read an entry of the folder").path())
}

/// Runs `check` on each file of the target's corpus.
fn replay(target: &str, check: fn(&[u8])) {
    let mut tried = 0;
    for file in files(&fuzz().join("corpus").join(target)) {
        let input = std::fs::read(&file).expect("could not read a file of the corpus");
        let outcome = std::panic::catch_unwind(|| check(&input));
        assert!(outcome.is_ok(), "{} breaks {target}", file.display());
        tried += 1;
    }
    assert!(tried > 0, "the corpus of {target} is empty");
}

/// Defines a test for each target, and the list of their names.
macro_rules! replayed {
    ($($target:ident,)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), crate::fuzz_corpus::$target::check);
            }
        )*
    };
}

mod no_file_of_the_corpus_breaks {
    use super::replay;

    replayed! {
        config_body,
        http_guard,
        image_reference,
        pod_status,
        query,
        record,
        tfjob,
    }

    pub(super) const ALL: &[&str] = REPLAYED;
}

#[test]
fn every_fuzz_target_is_replayed() {
    let name = |path: PathBuf| path.file_stem().expect("a fuzz target has no file name").to_string_lossy().into_owned();
    let targets: BTreeSet<String> = files(&fuzz().join("fuzz_targets")).map(name).collect();
    assert_eq!(targets, no_file_of_the_corpus_breaks::ALL.iter().map(|name| (*name).to_owned()).collect());
}
