//! Checks that the packages of `make wheel` and `make dist` can be installed and contain all programs. For this test,
//! the programs are small scripts. `make wheel` and `make dist` themselves try the real programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use e2e::Finished;
use e2e::programs::root;

/// A script in place of each program. The script prints which programs of Muster are in its folder, and its arguments.
const STAND_IN: &str = r#"#!/bin/sh
for program in client master agent; do test -x "$(dirname "$0")/$program" && echo "$program is beside it"; done
echo "muster $*"
"#;

#[test]
fn a_wheel_and_a_tar_install_muster_and_the_agent_in_one_folder() {
    let folder = tempfile::tempdir().expect("cannot create a temporary folder");
    for program in ["client", "master", "agent"] {
        let path = folder.path().join(program);
        fs::write(&path, STAND_IN).expect("cannot write the file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("cannot set the mode");
    }
    let script = r#"
        mkdir "$FOLDER/out"
        packaging/try "$(python3 packaging/wheel.py 1.2.3 "$FOLDER" "$FOLDER/out")"
        packaging/try "$(packaging/tarball 1.2.3 "$FOLDER" "$FOLDER/out")"
        cd "$FOLDER/out" && sha256sum --check SHA256SUMS"#;
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(root()).env("FOLDER", folder.path());
    let run = Finished::of(bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).code(0);
    for (said, times) in [
        ("agent is beside it", 2),
        ("muster --worker-num 2", 2),
        ("tried: ", 2),
        ("-py3-none-manylinux2014_", 2),
        ("-linux.tar.gz: OK", 1),
    ] {
        assert_eq!(run.stdout.matches(said).count(), times, "{said:?} in:\n{}", run.stdout);
    }
}
