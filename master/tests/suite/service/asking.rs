//! Tests of requests over HTTP: views, long polls, and unknown jobs and routes.

use std::time::{Duration, Instant};

use protocol::agent::ExitOutcome;
use protocol::view::{JobList, JobState};
use serde_json::json;

use crate::service::harness::{Answer, Master, client, in_time, reach, spec, worker};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_in_the_order_of_their_names() {
    let master = Master::serving(None).await;
    for name in ["zeta", "alpha", "middle"] {
        master.submit(spec(name, 1)).await;
    }
    let list = master.get("/v1/jobs").await.json();
    let names: Vec<_> = list["jobs"].as_array().expect("not a list").iter().map(|job| job["name"].clone()).collect();
    assert_eq!(names, ["alpha", "middle", "zeta"]);
    let job = &list["jobs"][0];
    assert_eq!((&job["strategy"], &job["replica_num"]), (&json!("AllReduce"), &json!(1)));
    assert_eq!((&job["replicas"], &job["spec"]), (&json!(null), &json!(null)), "a list shows the details of a job");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_shows_state_generation_and_each_replica() {
    let master = Master::serving(None).await;
    let spec = spec("shown", 2);
    let job = master.submit(spec.clone()).await;
    master.started(&spec).await;
    reach(&job, JobState::Running).await;
    let view = master.get("/v1/jobs/shown").await.json();
    assert_eq!((&view["state"], &view["generation"]), (&json!("running"), &json!("1.1")));
    assert_eq!(
        (&view["replicas"][1]["replica"], &view["replicas"][1]["pod"]),
        (&json!("worker-1"), &json!("shown-worker-1"))
    );
    assert!(view["replicas"][1]["address"].as_str().is_some_and(|address| address.ends_with(":1234")), "{view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_answers_when_the_view_changes() {
    let master = Master::serving(None).await;
    let spec = spec("polled", 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    // The status of the run reaches the view a moment after the state of the job.
    let running = crate::service::harness::until(&job, |view| view.replicas[0].started_at.is_some()).await;
    let path = format!("/v1/jobs/polled?after={}&wait=60", running.seq);
    let poll = master.get(&path);
    let change = async { agents[0].exit(ExitOutcome::Code(0)) };
    let (answer, ()) = tokio::join!(poll, change);
    let seq = answer.json()["seq"].as_u64().expect("not a number");
    assert!(seq > running.seq, "the answer has sequence number {seq}, the request had {}", running.seq);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_without_a_change_answers_at_the_end_of_its_wait_and_with_an_old_sequence_number_at_once() {
    let master = Master::serving(None).await;
    let view = master.succeed(&spec("quiet", 1)).await;
    let begin = Instant::now();
    let answer = master.get(&format!("/v1/jobs/quiet?after={}&wait=1", view.seq)).await;
    assert_eq!((answer.status, &answer.json()["seq"]), (200, &json!(view.seq)));
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    let answer = master.get("/v1/jobs/quiet?after=0&wait=60").await;
    assert_eq!(answer.json()["seq"], json!(view.seq));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_with_invalid_parameters_is_refused() {
    let master = Master::serving(None).await;
    master.submit(spec("job", 1)).await;
    for query in ["after=x", "after=-1", "wait=1s", "unknown=1"] {
        let answer = master.get(&format!("/v1/jobs/job?{query}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_or_malformed_job_name_is_unknown() {
    let master = Master::serving(None).await;
    for name in ["absent", "Not-A-Name", "a.b", "%FF", "%00"] {
        let cancel = Answer::of(client().post(master.url(&format!("/v1/jobs/{name}/cancel")))).await;
        let answers = [
            master.get(&format!("/v1/jobs/{name}")).await,
            master.delete(&format!("/v1/jobs/{name}")).await,
            master.get(&format!("/v1/jobs/{name}/logs")).await,
            cancel,
        ];
        for answer in answers {
            assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_job"), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_path_or_a_wrong_method_is_answered_with_a_problem() {
    let master = Master::serving(None).await;
    for path in ["/", "/v1", "/v1/job", "/create/", "/v1/jobs/a/b"] {
        let answer = master.get(path).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_route"), "{path}");
    }
    for path in ["/v1/jobs", "/create", "/healthz"] {
        let answer = master.delete(path).await;
        assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_allowed"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_of_the_list_answers_when_a_job_changes_or_is_new_or_is_removed() {
    let master = Master::serving(None).await;
    let list = async |after: &str| -> JobList {
        let answer = in_time("the list is answered", master.get(&format!("/v1/jobs{after}"))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("not a list")
    };
    let after = |list: &JobList| format!("?after={}&wait=60", list.seq);
    let empty = list("").await;
    assert_eq!(list(&format!("?after={}&wait=0", empty.seq)).await, empty);
    let (new, _) = tokio::join!(async { list(&after(&empty)).await }, master.submit(spec("listed", 1)));
    assert!(new.seq > empty.seq && new.jobs.len() == 1, "{new:?}");
    reach(&master.job(&new.jobs[0].name), JobState::Running).await;
    let running = list("").await;
    assert_eq!(running.jobs[0].state, JobState::Running);
    let (changed, _) = tokio::join!(async { list(&after(&running)).await }, async {
        master.backend.agent(&new.jobs[0].name, worker(0)).await.exit(ExitOutcome::Code(0));
    });
    assert!(changed.seq > running.seq, "{changed:?}");
    reach(&master.job(&new.jobs[0].name), JobState::Succeeded).await;
    let mut shown = list("").await;
    assert_eq!(master.delete("/v1/jobs/listed").await.status, 202);
    while !shown.jobs.is_empty() {
        shown = list(&after(&shown)).await;
    }
    assert_eq!(master.get("/v1/jobs?after=x").await.status, 400);
}
