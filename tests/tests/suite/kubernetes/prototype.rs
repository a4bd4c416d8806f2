//! Tests of the first prototype's programs in a cluster: its client and its agents with Muster's master, and its master
//! with Muster's agents. `tests/prototype` imitates the prototype's programs.

use std::fs;

use e2e::cluster::Image;
use e2e::programs::{prototype, root};
use e2e::{Finished, Place, Stage, within};
use protocol::view::JobState;

/// Prints the number of workers, and runs for 10 s.
const EXEC_PY: &str = "import os, time\nprint('workers', os.environ['NUM_WORKERS'], flush=True)\ntime.sleep(10)\n";

/// Builds an image with the prototype's agent and [`EXEC_PY`].
fn image_of_prototype(stage: &Stage) -> Image {
    let context = stage.scene().path().join("prototype");
    fs::create_dir(&context).expect("cannot create the folder");
    for file in ["agent.py", "Dockerfile"] {
        fs::copy(root().join("tests/prototype").join(file), context.join(file)).expect("cannot copy the file");
    }
    fs::write(context.join("exec.py"), EXEC_PY).expect("cannot write the file");
    Image::unwrapped(&context)
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_with_the_prototypes_client_and_agents_runs_once_even_if_the_master_is_killed() {
    let mut stage = Stage::new(Place::Cluster, "");
    let image = image_of_prototype(&stage);
    let url = stage.cluster().master.url.clone();
    Finished::of(&mut prototype("client.py", &[&url, "AllReduce", "2", "0", image.name(), "seed"])).code(0);
    let started = || (stage.status("seed").state == JobState::Running).then_some(());
    within("both agents are started", started, || stage.cluster().to_string());

    stage.kill_master();
    stage.next_master(&["--state-dir", "state"]);
    assert_eq!(stage.finished("seed").state, JobState::Succeeded);
    for pod in ["seed-worker-0", "seed-worker-1"] {
        let logs = stage.cluster().namespace.kubectl(&["logs", pod]);
        assert_eq!(logs.matches("prototype: start").count(), 1, "{logs}");
        assert!(logs.contains("workers 2"), "{logs}");
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_prototypes_master_runs_scripts_on_musters_agents_in_pods() {
    let stage = Stage::hello(Place::Cluster);
    let namespace = &stage.cluster().namespace;
    let open = Image::open();
    let image = format!("--image={}", open.wrapped());
    let pods = ["one", "two"];
    let ip_of = |pod: &str| {
        let ip = || Some(namespace.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"]));
        within("the pod has its IP", || ip().filter(|ip| !ip.is_empty()), || stage.cluster().to_string())
    };
    for pod in pods {
        namespace.kubectl(&["run", pod, &image, "--restart=Never", "--image-pull-policy=Never"]);
    }
    let ips = pods.map(ip_of);
    for ip in &ips {
        let healthy = || (stage.scene().curl(&[&format!("http://{ip}:7896/healthz")]) == "OK").then_some(());
        within("Muster's agent answers", healthy, || stage.cluster().to_string());
    }
    Finished::of(&mut prototype("master.py", &[&ips[0], &ips[1]])).code(0);
    for (pod, index) in pods.into_iter().zip([0, 1]) {
        let printed = || Some(namespace.kubectl(&["logs", pod])).filter(|logs| logs.contains("TF_CONFIG {"));
        let logs = within("exec.py has printed", printed, || stage.cluster().to_string());
        assert!(logs.contains(&format!(r#""index":{index}"#)) && logs.contains(&format!("{}:1234", ips[1])), "{logs}");
    }
}
