//! Tests of records as ConfigMaps: what the store returns for each answer of the API.

use master::store::kube::KubeStore;
use master::store::{JobRecord, JobStore, StoreError, StoreEvent, Version};
use serde_json::json;
use testkit::conformance::store as conformance;

use super::objects::{failure, status_object};
use super::server::{ApiServer, Kind, NAMESPACE, Reply};
use super::world::chain;

/// The record of the job `digits`, before a cluster has given it a uid.
fn record() -> JobRecord {
    conformance::record("digits")
}

fn store(server: &ApiServer) -> KubeStore {
    KubeStore::new(&server.cluster())
}

fn is_unavailable<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Unavailable(_)))
}

#[tokio::test(start_paused = true)]
async fn the_kubernetes_store_conforms() {
    conformance::check(&store(&ApiServer::new())).await;
}

#[tokio::test(start_paused = true)]
async fn records_are_listed_in_pages_of_500() {
    let server = ApiServer::new();
    let store = store(&server);
    store.create(record()).await.expect("cannot create the record");
    let mut map = server.object("configmaps", "muster-digits").expect("no ConfigMap");
    for place in 0..1000 {
        map["metadata"]["name"] = json!(format!("muster-copy-{place}"));
        server.put("configmaps", map.clone());
    }
    let listed = store.list().await.expect("cannot list the records");
    assert_eq!(listed.iter().map(|stored| stored.name().as_str()).collect::<Vec<_>>(), ["digits"]);
    let journal = server.journal();
    let lists = journal.iter().filter(|asked| asked.kind == Kind::List);
    assert_eq!(lists.map(|asked| asked.param("limit")).collect::<Vec<_>>(), [Some("500"); 3]);
}

