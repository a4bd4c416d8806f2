//! Tests of `narrate.rs`.

use protocol::agent::ExitOutcome;
use protocol::elastic::Workers;
use protocol::failure::FailedStart;
use protocol::job::JobRequest;
use serde_json::json;

use super::*;

fn spec(strategy: &str, workers: u32) -> JobSpec {
    let request = JobRequest {
        worker_num: Some(workers),
        ..JobRequest::new("digits".parse().unwrap(), strategy.parse().unwrap())
    };
    request.try_into().unwrap()
}

/// A new job with this number of workers.
pub(crate) fn pending(workers: u32) -> JobView {
    let replica = |index| json!({"replica": format!("worker-{index}"), "state": "requested", "pod": "p"});
    let view = json!({
        "name": "digits", "uid": "u", "seq": 1, "state": "pending", "spec": spec("AllReduce", workers),
        "replicas": (0..workers).map(replica).collect::<Vec<_>>(), "times": {"accepted": 1000},
    });
    serde_json::from_value(view).unwrap()
}

fn running(workers: u32) -> JobView {
    let mut view = pending(workers);
    view.state = JobState::Running;
    view.generation = Some("1.1".parse().unwrap());
    view.times.joined = Some(UnixMillis(2_800));
    view.times.started = Some(UnixMillis(2_820));
    view.replicas_mut().iter_mut().for_each(|replica| replica.state = ReplicaState::Running);
    view
}

#[test]
fn the_wait_of_a_halted_job_for_new_code_is_reported_once_in_each_start() {
    let sentence = "halted: the job waits 10 min for new code; to send the code: client push digits";
    let halted = JobView { state: JobState::Halted, ..running(2) };
    assert_eq!(changes(Some(&running(2)), &halted), [sentence]);
    assert_eq!(changes(Some(&halted), &halted), Vec::<String>::new());
    let again = JobView { generation: Some("1.2".parse().unwrap()), ..halted.clone() };
    assert!(changes(Some(&halted), &again).contains(&sentence.to_owned()));
}

fn exited(code: i32, stopped: bool) -> ExitReport {
    let stderr_tail = "Traceback\nValueError: no\n".to_owned();
    ExitReport { stopped, stderr_tail, ..ExitReport::new(ExitOutcome::Code(code), UnixMillis(4_000)) }
}

fn finished(result: JobResult) -> JobView {
    let mut view = running(4);
    view.state = result.state();
    view.result = Some(result);
    view.times.ended = Some(UnixMillis(23_720));
    view.times.finished = Some(UnixMillis(23_780));
    view
}

fn failed_by(replica: &str, exit: ExitReport) -> JobView {
    finished(JobResult::Failed { failure: Failure::ReplicaExited { replica: replica.parse().unwrap(), exit } })
}

#[test]
fn a_job_is_described_by_its_strategy_and_replicas() {
    for (strategy, workers, text) in [
        ("AllReduce", 4, "job digits accepted: AllReduce, 4 workers"),
        ("AllReduce", 1, "job digits accepted: AllReduce, 1 worker"),
        ("ps", 2, "job digits accepted: ParameterServer, 1 chief, 2 workers, 1 parameter server"),
    ] {
        let view = JobView { spec: spec(strategy, workers).into(), ..pending(workers) };
        assert_eq!(accepted(&view), text);
    }
    assert_eq!(standing(&running(2)), "job digits is running: AllReduce, 2 workers");
}

#[test]
fn each_step_is_reported_once() {
    let told =
        ["gang complete: 4 of 4 in 1.8 s", "running: generation 1.1, all 4 started 0.02 s after the gang was complete"];
    assert_eq!(changes(None, &pending(4)), Vec::<String>::new());
    assert_eq!(changes(Some(&pending(4)), &running(4)), told);
    assert_eq!(changes(None, &running(4)), told, "without an earlier view, the sentences differ");
    assert_eq!(changes(Some(&running(4)), &running(4)), Vec::<String>::new());
}

#[test]
fn each_restart_is_marked_with_its_cause() {
    let mut again = running(2);
    again.generation = Some("1.2".parse().unwrap());
    again.times.restarted = Some(UnixMillis(9_000));
    let failure = Failure::ReplicaExited { replica: "worker-1".parse().unwrap(), exit: exited(3, false) };
    again.restarts.failed_starts = vec![FailedStart::new(Some("1.1".parse().unwrap()), UnixMillis(4_000), failure)];
    let told = changes(Some(&running(2)), &again);
    assert_eq!(told[0], "--- start 1.2, after worker-1 exited with code 3 ---");
    assert_eq!(told[1], "running again: generation 1.2, all 2 started");

    let mut repeated = again.clone();
    repeated.generation = Some("2.1".parse().unwrap());
    let told = changes(Some(&again), &repeated);
    assert_eq!(told[0], "--- start 2.1, after the previous start was lost with its master ---");
    assert!(changes(Some(&repeated), &again).is_empty(), "a late, older view was taken for a new start");
}

