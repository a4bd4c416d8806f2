//! Golden JSON of the master's answers: views, results, log lines and problems.

use crate::common::{assert_golden, assert_tolerates_new_fields, read, with, words};
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::elastic::Workers;
use protocol::error::{ErrorCode, Problem};
use protocol::failure::{Consequence, FailedStart, Failure, Fingerprint, LeftBefore, Loss, Restarts, TooLargeBatch};
use protocol::ids::{Generation, Rank, ReplicaId, UnixMillis};
use protocol::output::LogLine;
use protocol::progress::LostSteps;
use protocol::view::{JobList, JobResult, JobState, JobTimes, JobView, ReplicaState, ReplicaView};
use serde_json::{Value, json};

fn replica(text: &str) -> ReplicaId {
    text.parse().expect(text)
}

fn killed() -> ExitReport {
    ExitReport {
        stderr_tail: "out of memory\n".into(),
        ..ExitReport::new(ExitOutcome::Signal(9), UnixMillis(1_700_000_009_000))
    }
}

fn killed_json() -> Value {
    json!({"signal": 9, "stopped": false, "ended_at": 1_700_000_009_000_u64, "stderr_tail": "out of memory\n"})
}

fn spec_json() -> Value {
    json!({
        "name": "digits", "strategy": "AllReduce",
        "worker_num": 1, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
    })
}

fn pending_view() -> JobView {
    JobView {
        name: "digits".parse().expect("an invalid job name"),
        uid: "0b5e".into(),
        seq: 1,
        state: JobState::Pending,
        generation: None,
        result: None,
        restarts: Restarts::default(),
        spec: read(&spec_json()).expect("an invalid spec"),
        workers: None,
        code: None,
        wanted_code: None,
        pushes: 0,
        started_pushes: 0,
        roster: vec![],
        changes: vec![],
        replicas: [ReplicaView {
            replica: replica("worker-0"),
            state: ReplicaState::Requested,
            pod: "digits-worker-0".into(),
            address: None,
            reason: None,
            pid: None,
            started_at: None,
            exit: None,
        }]
        .into(),
        warnings: vec![],
        queued_behind: None,
        batches: None,
        folder: None,
        times: JobTimes::default(),
    }
}

fn pending_json() -> Value {
    json!({
        "name": "digits", "uid": "0b5e", "seq": 1, "state": "pending", "spec": spec_json(),
        "replicas": [{"replica": "worker-0", "state": "requested", "pod": "digits-worker-0"}], "times": {},
    })
}

fn failed_view() -> JobView {
    let millis = |second: u64| Some(UnixMillis(1_700_000_000_000 + second * 1000));
    JobView {
        seq: 9,
        state: JobState::Failed,
        generation: Some(Generation { epoch: 1, sequence: 1 }),
        result: Some(JobResult::Failed {
            failure: Failure::ReplicaExited { replica: replica("worker-0"), exit: killed() },
        }),
        replicas: [ReplicaView {
            replica: replica("worker-0"),
            state: ReplicaState::Exited,
            pod: "digits-worker-0".into(),
            address: Some("127.0.0.1:20001".into()),
            reason: Some("killed by the kernel".into()),
            pid: Some(417),
            started_at: millis(4),
            exit: Some(killed()),
        }]
        .into(),
        folder: Some("/home/ada/digits".into()),
        times: JobTimes {
            accepted: millis(0),
            joined: millis(2),
            configured: millis(3),
            started: millis(4),
            restarted: millis(8),
            suspended: None,
            resumed: millis(7),
            halted: None,
            ended: millis(9),
            finished: millis(10),
        },
        ..pending_view()
    }
}

fn failed_json() -> Value {
    json!({
        "name": "digits", "uid": "0b5e", "seq": 9, "state": "failed", "generation": "1.1", "spec": spec_json(),
        "result": {
            "outcome": "failed",
            "failure": {"cause": "replica_exited", "replica": "worker-0", "exit": killed_json()},
        },
        "replicas": [{
            "replica": "worker-0", "state": "exited", "pod": "digits-worker-0", "address": "127.0.0.1:20001",
            "reason": "killed by the kernel", "pid": 417, "started_at": 1_700_000_004_000_u64, "exit": killed_json(),
        }],
        "folder": "/home/ada/digits",
        "times": {
            "accepted": 1_700_000_000_000_u64, "joined": 1_700_000_002_000_u64,
            "configured": 1_700_000_003_000_u64, "started": 1_700_000_004_000_u64,
            "restarted": 1_700_000_008_000_u64, "resumed": 1_700_000_007_000_u64,
            "ended": 1_700_000_009_000_u64, "finished": 1_700_000_010_000_u64,
        },
    })
}