#[tokio::test(start_paused = true)]
async fn at_most_64_calls_wait_for_the_api_at_a_time() {
    let server = ApiServer::new();
    let store = store(&server);
    server.script_times(100, Kind::Get, &Reply::Silence);
    let name = record().spec.name.clone();
    let answers = futures_util::future::join_all((0..100).map(|_| store.get(&name))).await;
    assert!(answers.iter().all(is_unavailable), "{answers:?}");
    let asked: Vec<_> = server.journal().iter().map(|asked| asked.at).collect();
    assert_eq!(asked.len(), 100);
    let at_once = asked.iter().map(|at| asked.iter().filter(|other| *other == at).count()).max();
    assert!(at_once <= Some(64), "{at_once:?} calls were made at once");
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_returns_its_own_record() {
    let server = ApiServer::new();
    let store = KubeStore::new(&server.cluster_over_http().await);
    // After this answer, kube's client retries the request. The API then answers that the name is taken.
    server.script(Kind::Create, Reply::DoneAnd(failure(504, "Timeout", "request did not complete in time")));
    let created = store.create(record()).await.expect("cannot create the record");
    assert_eq!(server.mutations(), ["Create configmaps", "Create configmaps"]);
    let object = server.object("configmaps", "muster-digits").expect("no ConfigMap");
    assert_eq!(json!(created.record.uid), object["metadata"]["uid"]);
    assert_eq!(json!(created.version.0), object["metadata"]["resourceVersion"]);
    assert_eq!(created.record, JobRecord { uid: created.record.uid.clone(), ..record() });
}

#[tokio::test(start_paused = true)]
async fn a_create_is_refused_if_another_record_has_the_name() {
    let server = ApiServer::new();
    let store = store(&server);
    store.create(record()).await.expect("the first create failed");
    let other = JobRecord { uid: "another".to_owned(), ..record() };
    let refused = store.create(other).await;
    assert!(matches!(&refused, Err(StoreError::Exists(name)) if name.as_str() == "digits"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_create_is_refused_if_a_foreign_config_map_has_the_name() {
    let server = ApiServer::new();
    let metadata = json!({ "name": "muster-digits", "namespace": NAMESPACE });
    server.put(
        "configmaps",
        json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": { "a": "b" } }),
    );
    let refused = store(&server).create(record()).await;
    assert!(matches!(&refused, Err(StoreError::Exists(name)) if name.as_str() == "digits"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_a_quota_is_not_reported_as_a_taken_name() {
    let server = ApiServer::new();
    let sentence = "Operation cannot be fulfilled on resourcequotas \"team\": the object has been modified";
    server.script(Kind::Create, Reply::Instead(failure(409, "Conflict", sentence)));
    let refused = store(&server).create(record()).await;
    assert!(is_unavailable(&refused), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quota_without_room_for_a_record_is_told_apart_from_other_refusals() {
    let server = ApiServer::new();
    let sentence = "configmaps \"muster-digits\" is forbidden: exceeded quota: team";
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", sentence)));
    let refused = store(&server).create(record()).await;
    assert!(matches!(&refused, Err(StoreError::OverQuota(said)) if said == sentence), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_permanent_refusal_is_reported_in_the_words_of_the_cluster() {
    for (code, sentence) in [
        (400, "the object provided is unrecognized"),
        (403, "admission webhook \"policy\" denied the request"),
        (413, "Request entity too large: limit is 3145728"),
        (422, "ConfigMap \"muster-digits\" is invalid: []: Too long: must have at most 1048576 bytes"),
    ] {
        let server = ApiServer::new();
        let store = store(&server);
        server.script(Kind::Create, Reply::Instead(failure(code, "Invalid", sentence)));
        let created = store.create(record()).await;
        assert!(matches!(&created, Err(StoreError::Refused(said)) if said == sentence), "{created:?}");
        server.script(Kind::Replace, Reply::Instead(failure(code, "Invalid", sentence)));
        let updated = store.update(record(), &Version("1".to_owned())).await;
        assert!(matches!(&updated, Err(StoreError::Refused(said)) if said == sentence), "{updated:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delete_names_the_uid_and_does_not_delete_the_record_of_another_job() {
    let server = ApiServer::new();
    let store = store(&server);
    let stored = store.create(record()).await.expect("cannot create the record");
    store.delete(stored.name(), "of another").await.expect("the delete failed although there is nothing to delete");
    assert!(server.object("configmaps", "muster-digits").is_some());
    store.delete(stored.name(), &stored.record.uid).await.expect("cannot delete the record");
    assert_eq!(server.object("configmaps", "muster-digits"), None);
    store
        .delete(stored.name(), &stored.record.uid)
        .await
        .expect("the delete failed although there is nothing to delete");
    let journal = server.journal();
    let bodies = journal.iter().filter(|asked| asked.kind == Kind::Delete).map(|asked| &asked.body);
    let sent: Vec<_> = bodies.map(|body| (&body["preconditions"]["uid"], &body["propagationPolicy"])).collect();
    let (other, own, background) = (json!("of another"), json!(stored.record.uid), json!("Background"));
    assert_eq!(sent, [(&other, &background), (&own, &background), (&own, &background)]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_unavailable_after_its_deadline() {
    let server = ApiServer::new();
    let store = store(&server);
    for kind in [Kind::Create, Kind::Get, Kind::List, Kind::List, Kind::Replace, Kind::Delete] {
        server.script(kind, Reply::Silence);
    }
    let name = record().spec.name.clone();
    let began = tokio::time::Instant::now();
    assert!(is_unavailable(&store.create(record()).await));
    assert!(is_unavailable(&store.get(&name).await));
    assert!(is_unavailable(&store.list().await));
    assert!(is_unavailable(&store.watch().await));
    assert!(is_unavailable(&store.update(record(), &Version("1".to_owned())).await));
    assert!(is_unavailable(&store.delete(&name, "uid").await));
    assert_eq!(began.elapsed().as_secs(), 6 * 20);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_watch_fails_at_once() {
    let server = ApiServer::new();
    let sentence = "configmaps is forbidden: User \"muster\" cannot list resource \"configmaps\"";
    server.script(
        Kind::List,
        Reply::Instead((axum::http::StatusCode::FORBIDDEN, status_object(403, "Forbidden", sentence))),
    );
    let error = store(&server).watch().await.expect_err("a forbidden watch began");
    assert_eq!(chain(&error), format!("the store of records failed: {sentence}"));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_is_unreadable_and_does_not_hide_the_others() {
    let server = ApiServer::new();
    let store = store(&server);
    store.create(record()).await.expect("cannot create the record");
    store.create(conformance::record("whole")).await.expect("cannot create the record");
    let mut object = server.object("configmaps", "muster-digits").expect("no ConfigMap");
    object["data"]["record"] = json!("{\"uid\": 1");
    server.put("configmaps", object);
    let got = store.get(&record().spec.name).await;
    assert!(matches!(&got, Err(StoreError::Unreadable { job, .. }) if job.name.as_str() == "digits"), "{got:?}");
    let listed = store.list().await.expect("the readable records cannot be listed");
    assert_eq!(listed.iter().map(|stored| stored.name().as_str()).collect::<Vec<_>>(), ["whole"]);
    let mut watch = store.watch().await.expect("no watch");
    assert!(matches!(watch.recv().await, Some(StoreEvent::Changed(stored)) if stored.name().as_str() == "whole"));
    assert_eq!(watch.recv().await, Some(StoreEvent::Replayed { all_readable: false }));
}
