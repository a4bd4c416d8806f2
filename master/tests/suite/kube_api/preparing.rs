//! Tests that the back end makes the network policy of a job, even if answers of the API are lost.

use std::sync::Arc;

use master::agent_client::AgentClient;
use master::agent_token::AgentKey;
use master::backend::PodBackend;
use master::driver::Context;
use master::registry::{Jobs, Submitted};
use master::store::kube::KubeStore;
use testkit::fake::code_below;

use super::objects::failure;
use super::server::{ApiServer, Asked, Kind, Reply};
use super::world::{begin, chain, internal_error, job, spec};

#[tokio::test(start_paused = true)]
async fn a_policy_that_an_earlier_master_has_created_stays_unchanged() {
    let server = ApiServer::new();
    begin(&server).await.prepare(&job("new")).await.expect("the policy was not created");
    let made = server.object("networkpolicies", "muster-digits-new");
    assert!(made.is_some(), "{:?}", server.mutations());
    begin(&server).await.prepare(&job("new")).await.expect("the second call failed although the policy exists");
    assert_eq!(server.object("networkpolicies", "muster-digits-new"), made);
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_an_earlier_job_of_the_same_name_is_not_reused() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    pods.prepare(&job("old")).await.expect("the policy was not created");
    pods.prepare(&job("new")).await.expect("the policy was not created");
    let policy = server.object("networkpolicies", "muster-digits-new").expect("there is no second policy");
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"]["muster/job-uid"], "new");
    assert_eq!(policy["metadata"]["ownerReferences"][0]["uid"], "new");
}

#[tokio::test(start_paused = true)]
async fn a_transient_error_of_the_api_is_retried() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script(Kind::Create, Reply::Instead(internal_error()));
    server.script(Kind::Create, Reply::DoneAnd(internal_error()));
    pods.prepare(&job("new")).await.expect("all three tries failed");
    assert_eq!(server.mutations(), ["Create networkpolicies"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_reported_in_the_words_of_the_api_and_not_retried() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    let sentence = "networkpolicies.networking.k8s.io is forbidden: User \"muster\" cannot create resource";
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", sentence)));
    let error = pods.prepare(&job("new")).await.expect_err("not refused");
    assert_eq!(chain(&error), format!("create the network policy of job \"digits\": {sentence}"));
    assert_eq!(server.count(Kind::Create), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_somebody_deletes_while_its_job_has_pods_is_created_again() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let context = Context {
        store: Arc::new(KubeStore::new(&server.cluster())),
        backend: Arc::new(begin(&server).await),
        agents: AgentClient::new(),
        agent_key: AgentKey::random(),
        boot_id: "first".to_owned(),
        code: code_below(logs.path()),
    };
    let jobs = Jobs::new(Arc::new(context), logs.path().to_owned());
    tokio::spawn(Arc::clone(&jobs).run());
    let submitted = jobs.submit(spec("digits")).await;
    let Ok(Submitted::Created(job)) = submitted else { panic!("{submitted:?}") };
    let count = |asked: &[Asked], path: &str| {
        asked.iter().filter(|asked| asked.kind == Kind::Create && asked.path == path && !asked.is_trial()).count()
    };
    server.until("the pods exist", |asked| count(asked, "pods") == 2).await;
    let policy = format!("muster-digits-{}", job.view.borrow().uid);
    server.remove("networkpolicies", &policy);
    server.until("the policy is created again", |asked| count(asked, "networkpolicies") == 2).await;
    assert!(server.object("networkpolicies", &policy).is_some());
}
