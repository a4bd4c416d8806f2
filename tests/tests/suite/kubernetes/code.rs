//! A job that brings its code runs in pods of an image that nobody has changed.

use std::fs;

use e2e::cluster::Image;
use e2e::code::submit_with_code;
use e2e::programs::static_agent;
use e2e::{Place, Scene, Stage};
use protocol::view::JobState;
use serde_json::json;

const SCRIPT: &str = "import getpass, os, tempfile
tempfile.TemporaryFile()
open(os.path.expanduser('~/cache'), 'w')
print(getpass.getuser(), os.getuid(), os.getcwd(), open('greeting').read())
";

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn an_unmodified_image_runs_code_with_the_agent_from_another_image() {
    let context = |dockerfile: &str| {
        let scene = Scene::new("");
        fs::write(scene.path().join("Dockerfile"), dockerfile).expect("write the Dockerfile");
        fs::copy(static_agent(), scene.path().join("agent")).expect("copy the agent");
        Image::unwrapped(scene.path())
    };
    let agent = context("FROM scratch\nCOPY agent /muster/agent\nUSER 65532:65532\n");
    let own = context("FROM python:3.11-slim\n");
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &agent.of_nodes()]);
    let files = [("train.py", SCRIPT), ("greeting", "hello")];
    submit_with_code(stage.scene(), stage.url(), "brings", &files, json!({ "image": own.of_nodes() }));
    let job = stage.finished("brings");
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}");
    let mut lines: Vec<String> = stage.verb(&["logs", "brings"]).code(0).stdout.lines().map(str::to_owned).collect();
    lines.sort();
    let line = |worker: u32| format!("worker-{worker} │ muster 65532 /muster/work hello");
    assert_eq!(lines, [line(0), line(1)]);
}
