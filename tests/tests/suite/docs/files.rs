//! Checks that FILES.md lists all source files with their descriptions.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use e2e::programs::root;

use crate::architecture::{CRATES, sources};
use crate::docs::is_current;

const PAGE: &str = "FILES.md";
const INTRODUCTION: &str = "# Files

`make docs` writes this page from the first sentence of each file. Change the sentences in the sources, not here.
";

/// The first sentence of a file's description.
fn description(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    let paragraph = lines.collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    paragraph[..end].to_owned()
}

fn page() -> String {
    let mut folders: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let sources = CRATES.iter().flat_map(|name| sources(&format!("{name}/src")));
    for (path, text) in sources.filter(|(path, _)| !path.ends_with("_tests.rs")) {
        let (folder, file) = path.rsplit_once('/').expect("a path from the root");
        folders.entry(folder.to_owned()).or_default().insert(file.to_owned(), description(&text));
    }
    let mut page = INTRODUCTION.to_owned();
    for (folder, files) in folders {
        write!(page, "\n## {folder}\n\n").expect("a String accepts text");
        for (file, description) in files {
            writeln!(page, "- [{file}]({folder}/{file}): {description}").expect("a String accepts text");
        }
    }
    page
}

#[test]
fn files_md_lists_all_source_files_with_their_descriptions() {
    is_current(PAGE, &page());
}

#[test]
fn architecture_md_is_short_and_its_files_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("cannot read ARCHITECTURE.md");
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 120 && longest <= 160 && words <= 1500, "{lines} lines, {words} words, {longest} characters");
    let named = text.split(|letter: char| letter.is_whitespace() || "`|,;()".contains(letter));
    let is_path = |word: &&str| (word.contains("/src/") || word.contains("/tests/suite")) && !word.contains('{');
    let missing: Vec<&str> =
        named.filter(is_path).filter(|path| !root().join(path.trim_end_matches(['.', ':'])).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}
