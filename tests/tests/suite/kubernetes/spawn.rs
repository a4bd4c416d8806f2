//! Tests of `client spawn`, which runs trainings of tf-spawner, in a cluster.

use std::fs;

use e2e::cluster::Image;
use e2e::{Place, Stage};

const SCRIPT: &str = "import json, os
config = json.loads(os.environ['TF_CONFIG'])
ports = {address.split(':')[1] for address in config['cluster']['worker']}
print(os.path.exists('/script/training-script.py'), os.environ['TOT_WORKERS'], os.environ['KEY'], ports)
";
const POD: &str = "kind: Pod
spec:
  containers:
    - { name: tensorflow, imagePullPolicy: IfNotPresent, resources: { requests: { cpu: 10m } } }
";

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_training_is_spawned_and_deleted_by_its_tag() {
    // This image contains the agent too, so it serves as agent image and as training image.
    let image = Image::shared().wrapped();
    let stage = Stage::with_master(Place::Cluster, "", &["--state-dir", "state", "--agent-image", &image]);
    let commands = "echo prepared $WORKER_NUMBER\npython /script/training-script.py\n";
    for (name, text) in [("train.py", SCRIPT), ("pod.yaml", POD), ("env", "KEY=a b\n"), ("entrypoint.sh", commands)] {
        fs::write(stage.scene().path().join(name), text).expect("cannot write the file");
    }
    let line = ["spawn", "-w", "3", "-e", "env", "-c", "entrypoint.sh", "-i", &image];
    let spawn = |tag: &str| stage.verb(&[line.as_slice(), &["-t", tag, "train.py"]].concat());
    let first = spawn("Run_1").code(0);
    let pods = "run-1-worker-0\nrun-1-worker-1\nrun-1-worker-2\n";
    assert_eq!(first.stdout, format!("generated with label training_attempt=Run_1\n{pods}"));
    spawn("Run_1").code(2).says(&["a training with tag Run_1 exists, as job run-1", "client spawn -d Run_1"]);
    spawn("run2").code(0);
    for job in ["run-1", "run2"] {
        stage.verb(&["wait", job]).code(0);
    }
    let output = stage.verb(&["logs", "run-1", "--replica", "worker-1"]).code(0).stdout;
    assert_eq!(output, "prepared 1\nTrue 3 a b {'1999'}\n");
    let labelled = ["get", "pods", "-l", "app=worker2,training_attempt=Run_1", "-o", "name"];
    assert_eq!(stage.cluster().namespace.kubectl(&labelled), "pod/run-1-worker-2\n");
    stage.verb(&["spawn", "-d", "Run_1"]).code(2).says(&["there is no terminal: give -y"]);
    stage.verb(&["spawn", "-d", "run-1", "-y"]).code(2).says(&["job run-1 is not the training with tag run-1"]);
    for tag in ["Run_1", "run2"] {
        stage.verb(&["spawn", "-d", tag, "-y"]).code(0);
    }
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
}
