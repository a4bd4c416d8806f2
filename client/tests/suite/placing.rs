//! The master decides whether replicas run in Kubernetes or as processes. Flags that do not work with the chosen master
//! are refused before the submit.

use std::path::Path;

use protocol::master::BackendKind;

use crate::support::fake_master::FakeMaster;
use crate::support::{Ended, client, finish, folder_with_script, run};

const POD_FLAGS: [&[&str]; 16] = [
    &["--image", "digits"],
    &["--push", "localhost:5000"],
    &["--load", "kind"],
    &["--agent-binary", "agent"],
    &["--cpu", "2"],
    &["--memory", "1Gi"],
    &["--gpus", "1"],
    &["--shm", "2Gi"],
    &["--volume", "empty:/data"],
    &["--env-secret", "keys"],
    &["--node-selector", "disk=ssd"],
    &["--toleration", "spot"],
    &["--priority-class", "high"],
    &["--service-account", "trainer"],
    &["--image-pull-policy", "Never"],
    &["--allow-root"],
];

#[track_caller]
fn submit(folder: &Path, master: &FakeMaster, more: &[&str]) -> Ended {
    let mut command = master.client(folder, &[&["--task", "digits"], more].concat());
    finish(command.env("DOCKER_HOST", "unix:///nowhere").spawn().unwrap())
}

#[test]
fn flags_for_kubernetes_are_refused_with_a_local_master() {
    let folder = folder_with_script();
    for flags in POD_FLAGS {
        let ended = run(folder.path(), &[flags, &["--master", "local"]].concat()).expect_code(2);
        let ended = ended.expect_stderr(&format!("error: {} cannot be used with a local master", flags[0]));
        ended.expect_stderr(&format!("hint: leave out {}, or choose a master in Kubernetes", flags[0]));
    }
}

#[test]
fn flags_for_kubernetes_are_refused_if_the_master_runs_replicas_as_processes() {
    let folder = folder_with_script();
    for flags in POD_FLAGS {
        let master = FakeMaster::of(BackendKind::Process);
        let ended = submit(folder.path(), &master, flags).expect_code(2);
        ended.expect_stderr(&format!("error: {} works only in Kubernetes: the master at {}", flags[0], master.url));
        assert_eq!(master.asked(), ["GET /v1/master"], "the client sent other requests");
    }
}

#[test]
fn kubernetes_needs_an_image_but_no_script_in_the_folder() {
    let folder = folder_with_script();
    let master = FakeMaster::of(BackendKind::Kubernetes);
    let ended = submit(folder.path(), &master, &[]).expect_code(2);
    let ended = ended.expect_stderr("error: no image to run: --image is not given, and there is no Dockerfile in ");
    ended.expect_stderr("hint: give --image REF, or put a Dockerfile beside exec.py");
    // The error shows that the client tried to reach Docker.
    let empty = tempfile::tempdir().unwrap();
    submit(empty.path(), &master, &["--image", "digits"]).expect_code(4).expect_stderr("error: cannot reach Docker");
    std::fs::write(empty.path().join("Dockerfile"), "FROM x\n").unwrap();
    let ended = submit(empty.path(), &master, &[]).expect_code(4);
    let ended = ended.expect_stderr("error: cannot reach Docker at unix:///nowhere: there is no socket /nowhere");
    ended.expect_stderr("hint: is Docker running, and may you use it? ").expect_stderr("docker context use NAME");
    assert_eq!(master.asked(), ["GET /v1/master"; 3], "the client sent other requests");
}

#[test]
fn an_invalid_job_is_refused_before_the_master_is_asked() {
    let folder = folder_with_script();
    let master = FakeMaster::of(BackendKind::Kubernetes);
    submit(folder.path(), &master, &["--image", "digits", "--worker-num", "0"]).expect_code(2);
    assert_eq!(master.asked(), Vec::<String>::new());
}

#[test]
fn a_build_needs_an_image_and_docker_but_no_master() {
    let folder = folder_with_script();
    let build = |host: &str, more: &[&str]| {
        let mut command = client(folder.path());
        finish(command.arg("build").args(more).env("DOCKER_HOST", host).spawn().unwrap())
    };
    build("unix:///nowhere", &[]).expect_code(2).expect_stderr("error: no image to run");
    let wrong = build("ssh://me@there", &["--image", "digits"]).expect_code(2);
    wrong.expect_stderr("error: DOCKER_HOST: invalid address \"ssh://me@there\": use unix://PATH, tcp://HOST:PORT");
    let nobody = build("tcp://127.0.0.1:9", &["--image", "digits"]).expect_code(4);
    nobody.expect_stderr("error: cannot reach Docker at tcp://127.0.0.1:9: Connection refused");
}

#[test]
fn an_invalid_tool_in_muster_load_fails_only_commands_that_use_this_variable() {
    let folder = folder_with_script();
    let with_variable = |arguments: &[&str]| {
        let mut command = client(folder.path());
        command.args(arguments).env("MUSTER_LOAD", "helm").env("DOCKER_HOST", "unix:///nowhere");
        finish(command.spawn().unwrap())
    };
    let wrong = with_variable(&["build", "--image", "digits"]).expect_code(2);
    wrong.expect_stderr(
        "error: MUSTER_LOAD: invalid tool \"helm\": use minikube, kind or k3d\nhint: unset MUSTER_LOAD, or set it to minikube",
    );
    for flags in [["--load", "kind"], ["--push", "localhost:5000"]] {
        let ended = with_variable(&[["build", "--image"].as_slice(), &["digits"], &flags].concat()).expect_code(4);
        ended.expect_stderr("error: cannot reach Docker");
    }
    let master = FakeMaster::of(BackendKind::Kubernetes);
    with_variable(&["list", "--master", &master.url]).expect_code(0);
}
