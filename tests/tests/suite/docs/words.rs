//! Checks that files, such as the programs' help in docs/reference/cli.md, do not use phrases that readers stumble
//! over.

use std::fs;
use std::path::PathBuf;

use e2e::programs::{files_in, root};

/// The files and folders to check. Add a folder when its files use none of the phrases.
const PLACES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "FILES.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
    "agent/src",
    "client/src",
    "crates",
    "docs",
    "env.sh",
    "examples",
    "images",
    "manifests",
    "master/src",
    "packaging",
    "scripts",
    "tests",
];

/// This file, which contains the phrases.
const THIS_FILE: &str = "tests/tests/suite/docs/words.rs";

/// The phrases to find, in lower case. The check also finds a phrase that continues on the next line.
const PHRASES: &[&str] = &[
    "made up for",
    "such a one",
    "heard of",
    "to whom",
    "one's own",
    "again and again",
    "what is there",
    "is over at",
    "that is gone",
    "nobody is",
    "/// why.",
    "/// which.",
];

/// Returns the text in lower case on one line, without the marks at the beginning of comment lines.
fn flat(text: &str) -> String {
    let words = |line: &str| line.trim().trim_start_matches("//!").trim_start_matches("# ").to_lowercase();
    let lines: Vec<String> = text.lines().map(words).collect();
    lines.join(" ").replace(" /// ", " ").replace(" // ", " ")
}

/// Returns whether the text contains these words, but not as parts of longer words.
fn has_words(text: &str, words: &str) -> bool {
    let ends_before = |before: &str| !before.ends_with(char::is_alphanumeric);
    let ends_after = |after: &str| !after.starts_with(char::is_alphanumeric);
    text.match_indices(words).any(|(at, _)| ends_before(&text[..at]) && ends_after(&text[at + words.len()..]))
}

fn phrases_in(text: &str) -> Vec<&'static str> {
    let flat = flat(text);
    let has = |phrase: &&&str| match phrase.strip_prefix("/// ") {
        Some(_) => text.to_lowercase().lines().any(|line| line.trim() == **phrase),
        None => has_words(&flat, phrase),
    };
    PHRASES.iter().filter(has).copied().collect()
}

#[test]
fn no_checked_file_uses_a_phrase_that_readers_stumble_over() {
    let mut files: Vec<PathBuf> = vec![];
    for place in PLACES.iter().map(|place| root().join(place)) {
        if place.is_dir() { files.extend(files_in(&place)) } else { files.push(place) }
    }
    files.retain(|file| *file != root().join(THIS_FILE));
    let found: Vec<String> = files
        .iter()
        .filter_map(|file| Some((file, fs::read_to_string(file).ok()?)))
        .flat_map(|(file, text)| {
            phrases_in(&text).into_iter().map(move |phrase| format!("{}: {phrase}", file.display()))
        })
        .collect();
    assert!(found.is_empty(), "replace these phrases with plain English:\n{}", found.join("\n"));
}

#[test]
fn a_phrase_is_found_although_it_continues_on_the_next_line_of_a_comment() {
    assert_eq!(phrases_in("/// It goes again\n    /// and again.\n"), ["again and again"]);
    assert_eq!(phrases_in("Some are made\nup for."), ["made up for"]);
    assert_eq!(phrases_in("/// Why.\npub why: Why,\n"), ["/// why."]);
    assert!(phrases_in("/// Why. Because it is so.\n/// What is therefore done.").is_empty());
}
