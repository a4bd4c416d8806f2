//! Tests of the writes of a whole master to the API: the record, the network policy and the pods of a job, and no
//! writes while the job runs.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use job::plan;
use master::agents::token::AgentKey;
use master::backend::PodBackend;
use master::registry::{JobHandle, Submitted};
use protocol::ids::ReplicaId;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::routes::AGENT_PORT;
use protocol::view::{JobState, JobView};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::fake::{Arrival, FakeBackend};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::objects::failure;
use super::server::{ApiServer, Asked, Kind, Reply, gone};
use super::world::{begin, begin_with_agent, jobs, wanted};
use crate::service::delivering::keep;
use crate::service::harness::{reach, until};

const WORKERS: u32 = 4;

fn spec() -> JobSpec {
    let request = JobRequest {
        worker_num: Some(WORKERS),
        image: Some("digits:1".parse().expect("not an image")),
        ..JobRequest::new("digits".parse().expect("not a job's name"), Strategy::AllReduce)
    };
    JobSpec::try_from(request).expect("an invalid request")
}

/// The loopback address of the pod with this index. Each process of these tests uses different addresses. The two
/// tests with running pods use different indexes.
pub(crate) fn address(index: u32) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 + high % 64, low, u8::try_from(index + 1).expect("too many workers")])
}

/// Makes a pod run as soon as it is created.
fn run_at_once(pod: &mut Value) {
    let index = pod["metadata"]["labels"]["muster/index"].as_str().and_then(|index| index.parse().ok());
    pod["status"] = json!({ "phase": "Running", "podIP": address(index.expect("not an index")) });
}

/// Like [`run_at_once`], but with the addresses for the test of a full quota.
fn run_elsewhere_at_once(pod: &mut Value) {
    run_at_once(pod);
    let index: u32 =
        pod["metadata"]["labels"]["muster/index"].as_str().and_then(|index| index.parse().ok()).expect("not an index");
    pod["status"]["podIP"] = json!(address(index + WORKERS));
}

/// Agents at the addresses that the pods will have.
async fn agents() -> FakeBackend {
    agents_from(0).await
}

/// Agents at the addresses from index `first` on.
async fn agents_from(first: u32) -> FakeBackend {
    agents_of(&spec(), first).await
}

/// Agents for all replicas of a job, at the addresses from index `first` on.
pub(crate) async fn agents_of(spec: &JobSpec, first: u32) -> FakeBackend {
    let agents = FakeBackend::new(Arrival::AtOnce);
    for replica in plan::replicas(spec) {
        agents.create(master::backend::PodSpec { replica, ..wanted("any") }).await.expect("no agent");
        let agent = agents.agent(&spec.name, replica).await.address();
        let listener =
            TcpListener::bind((address(first + replica.index), AGENT_PORT)).await.expect("the agents' port is taken");
        tokio::spawn(forward(listener, agent));
    }
    agents
}

async fn forward(listener: TcpListener, to: SocketAddr) {
    while let Ok((mut here, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut there = TcpStream::connect(to).await?;
            copy_bidirectional(&mut here, &mut there).await
        });
    }
}

async fn submit(server: &ApiServer, logs: &tempfile::TempDir) -> JobHandle {
    submit_with(AgentKey::random(), server, logs).await
}

async fn submit_with(agent_key: AgentKey, server: &ApiServer, logs: &tempfile::TempDir) -> JobHandle {
    let jobs = jobs(server, begin(server).await, agent_key, logs.path());
    match jobs.requests.submit(spec()).await.expect("not accepted") {
        Submitted::Created(handle) => handle,
        Submitted::Existing(_) => panic!("the job exists already"),
    }
}

#[tokio::test]
async fn a_job_of_n_pods_needs_a_dry_run_and_n_plus_2_writes_and_no_write_while_it_runs() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    server.on_pod(run_at_once);
    let agents = agents().await;
    let job = submit(&server, &logs).await;
    reach(&job, JobState::Running).await;
    let mut expected = vec!["Create pods (dry run)", "Create configmaps", "Create networkpolicies"];
    expected.extend(vec!["Create pods"; WORKERS as usize]);
    assert_eq!(server.mutations(), expected);
    assert_eq!(
        server.journal().iter().filter(|asked| asked.mutates() && !asked.is_trial()).count(),
        WORKERS as usize + 2
    );

    // The watches of pods and of records begin again. Even then the master must write nothing.
    let lists = server.count(Kind::List);
    server.end_watches(Some(gone()));
    server
        .until("pods and records are listed again", |asked| {
            asked.iter().filter(|asked| asked.kind == Kind::List).count() >= lists + 2
        })
        .await;
    assert_eq!(server.mutations(), expected);
    assert_eq!(job.view.borrow().state, JobState::Running);

    let first: ReplicaId = "worker-0".parse().expect("not a replica");
    let history = agents.agent(&spec().name, first).await.history();
    assert_eq!(
        (history.configs.len(), history.starts.len()),
        (1, 1),
        "wrong number of configurations or starts of the agent"
    );
    let paths: Vec<String> = server.journal().into_iter().map(|asked| asked.path).collect();
    let known = |path: &String| {
        ["pods", "configmaps", "networkpolicies", "resourcequotas"]
            .contains(&path.split('/').next().unwrap_or_default())
    };
    assert!(paths.iter().all(known), "unexpected resources: {paths:?}");
}