#[test]
fn the_view_of_a_pending_job_omits_fields_without_a_value() {
    assert_golden(&pending_view(), &pending_json());
}

#[test]
fn the_view_of_a_failed_job_shows_the_cause_and_the_times() {
    assert_golden(&failed_view(), &failed_json());
}

#[test]
fn a_list_contains_a_summary_of_each_job_without_output_and_replicas() {
    let elastic = JobView { workers: Some(Workers { min: 1, max: 1 }), roster: vec![], ..pending_view() };
    let list = JobList { seq: 9, jobs: vec![pending_view().summary(), failed_view().summary(), elastic.summary()] };
    let job = |fields: Value| with(&json!({"name": "digits", "uid": "0b5e", "strategy": "AllReduce"}), &fields);
    let exit = json!({"signal": 9, "stopped": false, "ended_at": 1_700_000_009_000_u64, "stderr_tail": ""});
    let failed = job(json!({
        "state": "failed", "replica_num": 1, "times": failed_json()["times"],
        "headline": "worker-0 was killed by signal 9 (SIGKILL)",
        "result": {
            "outcome": "failed", "failure": {"cause": "replica_exited", "replica": "worker-0", "exit": exit},
        },
    }));
    let pending = |replica_num: u32| job(json!({"state": "pending", "replica_num": replica_num, "times": {}}));
    assert_golden(&list, &json!({"seq": 9, "jobs": [pending(1), failed, pending(0)]}));
}

#[test]
fn views_of_a_newer_master_can_be_read() {
    assert_tolerates_new_fields::<JobView>(&failed_json());
    assert_tolerates_new_fields::<ReplicaView>(&failed_json()["replicas"][0]);
    assert_tolerates_new_fields::<JobTimes>(&failed_json()["times"]);
    assert_tolerates_new_fields::<JobResult>(&failed_json()["result"]);
    assert_tolerates_new_fields::<Failure>(&failed_json()["result"]["failure"]);
    assert_tolerates_new_fields::<JobList>(&json!({"jobs": []}));
    let mut deep = failed_json();
    deep["spec"]["from_the_future"] = json!({"a": 1});
    deep["replicas"][0]["exit"]["from_the_future"] = json!(1);
    assert_eq!(read(&deep), Ok(failed_view()));
}

#[test]
fn every_state_has_the_same_name_on_the_wire_and_on_the_screen() {
    let states = [
        (JobState::Pending, "pending", false),
        (JobState::Starting, "starting", false),
        (JobState::Running, "running", false),
        (JobState::Stopping, "stopping", false),
        (JobState::Restarting, "restarting", false),
        (JobState::Halted, "halted", false),
        (JobState::Suspended, "suspended", false),
        (JobState::Succeeded, "succeeded", true),
        (JobState::Failed, "failed", true),
        (JobState::Cancelled, "cancelled", true),
    ];
    assert_eq!(states.map(|(state, ..)| state), JobState::ALL);
    for (state, name, finished) in states {
        assert_eq!(serde_json::to_value(state).expect("not JSON"), name);
        assert_eq!((state.to_string().as_str(), state.is_finished()), (name, finished));
    }
    let states = [
        (ReplicaState::Requested, "requested"),
        (ReplicaState::Scheduled, "scheduled"),
        (ReplicaState::Joined, "joined"),
        (ReplicaState::Configured, "configured"),
        (ReplicaState::Running, "running"),
        (ReplicaState::Exited, "exited"),
        (ReplicaState::Lost, "lost"),
    ];
    for (state, name) in states {
        assert_eq!(serde_json::to_value(state).expect("not JSON"), name);
        assert_eq!(state.as_str(), name);
    }
}

#[test]
fn a_result_is_tagged_with_its_outcome() {
    assert_golden(&JobResult::Succeeded, &json!({"outcome": "succeeded"}));
    assert_golden(&JobResult::Cancelled, &json!({"outcome": "cancelled"}));
    assert_eq!(JobResult::Succeeded.state(), JobState::Succeeded);
    assert_eq!(JobResult::Cancelled.state(), JobState::Cancelled);
    assert_eq!(failed_view().result.map(|result| result.state()), Some(JobState::Failed));
}

