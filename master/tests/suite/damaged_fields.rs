//! Tests of records in which somebody has changed the value of one or two fields: the record is unreadable, or the
//! change is harmless.

use std::sync::Arc;
use std::time::Duration;

use job::policy::Policy;
use master::driver::initial_view;
use master::host::clock::wall_clock;
use master::store::sqlite::SqliteStore;
use master::store::{Ended, Halted, JobRecord};
use proptest::prelude::*;
use proptest::sample::Index;
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::elastic::Workers;
use protocol::failure::{Consequence, FailedStart, Failure, Fingerprint, TooLargeBatch};
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::patch::JobPatch;
use protocol::run_policy::{OnFailure, RunPolicy};
use protocol::view::{JobResult, JobTimes};
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::fake::{Arrival, FakeBackend};

use crate::captured_log;
use crate::service::harness::{Master, until};

/// More replicas than any job may have.
const REPLICAS_MAX: usize = 10_000;

/// A record in which as many fields as possible have a value.
fn full(name: &str, has_ended: bool) -> JobRecord {
    let policy = RunPolicy { on_failure: OnFailure::Wait, deadline_seconds: Some(9), ..RunPolicy::default() };
    let request = JobRequest {
        worker_num: Some(4),
        worker_min: Some(1),
        run_policy: RunPolicy { ttl_after_finished_seconds: Some(90_000), lease_seconds: 7, ..policy },
        env: [("A".parse().expect("not a name"), "b".to_owned())].into(),
        args: vec!["--fast".to_owned()],
        ..JobRequest::new(name.parse().expect("not a job's name"), Strategy::AllReduce)
    };
    let spec = JobSpec::try_from(request).expect("an invalid request");
    let (replica, at) = ("worker-0".parse().expect("not a replica"), wall_clock());
    let exit = ExitReport::new(ExitOutcome::Code(1), at);
    let failure = Failure::ReplicaExited { replica, exit };
    let fingerprint = Fingerprint {
        seat: replica,
        process: None,
        exception: "ValueError".to_owned(),
        step: Some(7),
        split: 1,
        members: 2,
        pushes: 1,
    };
    let failed = FailedStart {
        last_lines: vec!["a line".to_owned()],
        consequences: vec![Consequence { replica, how: "was stopped".to_owned(), stopped: true }],
        fingerprint: Some(fingerprint),
        too_large: vec![TooLargeBatch { replica, batch: 8, most: 4, possible: Some(16) }],
        ..FailedStart::new(Some("1.2".parse().expect("not a generation")), at, failure.clone())
    };
    let mut record = JobRecord { spec: spec.into(), revision: 3, priority: 1, pushes: 1, ..conformance::record(name) };
    record.desired = Some(Workers { min: 1, max: 2 });
    record.accepted_at = at;
    record.restarts.note(failed.clone());
    record.restarts.count_restart(at);
    record.restarts.batch_limits.insert(replica, 4);
    (record.suspension.earlier_millis, record.suspension.starts) = (5, 2);
    record.suspension.resumed = Some(at);
    if has_ended {
        let times = JobTimes { accepted: Some(at), ended: Some(at), finished: Some(at), ..JobTimes::default() };
        let (generation, roster) = (failed.generation, vec![replica]);
        let replicas = initial_view(&record).replicas;
        record.ended = Some(Ended { result: JobResult::Failed { failure }, times, generation, roster, replicas });
    } else {
        record.halted = Some(Halted { since: at, pushes: 1, failed });
    }
    record
}

