//! Tests that `/openapi.json` lists all routes and describes them correctly.

use std::collections::BTreeSet;

use protocol::error::ErrorCode;
use protocol::tf_config::MEMBERS_MAX;
use serde_json::{Value, json};

use crate::service::harness::{Answer, Master, client};

async fn document(master: &Master) -> Value {
    let answer = master.get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    answer.json()
}

/// Every value of `key`, at any depth.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    if let Some(object) = value.as_object() {
        found.extend(object.get(key));
        object.values().for_each(|value| all(value, key, found));
    }
    value.as_array().into_iter().flatten().for_each(|value| all(value, key, found));
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_existing_routes_are_described() {
    let master = Master::serving(None).await;
    let document = document(&master).await;
    let paths = document["paths"].as_object().expect("no routes");
    let routes = [
        "/agent",
        "/create",
        "/healthz",
        "/metrics",
        "/openapi.json",
        "/readyz",
        "/v1/code/{id}",
        "/v1/code/{id}/blobs",
        "/v1/dry-runs/jobs",
        "/v1/dry-runs/tfjobs",
        "/v1/history",
        "/v1/history/{uid}",
        "/v1/jobs",
        "/v1/jobs/{name}",
        "/v1/jobs/{name}/cancel",
        "/v1/jobs/{name}/logs",
        "/v1/jobs/{name}/members",
        "/v1/jobs/{name}/series",
        "/v1/jobs/{name}/stacks",
        "/v1/jobs/{name}/tfjob",
        "/v1/jobs/{name}/timeline",
        "/v1/master",
        "/v1/tfjobs",
    ];
    assert_eq!(paths.keys().collect::<Vec<_>>(), routes);
    for (path, methods) in paths {
        for method in ["get", "post", "put", "delete", "patch"] {
            let described = methods.get(method).is_some();
            let verb = method.to_uppercase().parse().expect("not a method");
            let answer = Answer::of(client().request(verb, master.url(&path.replace("{name}", "none")))).await;
            assert_eq!(answer.status != 405, described, "{method} {path}: {answer:?}");
            let statuses = &methods[method]["responses"];
            assert!(!described || statuses.get(answer.status.to_string()).is_some(), "{method} {path}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reference_resolves_and_every_4xx_answer_is_a_problem() {
    let document = document(&Master::serving(None).await).await;
    let mut references = vec![];
    all(&document, "$ref", &mut references);
    assert!(references.len() > 50, "{references:?}");
    for reference in references {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#')).expect("not a local reference");
        assert!(document.pointer(pointer).is_some(), "{pointer} does not resolve");
    }
    let mut responses = vec![];
    all(&document["paths"], "responses", &mut responses);
    let errors = responses.iter().flat_map(|of_route| of_route.as_object().expect("no statuses"));
    for (status, response) in errors.filter(|(status, _)| status.starts_with('4')) {
        let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
        assert_eq!(problem, "#/components/schemas/Problem", "{status}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_required_fields_and_error_codes_are_described() {
    let document = document(&Master::serving(None).await).await;
    let request = &document["components"]["schemas"]["JobRequest"];
    assert_eq!(request["properties"]["worker_num"]["maximum"], MEMBERS_MAX);
    assert_eq!(request["properties"]["ps_num"]["maximum"], MEMBERS_MAX);
    assert_eq!((&request["additionalProperties"], &request["required"]), (&json!(false), &json!(["name", "strategy"])));
    let codes: BTreeSet<&str> = document["components"]["schemas"]["ErrorCode"]["enum"]
        .as_array()
        .map(|codes| codes.iter().filter_map(Value::as_str).collect())
        .expect("no codes");
    let internal = serde_json::to_value(ErrorCode::Internal).expect("not a code");
    assert!(codes.contains("job_exists") && codes.contains(internal.as_str().expect("not text")), "{codes:?}");
}
