//! Checks rules of ARCHITECTURE.md that neither the compiler nor a lint checks.

mod circles;
mod type_names;

use std::fs;
use std::process::Command;

use e2e::programs::{files_in, root};

pub(crate) const CRATES: [&str; 14] = [
    "crates/protocol",
    "crates/job",
    "crates/launchers",
    "crates/bounded-log",
    "crates/listener",
    "crates/image-program",
    "crates/history",
    "crates/placed-code",
    "crates/master-client",
    "agent",
    "master",
    "client",
    "crates/testkit",
    "tests",
];
/// A file with more lines before its tests has a second concept. Find that concept, and give it a file.
const MOST_LINES: usize = 500;

/// Returns the path and the text of all Rust files in a folder of the repository. Paths begin at the root.
pub(crate) fn sources(dir: &str) -> Vec<(String, String)> {
    let files = files_in(&root().join(dir)).into_iter();
    let rust = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let found: Vec<_> = rust
        .map(|path| {
            let name = path.strip_prefix(root()).expect("the file is not in the repository").display().to_string();
            (name, fs::read_to_string(&path).expect("cannot read the file"))
        })
        .collect();
    assert!(!found.is_empty(), "there are no Rust files in {dir}");
    found
}

/// Returns the lines of these files that contain one of `words`. Ignores comments.
fn lines_with(files: &[(String, String)], words: &[&str]) -> Vec<String> {
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let of_file = |(name, text): &(String, String)| {
        let lines = text.lines().filter(code).filter(|line| words.iter().any(|word| line.contains(word)));
        lines.map(|line| format!("{name}: {}", line.trim())).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// Returns the names of the crates that the crate `name` links. `edges` are further flags of `cargo tree`.
fn links(name: &str, edges: &[&str]) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "-p", name, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(edges)
        .current_dir(root())
        .output()
        .expect("cannot start cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let names = String::from_utf8(tree.stdout).expect("a name is not UTF-8");
    let mut names: Vec<String> =
        names.lines().skip(1).filter_map(|line| Some(line.split(' ').next()?.into())).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn the_protocol_links_only_known_crates_and_does_no_io() {
    assert_eq!(
        links("protocol", &["--depth", "1"]),
        ["hex", "humantime", "regex-lite", "serde", "serde_json", "serde_with", "sha2", "thiserror"]
    );
    let io = ["std::fs", "std::io", "std::process", "tokio", "async fn", "SystemTime", "Instant"];
    assert_eq!(lines_with(&sources("crates/protocol/src"), &io), Vec::<String>::new());
}

#[test]
fn the_agent_links_neither_master_nor_client_nor_their_large_libraries() {
    let heavy = ["axum", "kube", "clap", "reqwest", "master", "client"];
    let linked: Vec<String> = links("agent", &[]).into_iter().filter(|name| heavy.contains(&name.as_str())).collect();
    assert_eq!(linked, Vec::<String>::new());
}

#[test]
fn the_rules_of_a_job_and_of_launchers_link_only_known_crates_and_use_no_clock_or_environment() {
    assert_eq!(links("job", &["--depth", "1"]), ["protocol", "serde", "serde_json"]);
    let of_launchers = ["k8s-openapi", "protocol", "serde-saphyr", "serde_json", "serde_path_to_error", "strsim"];
    assert_eq!(links("launchers", &["--depth", "1"]), of_launchers);
    let outside = ["std::env", "::now()", "std::fs", "std::net::Tcp", "std::process", "async fn", ".await"];
    for dir in ["crates/job/src", "crates/launchers/src"] {
        assert_eq!(lines_with(&sources(dir), &outside), Vec::<String>::new());
    }
}

#[test]
fn only_config_files_read_the_environment() {
    for dir in [
        "agent/src",
        "master/src",
        "client/src",
        "crates/bounded-log/src",
        "crates/listener/src",
        "crates/image-program/src",
        "crates/history/src",
        "crates/placed-code/src",
        "crates/master-client/src",
        "crates/protocol/src",
    ] {
        let others: Vec<_> = sources(dir).into_iter().filter(|(name, _)| !name.ends_with("/config.rs")).collect();
        let readers = ["env::var", "clippy::disallowed_methods"];
        assert_eq!(lines_with(&others, &readers), Vec::<String>::new());
    }
}

#[test]
fn in_the_client_only_the_output_module_prints() {
    let others: Vec<_> =
        sources("client/src").into_iter().filter(|(name, _)| !name.starts_with("client/src/output")).collect();
    assert_eq!(lines_with(&others, &["io::stdout", "io::stderr", "anstream::", "println!"]), Vec::<String>::new());
}

#[test]
fn only_the_modules_for_kubernetes_and_docker_use_their_libraries() {
    let outside = |dir: &str, inside: &[&str]| -> Vec<(String, String)> {
        sources(dir).into_iter().filter(|(name, _)| !inside.iter().any(|part| name.starts_with(part))).collect()
    };
    let kube = ["kube::Client", "kube::api", "kube::runtime", "use kube", "k8s_openapi"];
    let inside = ["master/src/backend/kube/", "master/src/kube/", "master/src/store/kube", "master/src/kubeflow/"];
    let master = outside("master/src", &inside);
    assert_eq!(lines_with(&master, &kube), Vec::<String>::new());
    assert_eq!(lines_with(&outside("client/src", &["client/src/cluster/"]), &kube), Vec::<String>::new());
    assert_eq!(lines_with(&outside("client/src", &["client/src/image/"]), &["bollard"]), Vec::<String>::new());
}

#[test]
fn every_rust_file_has_a_description_and_every_source_at_most_500_lines_before_its_tests() {
    for (name, text) in CRATES.iter().chain(&["fuzz"]).flat_map(|dir| sources(dir)) {
        assert!(text.starts_with("//! "), "{name} must begin with a description: //!");
        let is_test = name.contains("/tests/") || name.ends_with("_tests.rs");
        let lines = if is_test { 0 } else { text.lines().take_while(|line| *line != "#[cfg(test)]").count() };
        assert!(lines <= MOST_LINES, "{name} has {lines} lines before its tests");
    }
}

#[test]
fn a_library_with_test_false_contains_no_tests() {
    let manifest =
        |name: &str| fs::read_to_string(root().join(name).join("Cargo.toml")).expect("cannot read Cargo.toml");
    let mut off = CRATES.into_iter().filter(|name| manifest(name).contains("[lib]\ntest = false\n")).peekable();
    assert!(off.peek().is_some(), "no library has `test = false`");
    let tests: Vec<String> =
        off.flat_map(|name| lines_with(&sources(&format!("{name}/src")), &["cfg(test)"])).collect();
    assert_eq!(tests, Vec::<String>::new(), "no command runs these tests");
}

#[test]
fn the_main_files_are_short() {
    for program in ["agent", "master", "client"] {
        let main = fs::read_to_string(root().join(program).join("src/main.rs")).expect("cannot read main.rs");
        assert!(main.lines().count() < 25, "{program}/src/main.rs is too long");
    }
}
