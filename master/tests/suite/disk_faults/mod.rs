//! Tests of a master whose disk fails at some moment: the disk is full, or a write, a sync or a rename fails. The master
//! refuses what it cannot write, keeps what it has accepted, and runs nothing twice.

mod disk;

use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, future, stream};
use protocol::code::Sha256;
use reqwest::Method;
use serde_json::{Value, json};

use self::disk::{Disk, FOLDERS, Fault, RENAMES, SYNCS, WRITES};
use crate::chaos::config::rounds;
use crate::code::Code;
use crate::process::harness::{Folders, Master, Sent};

/// Notes its begin and its end in a file, and prints lines until the file `go` exists.
const EXEC_PY: &str = r#"
import os, time
folder, job = os.environ["FOLDER"], os.environ["MUSTER_JOB"]
def note(what):
    with open(f"{folder}/{job}.runs", "a") as runs: runs.write(what + "\n")
note("begin")
line = 0
while not os.path.exists(f"{folder}/go"):
    print("line", line, flush=True)
    line += 1
    time.sleep(0.002)
note("end")
"#;
/// How many cases run at the same time. Each case has its own master and its own disk.
const AT_ONCE: usize = 4;
/// How long a fault lasts.
const FAULT: Duration = Duration::from_millis(500);
/// How many requests of a client are refused before the test fails.
const ATTEMPTS_MAX: usize = 100;

/// What the master does when the fault begins.
#[derive(Debug, Clone, Copy)]
enum Moment {
    Submit,
    Start,
    Output,
    Result,
    History,
    Code,
}

/// What happens after the fault has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The fault ends.
    Ends,
    /// The master is killed during the fault. Its successor starts after the fault.
    Killed,
    /// As `Killed`, but the successor starts during the fault, if it can.
    Replaced,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    moment: Moment,
    fault: Fault,
    then: Then,
    /// Time from the moment to the fault, or from the fault to the moment.
    delay: Duration,
}

/// `count` cases. Every six of them have each moment once, and the faults take turns.
fn cases(count: usize, seed: u64) -> impl Iterator<Item = Case> {
    let mut random = fastrand::Rng::with_seed(seed);
    let moments =
        [Moment::Submit, Moment::Start, Moment::Output, Moment::Result, Moment::History, Moment::Code].into_iter();
    let faults = [Fault::Full, SYNCS, RENAMES, Fault::Full, WRITES, Fault::Limit];
    moments.cycle().take(count).enumerate().map(move |(index, moment)| {
        let fault = match (moment, faults[(index + index / faults.len()) % faults.len()]) {
            // The limit would hold for the agent and the script too.
            (Moment::Start, Fault::Limit) => Fault::Full,
            (_, fault) => fault,
        };
        let then = [Then::Ends, Then::Killed, Then::Replaced][random.usize(..3)];
        Case { moment, fault, then, delay: Duration::from_millis(random.u64(..150)) }
    })
}

/// A master with a disk of its own.
struct Site {
    folders: Folders,
    disk: Disk,
    case: Case,
    master: Master,
    /// The jobs that a master has accepted.
    accepted: Vec<&'static str>,
    /// The jobs that a master has shown as succeeded.
    succeeded: Vec<&'static str>,
}

impl Site {
    fn new(case: Case) -> Self {
        let folders = Folders::new(EXEC_PY);
        let disk = Disk::over(folders.state.path());
        let master = serving(&folders, &disk).expect("the master does not start");
        Self { folders, disk, case, master, accepted: vec![], succeeded: vec![] }
    }

    fn work(&self) -> &Path {
        self.folders.work.path()
    }

    fn job(&self, name: &str) -> Value {
        let env = json!({"FOLDER": self.work()});
        json!({"name": name, "strategy": "AllReduce", "worker_num": 1, "env": env})
    }

    /// Sends a request. Asserts that a refusal says that the disk is the reason. Returns the answer, unless the request
    /// was refused.
    async fn ask(&self, method: Method, path: &str, body: impl Into<Sent>) -> Option<Value> {
        let (status, answer) = self.master.ask(method, path, body).await.expect("the master has died");
        if (200..300).contains(&status) {
            return Some(answer);
        }
        let detail = answer["detail"].as_str().unwrap_or_default();
        let names_the_disk = ["disk", "space", "too large"].iter().any(|word| detail.contains(word));
        assert!(status == 503 && names_the_disk, "{:?}: {path}: {status} {answer:#}", self.case);
        None
    }

    /// Submits a job once.
    async fn submit(&mut self, name: &'static str, job: Value) {
        if self.ask(Method::POST, "/v1/jobs", &job).await.is_some() {
            self.accepted.push(name);
        }
    }

