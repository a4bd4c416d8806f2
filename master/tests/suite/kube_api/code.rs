//! Tests of the copies of code as ConfigMaps: what the store writes, and what it does with ConfigMaps that somebody else
//! has written.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use master::agents::token::AgentKey;
use master::registry::Jobs;
use master::store::Wish;
use master::store::kube::KubeStore;
use master::store::{
    CODE_COPIES_BYTES_MAX, CODE_COPY_BYTES_MAX, CodeCopies, CopyOutcome, FORMAT_OF_SEVERAL, JobRecord, JobStore,
    StoreError, Unkept,
};
use protocol::code::{CodeId, Manifest};
use protocol::job::JobSpec;
use serde_json::{Value, json};
use testkit::conformance::store as conformance;

use super::objects::failure;
use super::server::{ApiServer, Asked, Kind, Reply};
use super::world::{begin_with_agent, jobs, spec};
use crate::service::delivering::keep as keep_on_disk;

fn code() -> CodeId {
    Manifest::new(vec![]).expect("not a manifest").id()
}

fn name() -> String {
    format!("muster-code-{}", code())
}

fn store(server: &ApiServer) -> KubeStore {
    KubeStore::new(&server.cluster())
}

async fn keep(server: &ApiServer) -> CopyOutcome {
    store(server).keep(code(), b"content").await.expect("the store does not answer")
}

fn map(server: &ApiServer) -> Value {
    server.object("configmaps", &name()).expect("no ConfigMap")
}

