//! Checks that relative links in Markdown files lead to existing files and headings.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::programs::root;

use crate::docs::{pages, text};

/// Returns the targets of a page's links, without web addresses.
pub(super) fn targets(text: &str) -> Vec<String> {
    let parts = prose(text);
    let targets = parts.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// Returns the text without code blocks and inline code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.extend(line.split('`').step_by(2));
            kept.push('\n');
        }
    }
    kept
}

/// Returns the anchors of a page's headings. GitHub and mdBook build anchors in the same way.
fn anchors(text: &str) -> Vec<String> {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let anchor = |heading: &str| -> String {
        heading.trim().to_lowercase().chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Returns the error in a link of a page, if any.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let leads_to = match path {
        "" => root().join(page),
        path => root().join(page).parent().expect("the page has no parent folder").join(path),
    };
    let Ok(file) = fs::canonicalize(&leads_to) else { return Some("the file does not exist".into()) };
    let book = fs::canonicalize(root().join("docs")).expect("docs/ does not exist");
    if page.starts_with("docs") && !file.starts_with(book) {
        return Some("the book contains only docs/: write the path as code".into());
    }
    let is_dead = anchor.is_some_and(|anchor| !anchors(&text(&file)).iter().any(|known| known == anchor));
    is_dead.then(|| "the heading does not exist".into())
}

#[test]
fn every_relative_link_leads_to_an_existing_file_and_heading() {
    let links =
        |page: &PathBuf| targets(&text(page)).into_iter().map(|target| (page.clone(), target)).collect::<Vec<_>>();
    let all: Vec<(PathBuf, String)> = pages().iter().flat_map(links).collect();
    assert!(all.len() > 50, "too few links: {all:?}");
    let faults: Vec<String> = all
        .iter()
        .filter_map(|(page, target)| Some(format!("{}: {target}: {}", page.display(), fault(page, target)?)))
        .collect();
    assert!(faults.is_empty(), "dead links:\n{}", faults.join("\n"));
}

#[test]
fn the_check_finds_dead_links_and_links_out_of_the_book_but_ignores_links_in_code() {
    let text = "[a](getting-started.md#install), [b](none.md)\n```text\n[code](none)\n```\n`[code](none)` [c](#none) [`d`](../README.md)";
    let page = Path::new("docs/SUMMARY.md");
    let faulty: Vec<String> = targets(text).into_iter().filter(|target| fault(page, target).is_some()).collect();
    assert_eq!(faulty, ["none.md", "#none", "../README.md"]);
}
