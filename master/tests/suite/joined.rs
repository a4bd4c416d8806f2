//! Tests that the back end of machines that join passes its conformance suite, and that machines keep their places when
//! the master restarts.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use job::key::JobKey;
use job::observation::{Pod, PodState};
use master::agents::client::{AgentAnswer, AgentClient};
use master::agents::token::AgentKey;
use master::backend::Machines as _;
use master::backend::joined::JoinedBackend;
use master::backend::{PodBackend, PodSpec, PodTable};
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use protocol::join::{JoinRequest, Left};
use protocol::lease::Lease;
use protocol::run_policy::{OnUnreachable, RunPolicy};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::process::harness::built;

fn job() -> JobKey {
    JobKey { name: "pods".parse().expect("not a name"), uid: "uid".to_owned() }
}

/// A job of two workers that this back end admits.
fn spec() -> JobSpec {
    let spec = (*testkit::conformance::store::record("pods").spec).clone();
    let run_policy = RunPolicy { on_unreachable: OnUnreachable::Replace, lease_seconds: 1, ..RunPolicy::default() };
    JobSpec { worker_min: Some(1), run_policy, ..spec }
}

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("not a replica")
}

fn open(folder: &Path, key: &AgentKey) -> JoinedBackend {
    let lease = Lease::new(Duration::from_secs(1));
    JoinedBackend::open(folder.join("machines"), key.clone(), |known| (*known == job()).then_some(lease))
        .expect("the files cannot be read")
}

async fn create(backend: &JoinedBackend, index: u32) {
    let hash = AgentKey::random().token("uid").sha256();
    backend.create(PodSpec::new(job(), &spec(), worker(index), hash)).await.expect("cannot create the pod");
}

/// The message of a machine at this port.
fn message(boot_id: &str, port: u16) -> JoinRequest {
    JoinRequest {
        boot_id: boot_id.to_owned(),
        address: ([127, 0, 0, 1], port).into(),
        tensorflow_port: port.try_into().expect("not a port"),
        workers: None,
        lease_seconds: Some(1),
        max_restarts: None,
        nproc_per_node: None,
        uid: None,
        place: None,
        left: None,
    }
}

async fn join(backend: &JoinedBackend, message: JoinRequest) -> Option<ReplicaId> {
    backend.join(&job(), message).await.expect("the message was not written to disk")
}

fn states(backend: &JoinedBackend) -> Vec<(ReplicaId, &'static str)> {
    let name = |pod: &Pod| match pod.state {
        PodState::Pending { .. } => "waits",
        PodState::Running(_) => "runs",
        PodState::Terminated { .. } => "has finished",
        PodState::Disrupted { .. } => "was ended",
        PodState::Leaving { .. } => "is held",
        PodState::Unusable { .. } => panic!("{pod:?}"),
    };
    backend.watch(&job()).borrow().iter().map(|(id, pod)| (*id, name(pod))).collect()
}

/// Starts an agent, lets the agent join, waits until the agent has ended, and reports this end to the back end.
async fn machine(backend: JoinedBackend, agents: AgentClient, hash: String) {
    let mut agent = Command::new(built("agent"));
    agent.args(["--supervised", "--listen", "127.0.0.1:0", "--token-sha256", &hash, "--", "true"]);
    agent.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = agent.spawn().expect("the agent does not start");
    let lifeline = child.stdin.take();
    let stdout = child.stdout.take().expect("no pipe");
    let address = BufReader::new(stdout).lines().next_line().await.expect("not text").expect("not an address");
    let address: std::net::SocketAddr = address.parse().expect("not an address");
    let Ok(AgentAnswer::Status(status)) = agents.status(address, None).await else { panic!("no answer of the agent") };
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let here = JoinRequest { address, ..message(&status.boot_id, PORT.fetch_add(1, Ordering::Relaxed)) };
    join(&backend, here.clone()).await;
    child.wait().await.expect("the test cannot wait for the agent");
    drop(lifeline);
    join(&backend, JoinRequest { left: Some(Left::Finished), ..here }).await;
}