    /// Sends the code and submits its job, until the master accepts both.
    async fn submit_code(&mut self, name: &'static str, attempts: usize) {
        let code = Code::new(&[("exec.py", EXEC_PY.as_bytes())]);
        let path = format!("/v1/code/{}", code.id());
        for _ in 0..attempts {
            let Some(answer) = self.ask(Method::PUT, &path, &code.manifest()).await else { continue };
            let missing = serde_json::from_value::<Vec<_>>(answer["missing"].clone()).expect("not a list of blobs");
            let blobs = code.stream(&missing);
            if self.ask(Method::PUT, &format!("{path}/blobs"), blobs).await.is_none() {
                continue;
            }
            let mut job = self.job(name);
            job["code"] = json!(code.id());
            return self.submit(name, job).await;
        }
    }

    /// Deletes a job. If the request is refused, the job may be deleted or not.
    async fn forget(&mut self, name: &'static str) -> Option<Value> {
        self.accepted.retain(|accepted| *accepted != name);
        self.ask(Method::DELETE, &format!("/v1/jobs/{name}"), ()).await
    }

    async fn history_has(&self, name: &str) {
        let (_, past) = self.master.get("/v1/history").await;
        let has = past["jobs"].as_array().expect("not a list").iter().any(|job| job["name"] == name);
        assert!(has, "{:?}: the history lacks {name}: {past:#}", self.case);
    }

    async fn until_running(&self, name: &str) {
        self.master.until(name, |view| view["replicas"][0]["pid"].is_u64()).await;
    }

    /// Notes which jobs the master shows as succeeded.
    async fn look(&mut self) {
        for name in self.accepted.clone() {
            let (_, view) = self.master.get(&format!("/v1/jobs/{name}")).await;
            if view["state"] == "succeeded" {
                self.succeeded.push(name);
            }
        }
    }

    async fn until_forgotten(&self, name: &str) {
        let path = format!("/v1/jobs/{name}?after=0&wait=5");
        while self.master.get(&path).await.0 != 404 {}
    }

    async fn until_succeeded(&mut self, name: &'static str) -> Value {
        let view = self.master.until(name, |view| view["result"].is_object() && view["state"] != "stopping").await;
        assert_eq!(view["state"], "succeeded", "{:?}: {view:#}", self.case);
        self.succeeded.push(name);
        view
    }

    fn go(&self) {
        std::fs::write(self.work().join("go"), "").expect("cannot write the file");
    }

    /// How often a job's script has begun, and how often it has ended.
    fn runs(&self, name: &str) -> (usize, usize) {
        let runs = std::fs::read_to_string(self.work().join(format!("{name}.runs"))).unwrap_or_default();
        let count = |what: &str| runs.lines().filter(|line| *line == what).count();
        (count("begin"), count("end"))
    }

    fn replace_master(&mut self) {
        self.master = serving(&self.folders, &self.disk).expect("the next master does not start");
    }
}

/// A master whose state directory is on the disk. `None` if the master refuses to start.
fn serving(folders: &Folders, disk: &Disk) -> Option<Master> {
    Folders::serving(&mut disk.enter(&folders.command())).ok()
}

/// Runs one case. Panics if the master breaks a promise.
async fn is_survived(case: Case) {
    let mut site = Site::new(case);
    let job = site.job("early");
    site.submit("early", job).await;
    site.until_running("early").await;
    match case.moment {
        Moment::Submit | Moment::Code | Moment::Output => {}
        Moment::Start => {
            let job = site.job("starting");
            site.submit("starting", job).await;
        }
        Moment::Result => site.go(),
        Moment::History => {
            site.go();
            site.until_succeeded("early").await;
        }
    }
    tokio::time::sleep(case.delay).await;
    let effect = site.disk.fails(case.fault, &site.master);
    during(&mut site).await;
    tokio::time::sleep(FAULT).await;
    site.look().await;
    match case.then {
        Then::Ends => drop(effect),
        Then::Killed => {
            site.master.kill();
            drop(effect);
            site.replace_master();
        }
        Then::Replaced => {
            site.master.kill();
            let next = serving(&site.folders, &site.disk);
            drop(effect);
            match next {
                Some(master) => site.master = master,
                None => site.replace_master(),
            }
        }
    }
    all_ends_well(site).await;
}

/// What clients do during the fault.
async fn during(site: &mut Site) {
    match site.case.moment {
        Moment::Submit | Moment::Start | Moment::Output | Moment::Result => {
            for name in ["first", "second"] {
                let job = site.job(name);
                site.submit(name, job).await;
            }
        }
        Moment::Code => site.submit_code("brought", 1).await,
        Moment::History => {
            site.forget("early").await;
        }
    }
}