/// Asserts the failure's JSON and its sentence.
#[track_caller]
fn assert_failure(failure: Failure, json: &Value, sentence: &str) {
    assert_eq!(failure.to_string(), sentence);
    assert_golden(&JobResult::Failed { failure }, &json!({"outcome": "failed", "failure": json}));
}

#[test]
fn a_failure_is_tagged_with_its_cause_and_names_the_replica() {
    assert_failure(
        Failure::ReplicaExited { replica: replica("worker-2"), exit: killed() },
        &json!({"cause": "replica_exited", "replica": "worker-2", "exit": killed_json()}),
        "worker-2 was killed by signal 9 (SIGKILL)",
    );
    assert_failure(
        Failure::ReplicaLost { replica: replica("ps-0"), reason: "its agent was killed".into(), loss: Loss::Broken },
        &json!({"cause": "replica_lost", "replica": "ps-0", "reason": "its agent was killed", "loss": "broken"}),
        "ps-0 was lost: its agent was killed",
    );
    assert_failure(
        Failure::ReplicaLost {
            replica: replica("ps-0"),
            reason: "never started: no room".into(),
            loss: Loss::Hopeless,
        },
        &json!({"cause": "replica_lost", "replica": "ps-0", "reason": "never started: no room", "loss": "hopeless"}),
        "ps-0 was never started: no room",
    );
    assert_failure(
        Failure::StartTimeout {
            missing: vec![replica("worker-1"), replica("ps-0")],
            after_seconds: 60,
            reason: Some("no room".into()),
        },
        &json!({"cause": "start_timeout", "missing": ["worker-1", "ps-0"], "after_seconds": 60, "reason": "no room"}),
        "2 replicas were not ready within 60 s: worker-1, ps-0 (no room)",
    );
}

#[test]
fn the_newest_eight_failed_starts_are_kept_and_only_the_newest_has_output() {
    let failed = |sequence: u32, counted: bool| {
        let generation = Some(Generation { epoch: 1, sequence });
        let failure = Failure::ReplicaExited { replica: replica("worker-0"), exit: killed() };
        let failed = FailedStart::new(generation, UnixMillis(1_700_000_009_000), failure);
        FailedStart { counted, last_lines: vec!["Traceback".into()], ..failed }
    };
    let mut restarts = Restarts::default();
    for sequence in 1..=10 {
        restarts.note(failed(sequence, sequence > 2));
        restarts.count_restart(UnixMillis(sequence.into()));
    }
    assert_eq!((restarts.counted, restarts.uncounted, restarts.total()), (8, 2, 10));
    assert_eq!(restarts.newest_failed(), Some(Generation { epoch: 1, sequence: 10 }));
    let kept: Vec<u32> = restarts.failed_starts.iter().filter_map(|start| Some(start.generation?.sequence)).collect();
    assert_eq!(kept, [3, 4, 5, 6, 7, 8, 9, 10]);
    let with_lines = restarts.failed_starts.iter().filter(|start| !start.last_lines.is_empty()).count();
    assert_eq!(with_lines, 1);
}

#[test]
fn the_time_of_the_newest_counted_restart_is_kept_and_absent_in_an_earlier_record() {
    let failed = |counted: bool| {
        let failure = Failure::DeadlineExceeded { after_seconds: 60 };
        FailedStart { counted, ..FailedStart::new(None, UnixMillis(999), failure) }
    };
    let mut restarts = Restarts::default();
    for (counted, now) in [(true, 7), (false, 8)] {
        restarts.note(failed(counted));
        restarts.count_restart(UnixMillis(now));
    }
    let kept = serde_json::to_value(&restarts).expect("not JSON");
    assert_eq!((&kept["counted"], &kept["uncounted"], &kept["last_counted_at"]), (&json!(1), &json!(1), &json!(7)));
    let earlier: Restarts = serde_json::from_value(json!({"counted": 1, "failed_starts": []})).expect("not readable");
    assert_eq!((earlier.counted, earlier.last_counted_at), (1, None));
}

