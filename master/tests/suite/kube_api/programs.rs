//! Tests of TFJobs of the cluster whose programs the master looks up.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use master::agents::token::AgentKey;
use serde_json::{Value, json};
use testkit::registry::{FakeAnswer, FakeRegistry, TestImage};

use super::server::{ApiServer, Asked, Kind, NAMESPACE};
use super::tfjobs::{define, follow, tfjob};
use super::world::{begin_with_agent, jobs};

/// A suspended TFJob without a command, with this image and the pull secrets `team` and `other`.
fn without_command(name: &str, image: &str) -> Value {
    let mut tfjob = tfjob(name, "");
    let pod = &mut tfjob["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"];
    pod["containers"][0] = json!({ "name": "tensorflow", "image": image });
    pod["imagePullSecrets"] = json!([{ "name": "team" }, { "name": "other" }]);
    tfjob
}

#[tokio::test]
async fn tfjobs_without_a_command_get_the_programs_that_registries_name_or_fail_with_a_reason() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    define(&server);
    let registry = FakeRegistry::start().await;
    let image = TestImage::new(&json!({ "Entrypoint": ["python", "/of-the-image.py"] }));
    let open = registry.push("open:1", &image).await;
    let closed = registry.push("closed:1", &image).await;
    let challenge = vec![("www-authenticate", "Basic realm=\"r\"".to_owned())];
    let wants = Some("Basic dGVhbTpzZWNyZXQ=".to_owned());
    let answer = FakeAnswer { headers: challenge, wants, ..FakeAnswer::ok(image.manifest.clone()) };
    registry.set("/v2/closed/manifests/1", answer).await;

    let backend = begin_with_agent(&server).await;
    let jobs = jobs(&server, backend, AgentKey::random(), folder.path());
    let auths = json!({ "auths": { registry.host(): { "auth": "dGVhbTpzZWNyZXQ=" } } }).to_string();
    let data = json!({ ".dockerconfigjson": STANDARD.encode(auths) });
    server.put("secrets", json!({ "metadata": { "name": "team", "namespace": NAMESPACE }, "data": data }));
    server.put("tfjobs", without_command("open", &open));
    server.put("tfjobs", without_command("absent", &format!("{}/absent:1", registry.host())));
    server.put("tfjobs", without_command("closed", &closed));
    let shows = |asked: &[Asked], name: &str, part: &str| {
        let path = format!("tfjobs/{name}/status");
        asked.iter().any(|one| one.kind == Kind::Patch && one.path == path && one.body.to_string().contains(part))
    };
    {
        let _following = follow(&server, Arc::clone(&jobs), &[]);
        server.until("a registry is asked", |asked| shows(asked, "open", "its registry is asked")).await;
        server.until("the job is shown", |asked| shows(asked, "open", "TFJobSuspended")).await;
        server.until("an absent image fails", |asked| shows(asked, "absent", "answered 404: it has no such")).await;
        let advice =
            "answered 401: to let the master read the pull secret, run client install --tfjobs --pull-secret other";
        server.until("a closed registry fails", |asked| shows(asked, "closed", advice)).await;
    }
    let read = |asked: &[Asked], name: &str| asked.iter().any(|one| one.path == format!("secrets/{name}"));
    assert!(!read(&server.journal(), "team"), "the master read a secret without the right to");

    server.put("tfjobs", without_command("again", &closed));
    let _following = follow(&server, jobs, &["team".to_owned()]);
    server.until("the job is shown", |asked| shows(asked, "again", "TFJobSuspended")).await;
    assert!(read(&server.journal(), "team") && !read(&server.journal(), "other"));
}

#[tokio::test]
async fn a_login_for_the_path_of_an_image_is_used_although_an_earlier_secret_has_an_identity_token() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    define(&server);
    let registry = FakeRegistry::start().await;
    let image = TestImage::new(&json!({ "Entrypoint": ["python", "/of-the-image.py"] }));
    let name = registry.push("ours/closed:1", &image).await;
    let challenge = vec![("www-authenticate", "Basic realm=\"r\"".to_owned())];
    let wants = Some("Basic dGVhbTpzZWNyZXQ=".to_owned());
    let answer = FakeAnswer { headers: challenge, wants, ..FakeAnswer::ok(image.manifest.clone()) };
    registry.set("/v2/ours/closed/manifests/1", answer).await;

    let secret = |name: &str, auths: Value| {
        let data = json!({ ".dockerconfigjson": STANDARD.encode(json!({ "auths": auths }).to_string()) });
        server.put("secrets", json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "data": data }));
    };
    secret("other", json!({ registry.host(): { "identitytoken": "abc" } }));
    let (host, path) = (registry.host(), format!("{}/ours", registry.host()));
    secret("team", json!({ host: { "auth": "d3Jvbmc6d3Jvbmc=" }, path: { "auth": "dGVhbTpzZWNyZXQ=" } }));
    let backend = begin_with_agent(&server).await;
    let jobs = jobs(&server, backend, AgentKey::random(), folder.path());
    server.put("tfjobs", without_command("closed", &name));
    let _following = follow(&server, jobs, &["team".to_owned(), "other".to_owned()]);
    let shows = |asked: &[Asked], reason: &str| {
        let is_status = |one: &&Asked| one.path == "tfjobs/closed/status" && one.kind == Kind::Patch;
        asked.iter().filter(is_status).any(|one| one.body.to_string().contains(reason))
    };
    let ends = |asked: &[Asked]| ["TFJobSuspended", "TFJobFailed"].iter().any(|reason| shows(asked, reason));
    server.until("the master has a job or an error", ends).await;
    assert!(shows(&server.journal(), "TFJobSuspended"), "{:#?}", server.journal());
}