/// The jobs of a master that has read all records.
async fn master_on(server: &ApiServer, folder: &Path) -> Arc<Jobs> {
    let backend = begin_with_agent(server).await;
    let jobs = jobs(server, backend, AgentKey::random(), folder);
    jobs.complete().await;
    jobs
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_an_immutable_config_map_with_labels_of_its_own_and_the_content_as_binary_data() {
    let server = ApiServer::new();
    assert!(matches!(keep(&server).await, CopyOutcome::New(_)));
    let map = map(&server);
    assert_eq!(map["immutable"], true);
    // "content" in base64.
    assert_eq!(map["binaryData"], json!({ "code": "Y29udGVudA==" }));
    let labels = json!({
        "app.kubernetes.io/managed-by": "muster", "app.kubernetes.io/name": "muster-code",
        "app.kubernetes.io/component": "code",
    });
    assert_eq!(map["metadata"]["labels"], labels);
    assert_eq!(map["metadata"]["annotations"]["muster/bytes"], "7");
    assert_eq!(server.mutations(), ["Create configmaps"]);
}

#[tokio::test(start_paused = true)]
async fn a_known_copy_is_renewed_by_one_write_and_a_copy_with_another_content_is_replaced() {
    let server = ApiServer::new();
    keep(&server).await;
    assert!(matches!(keep(&server).await, CopyOutcome::Renewed(_)));
    let renew = format!("Replace configmaps/{}", name());
    assert_eq!(server.mutations(), ["Create configmaps", &renew]);
    let mut edited = map(&server);
    edited["binaryData"]["code"] = json!("ZWRpdGVk");
    server.put("configmaps", edited);
    assert!(matches!(keep(&server).await, CopyOutcome::New(_)));
    assert_eq!(map(&server)["binaryData"]["code"], "Y29udGVudA==");
    let remove = format!("Delete configmaps/{}", name());
    assert_eq!(server.mutations()[2..], [&remove, "Create configmaps"]);
}

/// An empty manifest, packed at this level.
fn packed(level: Compression) -> Vec<u8> {
    let mut gzip = GzEncoder::new(vec![], level);
    gzip.write_all(b"{\"files\":[]}\n").expect("memory refuses bytes");
    gzip.finish().expect("memory refuses bytes")
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_another_version_of_gzip_has_packed_is_renewed_and_not_removed() {
    let server = ApiServer::new();
    let [before, other] = [Compression::none(), Compression::best()].map(packed);
    assert_ne!(before, other);
    store(&server).keep(code(), &before).await.expect("the store does not answer");
    let kept = store(&server).keep(code(), &other).await.expect("the store does not answer");
    assert!(matches!(kept, CopyOutcome::Renewed(_)), "{kept:?}");
    assert_eq!(server.mutations(), ["Create configmaps", &format!("Replace configmaps/{}", name())]);
    assert_eq!(store(&server).read(code()).await.expect("the store does not answer"), Some(before));
}

#[tokio::test(start_paused = true)]
async fn a_config_map_of_somebody_else_is_left_alone() {
    let server = ApiServer::new();
    let foreign = json!({ "metadata": { "name": name() }, "data": { "mine": "yes" } });
    server.put("configmaps", foreign);
    assert_eq!(keep(&server).await, CopyOutcome::Not(Unkept::Foreign(name())));
    assert_eq!(server.mutations(), [""; 0]);
    let store = store(&server);
    assert_eq!(store.read(code()).await.expect("the store does not answer"), None);
    assert_eq!(store.copies().await.expect("the store does not answer"), []);
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_not_kept_if_a_quota_or_the_limit_of_all_copies_has_no_room() {
    let server = ApiServer::new();
    let full = "configmaps \"muster-code-x\" is forbidden: exceeded quota: team, requested: count/configmaps=1";
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", full)));
    assert_eq!(keep(&server).await, CopyOutcome::Not(Unkept::Refused(full.to_owned())));
    keep(&server).await;
    let mut other = map(&server);
    for number in 0..CODE_COPIES_BYTES_MAX / CODE_COPY_BYTES_MAX as u64 {
        other["metadata"]["name"] = json!(format!("muster-code-{number:064x}"));
        other["metadata"]["annotations"]["muster/bytes"] = json!(CODE_COPY_BYTES_MAX.to_string());
        server.put("configmaps", other.clone());
    }
    assert!(matches!(keep(&server).await, CopyOutcome::Renewed(_)), "a known copy is not kept");
    server.remove("configmaps", &name());
    let content = vec![0; CODE_COPY_BYTES_MAX];
    let kept = store(&server).keep(code(), &content).await.expect("the store does not answer");
    assert_eq!(kept, CopyOutcome::Not(Unkept::Full));
}

#[tokio::test(start_paused = true)]
async fn no_copy_is_removed_while_a_later_master_has_a_record_that_this_master_cannot_read() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let _jobs = master_on(&server, folder.path()).await;
    // A later master has accepted a job with code.
    let store = store(&server);
    let format = FORMAT_OF_SEVERAL + 1;
    let later = store.create(JobRecord { format, ..conformance::record("later") }).await;
    assert!(matches!(later, Err(StoreError::OtherFormat { .. })), "{later:?}");
    store.keep(code(), b"content").await.expect("the store does not answer");
    let (copy, hour) = (name(), Duration::from_secs(3600));
    tokio::time::sleep(hour).await;
    assert!(server.object("configmaps", &copy).is_some(), "the code of a later master's job was removed");
    server.remove("configmaps", "muster-later");
    let path = format!("configmaps/{copy}");
    let is_removed = |asked: &[Asked]| asked.iter().any(|asked| asked.kind == Kind::Delete && asked.path == path);
    server.until("the copy is removed", is_removed).await;
}

#[tokio::test(start_paused = true)]
async fn a_master_writes_the_missing_copy_that_a_job_needs_and_removes_the_copy_10_minutes_after_the_job() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let jobs = master_on(&server, folder.path()).await;
    let code = keep_on_disk(jobs.code());
    let name = format!("muster-code-{code}");
    let script = "train.py".parse().expect("not a script");
    let spec = JobSpec { code: Some(code), script, ..spec("digits") };
    jobs.requests.submit(spec.clone()).await.expect("not accepted");
    server.remove("configmaps", &name);
    let creates = |asked: &[Asked]| {
        asked.iter().filter(|asked| asked.kind == Kind::Create && asked.body["metadata"]["name"] == name).count()
    };
    server.until("the copy is written again", |asked| creates(asked) == 2).await;

    jobs.requests.wish(&spec.name, Wish::Delete).await.expect("no record");
    let at = |asked: &[Asked], path: String| {
        asked.iter().find(|asked| asked.kind == Kind::Delete && asked.path == path).map(|asked| asked.at)
    };
    let copy = format!("configmaps/{name}");
    server.until("the copy is removed", |asked| at(asked, copy.clone()).is_some()).await;
    let journal = server.journal();
    let record = at(&journal, "configmaps/muster-digits".to_owned()).expect("the record is not removed");
    let waited = at(&journal, copy).expect("the copy is not removed").duration_since(record);
    assert!((10 * 60..=12 * 60).contains(&waited.as_secs()), "{waited:?}");
}