#[test]
fn a_failed_start_lists_its_consequences() {
    let failed = FailedStart {
        generation: Some(Generation { epoch: 1, sequence: 2 }),
        at: UnixMillis(7),
        failure: Failure::DeadlineExceeded { after_seconds: 60 },
        counted: false,
        last_lines: vec!["a line".into()],
        stacks: Some("worker-0 is in open() (data.py:31)".into()),
        consequences: vec![Consequence { replica: replica("ps-0"), how: "exited with code 1".into(), stopped: true }],
        left_before: Some(LeftBefore { replica: replica("worker-2"), earlier_millis: 5000 }),
        lost_steps: Some(LostSteps { replica: replica("worker-0"), first: 51, last: 61 }),
        fingerprint: Some(Fingerprint {
            seat: replica("worker-1"),
            process: None,
            exception: "ValueError: no".into(),
            step: Some(61),
            split: 1,
            members: 3,
            pushes: 2,
        }),
        too_large: vec![TooLargeBatch { replica: replica("worker-1"), batch: 64, most: 32, possible: Some(96) }],
    };
    let golden = json!({
        "generation": "1.2", "at": 7, "failure": {"cause": "deadline_exceeded", "after_seconds": 60}, "counted": false,
        "last_lines": ["a line"], "stacks": "worker-0 is in open() (data.py:31)",
        "consequences": [{"replica": "ps-0", "how": "exited with code 1", "stopped": true}],
        "left_before": {"replica": "worker-2", "earlier_millis": 5000},
        "lost_steps": {"replica": "worker-0", "first": 51, "last": 61},
        "fingerprint": {
            "seat": "worker-1", "exception": "ValueError: no", "step": 61, "split": 1, "members": 3, "pushes": 2,
        },
        "too_large": [{"replica": "worker-1", "batch": 64, "most": 32, "possible": 96}],
    });
    assert_golden(&failed, &golden);
}

#[test]
fn a_failure_of_many_replicas_names_the_first_five() {
    let missing = (0..9).map(|index| replica(&format!("worker-{index}"))).collect();
    let failure = Failure::StartTimeout { missing, after_seconds: 60, reason: None };
    let first = "worker-0, worker-1, worker-2, worker-3, worker-4";
    assert_eq!(failure.to_string(), format!("9 replicas were not ready within 60 s: {first}, …"));
}

#[test]
fn a_log_line_has_its_replica_and_the_offset_to_resume_at() {
    let line = LogLine {
        replica: replica("worker-2"),
        time: None,
        offset: 1234,
        line: "loss 0.5 \u{fffd}".into(),
        unfinished: false,
    };
    let golden = json!({"replica": "worker-2", "offset": 1234, "line": "loss 0.5 \u{fffd}"});
    assert_golden(&line, &golden);
    assert_tolerates_new_fields::<LogLine>(&golden);
    let unfinished = LogLine { unfinished: true, ..line.clone() };
    let golden = json!({"replica": "worker-2", "offset": 1234, "line": "loss 0.5 \u{fffd}", "unfinished": true});
    assert_golden(&unfinished, &golden);
    let timed = LogLine { time: Some(UnixMillis(1_790_000_000_123)), ..line };
    let golden = json!({
        "replica": "worker-2", "time": 1_790_000_000_123_u64, "offset": 1234, "line": "loss 0.5 \u{fffd}",
    });
    assert_golden(&timed, &golden);
}

#[test]
fn a_problem_has_a_code_for_programs_and_a_sentence_for_people() {
    let problem = Problem { status: 409, code: ErrorCode::JobExists, detail: "job \"digits\" exists".into() };
    let golden = json!({"status": 409, "code": "job_exists", "detail": "job \"digits\" exists"});
    assert_golden(&problem, &golden);
    assert_tolerates_new_fields::<Problem>(&golden);
}

#[test]
fn error_codes_have_stable_names() {
    let names = "bad_request bad_task bad_strategy bad_worker_num bad_ps_num bad_chief_num bad_evaluator_num bad_env \
        bad_args bad_image bad_work_dir bad_code code_missing bad_pod bad_groups bad_tfjob bad_run_policy \
        too_many_replicas no_python job_exists unknown_job unknown_replica unknown_route method_not_allowed \
        unauthorized forbidden conflict cannot_scale cannot_push code_not_taken code_underway stale_generation \
        too_large code_store_full agent_unreachable cannot_join unavailable internal";
    for name in words(names) {
        let code: ErrorCode = read(&json!(name)).expect(name);
        assert_eq!(serde_json::to_value(code).expect("not JSON"), name);
    }
}

#[test]
fn identifiers_and_times_have_a_plain_json_form() {
    assert_golden(&UnixMillis(1_700_000_000_000), &json!(1_700_000_000_000_u64));
    assert_golden(&Rank(3), &json!(3));
    assert_golden(&Generation { epoch: 2, sequence: 7 }, &json!("2.7"));
    assert_golden(&replica("evaluator-0"), &json!("evaluator-0"));
}
