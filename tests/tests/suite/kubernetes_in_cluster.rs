//! Tests of a master in the cluster, deployed as users do it: with image, manifests, Secret, env.sh and node port.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use e2e::cluster::{Image, Namespace};
use e2e::journeys::end_all;
use e2e::programs::{built, prototype, root};
use e2e::scripts::{AWAITS_ITS_END, with_peers};
use e2e::{Finished, Running, Scene, within};
use protocol::view::{JobState, JobView};
use serde_json::{Value, json};
use testkit::registry::{RealRegistry, Secured, TestImage};

/// A master that is deployed to its own namespace.
struct Site {
    // Declared before the images, so the pods are deleted first.
    namespace: Namespace,
    _master: Image,
    scene: Scene,
    url: String,
    token: String,
}

impl Site {
    /// Deploys a master from the manifests in this folder, and waits until the master serves.
    fn new(manifests: &str) -> Self {
        let (scene, namespace) = (Scene::new(""), Namespace::new());
        let kubeconfig = scene.path().join("kubeconfig");
        fs::write(&kubeconfig, namespace.kubeconfig().to_string()).expect("cannot write the file");
        script(&kubeconfig, "scripts/token");
        let master = Image::of_master();
        namespace.kubectl_with(&["apply", "-f", "-"], &rendered(&namespace, manifests, &master.of_nodes()));
        namespace.kubectl(&["rollout", "status", "deployment/muster", "--timeout=120s"]);

        let printed = script(&kubeconfig, "source env.sh; printf '%s\\n' \"$MUSTER_MASTER\" \"$MUSTER_TOKEN\"");
        let mut printed = printed.lines().map(str::to_owned);
        let (url, token) = (printed.next().expect("no address"), printed.next().expect("no token"));
        let (node, _) = url.rsplit_once(':').expect("no port");
        let port = namespace.kubectl(&["get", "service", "muster", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
        let site = Self { url: format!("{node}:{port}"), token, namespace, _master: master, scene };
        let serves = || (site.curl("/readyz") == "OK").then_some(());
        within("the node's port leads to the master", serves, || site.state());
        site
    }

    /// Returns a command of the client, with the token in its environment.
    fn client(&self, args: &[&str]) -> Command {
        let mut client = self.scene.client(&[&["--master", &self.url], args].concat());
        client.env("MUSTER_TOKEN", &self.token);
        client
    }

    /// Returns a command of the client that reaches the master through the API server, without a token.
    fn client_through_the_api(&self, args: &[&str]) -> Command {
        self.scene.client(&[&["--master", &format!("kube:{}", self.namespace.name())], args].concat())
    }

    fn status(&self, job: &str) -> JobView {
        Finished::of(&mut self.client(&["status", job, "-o", "json"])).code(0).view()
    }

    fn curl(&self, path: &str) -> String {
        self.scene.curl(&["--max-time", "2", &format!("{}{path}", self.url)])
    }

    /// Returns the job's epoch, the number of masters that the job has had.
    fn epoch(&self, job: &str) -> u64 {
        let record =
            self.namespace.kubectl(&["get", "configmap", &format!("muster-{job}"), "-o", "jsonpath={.data.record}"]);
        serde_json::from_str::<Value>(&record).expect("not a record")["epoch"].as_u64().expect("not a number")
    }

    fn state(&self) -> String {
        let pods = self.namespace.try_kubectl(&["describe", "pods"]);
        let log = self.namespace.try_kubectl(&["logs", "deployment/muster"]);
        format!("{pods}\n---- the master's log\n{log}")
    }
}

/// Runs a line of bash in the repository's root and returns its stdout.
fn script(kubeconfig: &Path, line: &str) -> String {
    let mut bash = Command::new("bash");
    // env.sh runs the client.
    let programs = built("client").parent().expect("no parent folder").display().to_string();
    let line = format!("PATH={programs}:$PATH\n{line}");
    bash.args(["-euc", &line]).current_dir(root()).env("KUBECONFIG", kubeconfig);
    Finished::of(&mut bash).code(0).stdout
}

/// Returns the manifests with this image of the master. Removes the fixed node port, which may be in use.
fn rendered(namespace: &Namespace, manifests: &str, image: &str) -> String {
    let text = namespace.kubectl(&["kustomize", &root().join(manifests).display().to_string()]);
    [("image: muster-master:latest", format!("image: {image}")), ("nodePort: 31898", "nodePort: 0".to_owned())]
        .into_iter()
        .fold(text, |text, (before, after)| {
            assert_eq!(text.matches(before).count(), 1, "not exactly one {before} in {text}");
            text.replace(before, &after)
        })
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_and_a_client_that_follows_it_survive_the_deletion_of_the_masters_pod() {
    let site = Site::new("manifests");
    let image = Image::shared();
    let script = format!("EXEC_PY={}", with_peers(AWAITS_ITS_END));
    let mut client = site.client_through_the_api(&["--env", &script, "--worker-num", "2", "--task", "goes-on"]);
    let client = Running::of(client.args(image.flags()));
    client.until_printed(2, "begun");
    let before = site.status("goes-on");
    assert_eq!(site.epoch("goes-on"), 1);

    site.namespace.kubectl(&["delete", "pod", "-l", "app.kubernetes.io/component=master", "--wait=false"]);
    let deleted = Instant::now();
    within("the next master's pod takes over the job", || (site.epoch("goes-on") == 2).then_some(()), || site.state());
    println!(
        "the next master took over the job {:.1} s after the first master's pod was deleted",
        deleted.elapsed().as_secs_f64()
    );
    within("the master serves", || (site.curl("/readyz") == "OK").then_some(()), || site.state());
    let after = site.status("goes-on");
    assert_eq!(
        (after.state, after.generation),
        (JobState::Running, before.generation),
        "the job is not running in the same start"
    );
    end_all(&after);
    let run = client.ended().code(0);
    assert_eq!((run.stdout.matches("begun").count(), run.stdout.matches("ended").count()), (2, 2), "{}", run.stdout);
    assert_eq!(site.curl("/v1/jobs").matches("goes-on").count(), 0, "the master answers without the token");
}

/// A namespace without a master. Its functions run clients that use this namespace.
struct Bare {
    scene: Scene,
    namespace: Namespace,
}

impl Bare {
    fn new() -> Self {
        Self { scene: Scene::new(""), namespace: Namespace::new() }
    }

    fn place(&self) -> String {
        format!("kube:{}", self.namespace.name())
    }

    fn run(&self, args: &[&str]) -> Finished {
        self.scene.run(&[&["--master", &self.place()], args].concat())
    }

    /// Runs the client with this user in the kubeconfig.
    fn run_as(&self, user: Value, args: &[&str]) -> Finished {
        let mut config = self.namespace.kubeconfig();
        config["users"][0]["user"] = user;
        let file = self.scene.path().join("kubeconfig");
        fs::write(&file, config.to_string()).expect("cannot write the file");
        Finished::of(self.scene.client(&[&["--master", &self.place()], args].concat()).env("KUBECONFIG", file))
    }

    /// Runs the client with the rights of the namespace's default service account.
    fn run_without_rights(&self, args: &[&str]) -> Finished {
        let mut user = self.namespace.kubeconfig()["users"][0]["user"].clone();
        user["as"] = json!(format!("system:serviceaccount:{}:default", self.namespace.name()));
        self.run_as(user, args)
    }

    /// Returns the objects in the namespace, without the objects that every namespace has.
    fn objects(&self) -> Vec<String> {
        let kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies";
        let names = self.namespace.kubectl(&["get", kinds, "-o", "name"]);
        let of_every = ["/default", "/kube-root-ca.crt"];
        names.lines().filter(|name| !of_every.iter().any(|part| name.contains(part))).map(str::to_owned).collect()
    }
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_master_is_installed_checked_used_and_uninstalled() {
    let bare = Bare::new();
    let refused = bare.run_as(json!({"token": "expired"}), &["list"]).code(3);
    refused.says(&["refuses your login", "hint: "]);
    bare.run_without_rights(&["list"]).code(3).says(&["you may not get secrets in namespace"]);
    let needed = ["get secrets", "patch deployments", "create rolebindings", "delete pods", "delete services"];
    bare.run_without_rights(&["install", "--service", "none"]).code(3).says(&needed);
    bare.namespace.kubectl(&["create", "serviceaccount", "muster"]);
    bare.run(&["install"]).code(2).says(&["serviceaccount/muster without the label"]);
    bare.namespace.kubectl(&["delete", "serviceaccount", "muster"]);
    let is_empty = || bare.objects().is_empty().then_some(());
    within("a refused installation leaves nothing", is_empty, || bare.objects().join("\n"));

    let missing = ["install", "--image", "localhost:1/muster-master:none"];
    bare.run(&missing).code(2).says(&["localhost:1/muster-master:none", "make images", "--image"]);
    let master = Image::of_master();
    let installed = bare.run(&["install", "--image", &master.of_nodes()]).code(0);
    assert_eq!(installed.stdout, format!("export MUSTER_MASTER={}\n", bare.place()));
    let again = bare.run(&["install", "--image", &master.of_nodes()]).code(0);
    again.says(&["deployment/muster unchanged"]);
    // A later install with `--tfjobs` changes the master, and an install without this flag does not undo the change.
    let tfjobs = ["install", "--tfjobs", "--pull-secret", "team", "--image", &master.of_nodes()];
    let with_tfjobs = bare.run(&tfjobs).code(0);
    with_tfjobs.says(&["role/muster-tfjobs created", "role/muster-pull-secrets created", "deployment/muster changed"]);
    let kept = bare.run(&["install", "--image", &master.of_nodes()]).code(0);
    let unchanged = ["role/muster-tfjobs", "role/muster-pull-secrets", "deployment/muster"];
    kept.says(&unchanged.map(|object| format!("{object} unchanged")).each_ref().map(String::as_str));
    // Delete the rights on TFJobs. Otherwise, uninstall could delete the kind TFJob, which other tests also use.
    bare.namespace.kubectl(&["delete", "role/muster-tfjobs", "rolebinding/muster-tfjobs"]);
    let report: Value = serde_json::from_str(&bare.run(&["doctor", "-o", "json"]).code(0).stdout).expect("not JSON");
    assert_eq!(unexpected(&report), Vec::<&Value>::new(), "{report:#}");

    bare.namespace.kubectl(&["apply", "-f", &root().join("manifests/user.yaml").display().to_string()]);
    let account = format!("--serviceaccount={}:default", bare.namespace.name());
    bare.namespace.kubectl(&["create", "rolebinding", "user", "--role=muster-user", &account]);
    let script = format!("EXEC_PY={}", with_peers(AWAITS_ITS_END));
    let image = Image::shared();
    let flags = image.flags();
    let submit = ["--env", &script, "--task", "stays", "--worker-num", "1", "--detach"];
    bare.run_without_rights(&[&submit[..], &flags.iter().map(String::as_str).collect::<Vec<_>>()].concat()).code(0);
    assert!(bare.run_without_rights(&["list"]).code(0).stdout.contains("stays"));
    bare.namespace.kubectl(&["delete", "rolebinding/user", "role/muster-user"]);

    bare.run_without_rights(&["uninstall", "-y"]).code(3).says(&["deletecollection configmaps"]);
    bare.run(&["uninstall", "-y"]).code(2).says(&["have not ended: stays", "--force"]);
    bare.run(&["uninstall", "--force"]).code(2).says(&["add -y"]);
    bare.run(&["uninstall", "-y", "--force"]).code(0);
    within("no object is left", is_empty, || bare.objects().join("\n"));
    bare.run(&["uninstall", "-y"]).code(0).says(&["nothing of Muster is in namespace"]);
}

/// Makes a certificate for an address, signed by an authority of its own, in the files ca.pem, leaf.pem and leaf.key.
fn certify(scene: &Scene, address: IpAddr) {
    let openssl = |line: &str| {
        let made = Command::new("openssl").args(line.split(' ')).current_dir(scene.path()).output();
        let made = made.expect("cannot start openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
    openssl("req -newkey rsa:2048 -nodes -subj /CN=registry -keyout leaf.key -out leaf.csr");
    let names = format!("subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\n");
    fs::write(scene.path().join("names"), names).expect("cannot write the file");
    openssl("x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out leaf.pem");
}

/// Returns the address of this machine at which the cluster's node reaches it.
fn own_address(namespace: &Namespace) -> IpAddr {
    let path = "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}";
    let node: IpAddr = namespace.kubectl(&["get", "nodes", "-o", path]).parse().expect("not an address");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("no free port");
    socket.connect((node, 9)).and_then(|()| socket.local_addr()).expect("no way to the node").ip()
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG), Docker, docker-registry and openssl"]
fn the_masters_image_asks_a_registry_by_tls_with_the_pull_secret_that_it_may_read() {
    let (bare, master, files) = (Bare::new(), Image::of_master(), Scene::new(""));
    let address = own_address(&bare.namespace);
    certify(&files, address);
    let file = |name: &str| files.path().join(name);
    let registry = RealRegistry::start_at(address, Secured::ByPassword, Some((&file("leaf.pem"), &file("leaf.key"))));
    let image = registry.push("mnist:1", &TestImage::new(&json!({ "Entrypoint": ["python", "/mnist.py"] })));

    let install = ["install", "--tfjobs", "--pull-secret", "team", "--image", &master.of_nodes()];
    bare.run(&install).code(0);
    let from = format!("--from-file=ca.pem={}", file("ca.pem").display());
    bare.namespace.kubectl(&["create", "configmap", "authority", &from]);
    let pod = json!({
        "volumes": [{ "name": "authority", "configMap": { "name": "authority" } }],
        "containers": [{
            "name": "master", "env": [{ "name": "SSL_CERT_FILE", "value": "/authority/ca.pem" }],
            "volumeMounts": [{ "name": "authority", "mountPath": "/authority" }],
        }],
    });
    let patch = json!({ "spec": { "template": { "spec": pod } } }).to_string();
    bare.namespace.kubectl(&["patch", "deployment", "muster", "-p", &patch]);
    // A later installation keeps the authority and the right to the pull secret.
    bare.run(&["install", "--image", &master.of_nodes()]).code(0).says(&["role/muster-pull-secrets unchanged"]);
    let server = format!("--docker-server={}", registry.host());
    let login = ["--docker-username=team", "--docker-password=secret"];
    bare.namespace.kubectl(&[&["create", "secret", "docker-registry", "team", &server], &login[..]].concat());

    for (name, secrets) in [("with-login", json!([{ "name": "team" }])), ("without-login", json!([]))] {
        let containers = json!([{ "name": "tensorflow", "image": image }]);
        bare.namespace.create_suspended_tfjob(name, &json!({ "imagePullSecrets": secrets, "containers": containers }));
    }
    let newest = |name: &str| {
        let path = "jsonpath={.status.conditions[-1:].reason}: {.status.conditions[-1:].message}";
        bare.namespace.kubectl(&["get", "tfjob", name, "-o", path])
    };
    let (found, refused) = ("TFJobSuspended: ".to_owned(), format!("{} answered 401", registry.host()));
    let state = || {
        let log = bare.namespace.try_kubectl(&["logs", "deployment/muster"]);
        format!("{}\n{}\n{log}", newest("with-login"), newest("without-login"))
    };
    within("the master finds the program", || newest("with-login").starts_with(&found).then_some(()), state);
    within("the master is refused", || newest("without-login").contains(&refused).then_some(()), state);
    // Without these rights, uninstall does not delete the kind TFJob, which other tests use.
    bare.namespace.kubectl(&["delete", "role/muster-tfjobs", "rolebinding/muster-tfjobs"]);
    bare.run(&["uninstall", "-y", "--force"]).code(0).says(&["role/muster-pull-secrets deleted"]);
}

/// Returns the checks of `client doctor` that did not pass, without checks whose result depends on this cluster.
fn unexpected(report: &Value) -> Vec<&Value> {
    let of_cluster = ["network policies", "image", "architecture", "Docker", "TFJobs"];
    let checks = report["checks"].as_array().expect("no list of checks").iter();
    checks.filter(|check| check["verdict"] != "ok" && !of_cluster.map(Value::from).contains(&check["name"])).collect()
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_prototypes_client_reaches_a_master_without_a_token_at_the_nodes_port() {
    let site = Site::new("manifests/open");
    let image = Image::shared();
    let mut client = prototype("client.py", &[&site.url, "AllReduce", "2", "0", &image.wrapped(), "seed"]);
    Finished::of(&mut client).code(0);
    let ended = || site.curl("/v1/jobs/seed").contains(r#""state":"succeeded""#).then_some(());
    within("the job succeeds", ended, || site.state());
}
