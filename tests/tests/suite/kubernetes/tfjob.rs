//! Tests of TFJobs in a cluster without Kubeflow.

use std::fs;

use e2e::cluster::{Cluster, Fault, FaultProxy, Image, On};
use e2e::{Finished, Place, Scene, Stage, within};
use serde_json::{Value, json};

/// Prints the task and the number of members of each role. A parameter server then waits until the job ends.
const SCRIPT: &str = "import json, os, sys, time
config = json.loads(os.environ['TF_CONFIG'])
print(config['task']['type'], config['task']['index'], {key: len(of) for key, of in config['cluster'].items()}, *sys.argv[1:])
if config['task']['type'] == 'ps': time.sleep(600)
";

/// Returns the specification of one type's replicas.
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
    // This image contains the agent too, so it serves as agent image and as training image.
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
    fs::write(stage.scene().path().join("job.json"), tfjob.to_string()).expect("cannot write the TFJob");
    let applied = stage.verb(&["apply", "-f", "job.json"]).code(0);
    assert_eq!(applied.stdout, "tfjob/hello created\n");
    applied.says(&["tfjob hello: spec.tfReplicaSpecs: the processes of ", "run as user 65532"]);
    stage.verb(&["wait", "hello"]).code(0);

    let chief = stage.verb(&["logs", "hello", "--replica", "chief-0"]).code(0).stdout;
    assert_eq!(chief, "chief 0 {'chief': 1, 'worker': 2, 'ps': 1} --batch=64\n");
    let object = stage.verb(&["get", "hello", "-o", "json"]).code(0).stdout;
    let object: Value = serde_json::from_str(&object).expect("the client has not printed JSON");
    let conditions = object["status"]["conditions"].as_array().expect("no conditions");
    let types: Vec<&str> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
    assert_eq!(types, ["Created", "Running", "Succeeded"], "{object:#}");
    assert_eq!(object["status"]["replicaStatuses"]["Chief"], json!({ "succeeded": 1 }), "{object:#}");

    // With the policy `Running`, the master stops pods that still run. Ended pods stay.
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

