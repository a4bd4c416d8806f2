//! Checks that the master's rights in manifests/ are sufficient and minimal: a complete run succeeds with all rights, and
//! fails without any single verb.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::{Image, Namespace};
use e2e::processes::pause_after;
use e2e::programs::{built, root, static_agent};
use e2e::{Scene, within};
use serde_json::{Value, json};

/// Maximum time of a step with all rights.
const PATIENCE: Duration = Duration::from_secs(90);
/// Number of concurrent runs.
const AT_ONCE: usize = 3;
/// A part of the API's error for a missing right. The test searches the master's log for it, because the API server's
/// metrics do not count these requests.
const REFUSED: &str = "forbidden";
const JOB_LABEL: &str = "app.kubernetes.io/managed-by=muster";

/// A right of the role in manifests/.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    resource: String,
    verb: String,
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_masters_rights_are_sufficient_and_minimal() {
    let rights = Account::of_base().rights();
    assert!(rights.len() > 8, "{rights:?}");
    check_all(Account::of_base, rights);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_masters_rights_on_tfjobs_are_sufficient_and_minimal() {
    let rights = Account::of_tfjobs().rights();
    assert!(rights.len() > 3, "{rights:?}");
    check_all(Account::of_tfjobs, rights);
}

/// Does a complete run with all rights, and one without each of these.
fn check_all(account: fn() -> Account, rights: Vec<Right>) {
    let image = Image::shared();
    let image = image.wrapped();
    let begin = Instant::now();
    let log = whole_run(&account(), &image, PATIENCE).expect("all rights are enough");
    assert!(!log.contains(REFUSED), "the API refused something:\n{log}");
    // Concurrent runs are slower than a single one, so wait longer.
    let impatience = (begin.elapsed() * 3).max(PATIENCE / 6);

    let (spare, found) = mpsc::channel();
    let queue = std::sync::Mutex::new(rights.into_iter());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(right) = { queue.lock().expect("no thread panics").next() } {
                    let account = account().without(&right);
                    let outcome = whole_run(&account, &image, impatience);
                    // The run must fail because of the missing right, and not for another reason.
                    if !outcome.as_ref().is_err_and(|said| said.contains(REFUSED)) {
                        spare.send((right, outcome)).expect("the test waits");
                    }
                }
            });
        }
    });
    drop(spare);
    let spared: Vec<(Right, Result<String, String>)> = found.iter().collect();
    assert_eq!(spared, vec![], "unneeded rights");
}

/// Does a complete run. Returns the master's log; the error contains it too.
fn whole_run(account: &Account, image: &str, patience: Duration) -> Result<String, String> {
    let scene = Scene::new("");
    fs::write(scene.path().join("kubeconfig"), account.kubeconfig()).expect("write");
    let outcome = (account.run)(&scene, account, (image, patience));
    outcome.map(|()| log_of(&scene)).map_err(|error| format!("{error}\n{}", log_of(&scene)))
}

fn log_of(scene: &Scene) -> String {
    fs::read_to_string(scene.path().join("master.log")).unwrap_or_default()
}

/// A complete run in a scene, with an account, pods of this image, and this patience for each step.
type Run = fn(&Scene, &Account, (&str, Duration)) -> Result<(), String>;

/// Follows a TFJob of the cluster that is suspended, so it has no pods, and deletes its job.
fn run_tfjob(scene: &Scene, account: &Account, (image, patience): (&str, Duration)) -> Result<(), String> {
    let master = Master::start(scene, account, &["--watch-tfjobs", "--agent-image", image])?;
    let container = json!({ "name": "tensorflow", "image": image, "command": ["python", "-c", "print('hello')"] });
    let worker = json!({ "template": { "spec": { "containers": [container] } } });
    let tfjob = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": "hello" },
        "spec": { "runPolicy": { "suspend": true }, "tfReplicaSpecs": { "Worker": worker } },
    });
    account.namespace.kubectl_with(&["apply", "-f", "-"], &tfjob.to_string());
    let states =
        || account.namespace.kubectl(&["get", "tfjobs", "-o", "jsonpath={.items[*].status.conditions[-1:].type}"]);
    until(scene, patience, "the TFJob shows its state", || states() == "Suspended")?;
    scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/hello", master.url)]);
    let gone = || account.namespace.kubectl(&["get", "tfjobs", "-o", "name"]).is_empty();
    until(scene, patience, "the TFJob is deleted", gone)
}

/// Runs a job that exceeds a quota, a job that succeeds and a job whose pods are deleted one by one. Then starts a new
/// master and deletes all jobs.
fn run_in(scene: &Scene, account: &Account, (image, patience): (&str, Duration)) -> Result<(), String> {
    let master = Master::start(scene, account, &[])?;
    account.namespace.kubectl(&["create", "quota", "team", "--hard=pods=20"]);
    let body = json!({ "name": "great", "strategy": "AllReduce", "worker_num": 21, "image": image });
    let answer = scene.curl(&[&format!("{}/v1/jobs", master.url), "-d", &body.to_string()]);
    answer.contains("which allows 20").then_some(()).ok_or(answer)?;
    for (name, image) in [("good", image), ("broken", "muster-e2e-nowhere")] {
        let body = json!({
            "name": name, "strategy": "AllReduce", "worker_num": 2, "image": image,
            "pod": {"image_pull_policy": "Never"},
        });
        let answer = scene.curl(&[&format!("{}/v1/jobs", master.url), "-d", &body.to_string()]);
        answer.contains("\"uid\"").then_some(()).ok_or(answer)?;
    }
    until(scene, patience, "both jobs end", || states(scene, &master) == ["failed", "succeeded"])?;
    let live = "--field-selector=status.phase!=Succeeded,status.phase!=Failed";
    let gone = || account.namespace.kubectl(&["get", "pods", "-l", JOB_LABEL, live, "-o", "name"]).is_empty();
    until(scene, patience, "the broken job's pods have ended", gone)?;
    drop(master);
    let master = Master::start(scene, account, &[])?;
    until(scene, patience, "the next master shows both jobs", || states(scene, &master) == ["failed", "succeeded"])?;
    for name in ["good", "broken"] {
        scene.curl(&["-X", "DELETE", &format!("{}/v1/jobs/{name}", master.url)]);
    }
    let gone = || {
        account.namespace.kubectl(&["get", "pods,configmaps,networkpolicies", "-l", JOB_LABEL, "-o", "name"]).is_empty()
    };
    until(scene, patience, "nothing is left", gone)
}

