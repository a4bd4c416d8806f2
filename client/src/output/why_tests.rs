//! Tests of `why.rs`.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::{LeftBefore, Restarts, TooLargeBatch};
use protocol::ids::UnixMillis;
use protocol::origin::Origin;
use protocol::progress::LostSteps;
use protocol::run_policy::NO_RESTART_LIMIT;
use protocol::view::JobState;

use super::*;
use crate::output::narrate::tests::pending;

fn view(result: Option<JobResult>, failed_starts: Vec<FailedStart>) -> JobView {
    let state = result.as_ref().map_or(JobState::Running, JobResult::state);
    let mut view = JobView { state, result, ..pending(2) };
    view.restarts.failed_starts = failed_starts;
    view
}

fn exited(code: i32) -> Failure {
    let outcome = ExitOutcome::Code(code);
    Failure::ReplicaExited { replica: "worker-1".parse().unwrap(), exit: ExitReport::new(outcome, UnixMillis(4_000)) }
}

fn consequence(replica: &str, how: &str, stopped: bool) -> Consequence {
    Consequence { replica: replica.parse().unwrap(), how: how.to_owned(), stopped }
}

/// The text about a job that failed in this start.
fn text_of(failure: Failure, start: FailedStart) -> String {
    why_text(&view(Some(JobResult::Failed { failure }), vec![start]))
}

fn failed(failure: Failure) -> FailedStart {
    FailedStart::new(Some("1.2".parse().unwrap()), UnixMillis(4_000), failure)
}

#[test]
fn the_first_failed_replica_is_shown_with_its_last_lines_and_the_consequences_of_its_failure() {
    let last = FailedStart {
        last_lines: vec!["Traceback".to_owned(), "ValueError: no".to_owned()],
        consequences: vec![
            consequence("worker-0", "exited with code 1", false),
            consequence("worker-2", "", true),
            consequence("worker-3", "", true),
        ],
        left_before: Some(LeftBefore { replica: "worker-4".parse().unwrap(), earlier_millis: 5_000 }),
        lost_steps: Some(LostSteps { replica: "worker-0".parse().unwrap(), first: 51, last: 61 }),
        too_large: vec![TooLargeBatch {
            replica: "worker-1".parse().unwrap(),
            batch: 64,
            most: 32,
            possible: Some(96),
        }],
        ..failed(exited(3))
    };
    let mut view = view(Some(JobResult::Failed { failure: exited(3) }), vec![failed(exited(7)), last]);
    view.restarts.counted = 1;
    let text = "\
job digits failed, after 1 restart: worker-1 exited with code 3

first to fail  worker-1
how            worker-1 exited with code 3
when           3.0 s after the submit, start 1.2
before it      worker-4 ended with code 0, 5.0 s earlier
memory         worker-1 has too little memory for a batch of 64, and with at most 32 the largest global batch is 96
lost           steps 51 to 61 are lost, because worker-0 ended before it had saved
last lines of worker-1:
  │ Traceback
  │ ValueError: no
because of it  worker-0 exited with code 1
because of it  stopped: worker-2, worker-3

before that:
  start 1.2: worker-1 exited with code 7

hint: worker-1 has too little memory for a batch of 64: use --global-batch 96 or less, or machines with more memory";
    assert_eq!(why_text(&view), text);
}

#[test]
fn an_exception_is_shown_before_last_lines_that_do_not_contain_it() {
    let Failure::ReplicaExited { replica, mut exit } = exited(1) else { panic!("not ReplicaExited") };
    exit.exception = Some("ValueError: Attempt to convert a value (PerReplica:{".to_owned());
    let last =
        FailedStart { last_lines: vec!["[1. 2.]".to_owned()], ..failed(Failure::ReplicaExited { replica, exit }) };
    let text = text_of(exited(1), last);
    let shown = "last lines of worker-1:\n  │ ValueError: Attempt to convert a value (PerReplica:{\n  │ …\n  │ [1. 2.]";
    assert!(text.ends_with(shown), "{text}");
}

#[test]
fn after_a_deadline_all_replicas_are_shown_and_the_last_lines_are_those_of_the_first_stopped_replica() {
    let failure = Failure::DeadlineExceeded { after_seconds: 60 };
    let start = FailedStart {
        counted: false,
        last_lines: vec!["step 7".to_owned()],
        stacks: Some("worker-2 waits in recv() (net.py:40), worker-1 is in open() (data.py:31)".to_owned()),
        consequences: vec![
            consequence("worker-1", "had printed nothing for 42 s", true),
            consequence("worker-2", "had printed nothing for 1 s", true),
            consequence("worker-0", "exited with code 0", false),
        ],
        ..failed(failure.clone())
    };
    let text = "\
job digits failed: the job exceeded its deadline of 60 s

still running  worker-1: had printed nothing for 42 s
still running  worker-2: had printed nothing for 1 s
not running    worker-0: exited with code 0
how            the job exceeded its deadline of 60 s
when           3.0 s after the submit, start 1.2
where          worker-2 waits in recv() (net.py:40), worker-1 is in open() (data.py:31)
last lines of worker-1:
  │ step 7";
    assert_eq!(text_of(failure, start), text);
}

