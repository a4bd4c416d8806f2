//! Tests that the back end's tables of pods become correct again after failures of the watch of pods.

use std::time::Duration;

use job::observation::PodState;
use master::backend::kube::KubeBackend;
use master::backend::{PodBackend, PodTable};
use tokio::time::Instant;

use super::objects::{failure, status_object};
use super::server::{ApiServer, Asked, Kind, Reply, gone};
use super::world::{begin, evicted, internal_error, ip, job, pod, running, until, worker};

/// A back end that has seen the pods of three workers. [`change_all`] gives worker-1 another address, removes worker-2
/// and adds worker-3.
async fn three_workers(server: &ApiServer) -> KubeBackend {
    server.put("pods", pod("new", 0, &evicted()));
    server.put("pods", pod("new", 1, &running("10.0.0.1")));
    server.put("pods", pod("new", 2, &running("10.0.0.2")));
    let pods = begin(server).await;
    until(&pods, &job("new"), "all pods are known", |table| table.len() == 3).await;
    server.until("the watch is open", |asked| asked.iter().any(|asked| asked.kind == Kind::Watch)).await;
    pods
}

fn watches(asked: &[Asked]) -> usize {
    asked.iter().filter(|asked| asked.kind == Kind::Watch).count()
}

/// Changes pods, as other clients would.
fn change_all(server: &ApiServer) {
    server.put("pods", pod("new", 1, &running("10.0.0.9")));
    server.remove("pods", "digits-worker-2");
    server.put("pods", pod("new", 3, &running("10.0.0.3")));
}

async fn sees_all_changes(pods: &KubeBackend) {
    let is_there = |table: &PodTable| {
        ip(table, 1).as_deref() == Some("10.0.0.9") && ip(table, 3).as_deref() == Some("10.0.0.3") && table.len() == 3
    };
    let table = until(pods, &job("new"), "the changes are seen", is_there).await;
    let ended = PodState::disrupted("Evicted: The node was low on resource: memory.");
    assert_eq!(table[&worker(0)].state, ended, "the evicted pod is not listed as evicted");
    assert_eq!(table.get(&worker(2)), None, "a deleted pod is still listed");
}

#[tokio::test(start_paused = true)]
async fn after_its_end_a_watch_resumes_at_its_newest_version() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let lists = server.count(Kind::List);
    server.end_watches(None);
    change_all(&server);
    sees_all_changes(&pods).await;
    assert_eq!(server.count(Kind::List), lists, "the pods were listed again");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_as_expired_leads_to_a_new_list() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let lists = server.count(Kind::List);
    change_all(&server);
    server.forget_history();
    server.end_watches(None);
    sees_all_changes(&pods).await;
    assert_eq!(server.count(Kind::List), lists + 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_reports_an_expired_version_leads_to_a_new_list() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let lists = server.count(Kind::List);
    server.end_watches(Some(gone()));
    change_all(&server);
    server.forget_history();
    sees_all_changes(&pods).await;
    assert!(server.count(Kind::List) > lists);
}

#[tokio::test(start_paused = true)]
async fn the_tables_survive_errors_of_the_watch_and_of_lists() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    server.script_times(3, Kind::List, &Reply::Instead(internal_error()));
    server.script_times(2, Kind::Watch, &Reply::Instead(failure(403, "Forbidden", "pods is forbidden")));
    server.end_watches(Some(status_object(500, "InternalError", "etcdserver: leader changed")));
    change_all(&server);
    server.forget_history();
    sees_all_changes(&pods).await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_continues_after_a_list_without_an_answer() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    server.script(Kind::List, Reply::Silence);
    change_all(&server);
    server.forget_history();
    server.end_watches(None);
    sees_all_changes(&pods).await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_namespace_is_watched_again_and_not_listed_again() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let lists = server.count(Kind::List);
    server.until("the watch was renewed many times", |asked| watches(asked) == 10).await;
    assert_eq!(server.count(Kind::List), lists, "the pods were listed again");
    change_all(&server);
    sees_all_changes(&pods).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_never_opens_is_replaced_within_15_minutes_without_a_new_list() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let (began, lists) = (Instant::now(), server.count(Kind::List));
    server.script(Kind::Watch, Reply::Silence);
    server.end_watches(None);
    server.until("the watch is requested again", |asked| watches(asked) == 2).await;
    change_all(&server);
    sees_all_changes(&pods).await;
    assert!(began.elapsed() < Duration::from_secs(15 * 60), "{:?}", began.elapsed());
    assert_eq!(server.count(Kind::List), lists, "the pods were listed again");
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_soon_after_a_long_outage_of_the_server() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    server.script_times(20, Kind::Watch, &Reply::Instead(failure(500, "InternalError", "away")));
    server.end_watches(None);
    server.until("most of the prepared answers have been sent", |asked| watches(asked) == 20).await;
    let last = Instant::now();
    server.until("all prepared answers have been sent", |asked| watches(asked) == 22).await;
    assert!(last.elapsed() < Duration::from_secs(10), "{:?}", last.elapsed());
    change_all(&server);
    sees_all_changes(&pods).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watches_always_expire_is_asked_with_pauses() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    server.script_times(8, Kind::Watch, &Reply::Instead(failure(410, "Expired", "too old resource version")));
    let began = Instant::now();
    server.end_watches(Some(gone()));
    server.until("all prepared answers have been sent", |asked| watches(asked) == 10).await;
    assert!(began.elapsed() > Duration::from_secs(6), "{:?}", began.elapsed());
    change_all(&server);
    sees_all_changes(&pods).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_another_job_creates_between_two_watches_belongs_to_that_job() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    server.remove("pods", "digits-worker-1");
    server.put("pods", pod("other", 1, &running("10.0.0.7")));
    server.forget_history();
    server.end_watches(Some(gone()));
    let others = until(&pods, &job("other"), "the pod is known", |table| !table.is_empty()).await;
    assert_eq!(ip(&others, 1).as_deref(), Some("10.0.0.7"));
    assert_eq!(pods.watch(&job("new")).borrow().get(&worker(1)), None);
}

#[tokio::test(start_paused = true)]
async fn a_table_reports_no_change_if_nothing_has_changed() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    let mut table = pods.watch(&job("new"));
    table.mark_unchanged();
    server.end_watches(Some(gone()));
    server.put("pods", pod("new", 1, &running("10.0.0.1")));
    // When the back end has seen this pod, it has handled the earlier events.
    server.put("pods", pod("other", 7, &running("10.0.0.7")));
    until(&pods, &job("other"), "the pod is known", |table| !table.is_empty()).await;
    assert!(!table.has_changed().expect("the back end has ended"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_back_end_closes_its_watches() {
    let server = ApiServer::new();
    let pods = three_workers(&server).await;
    drop(pods);
    server.is_unwatched().await;
}
