//! Tests that a job that brings its code can run in pods of an unmodified image.

use std::fs;

use e2e::cluster::Image;
use e2e::code::submit_with_code;
use e2e::programs::static_agent;
use e2e::{Place, Running, Scene, Stage};
use protocol::view::JobState;
use serde_json::json;

const SCRIPT: &str = "import getpass, os, tempfile, time
tempfile.TemporaryFile()
open(os.path.expanduser('~/cache'), 'w')
print(getpass.getuser(), os.getuid(), os.getcwd(), open('greeting').read(), flush=True)
time.sleep(600)
";

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn an_unmodified_image_runs_code_and_pushed_code_with_the_agent_from_another_image() {
    let context = |dockerfile: &str| {
        let scene = Scene::new("");
        fs::write(scene.path().join("Dockerfile"), dockerfile).expect("cannot write the Dockerfile");
        fs::copy(static_agent(), scene.path().join("agent")).expect("cannot copy the agent");
        Image::unwrapped(scene.path())
    };
    let agent = context("FROM scratch\nCOPY agent /muster/agent\nUSER 65532:65532\n");
    let own = context("FROM python:3.11-slim\n");
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &agent.of_nodes()]);
    let files = [("train.py", SCRIPT), ("greeting", "hello")];
    submit_with_code(
        stage.scene(),
        stage.url(),
        "brings",
        &files,
        json!({ "image": own.of_nodes(), "run_policy": { "on_failure": "wait" } }),
    );
    let output = stage.follow("brings");
    output.until_printed(2, "muster 65532 ");
    each_save_runs_in_the_same_pods(&stage, &output);
    let job = stage.finished("brings");
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}");
    let mut lines: Vec<String> = stage.verb(&["logs", "brings"]).code(0).stdout.lines().map(str::to_owned).collect();
    lines.sort();
    let line = |worker: u32| format!("worker-{worker} │ muster 65532 /muster/work hello");
    lines.retain(|line| line.ends_with(" hello"));
    assert_eq!(lines, [line(0), line(1)]);
}

fn each_save_runs_in_the_same_pods(stage: &Stage, output: &Running) {
    let folder = stage.scene().path().join("src");
    fs::create_dir(&folder).expect("cannot create the folder");
    let save = |text: &str| fs::write(folder.join("train.py"), text).expect("cannot write the script");
    let number = |number: u32, rest: &str| format!("import time\nprint('number {number} ', flush=True)\n{rest}\n");
    save(&number(0, "time.sleep(600)"));
    let containers = "{range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} \
                      {.status.containerStatuses[0].state.running.startedAt}{\"\\n\"}{end}";
    let path = format!("jsonpath={containers}");
    let pods = || stage.cluster().namespace.kubectl(&["get", "pods", "-o", &path]);
    // An agent can answer before the API shows the start of its container, so wait.
    stage.cluster().namespace.kubectl(&["wait", "pods", "--all", "--for=condition=Ready", "--timeout=60s"]);
    let before = pods();
    let line = ["push", "brings", "src", "--watch", "--master", stage.url()];
    let watch = Running::of(&mut stage.scene().client(&line));
    for count in 0..20 {
        output.until_printed(2, &format!("number {count} "));
        save(&number(count + 1, "time.sleep(600)"));
    }
    output.until_printed(2, "number 20 ");
    assert_eq!(pods(), before);
    let view = stage.status("brings");
    assert_eq!((view.pushes, view.restarts.total()), (21, 0));
    save("raise ValueError('the job waits')\n");
    watch.until_said("job brings is halted: worker-");
    assert_eq!(pods(), before);
    save(&number(21, ""));
    watch.ended().code(0).says(&["job brings runs the new code after", "succeeded in"]);
}
