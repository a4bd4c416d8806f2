//! Registries that refuse, fail or lie. Each error says whether a later attempt may succeed.

use image_program::LookUpError;
use serde_json::json;
use testkit::registry::{FakeAnswer, FakeRegistry, Received, Stops, TestImage, digest, index};

use super::{BASIC, HERE, entrypoint, login, program, running};

/// The path of the image `mnist:1`.
const MANIFEST: &str = "/v2/mnist/manifests/1";

/// The reason of an error that may pass.
fn passing(error: LookUpError) -> String {
    match error {
        LookUpError::Passing { reason, .. } => reason,
        LookUpError::Refused { .. } | LookUpError::Unusable(_) => panic!("{error}"),
    }
}

/// A registry whose manifest of `mnist:1` has this answer, and the name of the image.
async fn answering(answer: FakeAnswer) -> (FakeRegistry, String) {
    let registry = FakeRegistry::start().await;
    let name = registry.push("mnist:1", &running("train")).await;
    registry.set(MANIFEST, answer).await;
    (registry, name)
}

#[tokio::test]
async fn statuses_tell_a_refusal_from_an_outage() {
    for status in [401, 403, 404] {
        let (registry, name) = answering(FakeAnswer::status(status)).await;
        assert_eq!(program(&name, None).await, Err(LookUpError::Refused { host: registry.host(), status }));
    }
    for (status, reason) in [
        (429, "answered 429 Too Many Requests"),
        (500, "answered 500 Internal Server Error"),
        (503, "answered 503 Service Unavailable"),
        (400, "answered 400 Bad Request"),
    ] {
        let (_registry, name) = answering(FakeAnswer::status(status)).await;
        assert_eq!(passing(program(&name, None).await.unwrap_err()), reason);
    }
}

#[tokio::test]
async fn a_refusal_by_the_token_server_keeps_its_status() {
    let server = FakeRegistry::start().await;
    let realm = format!("Bearer realm=\"http://{}/token\"", server.host());
    let wants = Some("Bearer abc".to_owned());
    let answer = FakeAnswer { headers: vec![("www-authenticate", realm)], wants, ..FakeAnswer::ok(vec![]) };
    let (_registry, name) = answering(answer).await;
    server.set("/token", FakeAnswer::status(429)).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), "answered 429 Too Many Requests");
    server.set("/token", FakeAnswer::status(401)).await;
    let refused = LookUpError::Refused { host: server.host(), status: 401 };
    assert_eq!(program(&name, Some(&login())).await, Err(refused));
    server.set("/token", FakeAnswer::ok(b"{}".to_vec())).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), "sent no token");
}

#[tokio::test]
async fn a_login_is_not_sent_to_a_token_server_without_https() {
    let realm = "Bearer realm=\"http://auth.example.com/token\"".to_owned();
    let answer = FakeAnswer { headers: vec![("www-authenticate", realm)], ..FakeAnswer::status(401) };
    let (_registry, name) = answering(answer).await;
    let reason = passing(program(&name, Some(&login())).await.unwrap_err());
    assert_eq!(reason, "names the token server auth.example.com, which does not use HTTPS");
}

/// A redirect to the image `mnist:1` at this host.
fn redirect(host: &str) -> FakeAnswer {
    FakeAnswer { headers: vec![("location", format!("http://{host}{MANIFEST}"))], ..FakeAnswer::status(307) }
}

#[tokio::test]
async fn a_redirect_to_plain_http_on_another_host_is_refused() {
    let (_registry, name) = answering(redirect("registry.example.com")).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), "could not be asked: it redirects to plain HTTP");
}

#[tokio::test]
async fn a_login_is_not_sent_along_a_redirect_to_another_host() {
    let other = FakeRegistry::start().await;
    other.set(MANIFEST, FakeAnswer::ok(running("train").manifest)).await;
    let mut moved = redirect(&other.host());
    moved.headers.push(("www-authenticate", "Basic realm=\"r\"".to_owned()));
    let (registry, name) = answering(FakeAnswer { wants: Some(BASIC.to_owned()), ..moved }).await;
    assert_eq!(program(&name, Some(&login())).await, Ok(entrypoint(&["train"], &[], "")));
    let sent = |requests: Vec<Received>| requests.into_iter().map(|request| request.authorization).collect::<Vec<_>>();
    assert_eq!(sent(registry.received().await), [None, Some(BASIC.to_owned()), Some(BASIC.to_owned())]);
    assert_eq!(sent(other.received().await), [None]);
}

#[tokio::test]
async fn another_host_after_a_redirect_cannot_name_a_token_server_for_the_login() {
    let other = FakeRegistry::start().await;
    let realm = format!("Bearer realm=\"http://{}/token\"", other.host());
    other.set(MANIFEST, FakeAnswer { headers: vec![("www-authenticate", realm)], ..FakeAnswer::status(401) }).await;
    let (registry, name) = answering(redirect(&other.host())).await;
    let refused = LookUpError::Refused { host: registry.host(), status: 401 };
    assert_eq!(program(&name, Some(&login())).await, Err(refused));
    let requests = [other.received().await, registry.received().await].concat();
    assert!(requests.iter().all(|request| request.authorization.is_none()), "{requests:?}");
}

