//! Checks that the packages of `make wheel` and `make dist` can be installed and contain all programs. For this test,
//! the programs are small scripts. `make wheel` and `make dist` themselves try the real programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use e2e::programs::{built, root};
use e2e::{Finished, Scene};

/// A script in place of each program. The script prints where the agent is, and its arguments.
const STAND_IN: &str = r#"#!/bin/sh
own=$(dirname "$(readlink -f "$0")")
for agent in "$own/agent" "$own/../libexec/muster/agent"; do test -x "$agent" && echo "an agent is installed"; done
echo "muster $*"
"#;

#[test]
fn a_wheel_and_a_tar_install_the_client_by_two_names_and_the_agent() {
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
    let run = Finished::of(&mut bash).code(0);
    for (said, times) in [
        ("an agent is installed", 4),
        ("muster --worker-num 2", 4),
        ("tried: ", 2),
        ("-py3-none-manylinux2014_", 2),
        ("-linux.tar.gz: OK", 1),
    ] {
        assert_eq!(run.stdout.matches(said).count(), times, "{said:?} in:\n{}", run.stdout);
    }
}

#[test]
fn muster_runs_the_programs_that_pip_does_not_put_on_the_path() {
    let scene = Scene::new("print('ran')");
    let prefix = tempfile::tempdir().expect("cannot create a temporary folder");
    for (program, to) in
        [("client", "bin/muster"), ("master", "libexec/muster/master"), ("agent", "libexec/muster/agent")]
    {
        let to = prefix.path().join(to);
        fs::create_dir_all(to.parent().expect("the path has a folder")).expect("cannot create the folder");
        fs::hard_link(built(program), &to).or_else(|_| fs::copy(built(program), &to).map(drop)).expect("cannot copy");
    }
    let muster = |arguments: &[&str]| {
        let mut muster = Command::new(prefix.path().join("bin/muster"));
        muster.args(arguments).current_dir(scene.path()).env("XDG_STATE_HOME", scene.path().join("state-home"));
        Finished::of(&mut muster)
    };
    assert_eq!(muster(&["--worker-num", "1"]).code(0).lines("ran").len(), 1);
    for program in ["master", "agent"] {
        assert!(muster(&[program, "--version"]).code(0).stdout.starts_with(program));
        muster(&[program, "--none"]).code(2).says(&["--none"]);
    }
    fs::remove_file(prefix.path().join("libexec/muster/agent")).expect("cannot remove the agent");
    muster(&["agent", "--version"]).code(3).says(&["there is no program \"agent\"", "libexec/muster"]);
}
