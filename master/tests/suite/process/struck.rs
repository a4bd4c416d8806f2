//! Tests in which a master's process is killed at a chosen point. The next master continues the job until it succeeds.

use std::collections::{BTreeSet, VecDeque};

use futures_util::{StreamExt, future, stream};
use reqwest::Method;
use serde_json::{Value, json};
use testkit::chaos::{Deed, Fault, Point, Strike};

use crate::process::harness::{Folders, Master};

/// worker-1 fails in its first run. In its second run, worker-1 sends SIGTERM to the agent, which ends the pod. Later
/// runs succeed. Each run appends a line to the file `starts`.
const FAILS_TWICE: &str = "
import os, signal, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
def is_first(deed):
    try: return bool(open(os.path.join(folder, deed), 'x'))
    except FileExistsError: return False
with open(os.path.join(folder, 'starts'), 'a') as starts:
    starts.write(os.environ['MUSTER_GENERATION'] + ' ' + os.environ['RANK'] + '\\n')
if os.environ['RANK'] == '1':
    if is_first('failed'): sys.exit(3)
    if is_first('ended'):
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
elif not os.path.exists(os.path.join(folder, 'ended')): time.sleep(600)
";
/// How many jobs run at the same time. Each job has its own masters.
const AT_ONCE: usize = 4;
/// Kills a master right after it has accepted the job.
const LOSES_ITS_JOB: Strike = Strike { point: Point::After(Deed::Accept), fault: Fault::Kill, passing: 1 };

/// A client of the current master. Each strike kills one master. The last master survives.
struct Client<'a> {
    folders: &'a Folders,
    /// The strikes of the next masters, one for each.
    strikes: VecDeque<Strike>,
    master: Option<Master>,
    killed: usize,
}

impl Client<'_> {
    /// Asks until `test` accepts the answer. If a master does not answer, it was killed, and its successor is asked.
    async fn ask(&mut self, (method, path): (Method, &str), body: &Value, test: impl Fn(u16, &Value) -> bool) -> Value {
        let mut seq = 0;
        loop {
            // A GET is a long poll. Each master numbers its views from 1. With a `seq` of an earlier
            // master, the answer comes at once, or at most 1 s late.
            let path = if method == Method::GET { format!("{path}?after={seq}&wait=1") } else { path.to_owned() };
            let answer = match &self.master {
                Some(master) => master.ask(method.clone(), &path, body).await,
                None => None,
            };
            match answer {
                Some((status, answer)) if test(status, &answer) => return answer,
                Some((_, answer)) => seq = answer["seq"].as_u64().unwrap_or(0),
                None => self.replace(),
            }
        }
    }

    fn replace(&mut self) {
        if let Some(master) = self.master.take() {
            self.count(master.wait());
        }
        let Some(strike) = self.strikes.pop_front() else {
            self.master = Some(self.folders.master());
            return;
        };
        match self.folders.struck_master(&strike) {
            Ok(master) => self.master = Some(master),
            Err(signal) => self.count(signal),
        }
    }

    fn count(&mut self, signal: Option<i32>) {
        assert_eq!(signal, Some(9), "the strike did not kill the master");
        self.killed += 1;
    }
}

/// Returns whether each strike killed a master. Asserts that the job succeeds and nothing is left of it.
async fn is_killed_and_the_job_ends_well(point: Point) -> bool {
    let folders = Folders::new(FAILS_TWICE);
    let strike = Strike { point, fault: Fault::Kill, passing: 1 };
    // Only a successor passes these points, so the first master must die earlier.
    let strikes_the_successor = matches!(point, Point::Before(Deed::Adopt) | Point::After(Deed::Adopt));
    let strikes = if strikes_the_successor { vec![LOSES_ITS_JOB, strike] } else { vec![strike] };
    let mut client = Client { folders: &folders, strikes: strikes.clone().into(), master: None, killed: 0 };
    let policy = json!({"max_restarts": 1, "backoff_seconds": 0});
    let job = json!({"name": "struck", "strategy": "AllReduce", "worker_num": 2, "run_policy": policy});
    client.ask((Method::POST, "/v1/jobs"), &job, |status, _| status == 201 || status == 200).await;
    let is_over = |_: u16, view: &Value| view["result"].is_object() && view["state"] != "stopping";
    let view = client.ask((Method::GET, "/v1/jobs/struck"), &Value::Null, is_over).await;
    // The test does not check `counted`, which can be 0 or 1: if a master is killed before it records the first
    // failure, its pods end too, and no later master counts this failure.
    assert_eq!(
        (&view["state"], &view["restarts"]["uncounted"]),
        (&json!("succeeded"), &json!(1)),
        "{strike}: {view:#}"
    );
    client.ask((Method::DELETE, "/v1/jobs/struck"), &Value::Null, |status, _| status == 202 || status == 404).await;
    // The master may answer 404 before the strike kills it, so the client asks twice.
    for _ in 0..2 {
        client.ask((Method::GET, "/v1/jobs/struck"), &Value::Null, |status, _| status == 404).await;
    }

    let starts = std::fs::read_to_string(folders.work.path().join("starts")).expect("the job was not started");
    let distinct: BTreeSet<&str> = starts.lines().collect();
    assert_eq!(distinct.len(), starts.lines().count(), "{strike}: a replica ran twice in one start:\n{starts}");
    for kept in ["logs", "pods"] {
        let left = std::fs::read_dir(folders.state.path().join(kept)).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "{strike}: something is left in {kept}");
    }
    client.killed == strikes.len()
}

#[tokio::test]
async fn a_job_ends_well_if_its_master_is_killed_after_creating_a_pod_recording_a_restart_or_deleting_the_record() {
    for deed in [Deed::CreatePod, Deed::MakeUp, Deed::Forget] {
        assert!(is_killed_and_the_job_ends_well(Point::After(deed)).await, "no master was killed after {deed:?}");
    }
}

#[tokio::test]
#[ignore = "takes a minute: use make chaos"]
async fn a_job_without_code_outlives_a_master_that_is_killed_at_any_point() {
    let kill = async |point: Point| (!is_killed_and_the_job_ends_well(point).await).then(|| point.to_string());
    let outcomes = stream::iter(Point::without_code()).map(kill).buffer_unordered(AT_ONCE);
    let spared: Vec<String> = outcomes.filter_map(future::ready).collect().await;
    assert_eq!(spared, Vec::<String>::new(), "points that no master has passed");
    println!("killed masters: {} points, 0 violations", Point::without_code().count());
}
