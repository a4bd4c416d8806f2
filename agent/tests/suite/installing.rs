//! `agent --install`: the copy runs, and no other file remains beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{failed, program};

#[test]
fn the_agent_copies_itself_over_an_earlier_copy() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bin/agent");
    for _ in 0..2 {
        assert!(program().arg("--install").arg(&target).status().unwrap().success());
    }
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
    let version = |program: &mut std::process::Command| program.arg("--version").output().unwrap().stdout;
    assert_eq!(version(&mut std::process::Command::new(&target)), version(&mut program()));
}

#[test]
fn the_error_names_a_target_that_cannot_be_written() {
    let (code, error) = failed(program().args(["--install", "/dev/null/agent"]));
    assert!(error.starts_with("error: cannot copy the agent to \"/dev/null/agent\": "), "{error}");
    assert_eq!(code, Some(2));
}
