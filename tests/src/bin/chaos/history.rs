//! What the Kubernetes API has shown of a job, version by version, as two `kubectl get --watch` have printed it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::cluster::OURS;
use master::chaos::broken_promises;
use master::store::{JobRecord, Wish};
use serde_json::{Deserializer, Value};

/// Most time in which a forgotten job's objects go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two watches, from before the job was submitted.
pub(crate) struct History {
    records: Watch,
    pods: Watch,
}

impl History {
    pub(crate) fn follow(namespace: &str) -> anyhow::Result<Self> {
        Ok(Self { records: Watch::begin(namespace, "configmaps")?, pods: Watch::begin(namespace, "pods")? })
    }

    /// Waits until nothing of it is there any more, and then judges all that was: the versions of one record, and how many
    /// pods each replica has had.
    pub(crate) fn judge(self, pods: &BTreeMap<&str, usize>) -> anyhow::Result<()> {
        let (records, shown_pods) = (self.records.until_all_is_gone()?, self.pods.until_all_is_gone()?);
        let mut last: Option<JobRecord> = None;
        for event in &records {
            let record = record(event)?;
            let broken = last.iter().flat_map(|before| broken_promises(before, &record)).collect::<Vec<_>>();
            ensure!(broken.is_empty(), "{broken:?}: {last:?}, and then {record:?}");
            ensure!(event["type"] != "DELETED" || record.wish == Wish::Delete, "deleted without a wish: {record:?}");
            last = Some(record);
        }
        ensure!(last.is_some(), "no record was ever shown");
        let mut had: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in shown_pods.iter().map(|event| &event["object"]["metadata"]) {
            had.entry(pod["name"].as_str().unwrap_or_default()).or_default().extend(pod["uid"].as_str());
        }
        let had: BTreeMap<&str, usize> = had.into_iter().map(|(name, uids)| (name, uids.len())).collect();
        ensure!(had == *pods, "so many pods were there: {had:?}, and not {pods:?}");
        Ok(())
    }
}

/// The record of a version, as the master reads it.
fn record(event: &Value) -> anyhow::Result<JobRecord> {
    let map = &event["object"];
    let text = map["data"]["record"].as_str().with_context(|| format!("no record: {map}"))?;
    let uid = map["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    Ok(JobRecord { uid, ..serde_json::from_str(text).with_context(|| text.to_owned())? })
}

/// One kubectl that watches.
struct Watch {
    kubectl: Child,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Watch {
    fn begin(namespace: &str, kind: &str) -> anyhow::Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .args(["-n", namespace, "get", kind, "-l", OURS, "--watch", "--output-watch-events", "-o", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("kubectl is on the path")?;
        let stdout = kubectl.stdout.take().context("it was piped")?;
        let events = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&events);
        thread::spawn(move || {
            // It ends when kubectl is killed, in the middle of nothing.
            for event in Deserializer::from_reader(stdout).into_iter::<Value>().map_while(Result::ok) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            }
        });
        Ok(Self { kubectl, events })
    }

    /// What it has shown, once all that it has shown is deleted.
    fn until_all_is_gone(self) -> anyhow::Result<Vec<Value>> {
        let begin = Instant::now();
        loop {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let uids = |test: fn(&Value) -> bool| -> BTreeSet<String> {
                let of_kind = events.iter().filter(|event| test(event));
                of_kind.map(|event| event["object"]["metadata"]["uid"].to_string()).collect()
            };
            let left: Vec<String> =
                uids(|_| true).difference(&uids(|event| event["type"] == "DELETED")).cloned().collect();
            if left.is_empty() && !events.is_empty() {
                return Ok(events);
            }
            if begin.elapsed() > PATIENCE {
                bail!("of {} versions, these are not deleted: {left:?}", events.len());
            }
            // What another process prints is waited for by looking.
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended when its namespace went.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
