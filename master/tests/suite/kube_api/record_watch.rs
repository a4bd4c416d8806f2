//! Tests that the watch of records reports every change and every deletion, and no change twice, even if the watch's
//! connection breaks.

use master::store::kube::KubeStore;
use master::store::{JobRecord, JobStore, StoreEvent};
use serde_json::json;
use testkit::conformance::store as conformance;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::objects::failure;
use super::server::{ApiServer, DEADLINE, Kind, Reply, Silence, gone};
use super::world::internal_error;

/// A store with records of these names, and a watch that has reported these records.
async fn watched(server: &ApiServer, names: &[&str]) -> (KubeStore, mpsc::Receiver<StoreEvent>) {
    let store = KubeStore::new(&server.cluster());
    for name in names {
        store.create(conformance::record(name)).await.expect("cannot create the record");
    }
    let mut watch = store.watch().await.expect("cannot watch the records");
    for name in names {
        assert_eq!(next(&mut watch).await, format!("changed {name}, epoch 1"));
    }
    assert_eq!(next(&mut watch).await, "replayed");
    server.until("the watch is open", |asked| asked.iter().any(|asked| asked.kind == Kind::Watch)).await;
    (store, watch)
}

/// The next event of the watch, as text.
async fn next(watch: &mut mpsc::Receiver<StoreEvent>) -> String {
    match timeout(DEADLINE, watch.recv()).await.expect("no event came in time") {
        Some(StoreEvent::Changed(stored)) => format!("changed {}, epoch {}", stored.name(), stored.record.epoch),
        Some(StoreEvent::Deleted(name)) => format!("deleted {name}"),
        Some(StoreEvent::Damaged(job)) => format!("damaged {}", job.name),
        Some(StoreEvent::Replayed { .. }) => "replayed".to_owned(),
        Some(StoreEvent::AllReadable(all_readable)) => format!("all readable: {all_readable}"),
        None => "the end".to_owned(),
    }
}

/// The next event about a record.
async fn next_change(watch: &mut mpsc::Receiver<StoreEvent>) -> String {
    loop {
        let event = next(watch).await;
        if !event.starts_with("all readable") {
            return event;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn records_that_are_listed_again_are_reported_once() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["one", "two"]).await;
    let lists = server.count(Kind::List);
    server.end_watches(Some(gone()));
    server
        .until("the records are listed again", |asked| {
            asked.iter().filter(|asked| asked.kind == Kind::List).count() > lists
        })
        .await;
    store.create(conformance::record("zeta")).await.expect("cannot create the record");
    assert_eq!(next(&mut watch).await, "changed zeta, epoch 1");
}

#[tokio::test(start_paused = true)]
async fn changes_while_the_watch_was_down_are_reported() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["gone", "kept", "raised"]).await;
    server.end_watches(None);
    server.script_times(2, Kind::Watch, &Reply::Instead(internal_error()));
    server.script(Kind::Watch, Reply::Instead(failure(410, "Expired", "too old resource version")));
    let raised =
        store.get(&"raised".parse().expect("not a name")).await.expect("cannot read the record").expect("no record");
    store.update(JobRecord { epoch: 2, ..raised.record }, &raised.version).await.expect("cannot update the record");
    let lost =
        store.get(&"gone".parse().expect("not a name")).await.expect("cannot read the record").expect("no record");
    store.delete(lost.name(), &lost.record.uid).await.expect("cannot delete the record");
    assert_eq!(next(&mut watch).await, "changed raised, epoch 2");
    assert_eq!(next(&mut watch).await, "deleted gone");
}