/// Starts a machine for each place that waits for a machine.
async fn fleet(backend: JoinedBackend, key: AgentKey) {
    let token = key.token("uid");
    let agents = AgentClient::new().with_token(&token);
    let mut table = backend.watch(&job());
    let (mut machines, mut asked) = (JoinSet::new(), std::collections::HashSet::new());
    loop {
        let pods: Vec<Pod> = table.borrow_and_update().values().cloned().collect();
        for pod in pods.into_iter().filter(|pod| matches!(pod.state, PodState::Pending { .. })) {
            if asked.insert(format!("{:?}", pod.incarnation)) {
                machines.spawn(machine(backend.clone(), agents.clone(), token.sha256()));
            }
        }
        table.changed().await.expect("the back end has dropped the table");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_back_end_of_machines_that_join_conforms() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let pods = open(folder.path(), &key);
    let _fleet = AbortOnDropHandle::new(tokio::spawn(fleet(pods.clone(), key.clone())));
    testkit::conformance::backend::check(&pods, &spec(), "uid", &key).await;
    let left = std::fs::read_dir(folder.path().join("machines")).expect("no folder").count();
    assert_eq!(left, 0, "files of deleted pods are left");
}

#[tokio::test]
async fn a_machine_keeps_its_place_when_the_master_is_restarted() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let first = open(folder.path(), &key);
    create(&first, 0).await;
    create(&first, 1).await;
    assert_eq!(join(&first, message("a", 1)).await, Some(worker(0)), "the machine does not get the lowest place");
    assert_eq!(join(&first, message("b", 2)).await, Some(worker(1)));
    assert_eq!(join(&first, message("c", 3)).await, None, "a machine gets a place although no place is free");
    assert_eq!(join(&first, message("a", 1)).await, Some(worker(0)), "a repeated message changes the place");
    assert_eq!(join(&first, JoinRequest { left: Some(Left::Terminated), ..message("b", 2) }).await, None);
    let known = [(worker(0), "runs"), (worker(1), "was ended")];
    assert_eq!(states(&first), known);
    drop(first);

    let second = open(folder.path(), &key);
    assert_eq!(states(&second), known, "wrong states before the new master creates a pod and before a machine joins");
    create(&second, 1).await;
    assert_eq!(states(&second), known);
    second.delete(&job(), worker(1)).await.expect("cannot delete the pod");
    create(&second, 1).await;
    assert_eq!(join(&second, message("c", 3)).await, Some(worker(1)));
    let another = JoinedBackend::open(folder.path().join("machines"), key, |_| None).expect("the files cannot be read");
    assert_eq!(states(&another), [], "there are machines of a job that no longer exists");
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_machine_whose_stored_message_is_invalid_is_free_only_when_its_script_must_be_dead() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let first = open(folder.path(), &key);
    create(&first, 0).await;
    create(&first, 1).await;
    join(&first, message("a", 1)).await;
    join(&first, message("b", 2)).await;
    drop(first);
    // Port 0 is invalid.
    let file = folder.path().join("machines/pods.uid/worker-0.json");
    let text = std::fs::read_to_string(&file).expect("no message");
    let earlier = text.replace("\"tensorflow_port\":1", "\"tensorflow_port\":0");
    assert_ne!(earlier, text);
    std::fs::write(&file, earlier).expect("cannot write the file");

    let second = open(folder.path(), &key);
    let held = [(worker(0), "is held"), (worker(1), "runs")];
    assert_eq!(states(&second), held);
    create(&second, 0).await;
    second.delete(&job(), worker(0)).await.expect("cannot delete the pod");
    assert_eq!(join(&second, message("c", 3)).await, None, "a machine has the place of a script that may still run");
    let neighbours = second.neighbour(&job(), ([127, 0, 0, 1], 2).into());
    assert_eq!(neighbours, None, "a machine whose message cannot be read is offered as a neighbour");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(states(&second), held, "the place became free too early");

    let is_free = |table: &PodTable| !table.contains_key(&worker(0));
    let mut table = second.watch(&job());
    let freed = timeout(Duration::from_secs(60), table.wait_for(is_free)).await;
    drop(freed.unwrap_or_else(|_| panic!("the place is not free: {:?}", states(&second))));
    create(&second, 0).await;
    assert_eq!(join(&second, message("c", 3)).await, Some(worker(0)));
    assert_eq!(
        states(&open(folder.path(), &key)),
        [(worker(0), "runs"), (worker(1), "runs")],
        "a machine is missing after the restart"
    );
}

