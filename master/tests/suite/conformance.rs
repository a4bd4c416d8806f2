//! Tests that the SQLite store and the process back end pass their conformance suites, and that the largest records
//! stay within limits and know the active time of their job.

use std::sync::Arc;

use master::agents::token::AgentKey;
use master::backend::PodBackend;
use master::backend::process::{Host, Orphans, ProcessBackend};
use master::host::clock::wall_clock;
use master::host::descriptors::Descriptors;
use master::store::sqlite::SqliteStore;
use master::store::{JobRecord, JobStore, StoreError};
use protocol::agent::{ExitOutcome, ExitReport, STDERR_TAIL_BYTES};
use protocol::failure::{
    CONSEQUENCES_MAX, Consequence, FINGERPRINT_JSON_BYTES, FailedStart, Failure, Fingerprint, LAST_LINES_MAX,
    LeftBefore, TooLargeBatch,
};
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::progress::LostSteps;
use protocol::stacks::SENTENCE_JSON_BYTES;
use protocol::text::json_bytes;

use crate::process::harness::built;

#[tokio::test]
async fn the_sqlite_store_conforms() {
    let dir = tempfile::tempdir().expect("no folder");
    let store = SqliteStore::open(&dir.path().join("jobs.sqlite")).expect("cannot open the store");
    testkit::conformance::store::check(&store).await;
}

