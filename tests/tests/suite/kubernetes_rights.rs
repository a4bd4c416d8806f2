//! Checks that the master's rights in manifests/ are sufficient and minimal: with these rights, the master can
//! run a series of jobs, and the series uses each right.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::{Image, Namespace, OURS};
use e2e::code::send_code;
use e2e::processes::pause_after;
use e2e::programs::{root, static_agent};
use e2e::{Master, Scene, within};
use protocol::code::CodeId;
use serde_json::{Value, json};
use testkit::registry::{RealRegistry, Secured, TestImage};

/// Maximum time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(90);
/// A part of the API's error for a missing right.
const REFUSED: &str = "forbidden";
/// The variable that makes the master log a line for each request to the API.
const LOG_REQUESTS: (&str, &str) = ("RUST_LOG", "info,kube_client::client::builder=debug");

/// A right of a role in manifests/.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    resource: String,
    verb: String,
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_masters_rights_are_sufficient_and_minimal() {
    check(&Account::of_base(), run_in);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_masters_rights_on_tfjobs_are_sufficient_and_minimal() {
    check(&Account::of_tfjobs(), run_tfjob);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_masters_right_to_pull_secrets_is_sufficient_and_minimal() {
    let account = Account::of_pull_secrets();
    check(&account, run_tfjob_of_private_image);
    let can = |name: &str, verb: &str| {
        let user = format!("--as=system:serviceaccount:{}:muster", account.namespace.name());
        account.namespace.try_kubectl(&["auth", "can-i", verb, &format!("secrets/{name}"), &user]).trim() == "yes"
    };
    assert!(can("team", "get"));
    for (name, verb) in [("muster", "get"), ("other", "get"), ("team", "list"), ("team", "update")] {
        assert!(!can(name, verb), "{verb} {name}");
    }
}

/// Starts a master with an account's rights.
fn master(scene: &Scene, account: &Account, args: &[&str]) -> Master {
    let agent = static_agent().display().to_string();
    let own = ["--backend", "kubernetes", "--state-dir", "state", "--namespace", account.namespace.name()];
    let kubeconfig = scene.path().join("kubeconfig").display().to_string();
    let variables = [("KUBECONFIG", kubeconfig.as_str()), LOG_REQUESTS];
    Master::start(scene.path(), &[&own[..], &["--agent-binary", &agent], args].concat(), &variables)
}

/// Calls `run`. The API must refuse no request, and the requests must use every right of the role under test.
fn check(account: &Account, run: Run) {
    let scene = Scene::new("");
    fs::write(scene.path().join("kubeconfig"), account.kubeconfig()).expect("cannot write the file");
    let outcome = run(&scene, account, &Image::shared().wrapped());
    let log = log_of(&scene);
    outcome.unwrap_or_else(|error| panic!("{error}\n{log}"));
    assert!(!log.contains(REFUSED), "the API refused a request:\n{log}");
    let used: BTreeSet<Right> = log.lines().filter_map(right_of).collect();
    let rights = account.rights();
    assert!(!rights.is_empty(), "the role {} has no rights", account.role);
    let unused: Vec<Right> = rights.into_iter().filter(|right| !used.contains(right)).collect();
    assert_eq!(unused, vec![], "the master does not need these rights; it used: {used:?}");
}

/// Returns the right that a request needs. `line` is the request's line in the master's log. For the verbs, see
/// <https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>.
fn right_of(line: &str) -> Option<Right> {
    let field = |name: &str| line.split_once(name)?.1.split([' ', '}']).next();
    let (method, url) = (field("http.method=")?, field("http.url=")?);
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let mut parts = path.split_once("/namespaces/")?.1.split('/').skip(1);
    let (resource, name, subresource) = (parts.next()?, parts.next(), parts.next());
    let verb = match (method, name) {
        ("GET", None) if query.split('&').any(|pair| pair == "watch=true") => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", None) => "deletecollection",
        ("DELETE", Some(_)) => "delete",
        _ => return None,
    };
    let resource = [Some(resource), subresource].into_iter().flatten().collect::<Vec<_>>().join("/");
    Some(Right { resource, verb: verb.to_owned() })
}

fn log_of(scene: &Scene) -> String {
    fs::read_to_string(scene.path().join("master.log")).unwrap_or_default()
}

/// A function that uses a master as users do, in a scene, with an account's rights and pods of an image.
type Run = fn(&Scene, &Account, &str) -> Result<(), String>;

/// Creates a suspended TFJob, which needs no pods, waits until the master shows its state, and deletes its job.
fn run_tfjob(scene: &Scene, account: &Account, image: &str) -> Result<(), String> {
    let master = master(scene, account, &["--watch-tfjobs", "--agent-image", image]);
    let container = json!({ "name": "tensorflow", "image": image, "command": ["python", "-c", "print('hello')"] });
    account.namespace.create_suspended_tfjob("hello", &json!({ "containers": [container] }));
    until_suspended(scene, account)?;
    scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/hello", master.url)]);
    let gone = || account.namespace.kubectl(&["get", "tfjobs", "-o", "name"]).is_empty();
    until(scene, "the TFJob is deleted", gone)
}

/// Creates a suspended TFJob whose image needs a login and whose container has no command, and waits until the master
/// knows its program.
fn run_tfjob_of_private_image(scene: &Scene, account: &Account, image: &str) -> Result<(), String> {
    let args = ["--watch-tfjobs", "--pull-secret", "team", "--agent-image", image];
    let _master = master(scene, account, &args);
    let registry = RealRegistry::start(Secured::ByPassword);
    let private = registry.push("mnist:1", &TestImage::new(&json!({ "Entrypoint": ["python", "/mnist.py"] })));
    let server = format!("--docker-server={}", registry.host());
    let login = ["--docker-username=team", "--docker-password=secret"];
    account.namespace.kubectl(&[&["create", "secret", "docker-registry", "team", &server], &login[..]].concat());
    let secrets = json!([{ "name": "team" }, { "name": "other" }]);
    let containers = json!([{ "name": "tensorflow", "image": private }]);
    let pod = json!({ "imagePullSecrets": secrets, "containers": containers });
    account.namespace.create_suspended_tfjob("private", &pod);
    until_suspended(scene, account)
}

/// Waits until the status of the only TFJob shows its state.
fn until_suspended(scene: &Scene, account: &Account) -> Result<(), String> {
    let types = "jsonpath={.items[*].status.conditions[-1:].type}";
    let states = || account.namespace.kubectl(&["get", "tfjobs", "-o", types]);
    until(scene, "the TFJob shows its state", || states() == "Suspended")
}

/// Submits a job that exceeds a quota, a job that succeeds, a job that brings its code, and a job that fails. The
/// master deletes the pods of the failed job one by one. Then starts a new master, which reads the code from its copy, and
/// deletes the jobs.
fn run_in(scene: &Scene, account: &Account, image: &str) -> Result<(), String> {
    let first = master(scene, account, &["--agent-image", image]);
    account.namespace.kubectl(&["create", "quota", "team", "--hard=pods=20"]);
    let body = json!({ "name": "great", "strategy": "AllReduce", "worker_num": 21, "image": image });
    let answer = scene.curl(&[&format!("{}/v1/jobs", first.url), "-d", &body.to_string()]);
    answer.contains("which allows 20").then_some(()).ok_or(answer)?;
    let code = send_code(&first.url, None, &[("exec.py", "print('hello')")]);
    for (name, image, code) in [
        ("good", image, None),
        ("brings", &Image::shared().of_nodes(), Some(code)),
        ("broken", "muster-e2e-nowhere", None),
    ] {
        submit(scene, &first, name, image, code)?;
    }
    let ended = ["succeeded", "failed", "succeeded"];
    until(scene, "all jobs end", || states(scene, &first) == ended)?;
    let live = "--field-selector=status.phase!=Succeeded,status.phase!=Failed";
    let gone = || account.namespace.kubectl(&["get", "pods", "-l", OURS, live, "-o", "name"]).is_empty();
    until(scene, "the broken job's pods have ended", gone)?;
    drop(first);
    fs::remove_dir_all(scene.path().join("state/code")).map_err(|error| error.to_string())?;
    let next = master(scene, account, &["--agent-image", image]);
    until(scene, "the next master shows all jobs", || states(scene, &next) == ended)?;
    submit(scene, &next, "again", &Image::shared().of_nodes(), Some(code))?;
    for name in ["again", "good", "brings", "broken"] {
        scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/{name}", next.url)]);
    }
    // The master keeps the code for 10 more minutes.
    let label = format!("{OURS},app.kubernetes.io/component!=code");
    let kinds = "pods,configmaps,networkpolicies";
    let gone = || account.namespace.kubectl(&["get", kinds, "-l", &label, "-o", "name"]).is_empty();
    until(scene, "no object is left", gone)
}

fn submit(scene: &Scene, master: &Master, name: &str, image: &str, code: Option<CodeId>) -> Result<(), String> {
    let body = json!({
        "name": name, "strategy": "AllReduce", "worker_num": 2, "image": image, "code": code,
        "pod": {"image_pull_policy": "Never"},
    });
    let answer = scene.curl(&[&format!("{}/v1/jobs", master.url), "-d", &body.to_string()]);
    answer.contains("\"uid\"").then_some(()).ok_or(answer)
}

fn states(scene: &Scene, master: &Master) -> Vec<String> {
    let list: Value = serde_json::from_str(&scene.curl(&[&format!("{}/v1/jobs", master.url)])).unwrap_or_default();
    let jobs = list["jobs"].as_array().cloned().unwrap_or_default();
    jobs.iter().filter_map(|job| job["state"].as_str().map(str::to_owned)).collect()
}

/// Waits until `test` returns true. Fails at once if the API has refused a request.
fn until(scene: &Scene, what: &str, test: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let look_began = Instant::now();
        if test() {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE || log_of(scene).contains(REFUSED) {
            return Err(format!("timeout, or the API refused a request, while waiting for: {what}"));
        }
        // No event tells this test when `test` becomes true, so poll.
        thread::sleep(pause_after(look_began.elapsed()));
    }
}

/// The service account of manifests/, in a namespace of its own.
struct Account {
    namespace: Namespace,
    /// The role under test.
    role: &'static str,
}

impl Account {
    fn of_base() -> Self {
        let account = Self { namespace: Namespace::new(), role: "muster" };
        let manifest = root().join("manifests/base/account.yaml");
        account.namespace.kubectl(&["apply", "-f", &manifest.display().to_string()]);
        account
    }

    fn of_tfjobs() -> Self {
        let account = Self { role: "muster-tfjobs", ..Self::of_base() };
        account.namespace.add_tfjobs();
        account
    }

    fn of_pull_secrets() -> Self {
        let account = Self { role: "muster-pull-secrets", ..Self::of_tfjobs() };
        let manifest = fs::read_to_string(root().join("manifests/pull-secrets.yaml")).expect("cannot read the file");
        account.namespace.kubectl_with(&["apply", "-f", "-"], &manifest.replace("name-of-a-pull-secret", "team"));
        account
    }

    fn rights(&self) -> Vec<Right> {
        let role = self.namespace.kubectl(&["get", "role", self.role, "-o", "json"]);
        let role: Value = serde_json::from_str(&role).expect("not a role");
        let rules = role["rules"].as_array().expect("no rules").clone();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().expect("not a list").iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let of_rule = |rule: Value| {
            let (resources, verbs) = (texts(&rule["resources"]), texts(&rule["verbs"]));
            let pairs = resources.into_iter().flat_map(move |resource| {
                verbs.clone().into_iter().map(move |verb| Right { resource: resource.clone(), verb })
            });
            pairs.collect::<Vec<_>>()
        };
        rules.into_iter().flat_map(of_rule).collect()
    }

    /// Returns the current kubeconfig, with the account's token in place of its user.
    fn kubeconfig(&self) -> String {
        let mut config = self.namespace.kubeconfig();
        config["users"][0]["user"] = json!({"token": self.token()});
        config.to_string()
    }

    /// Returns the account's token. Before Kubernetes 1.24, the cluster stores the token in a Secret.
    fn token(&self) -> String {
        let created = self.namespace.try_kubectl(&["create", "token", "muster"]);
        if created.starts_with("ey") {
            return created.trim().to_owned();
        }
        // Wait, because the cluster creates the Secret a moment after the account.
        let name = ["get", "serviceaccount", "muster", "-o", "jsonpath={.secrets[0].name}"];
        let secret = || Some(self.namespace.kubectl(&name)).filter(|name| !name.is_empty());
        let secret = within("the account has its Secret", secret, String::new);
        self.namespace.kubectl(&["get", "secret", &secret, "-o", "go-template={{.data.token | base64decode}}"])
    }
}
