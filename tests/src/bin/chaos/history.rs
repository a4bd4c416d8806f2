//! All versions of a job's record and pods in the Kubernetes API. Two commands `kubectl get --watch` print them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::cluster::{Namespace, OURS};
use master::store::{JobRecord, Wish};
use serde_json::{Deserializer, Value};
use testkit::chaos::broken_promises;

/// Maximum time until the objects of a deleted job have disappeared from the API.
const PATIENCE: Duration = Duration::from_secs(60);

/// The watches of records and pods.
pub(crate) struct History {
    records: Watch,
    pods: Watch,
}

impl History {
    /// Watches a namespace. kubectl writes its stderr to files in the folder.
    pub(crate) fn follow(namespace: &Namespace, folder: &Path) -> anyhow::Result<Self> {
        let watch = |kind, selector: &str| {
            Watch::begin(namespace.name(), (kind, selector), &folder.join(format!("{kind}.log")))
        };
        // Copies of code stay for some minutes after their jobs.
        let records = format!("{OURS},app.kubernetes.io/component=job");
        Ok(Self { records: watch("configmaps", &records)?, pods: watch("pods", OURS)? })
    }

    /// Waits until all objects are deleted. Then checks all versions of the record, and how many pods each replica had.
    pub(crate) fn judge(self, pods: &BTreeMap<&str, usize>) -> anyhow::Result<()> {
        let (records, shown_pods) = (self.records.until_all_is_gone()?, self.pods.until_all_is_gone()?);
        let mut last: Option<JobRecord> = None;
        for event in &records {
            let record = record(event)?;
            let broken = last.iter().flat_map(|before| broken_promises(before, &record)).collect::<Vec<_>>();
            ensure!(broken.is_empty(), "broken rules: {broken:?}: {last:?}, followed by {record:?}");
            ensure!(last.is_some() || record.restarts.is_empty(), "the watch missed the first version: {record:?}");
            ensure!(
                event["type"] != "DELETED" || record.wish == Wish::Delete,
                "the record was deleted, but the job's wish is not delete: {record:?}"
            );
            last = Some(record);
        }
        let mut had: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in shown_pods.iter().map(|event| &event["object"]["metadata"]) {
            had.entry(pod["name"].as_str().unwrap_or_default()).or_default().extend(pod["uid"].as_str());
        }
        let had: BTreeMap<&str, usize> = had.into_iter().map(|(name, uids)| (name, uids.len())).collect();
        ensure!(had == *pods, "expected pods {pods:?}, found {had:?}");
        Ok(())
    }
}

/// Reads the record from a version of its ConfigMap. The record gets the ConfigMap's uid.
fn record(event: &Value) -> anyhow::Result<JobRecord> {
    let map = &event["object"];
    let text = map["data"]["record"].as_str().with_context(|| format!("no record: {map}"))?;
    let uid = map["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    Ok(JobRecord { uid, ..serde_json::from_str(text).with_context(|| text.to_owned())? })
}

/// A running `kubectl get --watch`, and its output.
struct Watch {
    kubectl: Child,
    log: PathBuf,
    events: Receiver<Value>,
}

impl Watch {
    fn begin(namespace: &str, (kind, selector): (&str, &str), log: &Path) -> anyhow::Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .args(["-n", namespace, "get", kind, "-l", selector, "--watch", "--output-watch-events", "-o", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .context("kubectl did not start")?;
        let stdout = kubectl.stdout.take().context("the stdout of kubectl is not piped")?;
        let (sender, events) = mpsc::channel();
        // This thread ends with kubectl, or when the receiver is dropped.
        thread::spawn(move || {
            let shown = Deserializer::from_reader(stdout).into_iter::<Value>();
            shown.map_while(Result::ok).try_for_each(|event| sender.send(event))
        });
        Ok(Self { kubectl, log: log.to_owned(), events })
    }

    /// Waits until all objects of the watch are deleted. Returns all events.
    fn until_all_is_gone(self) -> anyhow::Result<Vec<Value>> {
        let begin = Instant::now();
        let (mut shown, mut there) = (vec![], BTreeSet::new());
        while shown.is_empty() || !there.is_empty() {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            let event = self.events.recv_timeout(left).with_context(|| {
                let complaint = fs::read_to_string(&self.log).unwrap_or_default();
                format!("after {} versions, these uids are not deleted: {there:?}; kubectl: {complaint}", shown.len())
            })?;
            let uid = event["object"]["metadata"]["uid"].to_string();
            if event["type"] == "DELETED" {
                there.remove(&uid)
            } else {
                there.insert(uid)
            };
            shown.push(event);
        }
        Ok(shown)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The kill fails if kubectl has ended with its namespace.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
