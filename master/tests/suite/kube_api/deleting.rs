//! Tests that a delete can be repeated, does not delete pods of other jobs, and sends no request for absent pods.

use master::backend::PodBackend;
use master::backend::PodTable;
use serde_json::json;

use super::objects::failure;
use super::server::{ApiServer, Kind, Reply};
use super::world::{begin, chain, job, pod, running, until, worker};

#[tokio::test(start_paused = true)]
async fn deleting_an_absent_pod_or_another_jobs_pod_of_the_same_name_succeeds_and_writes_nothing() {
    let server = ApiServer::new();
    server.put("pods", pod("other", 0, &running("10.0.0.1")));
    let pods = begin(&server).await;
    for index in 0..2 {
        pods.delete(&job("new"), worker(index)).await.expect("the delete failed although there is nothing to delete");
    }
    assert_eq!(server.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_newer_pod_of_the_same_name_is_not_deleted() {
    let server = ApiServer::new();
    server.put("pods", pod("new", 0, &running("10.0.0.1")));
    let pods = begin(&server).await;
    // The watch has not reported these changes yet.
    server.remove("pods", "digits-worker-0");
    server.put("pods", pod("new", 0, &running("10.0.0.2")));
    pods.delete(&job("new"), worker(0)).await.expect("the delete failed although the old pod no longer exists");
    assert!(server.object("pods", "digits-worker-0").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_gets_1_s_of_grace_but_no_grace_if_no_container_has_started() {
    let waiting = json!([{ "name": "agent", "state": { "waiting": { "reason": "ImagePullBackOff" } } }]);
    let begun = json!([{ "name": "agent", "containerID": "docker://1", "state": { "waiting": {} } }]);
    let pending = |containers| json!({ "phase": "Pending", "containerStatuses": containers });
    for (status, seconds) in [(pending(waiting), 0), (pending(begun), 1), (running("10.0.0.1"), 1)] {
        let server = ApiServer::new();
        server.put("pods", pod("new", 0, &status));
        let pods = begin(&server).await;
        pods.delete(&job("new"), worker(0)).await.expect("cannot delete the pod");
        let asked = server.journal().into_iter().find(|asked| asked.kind == Kind::Delete).expect("no delete");
        assert_eq!(asked.body["gracePeriodSeconds"], json!(seconds));
        until(&pods, &job("new"), "the pod is gone", PodTable::is_empty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_deletion_gives_a_running_pod_no_grace_because_its_node_may_be_dead() {
    let server = ApiServer::new();
    server.put("pods", pod("new", 0, &running("10.0.0.1")));
    let pods = begin(&server).await;
    pods.delete_unconfirmed(&job("new"), worker(0)).await.expect("cannot delete the pod");
    let asked = server.journal().into_iter().find(|asked| asked.kind == Kind::Delete).expect("no delete");
    assert_eq!(asked.body["gracePeriodSeconds"], json!(0));
}

#[tokio::test(start_paused = true)]
async fn deleting_all_pods_sends_one_request_and_no_request_if_there_are_no_pods() {
    let server = ApiServer::new();
    for index in 0..3 {
        server.put("pods", pod("new", index, &running("10.0.0.1")));
    }
    let pods = begin(&server).await;
    pods.delete_all(&job("new")).await.expect("cannot delete the pods");
    until(&pods, &job("new"), "the pods are gone", PodTable::is_empty).await;
    pods.delete_all(&job("new")).await.expect("the delete failed although there is nothing to delete");
    assert_eq!(server.mutations(), ["DeleteAll pods"]);
    let asked = server.journal().into_iter().find(|asked| asked.kind == Kind::DeleteAll).expect("no delete");
    let selector = ("labelSelector".to_owned(), "app.kubernetes.io/managed-by=muster,muster/job-uid=new".to_owned());
    assert!(asked.query.contains(&selector), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn deleting_all_pods_of_an_earlier_job_keeps_the_pods_of_a_newer_job() {
    let server = ApiServer::new();
    server.put("pods", pod("old", 0, &running("10.0.0.1")));
    server.put("pods", pod("new", 1, &running("10.0.0.2")));
    let pods = begin(&server).await;
    pods.delete_all(&job("old")).await.expect("cannot delete the pods");
    until(&pods, &job("old"), "the pods are gone", PodTable::is_empty).await;
    assert!(server.object("pods", "digits-worker-1").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_refused_delete_is_reported_in_the_words_of_the_api() {
    let server = ApiServer::new();
    server.put("pods", pod("new", 0, &running("10.0.0.1")));
    let pods = begin(&server).await;
    let sentence = "pods \"digits-worker-0\" is forbidden: User \"muster\" cannot delete resource \"pods\"";
    server.script(Kind::Delete, Reply::Instead(failure(403, "Forbidden", sentence)));
    server.script(Kind::DeleteAll, Reply::Instead(failure(403, "Forbidden", sentence)));
    let one = pods.delete(&job("new"), worker(0)).await.expect_err("not refused");
    assert_eq!(chain(&one), format!("delete pod \"digits-worker-0\": {sentence}"));
    let all = pods.delete_all(&job("new")).await.expect_err("not refused");
    assert_eq!(chain(&all), format!("delete the pods of job \"digits\": {sentence}"));
}