/// The job under a new master that does not know the time `joined`.
fn taken_over(view: &JobView) -> JobView {
    let times = JobTimes { joined: None, started: Some(UnixMillis(2_815)), ..view.times.clone() };
    JobView { times, ..view.clone() }
}

#[test]
fn a_gang_that_goes_on_under_a_new_master_is_not_reported_again() {
    let mut last = running(2);
    for next in [pending(2), taken_over(&running(2))] {
        assert_eq!(changes(Some(&last), &next), Vec::<String>::new());
        last = known(Some(last), next);
    }
    assert_eq!(last.times, running(2).times);
}

#[test]
fn each_start_under_a_new_master_is_reported_once_and_without_the_times_of_another_start() {
    let mut again = taken_over(&running(2));
    (again.generation, again.times.restarted) = (Some("2.1".parse().unwrap()), Some(UnixMillis(9_000)));
    let lost = "--- start 2.1, after the previous start was lost with its master ---";
    let begun = known(Some(running(2)), pending(2));
    assert_eq!(changes(Some(&begun), &again), [lost, "running again: generation 2.1, all 2 started"]);

    let told = changes(None, &again);
    assert_eq!(told, ["running: generation 2.1, all 2 started"]);
    again.times.started = None;
    assert_eq!(changes(Some(&pending(2)), &again), told);
    let elastic = |view: JobView| {
        let roster = view.replicas.iter().map(|replica| replica.replica).collect();
        JobView { workers: Some(Workers { min: 1, max: 2 }), roster, ..view }
    };
    assert_eq!(changes(Some(&elastic(pending(2))), &elastic(again.clone())), told);
    // An elastic job has a sentence with the cause of the start.
    assert_eq!(changes(Some(&elastic(begun)), &elastic(again)), [lost]);
}

#[test]
fn failures_are_reported_and_stopped_replicas_are_not() {
    let mut view = running(4);
    view.state = JobState::Stopping;
    for (index, code, stopped) in [(0, 0, false), (1, 3, false), (2, 143, true)] {
        view.replicas_mut()[index].state = ReplicaState::Exited;
        view.replicas_mut()[index].exit = Some(exited(code, stopped));
    }
    assert_eq!(changes(Some(&running(4)), &view), ["worker-1 exited with code 3", "stopping 1 running replica"]);
    assert_eq!(changes(Some(&view), &view), Vec::<String>::new());
}

#[test]
fn a_lost_replica_is_reported_with_the_reason() {
    let mut view = running(2);
    view.replicas_mut()[1].state = ReplicaState::Lost;
    view.replicas_mut()[1].reason = Some("its agent was killed by signal 9".to_owned());
    assert_eq!(changes(Some(&running(2)), &view), ["worker-1 was lost: its agent was killed by signal 9"]);
}

#[test]
fn a_failure_that_is_seen_as_exit_and_as_loss_is_reported_once() {
    let mut exited_first = running(2);
    exited_first.replicas_mut()[1].state = ReplicaState::Exited;
    exited_first.replicas_mut()[1].exit = Some(exited(137, false));
    let mut lost_first = running(2);
    lost_first.replicas_mut()[1].state = ReplicaState::Lost;
    lost_first.replicas_mut()[1].reason = Some("its container was killed by signal 9".to_owned());
    assert_eq!(changes(Some(&exited_first), &lost_first), Vec::<String>::new());
    assert_eq!(changes(Some(&lost_first), &exited_first), Vec::<String>::new());
}

#[test]
fn many_failures_are_shortened_to_five_lines_and_a_count() {
    let mut view = running(100);
    view.replicas_mut().iter_mut().for_each(|replica| {
        replica.state = ReplicaState::Exited;
        replica.exit = Some(exited(1, false));
    });
    let told = changes(Some(&running(100)), &view);
    assert_eq!((told.len(), told[5].as_str()), (6, "95 more replicas failed"));
}

