//! Tests that the back end makes the network policy of a job and the ConfigMap with the agent, even if answers of the API
//! are lost.

use std::io::Read as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::read::GzDecoder;
use master::agents::token::AgentKey;
use master::backend::kube::KubeBackend;
use master::backend::{PodBackend, PodSpec};
use master::registry::Submitted;
use protocol::code::CodeId;
use protocol::job::JobSpec;
use serde_json::json;

use super::objects::failure;
use super::server::{ApiServer, Asked, Kind, Reply};
use super::world::{begin, begin_with_agent, chain, internal_error, job, jobs, spec};

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
    assert_eq!(chain(&error), format!("prepare the pods of job \"digits\": {sentence}"));
    assert_eq!(server.count(Kind::Create), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_somebody_deletes_while_its_job_has_pods_is_created_again() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let jobs = jobs(&server, begin(&server).await, AgentKey::random(), logs.path());
    let submitted = jobs.requests.submit(spec("digits")).await;
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

/// A back end with this agent and the agent's image.
async fn with_agent(server: &ApiServer, agent: &[u8]) -> KubeBackend {
    let backend = begin_with_agent(server).await;
    backend.with_agent_program(&server.cluster(), agent).await
}

/// The ConfigMap that the pod of a job with code mounts. `None` if an init container copies the agent.
async fn agent_of_a_pod(server: &ApiServer, backend: &KubeBackend) -> Option<String> {
    let spec = JobSpec { code: Some(code()), script: "train.py".parse().expect("not a script"), ..spec("digits") };
    let first = "worker-0".parse().expect("not a replica");
    backend.create(PodSpec::new(job("new"), &spec, first, String::new())).await.expect("the pod was not created");
    let pod = server.object("pods", "digits-worker-0").expect("there is no pod")["spec"].take();
    server.remove("pods", "digits-worker-0");
    let volumes = pod["volumes"].as_array().expect("no volumes");
    let name = volumes.iter().find_map(|volume| volume["configMap"]["name"].as_str()).map(str::to_owned);
    assert_eq!(pod["initContainers"].is_null(), name.is_some(), "{pod}");
    name
}

fn code() -> CodeId {
    "7".repeat(64).parse().expect("not an id")
}

/// The name of the only ConfigMap with an agent.
fn agents_map(server: &ApiServer) -> String {
    let created = server.journal().into_iter().filter(|asked| asked.kind == Kind::Create && asked.path == "configmaps");
    let mut names = created.map(|asked| asked.body["metadata"]["name"].as_str().expect("no name").to_owned());
    names.next_back().expect("no ConfigMap was created")
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_with_code_share_one_config_map_with_the_agent() {
    let server = ApiServer::new();
    let backend = with_agent(&server, b"the agent").await;
    for uid in ["first", "second"] {
        backend.prepare(&job(uid)).await.expect("not prepared");
    }
    with_agent(&server, b"the agent").await.prepare(&job("third")).await.expect("not prepared");
    let name = agents_map(&server);
    let map = server.object("configmaps", &name).expect("there is no ConfigMap");
    assert_eq!(
        (&map["immutable"], &map["metadata"]["labels"]["app.kubernetes.io/component"]),
        (&json!(true), &json!("agent"))
    );
    let packed = BASE64_STANDARD.decode(map["binaryData"]["agent.gz"].as_str().expect("no agent")).expect("not Base64");
    let mut agent = vec![];
    GzDecoder::new(&packed[..]).read_to_end(&mut agent).expect("not gzip");
    assert_eq!(agent, b"the agent");
    assert_eq!(agent_of_a_pod(&server, &backend).await, Some(name.clone()));

    server.remove("configmaps", &name);
    backend.prepare(&job("second")).await.expect("not prepared");
    assert!(server.object("configmaps", &name).is_some(), "a deleted ConfigMap is not created again");
}

#[tokio::test(start_paused = true)]
async fn pods_copy_the_agent_from_the_image_if_there_can_be_no_config_map() {
    let server = ApiServer::new();
    let backend = with_agent(&server, b"the agent").await;
    backend.prepare(&job("first")).await.expect("not prepared");
    let name = agents_map(&server);
    server.put("configmaps", json!({ "metadata": { "name": name }, "binaryData": { "agent.gz": "Zm9yZ2Vk" } }));
    let backend = with_agent(&server, b"the agent").await;
    backend.prepare(&job("first")).await.expect("not prepared");
    assert_eq!(agent_of_a_pod(&server, &backend).await, None, "a forged agent is used");

    server.remove("configmaps", &name);
    let full = "configmaps is forbidden: exceeded quota: team, requested: count/configmaps=1";
    server.script(Kind::Create, Reply::DoneAnd(internal_error()));
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", full)));
    let backend = with_agent(&server, b"another agent").await;
    backend.prepare(&job("first")).await.expect("not prepared");
    assert_eq!(agent_of_a_pod(&server, &backend).await, None, "the ConfigMap was refused");
    backend.prepare(&job("first")).await.expect("not prepared");
    assert!(agent_of_a_pod(&server, &backend).await.is_some(), "the quota has room again");

    let mut noise = fastrand::Rng::with_seed(1);
    let large: Vec<u8> = (0..1_000_000).map(|_| noise.u8(..)).collect();
    assert_eq!(agent_of_a_pod(&server, &with_agent(&server, &large).await).await, None, "the agent is too large");
}

#[tokio::test(start_paused = true)]
async fn a_new_master_deletes_agents_of_other_versions_unless_a_pod_names_them() {
    let server = ApiServer::new();
    let mut names = vec![];
    for agent in [&b"version 1"[..], b"version 2", b"version 3"] {
        let backend = with_agent(&server, agent).await;
        backend.prepare(&job("first")).await.expect("not prepared");
        names.push(agents_map(&server));
    }
    let has = |name: &String| server.object("configmaps", name).is_some();
    assert_eq!(names.iter().map(has).collect::<Vec<_>>(), [false, false, true]);
    let labels = json!({ "app.kubernetes.io/managed-by": "muster" });
    let volumes = json!([{ "name": "agent", "configMap": { "name": names[2] } }]);
    server.put(
        "pods",
        json!({ "metadata": { "name": "waits", "labels": labels }, "spec": { "volumes": volumes, "containers": [] } }),
    );
    with_agent(&server, b"version 4").await;
    assert!(has(&names[2]), "a pod needs this agent");
    server.remove("pods", "waits");
    with_agent(&server, b"version 4").await;
    assert!(!has(&names[2]));
}