#[tokio::test]
async fn a_job_that_brings_its_code_needs_one_more_write_for_new_and_for_known_code() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let backend = begin_with_agent(&server).await;
    let jobs = jobs(&server, backend, AgentKey::random(), folder.path());
    let code = keep(jobs.code());
    let script = "train.py".parse().expect("not a script");
    let first = JobSpec { code: Some(code), script, ..spec() };
    let second = JobSpec { name: "again".parse().expect("not a job's name"), ..first.clone() };
    let renew = format!("Replace configmaps/muster-code-{code}");
    let mut expected = vec![];
    for (spec, keep) in [(first, "Create configmaps"), (second, renew.as_str())] {
        jobs.requests.submit(spec).await.expect("not accepted");
        expected.extend(vec!["Create pods (dry run)", keep, "Create configmaps", "Create networkpolicies"]);
        expected.extend(vec!["Create pods"; WORKERS as usize]);
        server.until("all pods are created", |asked| count(asked) == expected.len()).await;
        assert_eq!(server.mutations(), expected);
    }
}

/// The number of requests for changes.
fn count(asked: &[Asked]) -> usize {
    asked.iter().filter(|asked| asked.mutates()).count()
}

#[tokio::test]
async fn the_replacement_of_a_pod_waits_while_the_quota_is_full() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    server.on_pod(run_elsewhere_at_once);
    let _agents = agents_from(WORKERS).await;
    let job = submit(&server, &logs).await;
    reach(&job, JobState::Running).await;
    let full =
        "pods \"digits-worker-0\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=8, limited: pods=8";
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", full)));
    server.remove("pods", "digits-worker-0");
    let waits =
        |view: &JobView| view.replicas[0].reason.as_deref().is_some_and(|reason| reason.contains("exceeded quota"));
    let waiting = until(&job, waits).await;
    assert_eq!((waiting.state, waiting.result), (JobState::Restarting, None));
    let is_there_again = |asked: &[Asked]| {
        asked.iter().filter(|asked| asked.kind == Kind::Create && asked.path == "pods").count()
            == 2 + 1 + WORKERS as usize
    };
    server.until("the pod is created again", is_there_again).await;
    assert!(server.object("pods", "digits-worker-0").is_some());
}

#[tokio::test]
async fn neither_the_agents_key_nor_a_token_is_sent_to_the_api() {
    const KEY: &str = "canary-of-the-agents-key-0123456789abcdef";
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let file = folder.path().join("agent-key");
    std::fs::write(&file, KEY).expect("cannot write the key");
    let job = submit_with(AgentKey::read(&file).expect("no key"), &server, &folder).await;
    server
        .until("the pods are created", |asked| {
            asked.iter().filter(|asked| asked.mutates() && !asked.is_trial()).count() >= 2 + WORKERS as usize
        })
        .await;

    // The token that the master sends to the agents: an HMAC (RFC 2104). Its key is the SHA-256 of the agents' key.
    let mut mac = Hmac::<Sha256>::new_from_slice(&Sha256::digest(KEY)).expect("a key may have any length");
    mac.update(job.view.borrow().uid.as_bytes());
    let token = hex::encode(mac.finalize().into_bytes());
    let sent: Vec<String> = server.journal().iter().map(|asked| asked.body.to_string()).collect();
    let holding = |secret: &str| sent.iter().filter(|body| body.contains(secret)).count();
    let key = AgentKey::read(&file).expect("no key");
    let (key_sha256, token_sha256) = (hex::encode(Sha256::digest(KEY)), hex::encode(Sha256::digest(&token)));
    assert_eq!(
        key.token(&job.view.borrow().uid).sha256(),
        token_sha256,
        "the test and the master compute different tokens"
    );
    assert_eq!(holding(&token_sha256), WORKERS as usize, "not every pod gets the hash of its token: {sent:?}");
    assert_eq!((holding(KEY), holding(&key_sha256), holding(&token)), (0, 0, 0), "{sent:?}");
}
