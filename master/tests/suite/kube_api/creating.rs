//! Tests that a pod is created once, even if answers of the API are lost, and that a failure to create a pod is
//! reported with the reason.

use std::time::Duration;

use job::wait::Resources;
use master::backend::kube::{KubeBackend, PodRules};
use master::backend::{BackendError, PodBackend, PodTable};
use tokio::time::Instant;

use super::objects::failure;
use super::server::{ApiServer, Kind, Reply, Silence};
use super::world::{begin, chain, foreign_pod, internal_error, job, pending, pod, running, until, wanted, worker};

/// The uid of the record that owns the pod of worker-0.
fn owner(server: &ApiServer) -> String {
    let pod = server.object("pods", "digits-worker-0").expect("the pod does not exist");
    pod["metadata"]["ownerReferences"][0]["uid"].as_str().expect("no owner").to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_finds_its_own_pod() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script(Kind::Create, Reply::DoneAnd(internal_error()));
    pods.create(wanted("new")).await.expect("the create failed although the pod exists");
    assert_eq!(server.mutations(), ["Create pods", "Create pods"], "the second request did not find the pod");
    assert_eq!(owner(&server), "new");
    let table = until(&pods, &job("new"), "the pod is listed", |table| !table.is_empty()).await;
    assert_eq!(table.keys().copied().collect::<Vec<_>>(), [worker(0)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_counts_as_created_and_is_not_changed() {
    let server = ApiServer::new();
    server.put("pods", pod("new", 0, &super::world::evicted()));
    let pods = begin(&server).await;
    let before = server.object("pods", "digits-worker-0");
    pods.create(wanted("new")).await.expect("the create failed although the pod exists");
    assert_eq!(server.object("pods", "digits-worker-0"), before);
}

#[tokio::test(start_paused = true)]
async fn a_create_waits_until_the_pod_of_an_earlier_job_is_deleted_and_ignores_other_pods() {
    let server = ApiServer::new();
    server.put("pods", pod("old", 0, &running("10.0.0.1")));
    let pods = begin(&server).await;
    let creating = async { pods.create(wanted("new")).await.expect("the create failed although the name is free") };
    let going = async {
        server.until("the create is tried", |asked| asked.iter().any(|asked| asked.kind == Kind::Create)).await;
        for index in 1..20 {
            server.put("pods", pod("new", index, &pending()));
            let is_known = |table: &PodTable| table.len() == index as usize;
            until(&pods, &job("new"), "the new pod is known", is_known).await;
        }
        server.remove("pods", "digits-worker-0");
    };
    tokio::join!(creating, going);
    assert_eq!(owner(&server), "new");
    assert_eq!(server.mutations(), ["Create pods", "Create pods"], "changes of other pods have caused requests");
}

#[tokio::test(start_paused = true)]
async fn a_create_succeeds_after_a_foreign_pod_was_deleted() {
    let server = ApiServer::new();
    server.put("pods", foreign_pod());
    let pods = begin(&server).await;
    let creating = async { pods.create(wanted("new")).await.expect("the create failed although the name is free") };
    let going = async {
        server.until("the create is tried", |asked| asked.iter().any(|asked| asked.kind == Kind::Create)).await;
        server.remove("pods", "digits-worker-0");
    };
    tokio::join!(creating, going);
    assert_eq!(owner(&server), "new");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_that_keeps_the_name_is_reported_after_a_minute() {
    let server = ApiServer::new();
    server.put("pods", foreign_pod());
    let pods = begin(&server).await;
    let began = Instant::now();
    let error = pods.create(wanted("new")).await.expect_err("the pod was created although its name is taken");
    assert!(matches!(error, BackendError::NameTaken(_)), "{error:?}");
    assert_eq!(
        chain(&error),
        "create pod \"digits-worker-0\": another pod has this name: delete that pod, or give the job another name"
    );
    let took = began.elapsed();
    assert!((Duration::from_secs(55)..Duration::from_secs(70)).contains(&took), "{took:?}");
    let asked = server.count(Kind::Create);
    assert!((2..=30).contains(&asked), "{asked} requests");
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_job_that_the_watch_has_not_reported_counts_as_created() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.silence("pods", Silence::Always);
    for _ in 0..2 {
        let began = Instant::now();
        pods.create(wanted("new")).await.expect("the create failed although the pod is the job's own");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    assert_eq!(owner(&server), "new");
}

#[tokio::test(start_paused = true)]
async fn a_create_waits_for_the_whole_grace_of_an_earlier_jobs_pod() {
    let server = ApiServer::new();
    let mut before = pod("old", 0, &running("10.0.0.1"));
    before["spec"]["terminationGracePeriodSeconds"] = serde_json::json!(600);
    server.put("pods", before);
    let pods = begin(&server).await;
    let began = Instant::now();
    pods.create(wanted("new")).await.expect_err("the pod was created although the old pod exists");
    let took = began.elapsed();
    assert!((Duration::from_secs(625)..Duration::from_secs(640)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_on_a_quota_is_retried_at_once() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    let sentence = "Operation cannot be fulfilled on resourcequotas \"team\": the object has been modified; please apply your changes to the latest version and try again";
    server.script_times(3, Kind::Create, &Reply::Instead(failure(409, "Conflict", sentence)));
    let began = Instant::now();
    pods.create(wanted("new")).await.expect("all tries failed");
    assert_eq!(owner(&server), "new");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_transient_error_of_the_api_is_retried() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script_times(4, Kind::Create, &Reply::Instead(internal_error()));
    pods.create(wanted("new")).await.expect("all tries failed");
    assert_eq!(server.count(Kind::Create), 5);
    assert_eq!(owner(&server), "new");
}

#[tokio::test]
async fn a_busy_api_is_asked_again_after_the_time_in_retry_after() {
    let server = ApiServer::new();
    let pods = KubeBackend::begin(&server.cluster_over_http().await, PodRules::default()).await;
    let pods = pods.expect("the server does not answer");
    let busy = failure(429, "TooManyRequests", "the server has received too many requests");
    server.script(Kind::Create, Reply::RetryAfter(busy, 1));
    server.script(Kind::Create, Reply::Instead(failure(503, "ServiceUnavailable", "apiserver is shutting down")));
    pods.create(wanted("new")).await.expect("all tries failed");
    let asked: Vec<Instant> =
        server.journal().iter().filter(|asked| asked.kind == Kind::Create).map(|asked| asked.at).collect();
    assert_eq!(asked.len(), 3);
    let waited = asked[1] - asked[0];
    assert!(waited >= Duration::from_millis(900), "Retry-After is 1 s, but the master waited {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_is_reported_in_the_words_of_the_api_and_not_retried() {
    let sentence = "pods \"digits-worker-0\" is forbidden: violates PodSecurity \"restricted:latest\"";
    for (code, reason) in [(403, "Forbidden"), (422, "Invalid")] {
        let server = ApiServer::new();
        let pods = begin(&server).await;
        server.script(Kind::Create, Reply::Instead(failure(code, reason, sentence)));
        let error = pods.create(wanted("new")).await.expect_err("not refused");
        assert_eq!(chain(&error), format!("create pod \"digits-worker-0\": {sentence}"));
        assert_eq!(server.count(Kind::Create), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exceeded_quota_is_reported_as_over_quota_and_not_as_a_refusal() {
    let sentence =
        "pods \"digits-worker-0\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=8, limited: pods=8";
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", sentence)));
    let error = pods.create(wanted("new")).await.expect_err("a pod beyond the quota was created");
    let BackendError::OverQuota { lacking, source } = error else { panic!("{error:?}") };
    assert_eq!(chain(&source), format!("create pod \"digits-worker-0\": {sentence}"));
    assert_eq!(lacking, Resources::from(["pods".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_times_out_and_is_retried() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script(Kind::Create, Reply::Silence);
    let began = Instant::now();
    pods.create(wanted("new")).await.expect("both tries failed");
    let took = began.elapsed();
    assert!((Duration::from_secs(20)..Duration::from_secs(25)).contains(&took), "{took:?}");
    assert_eq!(server.count(Kind::Create), 2);
}

#[tokio::test(start_paused = true)]
async fn a_create_gives_up_on_an_api_that_stays_silent() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    server.script_times(100, Kind::Create, &Reply::Silence);
    let began = Instant::now();
    let error = pods.create(wanted("new")).await.expect_err("the create succeeded without an answer");
    assert_eq!(chain(&error), "create pod \"digits-worker-0\": the Kubernetes API did not answer within 20 s");
    assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
}
