//! Images whose program is found.

use serde_json::json;
use testkit::registry::{FakeAnswer, FakeRegistry, TestImage, index};

use super::{BASIC, HERE, entrypoint, login, program, registries, running};

#[tokio::test]
async fn the_program_is_entrypoint_and_cmd_and_user_of_the_image() {
    let registry = FakeRegistry::start().await;
    for (config, expected) in [
        (json!({ "Entrypoint": ["python", "/mnist.py"] }), entrypoint(&["python", "/mnist.py"], &[], "")),
        (
            json!({ "Cmd": ["python"], "Entrypoint": null, "User": "1000:1000" }),
            entrypoint(&[], &["python"], "1000:1000"),
        ),
        (json!({ "Entrypoint": ["/run"], "Cmd": ["-v"], "User": "tf" }), entrypoint(&["/run"], &["-v"], "tf")),
        (json!({}), entrypoint(&[], &[], "")),
    ] {
        let image = TestImage::new(&config);
        let name = registry.push("team/mnist:1", &image).await;
        assert_eq!(program(&name, None).await, Ok(expected.clone()));
        let by_digest = format!("{}/team/mnist@{}", registry.host(), image.digest());
        assert_eq!(program(&by_digest, None).await, Ok(expected));
    }
}

#[tokio::test]
async fn an_index_gives_the_program_of_the_image_for_this_architecture() {
    let registry = FakeRegistry::start().await;
    let (ours, other) = (running("ours"), running("other"));
    for image in [&ours, &other] {
        registry.push("mnist:part", image).await;
    }
    let name = registry.push_manifest("mnist:1", &index(&[("linux/s390x", &other), (HERE, &ours)])).await;
    assert_eq!(program(&name, None).await, Ok(entrypoint(&["ours"], &[], "")));
}

#[tokio::test]
async fn an_image_with_a_known_configuration_costs_one_request() {
    let registry = FakeRegistry::start().await;
    let name = registry.push("mnist:1", &running("train")).await.parse().unwrap();
    let registries = registries();
    registries.program(&name, None).await.unwrap();
    assert_eq!(registry.received().await.len(), 2);
    registries.program(&name, None).await.unwrap();
    assert_eq!(registry.received().await.len(), 3);
}

#[tokio::test]
async fn the_login_is_sent_only_after_a_challenge_and_then_with_each_request() {
    let registry = FakeRegistry::start().await;
    let name = registry.push("mnist:1", &running("train")).await;
    program(&name, Some(&login())).await.unwrap();
    assert!(registry.received().await.iter().all(|request| request.authorization.is_none()));

    let manifest = FakeAnswer {
        headers: vec![("www-authenticate", "Basic realm=\"r\"".to_owned())],
        wants: Some(BASIC.to_owned()),
        ..FakeAnswer::ok(running("train").manifest)
    };
    registry.set("/v2/mnist/manifests/1", manifest).await;
    assert_eq!(program(&name, Some(&login())).await, Ok(entrypoint(&["train"], &[], "")));
    let sent: Vec<_> = registry.received().await.into_iter().skip(2).map(|request| request.authorization).collect();
    assert_eq!(sent, [None, Some(BASIC.to_owned()), Some(BASIC.to_owned())]);
}

#[tokio::test]
async fn a_token_comes_from_the_server_that_the_registry_names_with_and_without_a_login() {
    let (registry, server) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let name = registry.push("team/mnist:1", &running("train")).await;
    let realm = format!("Bearer realm=\"http://{}/token\",service=\"here\"", server.host());
    let manifest = FakeAnswer {
        headers: vec![("www-authenticate", "Basic realm=\"r\"".to_owned()), ("www-authenticate", realm)],
        wants: Some("Bearer abc".to_owned()),
        ..FakeAnswer::ok(running("train").manifest)
    };
    registry.set("/v2/team/mnist/manifests/1", manifest).await;
    for answer in ["{\"token\":\"abc\"}", "{\"access_token\":\"abc\"}"] {
        server.set("/token", FakeAnswer::ok(answer.into())).await;
        for (login, header) in [(None, None), (Some(login()), Some(BASIC.to_owned()))] {
            assert_eq!(program(&name, login.as_ref()).await, Ok(entrypoint(&["train"], &[], "")));
            let asked = server.received().await.pop().unwrap();
            assert_eq!(asked.path, "/token?service=here&scope=repository%3Ateam%2Fmnist%3Apull");
            assert_eq!(asked.authorization, header);
        }
    }
    assert!(registry.received().await.iter().all(|request| request.authorization.as_deref() != Some(BASIC)));
}

#[tokio::test]
async fn a_redirect_within_the_host_of_the_registry_is_followed() {
    let registry = FakeRegistry::start().await;
    let image = running("train");
    let name = registry.push("mnist:1", &image).await;
    let blob = format!("/v2/mnist/blobs/{}", testkit::registry::digest(&image.config));
    let moved = FakeAnswer { headers: vec![("location", format!("{blob}?moved"))], ..FakeAnswer::status(307) };
    registry.set(&blob, moved).await;
    registry.set(&format!("{blob}?moved"), FakeAnswer::ok(image.config.clone())).await;
    assert_eq!(program(&name, None).await, Ok(entrypoint(&["train"], &[], "")));
}
