//! Tests that the back end gives up and reports the reason if it cannot list or watch the pods. Also tests the
//! detection of OpenShift.

use std::time::Duration;

use axum::http::StatusCode;
use master::backend::kube::{KubeBackend, PodRules};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::objects::failure;
use super::server::{ApiServer, Kind, Reply, cluster_at};
use super::world::{chain, internal_error};

async fn why_not(server: &ApiServer) -> String {
    match KubeBackend::begin(&server.cluster(), PodRules::default()).await {
        Ok(_) => panic!("the back end has begun"),
        Err(error) => chain(&error),
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_to_list_is_reported_with_the_namespace() {
    let sentence = "pods is forbidden: User \"system:serviceaccount:training:muster\" cannot list resource \"pods\" in API group \"\" in the namespace \"training\"";
    let server = ApiServer::new();
    server.script(Kind::List, Reply::Instead(failure(403, "Forbidden", sentence)));
    assert_eq!(why_not(&server).await, format!("list the pods of namespace \"training\": {sentence}"));
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port");
    let address = listener.local_addr().expect("the listener has no address");
    drop(listener);
    let Err(error) = KubeBackend::begin(&cluster_at(&format!("http://{address}")), PodRules::default()).await else {
        panic!("the back end has begun")
    };
    let said = chain(&error);
    let expected = "list the pods of namespace \"training\": the Kubernetes API cannot be reached: ";
    assert!(said.starts_with(expected) && said.contains("Connection refused"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn the_master_gives_up_on_a_server_that_does_not_answer() {
    let server = ApiServer::new();
    server.script(Kind::List, Reply::Silence);
    let began = Instant::now();
    let expected = "list the pods of namespace \"training\": the Kubernetes API did not answer within 20 s";
    assert_eq!(why_not(&server).await, expected);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_a_few_times_is_repeated() {
    let server = ApiServer::new();
    server.script(
        Kind::List,
        Reply::Instead(super::objects::Objects::default().list_answer(&super::objects::Query::all("pods", None))),
    );
    server.script_times(2, Kind::List, &Reply::Instead(internal_error()));
    KubeBackend::begin(&server.cluster(), PodRules::default()).await.expect("the back end does not begin");
    assert_eq!(server.count(Kind::List), 4);
}

#[tokio::test(start_paused = true)]
async fn the_master_gives_up_on_a_watch_that_does_not_begin() {
    let server = ApiServer::new();
    let empty = super::objects::Objects::default();
    let nothing = empty.list_answer(&super::objects::Query::all("pods", None));
    server.script(Kind::List, Reply::Instead(nothing));
    server.script_times(100, Kind::List, &Reply::Instead(internal_error()));
    let began = Instant::now();
    let expected = "watch the pods of namespace \"training\": the Kubernetes API does not answer";
    assert_eq!(why_not(&server).await, expected);
    assert!(began.elapsed() < Duration::from_secs(35), "{:?}", began.elapsed());
}

#[tokio::test]
async fn openshift_is_detected_by_an_api_group() {
    let groups = |names: &[&str]| {
        let group = |name: &&str| json!({ "name": name, "versions": [{ "groupVersion": format!("{name}/v1"), "version": "v1" }] });
        let groups: Vec<Value> = names.iter().map(group).collect();
        (StatusCode::OK, json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
    };
    let server = ApiServer::new();
    for (answer, expected) in [
        (groups(&["apps", "security.openshift.io"]), true),
        (groups(&["apps", "policy"]), false),
        (failure(403, "Forbidden", "groups are forbidden"), false),
    ] {
        server.script(Kind::Get, Reply::Instead(answer.clone()));
        assert_eq!(server.cluster().gives_users().await.ok(), Some(expected), "{answer:?}");
    }
}
