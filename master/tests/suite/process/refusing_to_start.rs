//! Tests that a master that cannot start exits with 2 and prints an error that names the cause.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::harness::{Folders, built, run_to_its_end};

/// Asserts that the command exits with 2 and prints one line that begins with `error: ` and contains these texts.
fn refuses(command: &mut Command, texts: &[&str]) {
    let (code, said) = run_to_its_end(command);
    assert_eq!(code, Some(2), "{said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    for text in texts {
        assert!(errors[0].contains(text), "{:?} does not contain {text:?}", errors[0]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have UTF-8 names")
}

#[tokio::test]
async fn a_second_master_on_one_state_directory_is_refused() {
    let folders = Folders::new("");
    let first = folders.master();
    let holder = format!("process {}", first.id());
    refuses(folders.command().args(["--listen", "127.0.0.1:0"]), &[text(folders.state.path()), &holder, "--state-dir"]);
    let (status, list) = first.get("/v1/jobs").await;
    assert_eq!((status, list["jobs"].as_array().map(Vec::len)), (200, Some(0)));
}

#[tokio::test]
async fn a_state_directory_is_free_again_after_its_master_was_killed() {
    let folders = Folders::new("");
    folders.master().kill();
    let (status, _) = folders.master().get("/v1/jobs").await;
    assert_eq!(status, 200);
}

#[test]
fn kubernetes_flags_are_refused_with_the_process_back_end() {
    let folders = Folders::new("");
    for flag in [["--namespace", "a"].as_slice(), &["--agent-key-file", "a"], &["--allow-host-volumes"]] {
        refuses(folders.command().args(flag), &[flag[0], "has no meaning with --backend process"]);
    }
    let by_variable = folders.command().env("MUSTER_ALLOW_HOST_VOLUMES", "1").output().expect("cannot run the master");
    assert!(String::from_utf8_lossy(&by_variable.stderr).contains("--allow-host-volumes has no meaning"));
}

#[test]
fn a_state_directory_that_cannot_be_created_is_refused() {
    let folders = Folders::new("");
    let file = folders.state.path().join("file");
    std::fs::write(&file, "").expect("cannot write the file");
    let below = file.join("state");
    let mut command = Command::new(built("master"));
    command.args(["--listen", "127.0.0.1:0", "--state-dir", text(&below)]).stderr(Stdio::piped());
    refuses(&mut command, &[text(&below), "--state-dir"]);
}

#[test]
fn a_damaged_database_is_refused() {
    let folders = Folders::new("");
    std::fs::write(folders.state.path().join("jobs.sqlite"), "no database at all\n".repeat(100))
        .expect("cannot write the file");
    refuses(folders.command().args(["--listen", "127.0.0.1:0"]), &["records", "not a database"]);
}

#[test]
fn a_port_that_is_taken_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("no free port");
    let address = taken.local_addr().expect("the listener has no address").to_string();
    refuses(Folders::new("").command().args(["--listen", &address]), &[&address, "--listen"]);
    let (_, said) = run_to_its_end(Folders::new("").command().args(["--listen", &address]));
    assert!(said.contains(&format!("\nhint: client list --master http://{address} shows")), "{said}");
}

#[test]
fn listening_on_all_addresses_requires_a_token() {
    refuses(Folders::new("").command().args(["--listen", "0.0.0.0:0"]), &["0.0.0.0:0", "--token-file"]);
}

#[test]
fn an_empty_or_absent_token_file_is_refused() {
    let folders = Folders::new("");
    let (empty, absent) = (folders.work.path().join("empty"), folders.work.path().join("absent"));
    std::fs::write(&empty, "\n").expect("cannot write the file");
    for file in [empty, absent] {
        let arguments = ["--listen", "127.0.0.1:0", "--token-file", text(&file)];
        refuses(folders.command().args(arguments), &[text(&file)]);
    }
}

#[test]
fn a_missing_agent_binary_is_refused() {
    let folders = Folders::new("");
    let absent = folders.work.path().join("no-agent");
    let mut command = Command::new(built("master"));
    command.args(["--listen", "127.0.0.1:0", "--state-dir", text(folders.state.path())]);
    command.args(["--agent-binary", text(&absent)]).stderr(Stdio::piped());
    refuses(&mut command, &[text(&absent), "--agent-binary"]);
}

#[test]
fn an_unknown_flag_is_refused() {
    refuses(Folders::new("").command().arg("--no-such-flag"), &["--no-such-flag"]);
}