#[tokio::test]
async fn the_sqlite_store_keeps_records_and_versions_when_it_is_opened_again() {
    let dir = tempfile::tempdir().expect("no folder");
    let path = dir.path().join("jobs.sqlite");
    let first = SqliteStore::open(&path).expect("cannot open the store");
    let created = first.create(testkit::conformance::store::record("kept")).await.expect("cannot create the record");
    let raised = JobRecord { epoch: 2, ..created.record };
    let updated = first.update(raised.clone(), &created.version).await.expect("cannot update the record");
    drop(first);

    let second = SqliteStore::open(&path).expect("cannot open the store again");
    assert_eq!(second.list().await.expect("cannot list the records"), [updated]);
    let late = second.update(raised, &created.version).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_back_end_conforms() {
    let (work, state) = (tempfile::tempdir().expect("no folder"), tempfile::tempdir().expect("no folder"));
    std::fs::write(work.path().join("exec.py"), "print(\"hello\")\n").expect("cannot write the file");
    let host = Host {
        agent_binary: built("agent"),
        default_work_dir: work.path().to_owned(),
        not_inherited: vec![],
        descriptors: Descriptors::raise().expect("the limit of open files cannot be raised"),
        orphans: Orphans::ignored(),
    };
    let pods = ProcessBackend::new(host, state.path()).expect("the back end cannot be created");
    let spec = testkit::conformance::store::record("pods").spec;
    testkit::conformance::backend::check(&pods, &spec, "uid", &AgentKey::random()).await;
    pods.shutdown().await;
    let left: Vec<_> = std::fs::read_dir(state.path().join("pods")).expect("no folder of pods").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_recorded_end_of_a_job_with_thousands_of_replicas_fits_into_256_kib() {
    use master::store::Ended;
    use protocol::view::{JobResult, JobTimes, ReplicaState, ReplicaView};
    let replica = |index: u32| ReplicaView {
        replica: format!("worker-{index}").parse().expect("not a replica"),
        state: ReplicaState::Lost,
        pod: format!("a-job-of-a-long-name-worker-{index}"),
        address: Some("10.0.0.1:1234".to_owned()),
        reason: Some("ErrImagePull: ".repeat(30)),
        pid: None,
        started_at: None,
        exit: None,
    };
    let ended = |count: u32| Ended {
        roster: vec![],
        result: JobResult::Cancelled,
        times: JobTimes::default(),
        generation: None,
        replicas: (0..count).map(replica).collect(),
    };
    assert_eq!(ended(100).bounded(), ended(100), "an end with 100 replicas is changed");
    for count in [1000, 5457] {
        let bounded = ended(count).bounded();
        assert!(serde_json::to_string(&bounded).expect("not JSON").len() <= 256 * 1024, "{count} replicas");
        let kept = bounded.replicas.len();
        assert_eq!(kept == 0, count > 1000, "of {count} replicas, {kept} are kept");
    }
}

/// A report whose texts have their maximum lengths.
fn longest_exit(at: UnixMillis) -> ExitReport {
    ExitReport {
        stopped: true,
        terminated: true,
        exception: Some("\u{1b}".repeat(STDERR_TAIL_BYTES)),
        stderr_tail: "\u{1b}".repeat(STDERR_TAIL_BYTES),
        ..ExitReport::new(ExitOutcome::OutOfMemory { limit: Some(u64::MAX) }, at)
    }
    .bounded()
}

/// A fingerprint with the largest numbers and the longest text.
fn longest_fingerprint() -> Fingerprint {
    Fingerprint {
        seat: "evaluator-1000".parse().expect("not a replica"),
        process: None,
        exception: "\u{1b}".repeat(FINGERPRINT_JSON_BYTES / json_bytes('\u{1b}')),
        step: Some(u64::MAX),
        split: u64::MAX,
        members: u32::MAX,
        pushes: u32::MAX,
    }
}

/// This failed start with the longest evidence, but without the last lines.
fn longest_failed_start(failed: FailedStart, replica: ReplicaId) -> FailedStart {
    let consequence = Consequence { replica, how: format!("was lost: {}", "r".repeat(1024)), stopped: false };
    let too_large = TooLargeBatch { replica, batch: u32::MAX, most: u32::MAX, possible: Some(u64::MAX) };
    FailedStart {
        counted: false,
        consequences: vec![consequence; CONSEQUENCES_MAX],
        left_before: Some(LeftBefore { replica, earlier_millis: u64::MAX }),
        lost_steps: Some(LostSteps { replica, first: u64::MAX, last: u64::MAX }),
        fingerprint: Some(longest_fingerprint()),
        stacks: Some("s".repeat(SENTENCE_JSON_BYTES)),
        too_large: vec![too_large; CONSEQUENCES_MAX],
        ..failed
    }
}

#[tokio::test]
async fn the_largest_record_fits_into_a_config_map() {
    use master::logs::JobLogs;
    use master::store::Ended;
    use protocol::env::INPUT_BYTES_MAX;
    use protocol::ids::{Generation, UnixMillis};
    use protocol::view::{JobResult, JobTimes, ReplicaState, ReplicaView};

    let replica: ReplicaId = "evaluator-1000".parse().expect("not a replica");
    let dir = tempfile::tempdir().expect("no folder");
    let logs = JobLogs::new(dir.path().to_owned(), &[replica]);
    let log = logs.of(replica).expect("the replica has no log");
    let (line, at) = ("\u{1b}".repeat(1000) + "\n", UnixMillis(u64::MAX));
    log.append(0, line.repeat(LAST_LINES_MAX).into(), wall_clock()).await.expect("cannot append to the log");
    let last_lines = log.last_lines(LAST_LINES_MAX, 0).await;
    assert!(!last_lines.is_empty(), "the log has no lines");

    let exit = longest_exit(at);
    let failure = Failure::ReplicaExited { replica, exit };
    let mut record = testkit::conformance::store::record("full");
    for sequence in 0..20 {
        let generation = Some(Generation { epoch: u32::MAX, sequence: u32::MAX - sequence });
        let failed = longest_failed_start(FailedStart::new(generation, at, failure.clone()), replica);
        let failed = FailedStart { last_lines: last_lines.clone(), ..failed };
        record.restarts.note(failed);
        record.restarts.count_restart(at);
    }
    let replica = ReplicaView {
        replica,
        state: ReplicaState::Lost,
        pod: "p".repeat(63),
        address: None,
        reason: Some("r".repeat(300)),
        pid: None,
        started_at: None,
        exit: None,
    };
    let ended = Ended {
        roster: vec![],
        result: JobResult::Failed { failure },
        times: JobTimes::default(),
        generation: None,
        replicas: vec![replica; 500].into(),
    };
    assert_eq!(ended.clone().bounded(), ended, "an end within its limits is changed");
    record.ended = Some(ended);
    let texts = 8;
    Arc::make_mut(&mut record.spec).args = vec!["a".repeat(INPUT_BYTES_MAX / texts - 3); texts];
    let record = record.bounded();
    assert_eq!(record.restarts.failed_starts.len(), 8, "the record does not have 8 failed starts");
    let length = serde_json::to_string(&record).expect("not JSON").len();
    assert!(length <= 1 << 20, "{length} bytes");
    assert!(length > 880 * 1024, "{length} bytes: the test no longer builds the largest record");
}

#[test]
fn a_record_that_is_too_long_drops_its_oldest_failures_except_the_newest_failure_with_a_generation() {
    use protocol::failure::Loss;
    use protocol::ids::{Generation, UnixMillis};
    let mut record = testkit::conformance::store::record("long");
    for sequence in 1..=8 {
        let replica = "worker-0".parse().expect("not a replica");
        let consequence = Consequence { replica, how: "\u{1}".repeat(2000), stopped: false };
        let failure = Failure::ReplicaLost { replica, reason: "\u{1}".repeat(1024), loss: Loss::Broken };
        let generation = (sequence == 5).then_some(Generation { epoch: 1, sequence });
        let consequences = vec![consequence; 16];
        let at = UnixMillis(sequence.into());
        record.restarts.note(FailedStart { consequences, ..FailedStart::new(generation, at, failure) });
        record.restarts.count_restart(at);
        record = record.bounded();
        assert!(serde_json::to_string(&record).expect("not JSON").len() < 200 * 1024);
    }
    assert_eq!(record.restarts.counted, 8);
    assert_eq!(record.restarts.newest_failed(), Some(Generation { epoch: 1, sequence: 5 }));
    assert_eq!(record.restarts.failed_starts.last().map(|failed| failed.at), Some(UnixMillis(8)));
}

#[test]
fn the_active_time_of_a_job_does_not_include_the_time_in_which_the_job_is_suspended() {
    let mut record = testkit::conformance::store::record("digits");
    let accepted = record.accepted_at.0;
    let at = |seconds: u64| UnixMillis(accepted + 1000 * seconds);
    record.suspension.set(true, at(10));
    record.suspension.set(false, at(40));
    assert_eq!(record.active_time(at(60)), std::time::Duration::from_secs(30));
    record.suspension.set(true, at(60));
    assert_eq!(record.active_time(at(99)), std::time::Duration::from_secs(30));
}
