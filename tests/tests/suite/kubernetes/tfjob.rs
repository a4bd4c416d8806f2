//! A TFJob in a cluster without Kubeflow.

use std::fs;

use e2e::cluster::Image;
use e2e::{Place, Stage, within};
use serde_json::{Value, json};

/// Prints the task and the members. A parameter server waits for the end of the job.
const SCRIPT: &str = "import json, os, sys, time
config = json.loads(os.environ['TF_CONFIG'])
print(config['task']['type'], config['task']['index'], {key: len(of) for key, of in config['cluster'].items()}, *sys.argv[1:])
if config['task']['type'] == 'ps': time.sleep(600)
";

/// The replicas of one type.
fn replicas(count: u32, image: &str) -> Value {
    let container = json!({
        "name": "tensorflow", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", SCRIPT], "args": ["--batch=$(BATCH)"], "env": [{ "name": "BATCH", "value": "64" }],
    });
    json!({ "replicas": count, "restartPolicy": "OnFailure", "template": { "spec": { "containers": [container] } } })
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_tfjob_with_every_role_succeeds_and_shows_labels_and_conditions() {
    // This image has the agent too.
    let image = Image::shared().wrapped();
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &image]);
    let types = json!({
        "Chief": replicas(1, &image), "Worker": replicas(2, &image), "PS": replicas(1, &image),
        "Evaluator": replicas(1, &image),
    });
    let tfjob = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": "hello" },
        "spec": { "runPolicy": { "cleanPodPolicy": "Running" }, "tfReplicaSpecs": types },
    });
    fs::write(stage.scene().path().join("job.json"), tfjob.to_string()).expect("write the TFJob");
    let applied = stage.verb(&["apply", "-f", "job.json"]).code(0);
    assert_eq!(applied.stdout, "tfjob/hello created\n");
    applied.says(&["tfjob hello: spec.tfReplicaSpecs: the processes of ", "run as user 65532"]);
    stage.verb(&["wait", "hello"]).code(0);

    let chief = stage.verb(&["logs", "hello", "--replica", "chief-0"]).code(0).stdout;
    assert_eq!(chief, "chief 0 {'chief': 1, 'worker': 2, 'ps': 1} --batch=64\n");
    let object = stage.verb(&["get", "hello", "-o", "json"]).code(0).stdout;
    let object: Value = serde_json::from_str(&object).expect("the client prints JSON");
    let conditions = object["status"]["conditions"].as_array().expect("conditions");
    let types: Vec<&str> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
    assert_eq!(types, ["Created", "Running", "Succeeded"], "{object:#}");
    assert_eq!(object["status"]["replicaStatuses"]["Chief"], json!({ "succeeded": 1 }), "{object:#}");

    // Ended pods stay, and those that still ran are stopped.
    let cluster = stage.cluster();
    within("the pods end", || cluster.live_pods().is_empty().then_some(()), || cluster.to_string());
    let named = |labels: &str| {
        let selector = format!("training.kubeflow.org/job-name=hello,{labels}");
        cluster.namespace.kubectl(&["get", "pods", "-l", &selector, "-o", "name"])
    };
    assert_eq!(named("training.kubeflow.org/job-role=master"), "pod/hello-chief-0\n");
    assert_eq!(
        named("training.kubeflow.org/replica-type=worker,training.kubeflow.org/replica-index=1"),
        "pod/hello-worker-1\n"
    );
    stage.verb(&["delete", "hello"]).code(0);
    assert_eq!(cluster.objects(), Vec::<String>::new());
}
