//! Checks the book's summary and its table of routes, and the length of README.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use e2e::Scene;
use serde_json::Value;

use crate::docs::links::targets;
use crate::docs::{pages, text};

/// Maximum lines of README. Newcomers do not read a longer README.
const MOST_LINES: usize = 150;

#[test]
fn the_summary_lists_every_page() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = targets(&text(summary)).iter().map(|page| Path::new("docs").join(page)).collect();
    let in_docs: BTreeSet<PathBuf> =
        pages().into_iter().filter(|page| page.starts_with("docs") && page != summary).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), in_docs);
    assert_eq!(listed.len(), in_docs.len(), "a page is listed twice");
}

#[test]
fn readme_has_at_most_150_lines() {
    let lines = text(Path::new("README.md")).lines().count();
    assert!(lines <= MOST_LINES, "README.md has {lines} lines: move details to docs/");
}

#[test]
fn the_http_page_lists_the_routes_of_the_master() {
    let scene = Scene::new("");
    let master = scene.master();
    let document: Value =
        serde_json::from_str(&scene.curl(&[&format!("{}/openapi.json", master.url)])).expect("not JSON");
    let paths = document["paths"].as_object().expect("not an object of routes");
    let routes_of = |(path, methods): (&String, &Value)| -> Vec<String> {
        let methods = methods.as_object().expect("not an object of methods").keys();
        methods.map(|method| format!("{} {path}", method.to_uppercase())).collect()
    };
    let described: BTreeSet<String> = paths.iter().flat_map(routes_of).collect();

    let page = text(Path::new("docs/reference/http.md"));
    let section = page.split_once("\n## Routes of the master\n").expect("no such section").1;
    let section = section.split("\n## ").next().expect("the section has no text");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<String> = rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect();
    assert_eq!(listed, described);
}
