//! Checks that a search for a type's name finds one type of the programs.

use std::collections::BTreeMap;

use super::{CRATES, sources};

/// The names that two or more types of the programs have. Add a name only if both types are the same thing in two
/// programs, or if every other name would be worse.
const SHARED: [&str; 17] = [
    "Action",
    "At",
    "Cluster",
    "Config",
    "Content",
    "Current",
    "Environment",
    "Mark",
    "OldJob",
    "Order",
    "Pod",
    "Rank",
    "Seat",
    "Site",
    "Stop",
    "Table",
    "Variable",
];

/// The type that a line defines at the level of a module.
fn defined(line: &str) -> Option<&str> {
    let limited = line.strip_prefix("pub(").and_then(|rest| Some(rest.split_once(") ")?.1));
    let rest = limited.or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|of: char| !of.is_alphanumeric() && of != '_').next()
}

#[test]
fn a_type_name_occurs_once_in_the_programs() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let of_tests = ["crates/testkit", "tests"];
    for (name, text) in
        CRATES.iter().filter(|dir| !of_tests.contains(dir)).flat_map(|dir| sources(&format!("{dir}/src")))
    {
        let program = text.lines().take_while(|line| *line != "#[cfg(test)]").filter(|_| !name.ends_with("_tests.rs"));
        program.filter_map(defined).for_each(|of| files.entry(of.to_owned()).or_default().push(name.clone()));
    }
    files.retain(|_, files| files.len() > 1);
    let shared: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(shared, SHARED, "two types have the same name: {files:#?}");
}

#[test]
fn definitions_of_types_are_recognized() {
    for line in
        ["pub struct A {", "enum A<T> {", "pub(in crate::b) struct A(u8);", "pub(crate) trait A: B {", "type A = u8;"]
    {
        assert_eq!(defined(line), Some("A"), "{line}");
    }
    for line in ["    struct A;", "pub fn a() {", "/// A struct", "publish struct"] {
        assert_eq!(defined(line), None, "{line}");
    }
}
