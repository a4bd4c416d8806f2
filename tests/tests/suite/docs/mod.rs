//! Checks README, the book in docs/ and the other Markdown files, except agent/python/README.md.

mod book;
mod cli;
mod console;
mod files;
mod lines;
mod links;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use e2e::config;
use e2e::programs::{files_in, root};

/// Returns the Markdown files of the root, docs/ and examples/, as paths from the root.
fn pages() -> Vec<PathBuf> {
    let top = fs::read_dir(root())
        .expect("cannot read the root folder")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file());
    let mut found: Vec<PathBuf> = top.collect();
    found.extend(["docs", "examples"].iter().flat_map(|dir| files_in(&root().join(dir))));
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    found.iter().map(|path| path.strip_prefix(root()).expect("the file is not in the repository").to_owned()).collect()
}

/// Returns a page's text. Replaces lines `{{#include FILE:FIRST_LINE:}}` with the file's lines, like mdBook.
fn text(page: &Path) -> String {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let path = root().join(page);
    let expand = |line: &str| match line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix(":}}")) {
        Some(included) => {
            let (file, first) =
                included.split_once(':').expect("no colon between the file and the number of its first line");
            let skipped = first.parse::<usize>().expect("not a line's number") - 1;
            let file = path.parent().expect("the file has no parent folder").join(file);
            read(&file).lines().skip(skipped).map(|line| format!("{line}\n")).collect()
        }
        None => format!("{line}\n"),
    };
    read(&path).lines().map(expand).collect()
}

/// Checks that a page that `make docs` writes has this text. `make docs` sets a variable, and then this function writes the
/// page first.
fn is_current(name: &str, page: &str) {
    let path = root().join(name);
    if config::writes_docs() {
        fs::write(&path, page).expect("cannot write the page");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = page.lines().zip(written.lines()).find(|(expected, written)| expected != written);
    assert!(page == written, "{name} is stale: run `make docs`. The first difference: {differs:#?}");
}
