//! The borders of ARCHITECTURE.md that neither the compiler nor a lint keeps.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::programs::root;

const CRATES: [&str; 7] = ["protocol", "bounded-log", "agent", "master", "client", "testkit", "tests"];
/// A file that has grown past this is missing a concept.
const MOST_LINES: usize = 400;

/// Every Rust file below a folder of the repository, by its path from the root.
fn sources(dir: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    collect(&root().join(dir), &mut found);
    assert!(!found.is_empty(), "there are Rust files in {dir}");
    found
}

fn collect(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).expect("it is below the root").display().to_string();
            found.push((name, fs::read_to_string(&path).expect("a readable file")));
        }
    }
}

/// The lines of these files that hold one of `words`, comments left out.
fn lines_with(files: &[(String, String)], words: &[&str]) -> Vec<String> {
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let of_file = |(name, text): &(String, String)| {
        let lines = text.lines().filter(code).filter(|line| words.iter().any(|word| line.contains(word)));
        lines.map(|line| format!("{name}: {}", line.trim())).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// The crates that a crate of ours links, itself left out.
fn links(of: &str, edges: &[&str]) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "-p", of, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(edges)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let names = String::from_utf8(tree.stdout).expect("names are text");
    let mut names: Vec<String> =
        names.lines().skip(1).filter_map(|line| Some(line.split(' ').next()?.into())).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn the_protocol_is_words_alone() {
    assert_eq!(links("protocol", &["--depth", "1"]), ["serde", "thiserror"]);
    let io = ["std::fs", "std::io", "std::process", "tokio", "async fn", "SystemTime", "Instant"];
    assert_eq!(lines_with(&sources("protocol/src"), &io), Vec::<String>::new());
}

#[test]
fn the_agent_links_none_of_the_others_libraries() {
    let heavy = ["axum", "kube", "clap", "reqwest", "master", "client"];
    let linked: Vec<String> = links("agent", &[]).into_iter().filter(|name| heavy.contains(&name.as_str())).collect();
    assert_eq!(linked, Vec::<String>::new());
}

#[test]
fn what_decides_about_a_job_is_pure() {
    let outside =
        ["tokio", "axum", "kube::", "reqwest", "hyper", "std::env", "::now()", "std::fs", "async fn", ".await"];
    assert_eq!(lines_with(&sources("master/src/job"), &outside), Vec::<String>::new());
}

#[test]
fn the_environment_is_read_in_config_files_alone() {
    for dir in ["agent/src", "master/src", "client/src", "bounded-log/src", "protocol/src"] {
        let others: Vec<_> = sources(dir).into_iter().filter(|(name, _)| !name.ends_with("/config.rs")).collect();
        let readers = ["env::var", "clippy::disallowed_methods"];
        assert_eq!(lines_with(&others, &readers), Vec::<String>::new());
    }
}

#[test]
fn only_the_outputs_of_the_client_name_its_streams() {
    let others: Vec<_> =
        sources("client/src").into_iter().filter(|(name, _)| !name.starts_with("client/src/output")).collect();
    assert_eq!(lines_with(&others, &["io::stdout", "io::stderr", "anstream::", "println!"]), Vec::<String>::new());
}

#[test]
fn kubernetes_and_docker_are_known_where_they_are_spoken_to_alone() {
    let outside = |dir: &str, inside: &[&str]| -> Vec<(String, String)> {
        sources(dir).into_iter().filter(|(name, _)| !inside.iter().any(|part| name.starts_with(part))).collect()
    };
    let kube = ["kube::Client", "kube::api", "kube::runtime", "use kube", "k8s_openapi"];
    let master = outside("master/src", &["master/src/backend/kube/", "master/src/kube/", "master/src/store/kube.rs"]);
    assert_eq!(lines_with(&master, &kube), Vec::<String>::new());
    assert_eq!(lines_with(&outside("client/src", &["client/src/image/"]), &["bollard"]), Vec::<String>::new());
}

#[test]
fn every_file_says_what_it_owns_and_stays_short() {
    for (name, text) in CRATES.iter().chain(&["fuzz"]).flat_map(|dir| sources(dir)) {
        assert!(text.starts_with("//! "), "{name} begins by saying what it owns");
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{name} has {lines} lines");
    }
}

#[test]
fn the_wiring_and_the_map_stay_small() {
    for program in ["agent", "master", "client"] {
        let main = fs::read_to_string(root().join(program).join("src/main.rs")).expect("a main.rs");
        assert!(main.lines().count() < 25, "{program}/src/main.rs is thin");
    }
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(map.lines().count() < 200, "ARCHITECTURE.md is a map");
}
