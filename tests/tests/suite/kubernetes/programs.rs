//! TFJobs whose containers have no command. The client (`client apply`) or the master (kubectl) looks up the programs of
//! their images.

use std::fs;

use e2e::cluster::Image;
use e2e::{Finished, Place, Stage, within};
use serde_json::{Value, json};
use testkit::registry::{FakeAnswer, FakeRegistry, TestImage, index};

/// Returns a TFJob of this version with one worker that runs the program of an image.
fn without_command(name: &str, version: &str, image: &str) -> Value {
    let container = json!({ "name": "tensorflow", "image": image, "imagePullPolicy": "IfNotPresent" });
    let worker = json!({ "template": { "spec": { "containers": [container] } } });
    json!({
        "apiVersion": format!("kubeflow.org/{version}"), "kind": "TFJob", "metadata": { "name": name },
        "spec": { "tfReplicaSpecs": { "Worker": worker } },
    })
}

/// Names of TFJobs, the versions of their API, and the ends of their images' Dockerfiles.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("both", "v1alpha2", "ENTRYPOINT [\"python\"]\nCMD [\"-c\", \"print('both')\"]"),
    ("cmd", "v1beta1", "CMD [\"python\", \"-c\", \"print('cmd')\"]"),
    ("entrypoint", "v1", "ENTRYPOINT [\"python\", \"-c\", \"print('entrypoint')\"]"),
    ("folder", "v1", "WORKDIR /opt\nENTRYPOINT [\"python\", \"-c\", \"import os; print('folder of', os.getcwd())\"]"),
    ("named", "v1", "USER nobody\nENTRYPOINT [\"python\", \"-c\", \"print('named')\"]"),
];

/// Stores the images of [`PROGRAMS`] in the registry, each as an index. Returns them with the TFJobs that run them.
async fn push(registry: &FakeRegistry) -> (Vec<Image>, Vec<Value>) {
    let (mut images, mut tfjobs) = (vec![], vec![]);
    for (name, version, program) in PROGRAMS {
        // The nodes use the images of this machine's Docker, so the registry needs no layers.
        let dockerfile = format!("FROM {}\n{program}\n", Image::shared().name());
        let (image, config) = Image::named_at(&registry.host(), &dockerfile);
        let (_, path) = image.name().split_once('/').expect("a name with a host");
        let known = TestImage::new(&config);
        registry.push(path, &known).await;
        registry.push_manifest(path, &index(&[("linux/amd64", &known), ("linux/arm64", &known)])).await;
        tfjobs.push(without_command(name, version, image.name()));
        images.push(image);
    }
    (images, tfjobs)
}

fn list(items: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// Checks what the programs of [`PROGRAMS`] have printed.
fn assert_outputs(stage: &Stage) {
    for (name, _, _) in PROGRAMS {
        let output = stage.verb(&["logs", name, "--replica", "worker-0"]).code(0).stdout;
        let expected = if name == "folder" { "folder of /opt\n".to_owned() } else { format!("{name}\n") };
        assert_eq!(output, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) whose nodes use this machine's Docker"]
async fn client_apply_runs_the_programs_that_the_registry_names() {
    let registry = FakeRegistry::start().await;
    let agent_image = Image::shared().wrapped();
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &agent_image]);
    let (_images, tfjobs) = push(&registry).await;
    fs::write(stage.scene().path().join("jobs.json"), list(&tfjobs)).expect("cannot write the TFJobs");
    // Docker has the images. Without Docker, the client asks the registry.
    let mut apply = stage.client(&["apply", "-f", "jobs.json"]);
    let applied = Finished::of(apply.env("DOCKER_HOST", "unix:///nowhere/docker.sock")).code(0);
    let created = PROGRAMS.map(|(name, _, _)| format!("tfjob/{name} created\n"));
    assert_eq!(applied.stdout, created.concat());
    for (name, _, _) in PROGRAMS {
        stage.verb(&["wait", name]).code(0);
    }
    assert_outputs(&stage);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) whose nodes use this machine's Docker"]
async fn kubectl_apply_runs_the_programs_that_the_registry_names_and_waits_for_a_registry_that_does_not_answer() {
    let registry = FakeRegistry::start().await;
    let agent_image = Image::shared().wrapped();
    let args = ["--state-dir", "state", "--agent-image", &agent_image, "--watch-tfjobs"];
    let stage = Stage::with_master(Place::Cluster, "", &args);
    let namespace = &stage.cluster().namespace;
    namespace.add_tfjobs();

    let (_images, mut items) = push(&registry).await;
    registry.set("/v2/slow/manifests/1", FakeAnswer::status(503)).await;
    items.push(without_command("slow", "v1", &format!("{}/slow:1", registry.host())));
    items.push(without_command("absent", "v1", &format!("{}/absent:1", registry.host())));
    namespace.kubectl_with(&["apply", "-f", "-"], &list(&items));

    let states = || {
        let lines = namespace.kubectl(&["get", "tfjobs", "--no-headers"]);
        let words = lines.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        words.collect::<Vec<_>>()
    };
    let ran = PROGRAMS.map(|(name, _, _)| format!("{name} Succeeded"));
    let expected = [&["absent Failed".to_owned()], &ran[..], &["slow Created".to_owned()]].concat();
    let state = || format!("{:?}\n{}", states(), stage.cluster());
    within("the programs of the images end", || (states() == expected).then_some(()), state);
    assert_outputs(&stage);
    let message =
        |name: &str| namespace.kubectl(&["get", "tfjob", name, "-o", "jsonpath={.status.conditions[0].message}"]);
    assert!(message("slow").contains("answered 503 Service Unavailable"), "{}", message("slow"));
    assert!(message("absent").contains("answered 404: it has no such image"), "{}", message("absent"));
    assert!(message("absent").contains("add the field command"), "{}", message("absent"));
}