#[tokio::test(start_paused = true)]
async fn it_is_reported_whether_all_records_are_readable() {
    let server = ApiServer::new();
    let (_store, mut watch) = watched(&server, &["one"]).await;
    let readable = server.object("configmaps", "muster-one").expect("no ConfigMap");
    let mut damaged = readable.clone();
    damaged["data"] = json!({ "record": "nonsense" });
    for again in [true, false] {
        server.put("configmaps", damaged.clone());
        assert_eq!(next(&mut watch).await, "damaged one");
        assert_eq!(next(&mut watch).await, "all readable: false");
        if again {
            server.put("configmaps", readable.clone());
            assert_eq!(next(&mut watch).await, "changed one, epoch 1");
        } else {
            // The record is deleted while the watch is broken.
            server.script_times(2, Kind::Watch, &Reply::Instead(internal_error()));
            server.script(Kind::Watch, Reply::Instead(failure(410, "Expired", "too old resource version")));
            server.end_watches(None);
            server.remove("configmaps", "muster-one");
            assert_eq!(next(&mut watch).await, "deleted one");
        }
        assert_eq!(next(&mut watch).await, "all readable: true");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_becomes_unreadable_is_reported_as_damaged_and_does_not_delay_other_records() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["damaged"]).await;
    let mut object = server.object("configmaps", "muster-damaged").expect("no ConfigMap");
    object["data"] = json!({ "record": "nonsense" });
    server.put("configmaps", object.clone());
    object["metadata"]["name"] = json!("muster-other");
    object["metadata"]["labels"]["muster/job"] = json!("other");
    server.put("configmaps", object);
    store.create(conformance::record("whole")).await.expect("cannot create the record");
    assert_eq!(next(&mut watch).await, "damaged damaged", "the watch does not report the damaged record");
    assert_eq!(next(&mut watch).await, "all readable: false");
    assert_eq!(next(&mut watch).await, "changed whole, epoch 1");
    server.end_watches(Some(gone()));
    server.remove("configmaps", "muster-other");
    server.remove("configmaps", "muster-damaged");
    assert_eq!(next(&mut watch).await, "deleted damaged", "a record that was never reported is reported as deleted");
    assert_eq!(next(&mut watch).await, "all readable: true");
    store.create(conformance::record("later")).await.expect("cannot create the record");
    assert_eq!(next(&mut watch).await, "changed later, epoch 1");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_created_again_is_reported_with_its_new_uid() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["again"]).await;
    let first =
        store.get(&"again".parse().expect("not a name")).await.expect("cannot read the record").expect("no record");
    server.end_watches(Some(gone()));
    store.delete(first.name(), &first.record.uid).await.expect("cannot delete the record");
    let second = store.create(conformance::record("again")).await.expect("cannot create the record");
    assert_ne!(second.record.uid, first.record.uid);
    let mut event = timeout(DEADLINE, watch.recv()).await.expect("no event came in time");
    // The list of the watch does not show that there was a deletion, but the result of the own write does.
    if event == Some(StoreEvent::Deleted(first.name().clone())) {
        event = timeout(DEADLINE, watch.recv()).await.expect("no event came in time");
    }
    assert_eq!(event, Some(StoreEvent::Changed(Box::new(second))));
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_when_its_reader_is_dropped() {
    let server = ApiServer::new();
    let (_, watch) = watched(&server, &["one"]).await;
    drop(watch);
    server.is_unwatched().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_receives_every_change() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &[]).await;
    let many = 1500;
    for place in 0..many {
        store.create(conformance::record(&format!("job-{place:04}"))).await.expect("cannot create the record");
    }
    for place in 0..many {
        assert_eq!(next(&mut watch).await, format!("changed job-{place:04}, epoch 1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_record_under_another_name_is_ignored() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["real"]).await;
    let mut copy = server.object("configmaps", "muster-real").expect("no ConfigMap");
    copy["metadata"]["name"] = json!("muster-copy");
    server.put("configmaps", copy.clone());
    store.create(conformance::record("next")).await.expect("cannot create the record");
    assert_eq!(next_change(&mut watch).await, "changed next, epoch 1");
    // Deleting the copy deletes no job.
    server.remove("configmaps", "muster-copy");
    store.create(conformance::record("third")).await.expect("cannot create the record");
    assert_eq!(next_change(&mut watch).await, "changed third, epoch 1");
    // The copy does not stand for a record that was deleted while the watch was down.
    server.put("configmaps", copy);
    server.forget_history();
    server.end_watches(Some(gone()));
    server.remove("configmaps", "muster-real");
    assert_eq!(next_change(&mut watch).await, "deleted real");
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_reported_while_the_watch_is_silent_and_its_late_events_change_nothing() {
    let server = ApiServer::new();
    let (store, mut watch) = watched(&server, &["again"]).await;
    server.silence("configmaps", Silence::Always);
    let name = "again".parse().expect("not a name");
    let first = store.get(&name).await.expect("cannot read the record").expect("no record");
    let raised = JobRecord { epoch: 2, ..first.record.clone() };
    store.update(raised, &first.version).await.expect("cannot update the record");
    assert_eq!(next(&mut watch).await, "changed again, epoch 2");
    store.delete(&name, &first.record.uid).await.expect("cannot delete the record");
    store.create(conformance::record("again")).await.expect("cannot create the record");
    assert_eq!(next(&mut watch).await, "deleted again");
    assert_eq!(next(&mut watch).await, "changed again, epoch 1");
    // The watch now reports the update, the deletion and the second record, which are all known.
    server.end_silence("configmaps");
    store.create(conformance::record("later")).await.expect("cannot create the record");
    assert_eq!(next(&mut watch).await, "changed later, epoch 1");
    server.remove("configmaps", "muster-again");
    assert_eq!(next(&mut watch).await, "deleted again");
}