#[test]
fn after_a_start_timeout_the_missing_replica_is_named_with_the_reason() {
    let failure = Failure::StartTimeout {
        missing: vec!["worker-1".parse().unwrap()],
        after_seconds: 60,
        reason: Some("it cannot be scheduled: 1 Insufficient cpu.".to_owned()),
    };
    let start = FailedStart { generation: None, counted: false, ..failed(failure.clone()) };
    let text = "\
job digits failed: 1 replica was not ready within 60 s: worker-1 (it cannot be scheduled: 1 Insufficient cpu.)

first missing  worker-1
how            1 replica was not ready within 60 s: worker-1 (it cannot be scheduled: 1 Insufficient cpu.)
when           3.0 s after the submit";
    assert_eq!(text_of(failure, start), text);
}

#[test]
fn client_why_names_only_the_state_of_a_job_without_failures() {
    assert_eq!(why_text(&view(None, vec![])), "job digits is running: nothing has failed");
    assert_eq!(why_text(&view(Some(JobResult::Succeeded), vec![])), "job digits succeeded");
}

#[test]
fn the_same_failure_at_the_same_step_is_named_with_the_start_before_and_the_flag_to_restart_anyway() {
    let fingerprint = |step: Option<u64>| Fingerprint {
        seat: "worker-1".parse().unwrap(),
        process: None,
        exception: "ValueError: no".to_owned(),
        step,
        split: 0,
        members: 2,
        pushes: 0,
    };
    let text_of = |step: Option<u64>, before: Option<u64>, origin: Option<Origin>| {
        let start = |generation: &str, step| FailedStart {
            generation: Some(generation.parse().unwrap()),
            fingerprint: Some(fingerprint(step)),
            ..failed(exited(1))
        };
        let starts = vec![start("1.1", before), start("1.2", step)];
        let mut failed = view(Some(JobResult::Failed { failure: exited(1) }), starts);
        failed.spec_mut().origin = origin;
        why_text(&failed)
    };
    let text = |step, before| text_of(step, before, None);
    let same = text(Some(12), Some(12));
    assert!(same.contains("\nsame as        start 1.1: the same exception, after step 12\n"), "{same}");
    assert!(same.ends_with("or submit with --retry-same to restart anyway"), "{same}");
    let spawned = text_of(Some(12), Some(12), Some(Origin::Spawner { attempt: "Run_1".to_owned() }));
    assert!(spawned.ends_with("or submit with --retry-same to restart anyway"), "{spawned}");
    let unknown = text(None, None);
    assert!(unknown.contains("\nsame as        start 1.1: the same exception\n"), "{unknown}");
    assert!(!unknown.contains("--retry-same"), "{unknown}");
    let other = text(Some(13), Some(12));
    assert!(!other.contains("same as"), "{other}");
}

#[test]
fn a_common_failure_comes_with_a_hint() {
    let with = |line: &str| {
        let start = FailedStart { last_lines: vec![line.to_owned()], ..failed(exited(1)) };
        text_of(exited(1), start)
    };
    for (line, hint) in [
        ("ValueError: Attempt to convert a value (PerReplica:{", "hint: model.fit of Keras 3"),
        ("AttributeError: 'Mean' object has no attribute 'reset_states'", "hint: the script is written for Keras 2"),
        (
            "AttributeError: module 'keras.callbacks' has no attribute 'experimental'",
            "hint: the script is written for Keras 2, and Keras 3 is installed: pip install --no-deps tf_keras, and",
        ),
        ("UnknownError: Could not start gRPC server", "hint: another program has taken TensorFlow's port"),
        ("MemoryError", "hint: the script ran out of memory"),
        ("image \"digits_pod:1\": ErrImagePull: not found", "hint: if only this machine's Docker has the image"),
    ] {
        assert!(with(line).contains(&format!("\n\n{hint}")), "{}", with(line));
    }
    assert!(!with("ValueError: no").contains("hint:"));
}

#[test]
fn a_start_that_was_lost_with_its_master_is_explained() {
    let mut view = view(None, vec![]);
    let generation = "2.1".parse().unwrap();
    let (at, cause) = (UnixMillis(15_000), ChangeCause::TakenOver);
    view.changes = vec![GangChange { generation, at, workers: 2, cause, lost_steps: None }];
    let text = "\
job digits is running

start 2.1, 14.0 s after the submit: the previous start was lost with its master (not counted)";
    assert_eq!(why_text(&view), text);
}

#[test]
fn status_shows_the_number_of_restarts_and_the_last_failure() {
    let mut view = view(None, vec![failed(exited(3))]);
    (view.restarts.counted, view.restarts.uncounted) = (2, 1);
    let status = crate::output::status_text(&view, None, UnixMillis(5_000));
    for line in [
        "restarts    2 of 3, and 1 not counted",
        "failed      worker-1 exited with code 3",
        "            for details: client why digits",
    ] {
        assert!(status.lines().any(|shown| shown == line), "{line:?} in\n{status}");
    }
    view.spec_mut().run_policy.max_restarts = NO_RESTART_LIMIT;
    let status = crate::output::status_text(&view, None, UnixMillis(5_000));
    assert!(status.contains("restarts    2 (no limit), and 1 not counted\n"), "{status}");
    view.restarts.failed_starts = vec![failed(exited(3))];
    let before = JobView { restarts: Restarts::default(), ..view.clone() };
    let told = crate::output::narrate::restart(Some(&before), &view).unwrap();
    assert!(told.starts_with("restart 2 (no limit): "), "{told}");
}