fn states(scene: &Scene, master: &Master) -> Vec<String> {
    let list: Value = serde_json::from_str(&scene.curl(&[&format!("{}/v1/jobs", master.url)])).unwrap_or_default();
    let jobs = list["jobs"].as_array().cloned().unwrap_or_default();
    jobs.iter().filter_map(|job| job["state"].as_str().map(str::to_owned)).collect()
}

/// Waits until `test` holds. After a refusal, which most often means that it never will, waits a third as long.
fn until(scene: &Scene, patience: Duration, what: &str, test: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let look_began = Instant::now();
        if test() {
            return Ok(());
        }
        let limit = if log_of(scene).contains(REFUSED) { patience / 3 } else { patience };
        if begin.elapsed() > limit {
            return Err(format!("timeout, waiting until {what}"));
        }
        // The cluster and the master are other programs, so poll.
        thread::sleep(pause_after(look_began.elapsed()));
    }
}

/// The service account of manifests/, in its own namespace.
struct Account {
    namespace: Namespace,
    /// The role under test.
    role: &'static str,
    /// What needs exactly the rights of this role, besides those of others.
    run: Run,
}

impl Account {
    fn of_base() -> Self {
        let account = Self { namespace: Namespace::new(), role: "muster", run: run_in };
        let manifest = root().join("manifests/base/account.yaml");
        account.namespace.kubectl(&["apply", "-f", &manifest.display().to_string()]);
        account
    }

    fn of_tfjobs() -> Self {
        let account = Self { role: "muster-tfjobs", run: run_tfjob, ..Self::of_base() };
        account.namespace.add_tfjobs();
        account
    }

    fn role(&self) -> Value {
        serde_json::from_str(&self.namespace.kubectl(&["get", "role", self.role, "-o", "json"])).expect("a role")
    }

    fn rights(&self) -> Vec<Right> {
        let role = self.role();
        let rules = role["rules"].as_array().expect("rules").clone();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().expect("a list").iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
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

    fn without(self, right: &Right) -> Self {
        let mut role = self.role();
        let rules = role["rules"].as_array_mut().expect("rules");
        for rule in rules.iter_mut().filter(|rule| rule["resources"] == json!([right.resource])) {
            rule["verbs"].as_array_mut().expect("verbs").retain(|verb| *verb != json!(right.verb));
        }
        // Kubernetes refuses a rule without verbs.
        rules.retain(|rule| rule["verbs"] != json!([]));
        self.namespace.kubectl_with(&["replace", "-f", "-"], &role.to_string());
        self
    }

    /// The current kubeconfig with the account's token.
    fn kubeconfig(&self) -> String {
        let mut config = self.namespace.kubeconfig();
        config["users"][0]["user"] = json!({"token": self.token()});
        config.to_string()
    }

    /// The account's token: by the API since Kubernetes 1.24, else from the account's Secret.
    fn token(&self) -> String {
        let created = self.namespace.try_kubectl(&["create", "token", "muster"]);
        if created.starts_with("ey") {
            return created.trim().to_owned();
        }
        // The cluster creates the Secret a moment after the account.
        let name = ["get", "serviceaccount", "muster", "-o", "jsonpath={.secrets[0].name}"];
        let secret = || Some(self.namespace.kubectl(&name)).filter(|name| !name.is_empty());
        let secret = within("the account has its Secret", secret, String::new);
        self.namespace.kubectl(&["get", "secret", &secret, "-o", "go-template={{.data.token | base64decode}}"])
    }
}

/// A master with an account's rights. Its start may fail.
struct Master {
    child: Child,
    url: String,
}

impl Master {
    fn start(scene: &Scene, account: &Account, args: &[&str]) -> Result<Self, String> {
        let mut child = Command::new(built("master"))
            .args(["--backend", "kubernetes", "--listen", "127.0.0.1:0", "--state-dir", "state"])
            .args(["--namespace", account.namespace.name(), "--agent-binary", &static_agent().display().to_string()])
            .args(args)
            .env("KUBECONFIG", scene.path().join("kubeconfig"))
            .current_dir(scene.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(
                fs::File::options().create(true).append(true).open(scene.path().join("master.log")).expect("its log"),
            )
            .spawn()
            .expect("the master starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it was piped")).read_line(&mut line).expect("a line or the end");
        let url = line.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
        let master = Self { child, url };
        if master.url.is_empty() { Err("the master does not start".to_owned()) } else { Ok(master) }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        // The kill fails if the master has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