/// The paths of all values in `value` that contain no other values.
fn leaves(value: &Value, path: &str) -> Vec<String> {
    let below = |(key, value): (String, &Value)| leaves(value, &format!("{path}/{key}"));
    match value {
        Value::Object(object) => object.iter().map(|(key, value)| (key.clone(), value)).flat_map(below).collect(),
        Value::Array(array) => {
            array.iter().enumerate().map(|(i, value)| (i.to_string(), value)).flat_map(below).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![path.to_owned()],
    }
}

fn hostile() -> Vec<Value> {
    let numbers = [0, 1, 1 << 20, 2_000_000_000, u64::from(u32::MAX) - 1, u32::MAX.into(), u64::MAX - 1, u64::MAX];
    let texts = ["", "worker-4294967295", "4294967295.4294967295", "..", "\u{0}"].map(str::to_owned);
    let others = [json!(-1), json!(1e300), json!(0.5), json!(null), json!(true), json!([]), json!({}), json!([null])];
    let texts = texts.into_iter().chain(["9".repeat(400_000)]).map(Value::from);
    numbers.into_iter().map(Value::from).chain(texts).chain(others).collect()
}

fn with(record: &JobRecord, changes: &[(String, Value)]) -> Vec<u8> {
    let mut value = serde_json::to_value(record).expect("a record is JSON");
    for (path, new) in changes {
        *value.pointer_mut(path).expect("no such field") = new.clone();
    }
    value.to_string().into_bytes()
}

/// Reads a record, and if it is readable, does what a master does with it.
fn use_it(name: &JobName, text: &[u8]) {
    let Ok(record) = JobRecord::read(name, text) else { return };
    // The numbers come first: too many replicas would need too much memory.
    let workers = record.workers().map_or(record.spec.worker_num, |workers| workers.max);
    assert!((workers as usize) < REPLICAS_MAX, "the job has {workers} workers");
    assert!(record.replicas().len() < REPLICAS_MAX);
    assert!(record.workers().is_none_or(|workers| (1..=workers.max).contains(&workers.min)));
    let view = initial_view(&record);
    assert!(serde_json::to_vec(&view).expect("not JSON").len() < 4 << 20);
    let active = record.active_time(wall_clock());
    Policy::of(&record.spec, active, 0);
    let _ = record.scaled_spec().workers_for_batch(|replica| record.restarts.batch_limit(replica));
    record.starts();
    let halt = record.waits_after().map(|halted| halted.left(Duration::from_secs(600), wall_clock()));
    assert!(halt.is_none_or(|left| left <= Duration::from_secs(600)));
    for is_suspended in [true, false, true] {
        let mut changed = record.clone();
        changed.suspension.set(is_suspended, wall_clock());
        changed.suspension.set(!is_suspended, wall_clock());
        (changed.epoch, changed.pushes) = (changed.epoch + 1, changed.pushes + 1);
        changed.restarts.count_restart(wall_clock());
        let changed = serde_json::to_vec(&changed.changed()).expect("not JSON");
        assert!(JobRecord::read(name, &changed).is_ok(), "a changed record is not readable");
    }
    let _ = record.spec.patched(record.desired, JobPatch { worker_num: Some(3), ..JobPatch::default() });
}

#[test]
fn no_value_of_one_field_of_a_record_is_harmful() {
    for has_ended in [false, true] {
        let record = full("digits", has_ended);
        let name = &record.spec.name;
        assert_eq!(JobRecord::read(name, &with(&record, &[])), Ok(record.clone()));
        let value = serde_json::to_value(&record).expect("not JSON");
        for leaf in leaves(&value, "") {
            for new in hostile() {
                let shown: String = new.to_string().chars().take(40).collect();
                println!("{leaf}: {shown}");
                use_it(name, &with(&record, &[(leaf.clone(), new)]));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_values_of_several_fields_of_a_record_are_harmful(
        changes in prop::collection::vec((any::<Index>(), any::<Index>()), 2..4),
        has_ended: bool,
    ) {
        let record = full("digits", has_ended);
        let value = serde_json::to_value(&record).expect("not JSON");
        let (leaves, hostile) = (leaves(&value, ""), hostile());
        let change = |(leaf, new): &(Index, Index)| (leaf.get(&leaves).clone(), new.get(&hostile).clone());
        let changes: Vec<_> = changes.iter().map(change).collect();
        use_it(&record.spec.name, &with(&record, &changes));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_drives_or_ignores_every_record_with_a_hostile_number() {
    captured_log::begin();
    let dir = tempfile::tempdir().expect("no folder");
    let path = dir.path().join("jobs.sqlite");
    let store = SqliteStore::open(&path).expect("cannot open the store");
    let file = rusqlite::Connection::open(&path).expect("no second connection");
    let mut readable = vec![];
    for has_ended in [false, true] {
        let value = serde_json::to_value(full("digits", has_ended)).expect("not JSON");
        let is_number = |leaf: &String| value.pointer(leaf).is_some_and(Value::is_number);
        for leaf in leaves(&value, "").into_iter().filter(is_number) {
            for number in [0, 2_000_000_000, u64::from(u32::MAX), u64::MAX] {
                let name = format!("bad{}", leaf.replace('/', "-").replace('_', "").to_lowercase());
                let name = format!("{}-{has_ended}-{number:x}", name.chars().rev().take(24).collect::<String>());
                let record = full(&name, has_ended);
                let text = with(&record, &[(leaf.clone(), number.into())]);
                if JobRecord::read(&record.spec.name, &text).is_ok() {
                    readable.push(record.spec.name.clone());
                }
                let insert = "INSERT INTO jobs (name, version, record) VALUES (?1, 1, CAST(?2 AS TEXT))";
                file.execute(insert, rusqlite::params![name, text]).expect("cannot write the record");
            }
        }
    }
    let master = Master::reading("first", FakeBackend::new(Arrival::AtOnce), Arc::new(store)).await.serve(None).await;
    master.succeed(&conformance::record("healthy").spec).await;
    for name in &readable {
        // A job with a short time to live may be deleted by now.
        if let Some(job) = master.jobs.table.find(name) {
            until(&job, |view| view.seq > 1 || view.state.is_finished()).await;
        }
    }
    assert_eq!(captured_log::lines(&["panicked"]), Vec::<String>::new());
}
