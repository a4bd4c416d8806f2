//! Tests of pods that another program holds back with a scheduling gate.

use std::time::Duration;

use master::agents::token::AgentKey;
use master::registry::{JobHandle, Submitted};
use protocol::failure::Failure;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::{JobResult, JobState, JobView};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::server::ApiServer;
use super::world::{begin, jobs};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The status of a pod for which the scheduler gives this reason and message.
fn unscheduled(reason: &str, message: &str) -> Value {
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": reason, "message": message });
    json!({ "phase": "Pending", "conditions": [condition] })
}

/// Holds a pod back when it is created.
fn gate(pod: &mut Value) {
    pod["status"] = unscheduled("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates");
}

fn spec() -> JobSpec {
    let run_policy = RunPolicy { start_timeout_seconds: 60, ..RunPolicy::default() };
    let request = JobRequest {
        worker_num: Some(1),
        image: Some("digits:1".parse().expect("not an image")),
        run_policy,
        ..JobRequest::new("digits".parse().expect("not a job's name"), Strategy::AllReduce)
    };
    JobSpec::try_from(request).expect("an invalid request")
}

/// Waits for this view, for a time that is longer than the start timeout.
async fn until(job: &JobHandle, test: impl FnMut(&JobView) -> bool) -> Option<JobView> {
    let mut view = job.view.clone();
    let found = timeout(2 * START_TIMEOUT, view.wait_for(test)).await.ok()?;
    Some(found.expect("the driver has ended").clone())
}

#[tokio::test(start_paused = true)]
async fn the_start_timeout_of_a_gated_gang_begins_when_no_pod_is_held_back_any_more() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    server.on_pod(gate);
    let jobs = jobs(&server, begin(&server).await, AgentKey::random(), logs.path());
    let Submitted::Created(job) = jobs.requests.submit(spec()).await.expect("not accepted") else {
        panic!("not a new job")
    };
    let waiting = until(&job, |view| view.replicas[0].reason.is_some()).await.expect("no reason");
    let reason = waiting.replicas[0].reason.as_deref().unwrap_or_default();
    assert!(reason.ends_with("Scheduling is blocked due to non-empty scheduling gates"), "{reason}");
    let changed = until(&job, |view| view.state != JobState::Pending).await;
    assert_eq!(changed, None, "the start timeout runs although the pod is gated");

    let mut pod = server.object("pods", "digits-worker-0").expect("no pod");
    pod["status"] = unscheduled("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.");
    server.put("pods", pod);
    let released = Instant::now();
    let failed = until(&job, |view| view.result.is_some()).await.expect("no result");
    let Some(JobResult::Failed { failure: Failure::StartTimeout { .. } }) = failed.result else { panic!("{failed:?}") };
    assert!(released.elapsed() >= START_TIMEOUT, "the time of the gate counts");
}