#[tokio::test]
async fn a_machine_gets_its_earlier_place_if_that_place_is_free() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let backend = open(folder.path(), &key);
    for index in 0..3 {
        create(&backend, index).await;
    }
    let back = |boot_id: &str, port: u16| JoinRequest { place: Some(worker(1)), ..message(boot_id, port) };
    assert_eq!(join(&backend, back("a", 1)).await, Some(worker(1)));
    assert_eq!(join(&backend, back("b", 2)).await, Some(worker(0)), "not the lowest free place");
    // The first agent was killed, and then started again at the same port.
    assert_eq!(join(&backend, message("c", 1)).await, Some(worker(2)));
    assert_eq!(states(&backend), [(worker(0), "runs"), (worker(1), "was ended"), (worker(2), "runs")]);
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_machine_that_does_not_answer_is_free_only_when_its_script_must_be_dead() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let backend = open(folder.path(), &key);
    for (index, port) in [(0, 1), (1, 2)] {
        create(&backend, index).await;
        // Nothing listens at this port.
        join(&backend, message(&index.to_string(), port)).await;
    }
    let driver = backend.watch(&job());
    backend.delete_all(&job()).await.expect("cannot delete the pods");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(states(&backend), [(worker(0), "runs"), (worker(1), "runs")], "a place became free too early");
    assert_eq!(join(&backend, message("0", 1)).await, None, "a machine whose pod was deleted still has its place");
    backend.delete_unconfirmed(&job(), worker(0)).await.expect("the pod was not deleted");
    assert_eq!(states(&backend), [(worker(1), "runs")]);

    drop(driver);
    let began = Instant::now();
    while folder.path().join("machines/pods.uid/worker-1.json").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "the place of worker-1 is not free: {:?}", states(&backend));
        sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(3), "the place was free before the script had to be dead");
    assert_eq!(states(&backend), []);
}

#[tokio::test]
async fn a_machine_has_no_place_if_its_message_cannot_be_written() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let backend = open(folder.path(), &key);
    create(&backend, 0).await;
    std::fs::write(folder.path().join("machines"), "a file instead of the folder").expect("cannot write the file");
    backend.join(&job(), message("a", 1)).await.expect_err("a message that cannot be written is accepted");
    assert_eq!(states(&backend), [(worker(0), "waits")]);
    std::fs::remove_file(folder.path().join("machines")).expect("cannot remove the file");
    assert_eq!(join(&backend, message("a", 1)).await, Some(worker(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_join_at_the_same_time_get_different_places() {
    let (folder, key) = (tempfile::tempdir().expect("no folder"), AgentKey::random());
    let backend = open(folder.path(), &key);
    for index in 0..8 {
        create(&backend, index).await;
    }
    let joining = (1..=12_u16).map(|port| join(&backend, message(&port.to_string(), port)));
    let places = futures_util::future::join_all(joining).await;
    let given: std::collections::BTreeSet<ReplicaId> = places.iter().flatten().copied().collect();
    assert_eq!((given.len(), places.iter().flatten().count()), (8, 8), "{places:?}");
}
