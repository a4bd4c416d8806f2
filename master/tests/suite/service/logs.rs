//! Tests of output over HTTP: the bytes of one replica, or the lines of all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, poll};
use master::host::clock::wall_clock;
use master::logs::{Archive, JobLogs, Reading, ReplicaLog, Wanted, added_after};
use protocol::agent::{ExitOutcome, RunStatus};
use protocol::ids::UnixMillis;
use protocol::job::JobSpec;
use protocol::output::LogLine;
use protocol::view::{JobResult, JobState};
use testkit::fake::FakeAgent;

use crate::service::harness::{Answer, Master, client, in_time, reach, spec, worker};

/// A finished job of two workers. Each worker printed two lines.
async fn with_output() -> (Master, JobSpec) {
    let master = Master::serving(None).await;
    let spec = spec("printed", 2);
    let job = master.submit(spec.clone()).await;
    for (index, agent) in master.started(&spec).await.iter().enumerate() {
        agent.print(&format!("hello {index}\nbye {index}\n"));
        agent.exit(ExitOutcome::Code(0));
    }
    reach(&job, JobState::Succeeded).await;
    (master, spec)
}

/// The lines of each replica in order, as `offset text`.
fn lines(answer: &Answer) -> BTreeMap<String, Vec<String>> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-ndjson"), "{answer:?}");
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for text in answer.body.lines() {
        let line: LogLine = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        lines.entry(line.replica.to_string()).or_default().push(format!("{} {}", line.offset, line.line));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_one_replica_is_its_bytes_from_an_offset_on_or_its_last_lines() {
    let (master, _) = with_output().await;
    for (query, output, offset) in [
        ("worker-1", "hello 1\nbye 1\n", "0"),
        ("worker-0&offset=8", "bye 0\n", "8"),
        ("worker-0&tail=1", "bye 0\n", "8"),
    ] {
        let answer = master.get(&format!("/v1/jobs/printed/logs?replica={query}")).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, output), "{query}");
        let headers = (answer.header("muster-log-offset"), answer.header("muster-log-dropped"));
        assert_eq!(headers, (offset, "0"), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_all_replicas_comes_as_lines_that_name_their_replica() {
    let (master, _) = with_output().await;
    for (query, expected) in [
        ("", &["worker-0: 8 hello 0, 14 bye 0", "worker-1: 8 hello 1, 14 bye 1"][..]),
        ("?from=worker-0:14,worker-1:8", &["worker-1: 14 bye 1"]),
        ("?tail=1", &["worker-0: 14 bye 0", "worker-1: 14 bye 1"]),
    ] {
        let lines = lines(&master.get(&format!("/v1/jobs/printed/logs{query}")).await);
        let shown: Vec<_> = lines.iter().map(|(replica, lines)| format!("{replica}: {}", lines.join(", "))).collect();
        assert_eq!(shown, expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_follow_gets_all_output_and_then_the_end() {
    let master = Master::serving(None).await;
    let spec = spec("followed", 2);
    master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    let merged = Answer::of(client().get(master.url("/v1/jobs/followed/logs?follow=true")));
    let one = Answer::of(client().get(master.url("/v1/jobs/followed/logs?replica=worker-1&follow=true")));
    let run = async {
        for agent in &agents {
            agent.print("a line\nthe last");
            agent.exit(ExitOutcome::Code(0));
        }
    };
    let (merged, one, ()) = in_time("both answers end", async { tokio::join!(merged, one, run) }).await;
    assert_eq!(one.body, "a line\nthe last");
    assert_eq!(lines(&merged)["worker-0"], ["7 a line", "15 the last"]);
    assert_eq!(lines(&merged)["worker-1"], ["7 a line", "15 the last"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_copied_completely_even_if_the_connection_to_the_agent_breaks_often() {
    is_copied_completely("cut", |agent| agent.cut_logs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_copied_completely_even_if_the_agent_ends_a_stream_early() {
    is_copied_completely("early", |agent| agent.end_logs_early(2)).await;
}

async fn is_copied_completely(name: &str, disturb: impl Fn(&FakeAgent)) {
    let master = Master::serving(None).await;
    let spec = spec(name, 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    disturb(&agents[0]);
    agents[0].print("it came\n");
    agents[0].exit(ExitOutcome::Code(0));
    reach(&job, JobState::Succeeded).await;
    let path = format!("/v1/jobs/{name}/logs?replica=worker-0&follow=true");
    assert_eq!(Answer::of(client().get(master.url(&path))).await.body, "it came\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_a_log_file_is_retried_until_it_succeeds() {
    let master = Master::serving(None).await;
    let folder = master.logs.path().to_owned();
    std::fs::remove_dir_all(&folder).expect("the folder with the store of code does not exist");
    std::fs::write(&folder, "in the way of the logs").expect("no file");
    let spec = spec("tried", 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents[0].print("it came\n");
    let log = job.kept.logs.of("worker-0".parse().expect("not a replica")).expect("the replica has no log");
    let until = async |is_missed: bool| {
        while log.missing().is_some() != is_missed {
            tokio::task::yield_now().await;
        }
    };
    in_time("the file cannot be opened", until(true)).await;
    std::fs::remove_file(&folder).expect("cannot remove the file");
    in_time("the file is opened", until(false)).await;
    agents[0].exit(ExitOutcome::Code(0));
    reach(&job, JobState::Succeeded).await;
    let answer = Answer::of(client().get(master.url("/v1/jobs/tried/logs?replica=worker-0&follow=true"))).await;
    assert_eq!(answer.body, "it came\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_before_a_gap_is_kept_and_the_gap_is_reported() {
    let (master, spec) = with_output().await;
    let job = master.jobs.table.find(&spec.name).expect("no job");
    let log = job.kept.logs.of("worker-0".parse().expect("not a replica")).expect("the replica has no log");
    log.append(114, "after\n".into(), wall_clock()).await.expect("cannot append to the log");
    log.append(130, "".into(), wall_clock()).await.expect("cannot append to the log");

    let lines = lines(&master.get("/v1/jobs/printed/logs").await);
    let gap =
        |bytes: u32| format!("[{bytes} bytes of output are missing here: they came faster than they could be kept]");
    let expected = ["8 hello 0".to_owned(), "14 bye 0".to_owned(), format!("114 {}", gap(100)), "120 after".to_owned()];
    assert_eq!(lines["worker-0"], [&expected[..], &[format!("130 {}", gap(10))]].concat());

    let first = master.get("/v1/jobs/printed/logs?replica=worker-0").await;
    assert_eq!((first.body.as_str(), first.header("muster-log-offset")), ("hello 0\nbye 0\n", "0"));
    let second = master.get("/v1/jobs/printed/logs?replica=worker-0&offset=14").await;
    assert_eq!((second.body.as_str(), second.header("muster-log-dropped")), ("after\n", "100"));
    let last = master.get("/v1/jobs/printed/logs?replica=worker-0&offset=120").await;
    assert_eq!((last.body.as_str(), last.header("muster-log-dropped")), ("", "10"));
    assert_eq!(log.last_lines(2, 0).await, ["bye 0", "after"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_budget_the_output_of_the_job_that_finished_first_is_dropped_and_a_line_says_so() {
    let dir = tempfile::tempdir().expect("no folder");
    let archive = Arc::new(Archive::new(dir.path().to_owned(), 150_000));
    let dropping = Arc::clone(&archive);
    let dropping = tokio::spawn(async move { dropping.keep_within_budget().await });
    let worker = "worker-0".parse().expect("not a replica");
    let jobs = ["first", "second"].map(|uid| archive.job(uid, &[worker]));
    for job in &jobs {
        let log = job.of(worker).expect("the replica has no log");
        log.append(0, "x".repeat(100_000).into(), wall_clock()).await.expect("cannot append to the log");
        job.complete().await;
    }
    let [first, second] = jobs.each_ref().map(|job| job.of(worker).expect("the replica has no log").clone());
    let is_dropped = async {
        while first.read(0).await.expect("read").offset == 0 {
            // Without a pause, this reader would keep the archive from dropping the file.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time("the first job's output is dropped", is_dropped).await;
    let said: Vec<_> = master::logs::lines(
        worker,
        first,
        Reading { offset: 0, follow: false, wanted: Wanted::Bytes, unfinished: false },
    )
    .try_concat()
    .await
    .expect("read");
    assert_eq!(said[0].line, "[100000 bytes of output before this are no longer kept]");
    assert_eq!(second.read(0).await.expect("read").bytes[..3], *b"xxx");
    assert!(!dir.path().join("first/worker-0.times").exists(), "the times of dropped output are kept");
    dropping.abort();
}

#[tokio::test]
async fn a_stream_that_waits_for_further_replicas_ends_when_the_last_known_output_is_complete() {
    let folder = tempfile::tempdir().expect("no temporary folder");
    let worker = worker(0);
    let logs = Arc::new(JobLogs::new(folder.path().to_owned(), &[worker]));
    let mut added = pin!(added_after(Arc::clone(&logs), BTreeSet::from([worker])));
    assert!(poll!(added.next()).is_pending());
    logs.of(worker).expect("the replica has no log").complete();
    assert!(in_time("the stream ends", added.next()).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_follow_does_not_wait_for_pods_that_have_not_ended() {
    let master = Master::serving(None).await;
    let spec = spec("lingers", 2);
    let job = master.submit(spec.clone()).await;
    for agent in master.started(&spec).await {
        agent.stay();
        agent.print("the last\n");
        agent.exit(ExitOutcome::Code(0));
    }
    let merged = in_time("the output ends", master.get("/v1/jobs/lingers/logs?follow=true")).await;
    assert_eq!(lines(&merged)["worker-1"], ["9 the last"]);
    let view = job.view.borrow().clone();
    assert_eq!((view.state, view.result), (JobState::Stopping, Some(JobResult::Succeeded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_line_is_shown_on_request() {
    let master = Master::serving(None).await;
    let spec = spec("grows", 1);
    let job = master.submit(spec.clone()).await;
    master.started(&spec).await;
    let log = job.kept.logs.of("worker-0".parse().expect("not a replica")).expect("the replica has no log");
    log.append(0, "one\n10%".into(), wall_clock()).await.expect("cannot append to the log");
    let mut growing = client().get(master.url("/v1/jobs/grows/logs?follow=true&unfinished=true")).send().await.unwrap();
    let mut shown = String::new();
    while !shown.contains("10%") {
        let piece = in_time("the line is shown", growing.chunk()).await.unwrap();
        shown.push_str(&String::from_utf8_lossy(&piece.expect("the stream has ended")));
    }
    let line = r#"{"replica":"worker-0","offset":4,"line":"10%","unfinished":true}"#;
    assert_eq!(shown.lines().last(), Some(line));
    for bad in ["unfinished=true", "unfinished=true&follow=true&replica=worker-0"] {
        assert_eq!(master.get(&format!("/v1/jobs/grows/logs?{bad}")).await.status, 400, "{bad}");
    }
}

/// The times of a replica's lines in milliseconds, by text.
fn times(answer: &Answer, replica: &str) -> Vec<(String, Option<u64>)> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-ndjson"), "{answer:?}");
    let lines = answer.body.lines().map(|text| serde_json::from_str::<LogLine>(text).expect("not a line"));
    let lines = lines.filter(|line| line.replica.to_string() == replica);
    lines.map(|line| (line.line, line.time.map(|time| time.0))).collect()
}

/// A running job `timed` of one worker that has printed `one`, `two` and the beginning of a third line, 1, 2 and 3
/// seconds after the beginning of 1970.
async fn with_times() -> (Master, ReplicaLog) {
    let master = Master::serving(None).await;
    let spec = spec("timed", 1);
    let job = master.submit(spec.clone()).await;
    master.started(&spec).await;
    let log = job.kept.logs.of("worker-0".parse().expect("not a replica")).expect("the replica has no log");
    for (offset, text, at) in [(0, "one\n", 1000), (4, "two\n", 2000), (8, "thr", 3000)] {
        log.append(offset, text.into(), UnixMillis(at)).await.expect("cannot append to the log");
    }
    (master, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_have_times_on_request() {
    let (master, log) = with_times().await;
    let asked = "/v1/jobs/timed/logs?replica=worker-0&lines=true&times=true";
    let timed = |text: &str, time| (text.to_owned(), Some(time));
    let expected = [timed("one", 1000), timed("two", 2000), timed("thr", 3000)];
    assert_eq!(times(&master.get(asked).await, "worker-0"), expected);
    assert_eq!(times(&master.get("/v1/jobs/timed/logs?times=true").await, "worker-0"), expected);
    log.append(11, "ee\n".into(), UnixMillis(4000)).await.expect("cannot append to the log");
    assert_eq!(times(&master.get(asked).await, "worker-0")[2], timed("three", 4000));
    assert_eq!(times(&master.get("/v1/jobs/timed/logs").await, "worker-0")[0], ("one".to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_can_begin_at_a_time() {
    let (master, _) = with_times().await;
    for (query, output) in [
        ("since_time=0".to_owned(), "one\ntwo\nthr"),
        ("since_time=1001".to_owned(), "two\nthr"),
        ("since_time=3000".to_owned(), "thr"),
        ("since_time=3001".to_owned(), ""),
        ("since_seconds=60".to_owned(), ""),
        (format!("since_seconds={}", u64::MAX), "one\ntwo\nthr"),
        ("since_time=1001&tail=1".to_owned(), "thr"),
        ("since_time=3000&tail=2".to_owned(), "thr"),
        ("since_time=3000&offset=2".to_owned(), "e\ntwo\nthr"),
    ] {
        let answer = master.get(&format!("/v1/jobs/timed/logs?replica=worker-0&{query}")).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, output), "{query}");
    }
    let merged = master.get("/v1/jobs/timed/logs?since_time=2000&times=true").await;
    assert_eq!(times(&merged, "worker-0"), [("two".to_owned(), Some(2000)), ("thr".to_owned(), Some(3000))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_line_that_goes_on_after_a_time_is_sent_from_its_beginning() {
    let (master, log) = with_times().await;
    log.append(11, "ee\nfour\n".into(), wall_clock()).await.expect("cannot append to the log");
    let answer = master.get("/v1/jobs/timed/logs?replica=worker-0&since_seconds=3600").await;
    assert_eq!(answer.body, "three\nfour\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_since_a_time_gets_new_lines_only() {
    let master = Master::serving(None).await;
    let spec = spec("timed", 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    let log = job.kept.logs.of("worker-0".parse().expect("not a replica")).expect("the replica has no log");
    log.append(0, "old\n".into(), UnixMillis(1000)).await.expect("cannot append to the log");
    let followed =
        Answer::of(client().get(master.url("/v1/jobs/timed/logs?follow=true&since_seconds=3600&times=true")));
    let run = async {
        agents[0].print("old\nnew\n");
        agents[0].exit(ExitOutcome::Code(0));
    };
    let (followed, ()) = in_time("the answer ends", async { tokio::join!(followed, run) }).await;
    let lines: Vec<_> = times(&followed, "worker-0").into_iter().map(|(line, time)| (line, time.is_some())).collect();
    assert_eq!(lines, [("new".to_owned(), true)], "the fake agent has printed the line just now");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_has_the_time_at_which_its_agent_has_read_it() {
    let master = Master::serving(None).await;
    let spec = spec("timed", 1);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    agents[0].tell_age(Duration::from_hours(2));
    agents[0].print("long ago\n");
    agents[0].exit(ExitOutcome::Code(0));
    reach(&job, JobState::Succeeded).await;
    for (hours, output) in [(1, ""), (3, "long ago\n")] {
        let path = format!("/v1/jobs/timed/logs?replica=worker-0&since_seconds={}", hours * 3600);
        assert_eq!(master.get(&path).await.body, output, "{hours} hours");
    }
}

/// The times of the lines in this folder.
async fn times_in(dir: &Path) -> Vec<Option<u64>> {
    let worker = "worker-0".parse().expect("not a replica");
    let logs = JobLogs::new(dir.to_owned(), &[worker]);
    logs.load(1).await;
    let reading = Reading { offset: 0, follow: false, wanted: Wanted::BytesAndTimes, unfinished: false };
    let log = logs.of(worker).expect("the replica has no log");
    let lines: Vec<_> = master::logs::lines(worker, log, reading).try_concat().await.expect("read");
    lines.into_iter().map(|line| line.time.map(|time| time.0)).collect()
}

#[tokio::test]
async fn the_next_master_knows_the_times_of_all_agents_of_a_replica() {
    let dir = tempfile::tempdir().expect("no folder");
    let worker = "worker-0".parse().expect("not a replica");
    let logs = JobLogs::new(dir.path().to_owned(), &[worker]);
    let log = logs.of(worker).expect("the replica has no log");
    for (agent, at) in [("first", 1000), ("second", 2000)] {
        let base = log.base_of(&RunStatus::idle(agent)).await.expect("no offset");
        log.append(base, "line\n".into(), UnixMillis(at)).await.expect("cannot append to the log");
        // The same bytes again, as after a broken connection.
        log.append(base, "line\n".into(), UnixMillis(at + 500)).await.expect("cannot append to the log");
    }
    assert_eq!(times_in(dir.path()).await, [Some(1000), Some(2000)]);
    std::fs::write(dir.path().join("worker-0.times"), "damaged").expect("cannot damage the file");
    assert_eq!(times_in(dir.path()).await, [None, None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_unknown_if_the_job_does_not_have_it() {
    let (master, _) = with_output().await;
    for replica in ["worker-2", "ps-0"] {
        let answer = master.get(&format!("/v1/jobs/printed/logs?replica={replica}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_replica"), "{replica}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_query_is_refused() {
    let (master, _) = with_output().await;
    let queries = [
        "from=worker-0",
        "from=worker-0:x",
        "from=worker:1",
        "from=worker-0:1&replica=worker-0",
        "offset=1",
        "offset=x&replica=worker-0",
        "offset=1&replica=worker-0&lines=true",
        "lines=true",
        "times=true&replica=worker-0",
        "since_seconds=-1",
        "since_seconds=5m",
        "since_seconds=1&since_time=1",
        "since_time=tomorrow",
        "since_time=18446744073709551615",
        "tail=-1",
        "replica=worker",
        "follow=maybe",
        "unknown=1",
    ];
    for query in queries {
        let answer = master.get(&format!("/v1/jobs/printed/logs?{query}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"), "{query}");
    }
}