#[tokio::test]
async fn a_registry_that_redirects_without_end_is_left() {
    let answer = FakeAnswer { headers: vec![("location", MANIFEST.to_owned())], ..FakeAnswer::status(302) };
    let (registry, name) = answering(answer).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), "could not be asked: too many redirects");
    assert_eq!(registry.received().await.len(), 6);
}

#[tokio::test]
async fn bytes_with_another_digest_are_refused() {
    let (lie, truth) = (running("lie"), running("train"));
    let named = vec![("docker-content-digest", truth.digest())];
    let (registry, name) = answering(FakeAnswer { headers: named, ..FakeAnswer::ok(lie.manifest.clone()) }).await;
    let reason = |digest: &str| format!("sent other bytes than those with the digest {digest}");
    assert_eq!(passing(program(&name, None).await.unwrap_err()), reason(&truth.digest()));

    registry.set(&format!("/v2/mnist/manifests/{}", truth.digest()), FakeAnswer::ok(lie.manifest)).await;
    let by_digest = format!("{}/mnist@{}", registry.host(), truth.digest());
    assert_eq!(passing(program(&by_digest, None).await.unwrap_err()), reason(&truth.digest()));

    let name = registry.push("mnist:1", &truth).await;
    let config = digest(&truth.config);
    registry.set(&format!("/v2/mnist/blobs/{config}"), FakeAnswer::ok(lie.config)).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), reason(&config));
}

#[tokio::test]
async fn an_index_without_this_architecture_is_final_and_names_its_platforms() {
    let registry = FakeRegistry::start().await;
    let image = running("train");
    let name = registry.push_manifest("mnist:1", &index(&[("linux/s390x", &image), ("linux/ppc64le", &image)])).await;
    let Err(LookUpError::Unusable(reason)) = program(&name, None).await else { panic!("it has an image") };
    assert_eq!(reason, format!("{name} has no image for {HERE}, but for: linux/s390x, linux/ppc64le"));
}

#[tokio::test]
async fn an_answer_of_more_than_4_mib_is_not_read_to_its_end() {
    let (registry, name) = answering(FakeAnswer::ok(vec![b' '; 4 * 1024 * 1024 + 1])).await;
    let expected = LookUpError::Unusable(format!("{} sent more than 4 MiB", registry.host()));
    assert_eq!(program(&name, None).await, Err(expected));
}

#[tokio::test]
async fn a_text_that_is_no_manifest_and_an_artifact_that_is_no_image_are_errors() {
    let (_registry, name) = answering(FakeAnswer::ok(b"<html>".to_vec())).await;
    assert_eq!(passing(program(&name, None).await.unwrap_err()), "sent a manifest in an unknown format");
    let registry = FakeRegistry::start().await;
    let name = registry.push("chart:1", &TestImage::new(&json!({ "Entrypoint": "python" }))).await;
    let expected = format!("{name} has a configuration that is not that of an image");
    assert_eq!(program(&name, None).await, Err(LookUpError::Unusable(expected)));
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_that_may_pass() {
    let host = { FakeRegistry::start().await.host() };
    let reason = passing(program(&format!("{host}/mnist:1"), None).await.unwrap_err());
    assert!(reason.starts_with("could not be asked: "), "{reason}");
}

#[tokio::test]
async fn a_manifest_that_names_its_configuration_by_another_digest_than_a_sha256_leads_to_no_request() {
    for named in ["../../../token?", "sha256:../../../token", "sha512:00"] {
        let manifest = json!({ "config": { "digest": named } }).to_string().into_bytes();
        let (registry, name) = answering(FakeAnswer::ok(manifest)).await;
        let expected = format!("the digest \"{named}\" is not supported: use sha256");
        assert_eq!(program(&name, None).await, Err(LookUpError::Unusable(expected)));
        assert_eq!(registry.received().await.len(), 1);
    }
}

#[tokio::test]
async fn a_registry_that_never_answers_is_left_after_10_seconds() {
    let late = async |stops| {
        let (_registry, name) = answering(FakeAnswer { stops, ..FakeAnswer::ok(vec![]) }).await;
        assert_eq!(passing(program(&name, None).await.unwrap_err()), "did not answer within 10 s", "{stops:?}");
    };
    tokio::join!(late(Stops::BeforeStatus), late(Stops::BeforeBody));
}

#[tokio::test]
async fn the_status_of_a_failure_is_known_before_its_body() {
    let (registry, name) = answering(FakeAnswer { stops: Stops::BeforeBody, ..FakeAnswer::status(404) }).await;
    assert_eq!(program(&name, None).await, Err(LookUpError::Refused { host: registry.host(), status: 404 }));
}
