//! Prepared views of jobs.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::Failure;
use protocol::ids::UnixMillis;
use protocol::job::{JobRequest, JobSpec};
use protocol::output::LogLine;
use protocol::view::{JobResult, JobState, JobView, ReplicaState};
use serde_json::json;

fn spec(name: &str) -> JobSpec {
    let request = JobRequest {
        worker_num: Some(2),
        work_dir: Some("/w".into()),
        ..JobRequest::new(name.parse().unwrap(), "AllReduce".parse().unwrap())
    };
    request.try_into().unwrap()
}

/// A new job with two workers.
pub(crate) fn pending(name: &str) -> JobView {
    let replica = |index| json!({"replica": format!("worker-{index}"), "state": "requested", "pod": format!("{name}-worker-{index}")});
    let view = json!({
        "name": name, "uid": "uid-1", "seq": 1, "state": "pending", "spec": spec(name), "times": {"accepted": 1000},
        "replicas": [replica(0), replica(1)],
    });
    serde_json::from_value(view).unwrap()
}

/// The job with both workers running.
pub(crate) fn running(name: &str) -> JobView {
    let mut view = pending(name);
    (view.seq, view.state) = (2, JobState::Running);
    view.generation = Some("1.1".parse().unwrap());
    (view.times.joined, view.times.started) = (Some(UnixMillis(2_800)), Some(UnixMillis(2_820)));
    for replica in view.replicas_mut() {
        replica.state = ReplicaState::Running;
        replica.address = Some(format!("127.0.0.1:2400{}", replica.replica.index));
    }
    view
}

/// The job after its end.
pub(crate) fn finished(name: &str, result: JobResult) -> JobView {
    let mut view = running(name);
    (view.seq, view.state) = (3, result.state());
    view.result = Some(result);
    (view.times.ended, view.times.finished) = (Some(UnixMillis(5_820)), Some(UnixMillis(5_920)));
    for replica in view.replicas_mut() {
        replica.state = ReplicaState::Exited;
        replica.exit = Some(exit(0));
    }
    view
}

/// The job with a result, before its pods have ended.
pub(crate) fn decided(name: &str, result: JobResult) -> JobView {
    let mut view = finished(name, result);
    (view.state, view.times.finished) = (JobState::Stopping, None);
    view
}

pub(crate) fn succeeded(name: &str) -> JobView {
    finished(name, JobResult::Succeeded)
}

/// The job after worker-1 exited with code 3.
pub(crate) fn failed(name: &str) -> JobView {
    let failure = Failure::ReplicaExited { replica: "worker-1".parse().unwrap(), exit: exit(3) };
    let mut view = finished(name, JobResult::Failed { failure });
    view.replicas_mut()[1].exit = Some(exit(3));
    view
}

fn exit(code: i32) -> ExitReport {
    let stderr_tail = if code == 0 { String::new() } else { "Traceback\nValueError: no\n".to_owned() };
    ExitReport { stderr_tail, ..ExitReport::new(ExitOutcome::Code(code), UnixMillis(5_800)) }
}

pub(crate) fn line(replica: &str, offset: u64, text: &str) -> LogLine {
    LogLine { replica: replica.parse().unwrap(), time: None, offset, line: text.to_owned(), unfinished: false }
}