/// After the fault, each accepted job succeeds, and its script does not run again. The next master knows it too.
async fn all_ends_well(mut site: Site) {
    if matches!(site.case.moment, Moment::Code) && !site.accepted.contains(&"brought") {
        site.submit_code("brought", ATTEMPTS_MAX).await;
    }
    let job = site.job("late");
    site.submit("late", job).await;
    assert!(site.accepted.contains(&"late"), "{:?}: the master refuses a job after the fault", site.case);
    site.go();
    for name in site.accepted.clone() {
        let runs_of_shown = site.succeeded.contains(&name).then(|| site.runs(name));
        let view = site.until_succeeded(name).await;
        let (begun, ended) = site.runs(name);
        let case = site.case;
        assert!(runs_of_shown.is_none_or(|runs| runs == (begun, ended)), "{case:?}: {name} ran again: {view:#}");
        if case.then == Then::Ends {
            assert_eq!((begun, ended), (1, 1), "{case:?}: {name}: {view:#}");
        }
    }
    let before: Vec<_> = site.accepted.iter().map(|name| site.runs(name)).collect();
    site.master.kill();
    site.replace_master();
    for name in site.accepted.clone() {
        site.until_succeeded(name).await;
    }
    let after: Vec<_> = site.accepted.iter().map(|name| site.runs(name)).collect();
    assert_eq!(before, after, "{:?}: a job of {:?} ran again", site.case, site.accepted);
    site.history_has("early").await;
}

/// Runs cases, some of them at the same time. Returns those in which the master has broken a promise.
async fn violations(count: usize, seed: u64) -> Vec<Case> {
    let run = async |case: Case| tokio::spawn(is_survived(case)).await.is_err().then_some(case);
    stream::iter(cases(count, seed)).map(run).buffer_unordered(AT_ONCE).filter_map(future::ready).collect().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs strace and namespaces"]
async fn a_master_whose_disk_fails_at_any_moment_loses_nothing_and_runs_nothing_twice() {
    let violations = violations(6, 4).await;
    assert!(violations.is_empty(), "{violations:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs strace and namespaces"]
async fn a_job_whose_file_of_the_history_could_not_be_written_is_kept_there_before_it_is_deleted() {
    let case = Case { moment: Moment::Result, fault: RENAMES, then: Then::Ends, delay: Duration::ZERO };
    let mut site = Site::new(case);
    let job = site.job("early");
    site.submit("early", job).await;
    site.until_running("early").await;
    let effect = site.disk.fails(RENAMES, &site.master);
    site.go();
    site.until_succeeded("early").await;
    drop(effect);
    site.forget("early").await.expect("the deletion is refused after the fault");
    site.until_forgotten("early").await;
    site.history_has("early").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs strace and namespaces"]
async fn code_is_accepted_only_when_it_is_on_the_disk() {
    let case = Case { moment: Moment::Code, fault: SYNCS, then: Then::Ends, delay: Duration::ZERO };
    let site = Site::new(case);
    let code = Code::new(&[("exec.py", EXEC_PY.as_bytes())]);
    let (path, blobs) = (format!("/v1/code/{}", code.id()), code.stream(&[Sha256::of(EXEC_PY.as_bytes())]));
    let effect = site.disk.fails(SYNCS, &site.master);
    assert!(site.ask(Method::PUT, &path, &code.manifest()).await.is_none(), "the manifest is accepted");
    drop(effect);
    site.ask(Method::PUT, &path, &code.manifest()).await.expect("the manifest is refused after the fault");
    let _effect = site.disk.fails(SYNCS, &site.master);
    assert!(site.ask(Method::PUT, &format!("{path}/blobs"), blobs).await.is_none(), "the blobs are accepted");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs strace and namespaces"]
async fn a_job_waits_for_room_for_the_folder_of_its_pod() {
    let case = Case { moment: Moment::Start, fault: FOLDERS, then: Then::Ends, delay: Duration::ZERO };
    let mut site = Site::new(case);
    let effect = site.disk.fails(FOLDERS, &site.master);
    let job = site.job("early");
    site.submit("early", job).await;
    let names_the_disk = |view: &Value| view["replicas"][0]["reason"].as_str().is_some_and(|why| why.contains("space"));
    let view = site.master.until("early", |view| names_the_disk(view) || view["result"].is_object()).await;
    assert!(view["result"].is_null(), "the job does not wait: {view:#}");
    drop(effect);
    site.go();
    let view = site.until_succeeded("early").await;
    assert!(view["restarts"].is_null(), "a restart is recorded: {view:#}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute: use make chaos"]
async fn no_fault_of_the_disk_loses_a_job() {
    let (count, seed) = (40 * rounds() as usize, fastrand::u64(..));
    let violations = violations(count, seed).await;
    println!("faults of the disk: {count} cases, seed {seed}, {} violations", violations.len());
    assert!(violations.is_empty(), "{violations:#?}");
}
