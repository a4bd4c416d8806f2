//! Keeps one table of pods for each job. One watch over all pods updates all tables.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::{Stream, StreamExt, pin_mut};
use job::key::JobKey;
use job::observation::{Incarnation, Pod as Listed};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use protocol::ids::ReplicaId;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::observe;
use crate::backend::PodTable;
use crate::error_chain::error_chain;
use crate::mutex::Mutex;

/// The pods that a master has created and that the watch has reported.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenPods {
    inner: Arc<Mutex<PodTables>>,
    /// Notified at each event.
    events: watch::Sender<()>,
}

/// A pod that the watch has reported, without its state.
#[derive(Debug, Clone)]
pub(super) struct SeenPod {
    /// The job of the pod.
    pub(super) job: JobKey,
    replica: ReplicaId,
    /// The unique id of the pod. A later pod with the same name has another uid.
    pub(super) uid: Option<String>,
    /// Whether a container of the pod was ever started.
    pub(super) has_begun: bool,
    /// The pod's grace, in seconds.
    pub(super) grace_seconds: Option<u64>,
}

#[derive(Debug, Default)]
struct PodTables {
    tables: HashMap<JobKey, watch::Sender<PodTable>>,
    /// The number of tables when unneeded tables were last removed.
    tables_after_removal: usize,
    pods: HashMap<String, SeenPod>,
    /// While the watch lists all pods again: the names of the pods listed so far.
    relisted: Option<HashSet<String>>,
}

impl SeenPods {
    /// Applies an event.
    pub(super) fn take(&self, event: Event<Pod>) {
        self.inner.lock().take(event);
        self.events.send_replace(());
    }

    /// The pods of a job now, and then each change.
    pub(super) fn table(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        self.inner.lock().table(job)
    }

    /// The job of the pod with this name, if there is one.
    pub(super) fn owner(&self, pod: &str) -> Option<JobKey> {
        self.pod(pod).map(|pod| pod.job)
    }

    /// The pod with this name, if there is one.
    pub(super) fn pod(&self, name: &str) -> Option<SeenPod> {
        self.inner.lock().pods.get(name).cloned()
    }

    /// Whether a container of any pod of the job was ever started.
    pub(super) fn any_has_begun(&self, job: &JobKey) -> bool {
        self.inner.lock().pods.values().any(|pod| pod.job == *job && pod.has_begun)
    }

    /// Waits until the owner of the pod with this name is not `before`. The owner is `None` if no pod of a job has the
    /// name.
    pub(super) async fn owner_changed_from(&self, pod: &str, before: Option<&JobKey>) {
        let mut events = self.events.subscribe();
        while self.owner(pod).as_ref() == before {
            // This cannot fail, because `self` holds the sender.
            let _ = events.changed().await;
        }
    }
}

impl PodTables {
    /// Subscribes to a job's table. When the number of tables has doubled, removes the tables that nobody needs.
    fn table(&mut self, job: &JobKey) -> watch::Receiver<PodTable> {
        let table = self.tables.entry(job.clone()).or_default().subscribe();
        if self.tables.len() > 2 * self.tables_after_removal {
            self.tables.retain(|_, table| !table.borrow().is_empty() || table.receiver_count() > 0);
            self.tables_after_removal = self.tables.len();
        }
        table
    }

    fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.relisted = Some(HashSet::new()),
            Event::InitApply(pod) => {
                let name = pod.name_any();
                self.put(&pod);
                self.relisted.get_or_insert_default().insert(name);
            }
            Event::InitDone => {
                let there = self.relisted.take().unwrap_or_default();
                let gone: Vec<String> = self.pods.keys().filter(|name| !there.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.remove(name));
            }
            Event::Apply(pod) => self.put(&pod),
            Event::Delete(pod) => self.remove(&pod.name_any()),
        }
    }

    fn put(&mut self, pod: &Pod) {
        let name = pod.name_any();
        let Some((job, replica)) = observe::whose(pod) else { return self.remove(&name) };
        if self.pods.get(&name).is_some_and(|pod| pod.job != job) {
            self.remove(&name);
        }
        self.tables.entry(job.clone()).or_default().send_if_modified(|table| {
            let incarnation = Incarnation::from(pod.uid().unwrap_or_default());
            let before = table.get(&replica).filter(|before| before.incarnation == incarnation);
            let state = observe::state(pod, before.map(|before| &before.state));
            let listed = Listed { incarnation, state };
            let has_changed = before != Some(&listed);
            table.insert(replica, listed);
            has_changed
        });
        let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let grace_seconds = grace.and_then(|grace| u64::try_from(grace).ok());
        let has_begun = observe::has_begun(pod);
        self.pods.insert(name, SeenPod { job, replica, uid: pod.uid(), has_begun, grace_seconds });
    }

    fn remove(&mut self, name: &str) {
        let Some(SeenPod { job, replica, .. }) = self.pods.remove(name) else { return };
        if let Some(table) = self.tables.get(&job) {
            table.send_if_modified(|table| table.remove(&replica).is_some());
        }
    }
}

/// Keeps the table of pods up to date across broken connections.
pub(super) async fn follow(
    events: impl Stream<Item = Result<Event<Pod>, watcher::Error>>,
    seen: SeenPods,
    listed: oneshot::Sender<()>,
) {
    let mut listed = Some(listed);
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let is_listed = matches!(event, Event::InitDone);
                seen.take(event);
                if is_listed && let Some(listed) = listed.take() {
                    info!("the watch has listed all pods");
                    // The receiver may have given up.
                    let _ = listed.send(());
                }
            }
            Err(error) => warn!(error = error_chain(&error), "the watch of the pods broke; restarting it"),
        }
    }
}

#[cfg(test)]
#[path = "seen_tests.rs"]
mod tests;
