//! Tests of `seen.rs`: how the events of the watch change the tables.

use job::observation::{PodState, Wait};
use serde_json::json;

use super::*;

fn job(uid: &str) -> JobKey {
    JobKey { name: "digits".parse().unwrap(), uid: uid.to_owned() }
}

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().unwrap()
}

/// The pod of a worker of the job with this uid. The pod is not scheduled, for the reason `waits_for`.
fn pod(uid: &str, index: u32, waits_for: &str) -> Pod {
    let condition = json!({ "type": "PodScheduled", "status": "False", "message": waits_for });
    let mut pod = foreign(index);
    pod.metadata.labels = serde_json::from_value(json!({
        "muster/job": "digits", "muster/role": "worker", "muster/index": index.to_string(),
    }))
    .unwrap();
    let owner =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "muster-digits", "uid": uid, "controller": true });
    pod.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    pod.status = serde_json::from_value(json!({ "phase": "Pending", "conditions": [condition] })).unwrap();
    pod
}

/// A pod with the same name that no master has created.
fn foreign(index: u32) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": format!("digits-worker-{index}") } })).unwrap()
}

fn waits_for(what: &str) -> PodState {
    PodState::Pending { has_node: false, wait: Some(Wait::Other(format!("it cannot be scheduled: {what}"))) }
}

fn listed(seen: &SeenPods, pods: Vec<Pod>) {
    seen.take(Event::Init);
    pods.into_iter().for_each(|pod| seen.take(Event::InitApply(pod)));
    seen.take(Event::InitDone);
}

fn table(seen: &SeenPods, uid: &str) -> Vec<(ReplicaId, PodState)> {
    seen.table(&job(uid)).borrow().clone().into_iter().map(|(id, pod)| (id, pod.state)).collect()
}

#[test]
fn each_job_has_its_own_table() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room"), pod("b", 1, "room"), foreign(2)]);
    assert_eq!(table(&seen, "a"), [(worker(0), waits_for("room"))]);
    assert_eq!(table(&seen, "b"), [(worker(1), waits_for("room"))]);
    assert_eq!(seen.owner("digits-worker-1"), Some(job("b")));
    assert_eq!(seen.owner("digits-worker-2"), None);
}

#[test]
fn events_update_the_table() {
    let seen = SeenPods::default();
    listed(&seen, vec![]);
    seen.take(Event::Apply(pod("a", 0, "room")));
    seen.take(Event::Apply(pod("a", 0, "a GPU")));
    assert_eq!(table(&seen, "a"), [(worker(0), waits_for("a GPU"))]);
    seen.take(Event::Delete(pod("a", 0, "a GPU")));
    seen.take(Event::Delete(pod("a", 0, "a GPU")));
    assert_eq!(table(&seen, "a"), []);
    assert_eq!(seen.owner("digits-worker-0"), None);
}

#[test]
fn a_pod_that_a_new_list_omits_is_removed() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room"), pod("a", 1, "room"), pod("b", 2, "room")]);
    seen.take(Event::Init);
    assert_eq!(table(&seen, "a").len(), 2, "a pod was removed before the list was complete");
    seen.take(Event::InitApply(pod("a", 1, "a GPU")));
    seen.take(Event::InitDone);
    assert_eq!(table(&seen, "a"), [(worker(1), waits_for("a GPU"))]);
    assert_eq!(table(&seen, "b"), []);
}

#[test]
fn a_restarted_list_ignores_the_interrupted_list() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room"), pod("a", 1, "room")]);
    seen.take(Event::Init);
    seen.take(Event::InitApply(pod("a", 0, "room")));
    listed(&seen, vec![pod("a", 1, "room")]);
    assert_eq!(table(&seen, "a"), [(worker(1), waits_for("room"))]);
}

#[test]
fn a_pod_of_another_job_replaces_the_pod_with_its_name() {
    for takes_over in [Event::Apply, Event::InitApply] {
        let seen = SeenPods::default();
        listed(&seen, vec![pod("a", 0, "room")]);
        seen.take(takes_over(pod("b", 0, "room")));
        assert_eq!(table(&seen, "a"), []);
        assert_eq!(table(&seen, "b"), [(worker(0), waits_for("room"))]);
        assert_eq!(seen.owner("digits-worker-0"), Some(job("b")));
    }
}

#[test]
fn a_foreign_pod_replaces_the_pod_with_its_name() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room"), pod("a", 1, "room")]);
    listed(&seen, vec![foreign(0), pod("a", 1, "room")]);
    assert_eq!(table(&seen, "a"), [(worker(1), waits_for("room"))]);
    assert_eq!(seen.owner("digits-worker-0"), None);
}

#[test]
fn readers_of_a_table_are_notified_only_of_its_changes() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room")]);
    let mut table = seen.table(&job("a"));
    table.mark_unchanged();
    seen.take(Event::Apply(pod("a", 0, "room")));
    listed(&seen, vec![pod("a", 0, "room"), pod("b", 1, "room")]);
    seen.take(Event::Delete(pod("b", 1, "room")));
    assert!(!table.has_changed().unwrap(), "the reader was notified of changes of another job's pods");
    seen.take(Event::Apply(pod("a", 0, "a GPU")));
    assert!(table.has_changed().unwrap(), "the reader was not notified of a change of the job's pod");
}

#[test]
fn tables_without_pods_and_readers_are_dropped_whenever_the_number_of_tables_has_doubled() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room"), pod("b", 1, "room")]);
    let read = seen.table(&job("c"));
    listed(&seen, vec![pod("a", 0, "room")]);
    let mut sizes = vec![];
    for place in 0..100 {
        drop(seen.table(&job(&format!("job-{place}"))));
        sizes.push(seen.inner.lock().tables.len());
    }
    assert!(sizes.iter().all(|size| *size <= 8), "the tables grow without end: {sizes:?}");
    let inner = seen.inner.lock();
    assert!(["a", "c"].iter().all(|uid| inner.tables.contains_key(&job(uid))), "a used table was dropped");
    drop(read);
}

#[tokio::test]
async fn a_waiter_wakes_when_the_owner_of_the_name_changes() {
    let seen = SeenPods::default();
    listed(&seen, vec![pod("a", 0, "room")]);
    seen.owner_changed_from("digits-worker-0", Some(&job("b"))).await;
    let (other, before) = (seen.clone(), job("a"));
    let waits = tokio::spawn(async move { other.owner_changed_from("digits-worker-0", Some(&before)).await });
    seen.take(Event::Apply(pod("b", 1, "room")));
    tokio::task::yield_now().await;
    assert!(!waits.is_finished(), "the waiter woke before the owner of the name changed");
    seen.take(Event::Delete(pod("a", 0, "room")));
    waits.await.unwrap();
}