#[test]
fn replicas_that_wait_for_the_same_reason_share_a_sentence() {
    let mut view = pending(4);
    view.replicas_mut().iter_mut().skip(1).for_each(|replica| replica.reason = Some("no node has 8 GPUs".to_owned()));
    assert_eq!(changes(Some(&pending(4)), &view), ["worker-1 and 2 more are waiting: no node has 8 GPUs"]);
    assert_eq!(changes(Some(&view), &view), Vec::<String>::new());
    view.replicas_mut()[0].reason = Some("its image is pulled".to_owned());
    assert_eq!(changes(None, &view)[0], "worker-0 is waiting: its image is pulled");
}

#[test]
fn the_closing_line_has_the_result_and_the_time_of_each_step() {
    let parts = "pods 1.8 s, start 0.02 s, training 20.9 s";
    let mut never_started = finished(JobResult::Failed {
        failure: Failure::StartTimeout { missing: vec!["worker-3".parse().unwrap()], after_seconds: 20, reason: None },
    });
    (never_started.times.joined, never_started.times.started) = (None, None);
    let mut killed = finished(JobResult::Cancelled);
    for (place, signal) in [(0, 15), (1, 9), (3, 9)] {
        let exit = ExitReport::new(ExitOutcome::Signal(signal), UnixMillis(0));
        killed.replicas_mut()[place].exit = Some(ExitReport { stopped: true, ..exit });
    }
    for (view, line) in [
        (finished(JobResult::Succeeded), format!("succeeded in 22.7 s: {parts}")),
        (
            failed_by("worker-2", exited(3, false)),
            format!("failed after 22.7 s: worker-2 exited with code 3 ({parts})"),
        ),
        (finished(JobResult::Cancelled), format!("cancelled after 22.7 s ({parts})")),
        (
            killed,
            format!(
                "cancelled after 22.7 s ({parts}); killed before they had ended: worker-1, worker-3 (more time: --termination-grace)"
            ),
        ),
        (never_started, "failed after 22.7 s: 1 replica was not ready within 20 s: worker-3".to_owned()),
    ] {
        assert_eq!(closing(&view), line);
    }
}

#[test]
fn the_closing_line_has_no_times_of_steps_that_no_master_could_tell() {
    let without = |joined, started| {
        let mut view = finished(JobResult::Succeeded);
        (view.times.joined, view.times.started) = (joined, started);
        closing(&view)
    };
    let (joined, started) = (Some(UnixMillis(2_800)), Some(UnixMillis(2_820)));
    assert_eq!(without(None, started), "succeeded in 22.7 s: training 20.9 s");
    assert_eq!(without(joined, None), "succeeded in 22.7 s");
    assert_eq!(without(None, None), "succeeded in 22.7 s");
}

#[test]
fn a_clock_that_goes_back_gives_a_duration_of_zero() {
    let mut view = finished(JobResult::Succeeded);
    view.times.joined = Some(UnixMillis(500));
    assert!(closing(&view).contains("pods 0.00 s"), "{}", closing(&view));
}

#[test]
fn the_last_words_are_the_end_of_stderr_and_begin_with_the_exception_if_that_end_lacks_the_exception() {
    let view = failed_by("worker-2", exited(3, false));
    let (replica, lines) = last_words(&view).unwrap();
    assert_eq!((replica.to_string().as_str(), lines), ("worker-2", vec!["Traceback", "ValueError: no"]));

    let mut exit = exited(3, false);
    exit.stderr_tail = (1..=50).map(|line| format!("line {line}\n")).collect();
    let view = failed_by("worker-2", exit);
    let (_, lines) = last_words(&view).unwrap();
    assert_eq!((lines.len(), lines[0], lines[19]), (20, "line 31", "line 50"));

    // The text of this exception is so long that the last lines do not contain the exception's name.
    let mut exit = exited(1, false);
    exit.exception = Some("ValueError: Attempt to convert a value (PerReplica:{".to_owned());
    exit.stderr_tail = "[1. 2. 3.]\n".repeat(50);
    let view = failed_by("worker-2", exit.clone());
    let (_, lines) = last_words(&view).unwrap();
    assert_eq!(lines[..3], ["ValueError: Attempt to convert a value (PerReplica:{", "…", "[1. 2. 3.]"]);
    exit.stderr_tail = "ValueError: Attempt to convert a value (PerReplica:{0: 1})\n".to_owned();
    let view = failed_by("worker-2", exit);
    assert_eq!(last_words(&view).unwrap().1, ["ValueError: Attempt to convert a value (PerReplica:{0: 1})"]);

    assert_eq!(last_words(&finished(JobResult::Succeeded)), None);
}
