//! What the Kubernetes API has shown of a job, version by version, as two `kubectl get --watch` have printed it.

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

/// Most time in which a forgotten job's objects go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two watches.
pub(crate) struct History {
    records: Watch,
    pods: Watch,
}

impl History {
    /// Begins to watch a namespace. What kubectl complains about goes into a file of the folder.
    pub(crate) fn follow(namespace: &Namespace, folder: &Path) -> anyhow::Result<Self> {
        let watch = |kind| Watch::begin(namespace.name(), kind, &folder.join(format!("{kind}.log")));
        Ok(Self { records: watch("configmaps")?, pods: watch("pods")? })
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
            ensure!(last.is_some() || record.restarts.is_empty(), "the beginning was not watched: {record:?}");
            ensure!(event["type"] != "DELETED" || record.wish == Wish::Delete, "deleted without a wish: {record:?}");
            last = Some(record);
        }
        let mut had: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in shown_pods.iter().map(|event| &event["object"]["metadata"]) {
            had.entry(pod["name"].as_str().unwrap_or_default()).or_default().extend(pod["uid"].as_str());
        }
        let had: BTreeMap<&str, usize> = had.into_iter().map(|(name, uids)| (name, uids.len())).collect();
        ensure!(had == *pods, "so many pods were there: {had:?}, and not {pods:?}");
        Ok(())
    }
}

/// The record of a version; its uid is the ConfigMap's.
fn record(event: &Value) -> anyhow::Result<JobRecord> {
    let map = &event["object"];
    let text = map["data"]["record"].as_str().with_context(|| format!("no record: {map}"))?;
    let uid = map["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    Ok(JobRecord { uid, ..serde_json::from_str(text).with_context(|| text.to_owned())? })
}

/// One kubectl that watches, and what it has shown.
struct Watch {
    kubectl: Child,
    log: PathBuf,
    events: Receiver<Value>,
}

impl Watch {
    fn begin(namespace: &str, kind: &str, log: &Path) -> anyhow::Result<Self> {
        let mut kubectl = Command::new("kubectl")
            .args(["-n", namespace, "get", kind, "-l", OURS, "--watch", "--output-watch-events", "-o", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .context("kubectl is on the path")?;
        let stdout = kubectl.stdout.take().context("it was piped")?;
        let (sender, events) = mpsc::channel();
        // Ends with kubectl, or when nobody wants to know.
        thread::spawn(move || {
            let shown = Deserializer::from_reader(stdout).into_iter::<Value>();
            shown.map_while(Result::ok).try_for_each(|event| sender.send(event))
        });
        Ok(Self { kubectl, log: log.to_owned(), events })
    }

    /// What it has shown, once all that it has shown is deleted.
    fn until_all_is_gone(self) -> anyhow::Result<Vec<Value>> {
        let begin = Instant::now();
        let (mut shown, mut there) = (vec![], BTreeSet::new());
        while shown.is_empty() || !there.is_empty() {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            let event = self.events.recv_timeout(left).with_context(|| {
                let complaint = fs::read_to_string(&self.log).unwrap_or_default();
                format!("of {} versions, these are not deleted: {there:?}; kubectl: {complaint}", shown.len())
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
        // It may have ended when its namespace went.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