/// Returns a TFJob with one worker that runs this command.
fn of_one_worker(name: &str, command: Value, image: &str) -> Value {
    let mut worker = replicas(1, image);
    worker["template"]["spec"]["containers"][0]["command"] = command;
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": name },
        "spec": { "tfReplicaSpecs": { "Worker": worker } },
    })
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_master_ignores_tfjobs_and_install_refuses_them_if_another_program_owns_their_kind() {
    let api = FaultProxy::start();
    let resource = r#"{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "kubeflow.org/v1", "resources": [
        {"name": "tfjobs", "singularName": "tfjob", "namespaced": true, "kind": "TFJob", "verbs": ["list"]}]}"#;
    api.misbehave(On::Reading("/apis/kubeflow.org/v1"), Fault::Instead(resource));
    let scene = Scene::new("");
    let args = ["--state-dir", "state", "--watch-tfjobs"];
    let cluster = Cluster::behind(&api, &scene, Image::shared(), &args);
    cluster.namespace.add_tfjobs();
    let refused = of_one_worker("refused", json!([]), "mnist:1");
    cluster.namespace.kubectl_with(&["apply", "-f", "-"], &refused.to_string());
    let is_told =
        || cluster.master.log().contains("the cluster does not have Muster's definition of TFJobs").then_some(());
    within("the master logs that Muster's definition of TFJobs is missing", is_told, || cluster.to_string());
    let status = || cluster.namespace.kubectl(&["get", "tfjob", "refused", "-o", "jsonpath={.status}"]);
    assert_eq!(status(), "");

    let kind = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tfjobs.kubeflow.org", "labels": {"app": "training-operator"}}}"#;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tfjobs.kubeflow.org";
    api.misbehave(On::Reading(path), Fault::Instead(kind));
    let place = format!("kube:{}", cluster.namespace.name());
    let mut client = scene.client(&["--master", &place, "install", "--tfjobs"]);
    let installed = Finished::of(client.env("KUBECONFIG", api.kubeconfig())).code(2);
    installed.says(&["has already installed the kind TFJob", "client apply -f FILE"]);

    // The second fault has replaced the first fault, so the master now sees the cluster's own kind.
    within("the master follows the TFJobs", || (!status().is_empty()).then_some(()), || cluster.to_string());
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn kubectl_apply_runs_tfjobs_without_kubeflow() {
    let image = Image::shared().wrapped();
    let args = ["--state-dir", "state", "--agent-image", &image, "--watch-tfjobs"];
    let stage = Stage::with_master(Place::Cluster, "", &args);
    let cluster = stage.cluster();
    let namespace = &cluster.namespace;
    namespace.add_tfjobs();

    let tfjob = |name: &str, command: Value| of_one_worker(name, command, &image);
    // This job brings its script: `client apply` sends the folder `code`.
    let brought = tfjob("brought", json!(["python", "/image/hello.py"]));
    fs::create_dir(stage.scene().path().join("code")).expect("cannot create the folder");
    for (name, text) in [("brought.json", brought.to_string()), ("code/hello.py", "print('brought')".to_owned())] {
        fs::write(stage.scene().path().join(name), text).expect("cannot write the file");
    }
    stage.verb(&["apply", "-f", "brought.json", "--code", "code"]).code(0);
    let hello = tfjob("hello", json!(["python", "-c", "print('hello')"]));
    let long = tfjob("long", json!(["python", "-c", "import time; time.sleep(600)"]));
    let mut brief = tfjob("brief", json!(["python", "-c", "print('brief')"]));
    brief["spec"]["runPolicy"] = json!({ "ttlSecondsAfterFinished": 0 });
    let mut refused = tfjob("refused", json!(["python"]));
    refused["spec"]["replicas"] = json!(2);
    let items = [hello, long, refused, brief];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    namespace.kubectl_with(&["apply", "-f", "-"], &list.to_string());
    let states = || {
        let lines = namespace.kubectl(&["get", "tfjobs", "--no-headers"]);
        let words = lines.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        words.collect::<Vec<_>>()
    };
    let until = |expected: &[&str]| {
        within(
            &format!("{expected:?}"),
            || (states() == expected).then_some(()),
            || format!("{:?}\n{cluster}", states()),
        );
    };
    // The job `brief` has a time to live of 0 s, so the master has deleted the job and its TFJob.
    until(&["hello Succeeded", "long Running", "refused Failed"]);
    stage.verb(&["wait", "brought"]).code(0);
    assert_eq!(stage.verb(&["logs", "brought", "--replica", "worker-0"]).code(0).stdout, "brought\n");
    stage.verb(&["delete", "brought"]).code(0);
    let head = namespace.kubectl(&["get", "tfjobs"]);
    assert_eq!(head.lines().next().map(|line| line.split_whitespace().collect()), Some(vec!["NAME", "STATE", "AGE"]));
    let refused = namespace.kubectl(&["get", "tfjob", "refused", "-o", "jsonpath={.status.conditions[0]}"]);
    assert!(
        refused.contains("TFJobFailedValidation") && refused.contains("spec.replicas: this field is not known"),
        "{refused}"
    );

    stage.verb(&["delete", "hello"]).code(0);
    until(&["long Running", "refused Failed"]);
    let suspend = r#"{"spec":{"runPolicy":{"suspend":true}}}"#;
    namespace.kubectl(&["patch", "tfjob", "long", "--type", "merge", "-p", suspend]);
    until(&["long Suspended", "refused Failed"]);
    namespace.kubectl(&["delete", "tfjob", "long"]);
    within("no object is left", || cluster.objects().is_empty().then_some(()), || cluster.to_string());
    assert_eq!(states(), ["refused Failed"]);
}
