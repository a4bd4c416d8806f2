//! Checks the length of lines in the Markdown files that users read first. Tables and code may have longer lines.

use std::path::PathBuf;

use crate::docs::{pages, text};

/// Maximum characters of a line, as in `.editorconfig`.
const LONGEST: usize = 140;

/// Returns the numbers of the lines of prose that are too long. The first line has the number 1.
fn too_long(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut found = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_prose = !(is_code || is_fence || line.starts_with('|') || line.starts_with("    "));
        if is_prose && line.chars().count() > LONGEST {
            found.push(number);
        }
    }
    found
}

#[test]
fn no_line_of_prose_for_users_is_too_long() {
    let is_checked = |page: &PathBuf| {
        let name = page.to_string_lossy();
        ["README.md", "CHANGELOG.md"].contains(&&*name) || name.starts_with("docs/guides/")
    };
    let checked: Vec<PathBuf> = pages().into_iter().filter(is_checked).collect();
    assert!(checked.len() > 10, "too few pages are checked: {checked:?}");
    let faults: Vec<String> = checked
        .iter()
        .flat_map(|page| too_long(&text(page)).into_iter().map(move |line| format!("{}:{line}", page.display())))
        .collect();
    assert!(faults.is_empty(), "wrap these lines at {LONGEST} characters:\n{}", faults.join("\n"));
}

#[test]
fn a_long_line_is_a_fault_except_in_tables_and_code() {
    let long = "x".repeat(LONGEST + 1);
    let text = format!("{long}\n| {long} |\n```text\n{long}\n```\n    {long}\n- {long}\n{}\n", &long[1..]);
    assert_eq!(too_long(&text), [1, 7]);
}
