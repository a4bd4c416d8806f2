//! Tests of options of pods: image, variables of Secrets, volumes, resources and scheduling.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use e2e::cluster::{Image, Namespace};
use e2e::{Place, Running, Stage};
use protocol::view::JobState;

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_keys_of_a_secret_become_variables() {
    let stage = Stage::new(Place::Cluster, "import os; print('password', os.environ['PASSWORD'])");
    let secret = ["create", "secret", "generic", "registry", "--from-literal=PASSWORD=hunter2"];
    stage.cluster().namespace.kubectl(&secret);
    let run = stage.submit(&["--worker-num", "1", "--env-secret", "registry"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ password hunter2\n");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_failure_of_a_job_names_a_missing_secret() {
    let stage = Stage::hello(Place::Cluster);
    let flags = ["--task", "secretive", "--worker-num", "1", "--env-secret", "absent"];
    let client = Running::of(&mut stage.submitting(&flags));
    client.until_said("worker-0 was lost: CreateContainerConfigError");
    client.until_said("secret \"absent\" not found");
    // The job may still be stopping, because the kubelet may take long to remove a pod that it has not started.
    assert!(matches!(stage.status("secretive").state, JobState::Stopping | JobState::Failed));
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn with_allow_host_volumes_a_pod_reads_and_writes_a_folder_of_the_node() {
    let stage = Stage::with_master(
        Place::Cluster,
        "print('read', open('/data/in').read())\nopen('/data/out', 'w').write('from a pod')\n\
         open('/scratch/new', 'w').close()",
        &ALLOWING,
    );
    let dir = folder_of_node(&stage);
    let host = format!("host:{dir}:/data");
    let run = stage.submit(&["--worker-num", "1", "--volume", &host, "--volume", "empty:/scratch"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ read from the node\n");
    assert_eq!(fs::read_to_string(format!("{dir}/out")).expect("the pod has not written the file"), "from a pod");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_read_only_volume_cannot_be_written() {
    let stage = Stage::with_master(
        Place::Cluster,
        "print('read', open('/data/in').read())\nopen('/data/out', 'w').write('from a pod')",
        &ALLOWING,
    );
    let dir = folder_of_node(&stage);
    let run = stage
        .submit(&["--worker-num", "1", "--max-restarts", "0", "--volume", &format!("host:{dir}:/data:ro")])
        .code(1);
    assert_eq!(run.lines("read "), ["from the node"]);
    run.says(&["worker-0 exited with code 1", "Read-only file system: '/data/out'"]);
    assert!(!fs::exists(format!("{dir}/out")).expect("cannot read the folder"));
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_pod_has_the_given_priority_and_its_checkpoint_on_a_claim_outlives_the_pod() {
    let stage = Stage::new(
        Place::Cluster,
        "import os, time\n\
         if os.path.exists('/checkpoints/step'): print('goes on from', open('/checkpoints/step').read())\n\
         else: open('/checkpoints/step', 'w').write('step 7'); print('saved'); time.sleep(600)",
    );
    let claimed = Claimed::create(&stage);
    let claim = ["--volume", "pvc:checkpoints:/checkpoints", "--priority-class", claimed.0.name()];
    let flags = ["--task", "resumed", "--worker-num", "1"];
    let client = Running::of(&mut stage.submitting(&[flags.as_slice(), &claim].concat()));
    client.until_printed(1, "saved");
    let priority = ["get", "pod", "resumed-worker-0", "-o", "jsonpath={.spec.priority}"];
    assert_eq!(stage.cluster().namespace.kubectl(&priority), "7");
    stage.cluster().namespace.kubectl(&["delete", "pod", "resumed-worker-0", "--grace-period=1", "--wait=false"]);
    let run = client.ended().code(0);
    assert_eq!(run.lines("goes on from "), ["step 7"]);
    assert_eq!(stage.status("resumed").restarts.uncounted, 1);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_pod_keeps_the_settings_of_its_image_except_an_entrypoint_that_is_a_binary() {
    let image = Image::of_dockerfile(
        "FROM python:3.11-slim\nWORKDIR /srv/code\nCOPY exec.py hello.py ./\nENV FLAVOUR=vanilla\nUSER 1234\n\
         ENTRYPOINT [\"/bin/false\"]\nCMD [\"never\"]\n",
    );
    let exec_py = "import os, sys; shm = os.statvfs('/dev/shm')\n\
                   print(os.getuid(), os.getcwd(), os.environ['FLAVOUR'], shm.f_blocks * shm.f_frsize > 2**26, sys.argv[1:])";
    let stage = Stage::in_image(&image, exec_py);
    let run = stage.submit(&["--worker-num", "1", "--shm", "128Mi"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ 1234 /srv/code vanilla True []\n");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn an_entrypoint_script_runs_before_exec_py_even_if_the_image_has_only_python3() {
    let image = Image::of_dockerfile(
        "FROM python:3.11-slim\nRUN rm /usr/bin/python && echo '#!/bin/sh' > /prepare.sh && echo 'export PREPARED=yes' >> /prepare.sh && \
         echo 'exec \"$@\"' >> /prepare.sh && chmod 755 /prepare.sh\nWORKDIR /app\nCOPY exec.py hello.py ./\nUSER 1000\n\
         ENTRYPOINT [\"/prepare.sh\"]\n",
    );
    let exec_py = "import os, sys; print(os.environ['PREPARED'], os.environ['RANK'], sys.argv[1:])";
    let stage = Stage::in_image(&image, exec_py);
    let run = stage.submit(&["--worker-num", "1"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ yes 0 []\n");
    let run = stage.submit(&["--worker-num", "1", "--", "--epochs", "3"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ yes 0 ['--epochs', '3']\n");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn an_image_that_runs_as_root_needs_allow_root_and_its_pod_gets_no_privileges() {
    let image = Image::of_dockerfile("FROM python:3.11-slim\nWORKDIR /app\nCOPY exec.py hello.py ./\n");
    let exec_py = "import os; print(os.getuid(), *[line.split()[1] for line in open('/proc/self/status') \
                   if line.startswith(('CapEff', 'NoNewPrivs', 'Seccomp:'))])";
    let stage = Stage::in_image(&image, exec_py);
    let refused = stage.submit(&["--worker-num", "1"]).code(2);
    refused.says(&[&format!("error: the image {} runs as root", image.name()), "USER 1000", "--allow-root"]);
    assert_eq!(stage.cluster().objects(), Vec::<String>::new());
    let run = stage.submit(&["--worker-num", "1", "--allow-root"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ 0 0000000000000000 1 2\n");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn if_no_client_has_checked_an_image_that_runs_as_root_the_job_fails_with_the_kubelets_reason() {
    let image = Image::of_dockerfile("FROM python:3.11-slim\nWORKDIR /app\nCOPY exec.py hello.py ./\n");
    let stage = Stage::in_image(&image, "");
    let create = format!("/create?strategy=AllReduce&n_worker=1&name=root{}", stage.img());
    stage.curl(&[], &format!("{create}&allow_root=false"));
    stage.follow("root").ended().code(1).says(&["worker-0 was lost", "runAsNonRoot"]);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_pods_have_the_resources_and_scheduling_options_of_the_flags() {
    let stage = Stage::hello(Place::Cluster);
    let flags =
        ["--task", "asks", "--worker", "cpu=50m:1:1", "--worker", "cpu=60m:1,memory=90Mi:1", "--memory", "100Mi"];
    let more = [
        "--image-pull-policy",
        "Never",
        "--node-selector",
        "kubernetes.io/os=linux",
        "--toleration",
        "spot=yes:NoSchedule",
    ];
    let last = ["--service-account", "default", "--termination-grace", "1m30s"];
    stage.submit(&[flags.as_slice(), &more, &last].concat()).code(0);
    let of_pod = |pod: &str, path: &str| {
        let template = format!("jsonpath={{{path}}}");
        stage.cluster().namespace.kubectl(&["get", "pod", pod, "-o", &template])
    };
    let shown = |path: &str| of_pod("asks-worker-0", path);
    let of_other = |path: &str| of_pod("asks-worker-1", &format!(".spec.containers[0].resources.requests.{path}"));
    assert_eq!((of_other("cpu").as_str(), of_other("memory").as_str()), ("60m", "90Mi"));
    let container = |path: &str| shown(&format!(".spec.containers[0].{path}"));
    assert_eq!(container("resources.requests.cpu"), "50m");
    assert_eq!(container("resources.limits.cpu"), "1");
    assert_eq!(container("resources.limits.memory"), "100Mi");
    assert_eq!(container("imagePullPolicy"), "Never");
    assert_eq!(container("volumeMounts"), "", "the container has a mount, such as the service account's token");
    assert_eq!(shown(".spec.nodeSelector.kubernetes\\.io/os"), "linux");
    assert_eq!(shown(".spec.tolerations[0].key"), "spot");
    assert_eq!(shown(".spec.serviceAccountName"), "default");
    assert_eq!(shown(".spec.terminationGracePeriodSeconds"), "90");
    let variable = container("env[?(@.name==\"MUSTER_TERMINATION_GRACE_SECONDS\")].value");
    assert_eq!(variable, "90");
}

/// Arguments of a master that allows volumes from the node's folders.
pub(super) const ALLOWING: [&str; 3] = ["--state-dir", "state", "--allow-host-volumes"];

/// Creates a folder on the cluster's only node, this machine. All users can write to the folder, because the pod has
/// another user than this test.
pub(super) fn folder_of_node(stage: &Stage) -> String {
    let dir = stage.scene().path().join("data");
    fs::create_dir(&dir).expect("cannot create the folder");
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("cannot change the mode of the folder");
    fs::write(dir.join("in"), "from the node").expect("cannot write the file");
    dir.display().to_string()
}

/// A claim, the claim's volume, and a priority class. The volume and the priority class do not belong to a namespace.
const CLAIM: &str = r"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: checkpoints }
spec: { accessModes: [ReadWriteMany], storageClassName: '', volumeName: NAME, resources: { requests: { storage: 1Mi } } }
---
apiVersion: v1
kind: PersistentVolume
metadata: { name: NAME }
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ''
  capacity: { storage: 1Mi }
  claimRef: { namespace: NAME, name: checkpoints }
  hostPath: { path: FOLDER }
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: { name: NAME }
value: 7
";

/// The objects of [`CLAIM`], for this namespace. Dropping this deletes the volume and the priority class.
struct Claimed<'a>(&'a Namespace);

impl<'a> Claimed<'a> {
    fn create(stage: &'a Stage) -> Self {
        let claimed = Self(&stage.cluster().namespace);
        let objects = CLAIM.replace("NAME", claimed.0.name()).replace("FOLDER", &folder_of_node(stage));
        claimed.0.kubectl_with(&["create", "-f", "-"], &objects);
        claimed
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        // Do not wait: the volume disappears only after the claim, which is deleted with the namespace.
        self.0.try_kubectl(&["delete", "persistentvolume,priorityclass", self.0.name(), "--wait=false"]);
    }
}
