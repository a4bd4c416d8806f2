//! The points that a job keeps, and the points that readers get.

use bytes::Bytes;
use protocol::agent::RunState;
use protocol::job::JobSpec;
use protocol::usage::Usage;
use serde_json::json;
use tempfile::tempdir;

use super::*;

fn start(sequence: u32) -> Generation {
    Generation { epoch: 1, sequence }
}

fn running(progress: Option<Progress>, usage: Option<Usage>) -> RunStatus {
    let generation = Some(start(1));
    RunStatus { state: RunState::Running, generation, helper: progress, usage, ..RunStatus::idle("boot") }
}

fn status(step: u64) -> RunStatus {
    running(Some(Progress { step: Some(step), ..Progress::default() }), None)
}

fn using(mebibytes: u64) -> Option<Usage> {
    Some(Usage { cpu_us: mebibytes * 1_000_000, rss_bytes: mebibytes << 20, memory_limit: None })
}

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().unwrap()
}

fn points(series: &SeriesOfJob, after: Option<u64>, tail: Option<usize>) -> Vec<SeriesPoint> {
    series.shown(after.map(UnixMillis), tail).replicas.remove(0).points
}

fn steps(series: &SeriesOfJob, after: Option<u64>, tail: Option<usize>) -> Vec<u64> {
    let points = points(series, after, tail);
    points.iter().filter_map(|point| point.progress.as_ref()?.step).collect()
}

#[test]
fn a_long_series_keeps_evenly_spaced_points_and_the_newest() {
    let series = SeriesOfJob::default();
    for step in 0..5000 {
        series.note(worker(0), &status(step), UnixMillis(step));
        let kept = steps(&series, None, None);
        assert!(
            kept.len() <= REPLICA_POINTS_MAX + 1 && kept.last() == Some(&step),
            "too many points, or the newest is missing: {kept:?}"
        );
        let is_even = kept.windows(3).all(|three| three[2] == step || three[2] - three[1] == three[1] - three[0]);
        assert!(
            is_even && kept[0] == 0 && (step < 256 || kept.len() >= REPLICA_POINTS_MAX / 2),
            "too few points, or their distances differ: {kept:?}"
        );
    }
}

#[test]
fn each_of_many_replicas_has_few_points_and_its_agent_is_asked_less_often() {
    let series = SeriesOfJob::default();
    for step in 0..40 {
        (0..1000).for_each(|index| series.note(worker(index), &status(step), UnixMillis(step)));
    }
    let shown = series.shown(None, None).replicas;
    assert_eq!(shown.len(), 1000);
    assert!(shown[1..].iter().all(|replica| replica.points.len() <= REPLICA_POINTS_MIN + 1));
    assert_eq!(series.interval(), INTERVAL_MAX);
    assert_eq!(SeriesOfJob::default().interval(), INTERVAL_MIN);
}

#[test]
fn a_reader_can_ask_for_the_points_after_a_time_and_for_the_newest_points() {
    let series = SeriesOfJob::default();
    for step in [1, 2, 2, 3] {
        series.note(worker(0), &status(step), UnixMillis(step * 10));
    }
    assert_eq!(steps(&series, None, None), [1, 2, 3]);
    assert_eq!(steps(&series, Some(10), None), [2, 3]);
    assert_eq!(steps(&series, None, Some(1)), [3]);
    assert_eq!(steps(&series, Some(30), Some(5)), [] as [u64; 0]);
}

#[test]
fn points_of_one_moment_reach_a_reader_exactly_once() {
    let series = SeriesOfJob::default();
    let mut seen = vec![];
    let mut until = None;
    for step in 0..9 {
        series.note(worker(0), &status(step), UnixMillis(7));
        if step % 2 == 0 {
            seen.extend(steps(&series, until, None));
            until = series.shown(None, None).until.map(|until| until.0);
        }
    }
    assert_eq!(seen, (0..9).collect::<Vec<_>>());
}

#[test]
fn a_step_that_a_script_posts_without_the_helper_is_a_point() {
    let series = SeriesOfJob::default();
    let posted = RunStatus { helper: None, posted: status(7).helper, ..status(0) };
    series.note(worker(0), &posted, UnixMillis(0));
    assert_eq!(steps(&series, None, None), [7]);
}

#[test]
fn a_run_without_a_step_and_without_usage_has_no_points() {
    let series = SeriesOfJob::default();
    [Some(Progress::default()), None].into_iter().for_each(|progress| {
        series.note(worker(0), &running(progress, None), UnixMillis(0));
    });
    assert_eq!(series.shown(None, None).replicas, []);
}

#[test]
fn what_a_run_uses_is_kept_over_time_with_and_without_reports() {
    let series = SeriesOfJob::default();
    series.note(worker(0), &running(Some(Progress::default()), using(1)), UnixMillis(10_000));
    series.note(worker(0), &running(None, using(5)), UnixMillis(15_000));
    series.note(worker(0), &running(None, using(6)), UnixMillis(15_100));
    let stepped = RunStatus { usage: using(5), ..status(1) };
    series.note(worker(0), &stepped, UnixMillis(20_000));
    let seen: Vec<_> = points(&series, None, None)
        .iter()
        .map(|point| {
            (point.at.0, point.cpu_percent, point.rss_bytes.map(|bytes| bytes >> 20), point.progress.is_some())
        })
        .collect();
    assert_eq!(
        seen,
        [(10_000, None, Some(1), false), (15_000, Some(80), Some(5), false), (20_000, Some(0), Some(5), true)]
    );
    let newest: Vec<_> = points(&series, None, Some(1)).iter().map(|point| point.at.0).collect();
    assert_eq!(newest, [15_000, 20_000], "the newest report, and the newest point without a report");
}

/// A view of a job with the metric `loss`.
fn view() -> JobView {
    let spec = json!({
        "name": "digits", "strategy": "AllReduce", "worker_num": 1, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
        "metrics": {"loss": "loss: ([0-9.]+)"},
    });
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    let replica = json!({"replica": "worker-0", "state": "running", "pod": "digits-worker-0"});
    serde_json::from_value(json!({
        "name": "digits", "uid": "u", "seq": 1, "state": "running", "generation": "1.2", "spec": spec,
        "replicas": [replica], "times": {},
    }))
    .unwrap()
}

/// The time, the start and the loss of each of these points.
fn losses(points: &[SeriesPoint]) -> Vec<(u64, u32, f64)> {
    let loss = |point: &SeriesPoint| {
        let (_, loss) = point.progress.as_ref()?.values.iter().next()?;
        Some((point.at.0, point.generation.sequence, loss))
    };
    points.iter().filter_map(loss).collect()
}

#[tokio::test]
async fn a_reader_gets_each_number_of_the_output_once_with_its_start_although_the_number_is_late() {
    let (dir, series) = (tempdir().unwrap(), SeriesOfJob::default());
    let logs = JobLogs::new(dir.path().to_owned(), &[worker(0)]);
    let print = async |text: &str, at: u64| {
        let log = logs.of(worker(0)).unwrap();
        log.append(log.progress().end, Bytes::from(text.to_owned()), UnixMillis(at)).await.unwrap();
    };
    let read = async |after: Option<u64>, now: u64| {
        series.read_metrics(&view(), &logs, UnixMillis(now)).await.unwrap();
        let shown = series.shown(after.map(UnixMillis), None);
        (losses(&shown.replicas[0].points), shown.until.map(|until| until.0))
    };
    print("loss: 5\n", 900).await;
    series.begin(start(1), UnixMillis(1_000));
    print("loss: 4\nloss: 3\n", 1_100).await;
    series.begin(start(2), UnixMillis(2_000));
    print("loss: 2\n", 2_100).await;
    series.note(worker(0), &RunStatus { generation: Some(start(2)), ..running(None, using(1)) }, UnixMillis(9_000));

    let (first, until) = read(None, 9_001).await;
    assert_eq!(first, [(900, 1, 5.0), (1_100, 1, 4.0), (1_100, 1, 3.0), (2_100, 2, 2.0)]);
    print("loss: 1\nloss: 0.5", 9_000).await;
    let (second, until) = read(until, 9_002).await;
    assert_eq!(second, [(9_000, 2, 1.0)]);
    logs.complete().await;
    let (last, until) = read(until, 9_003).await;
    assert_eq!(last, [(9_000, 2, 0.5)], "the last line has no line feed");
    assert_eq!(read(until, 9_004).await.0, []);
}

#[tokio::test]
async fn a_number_of_the_output_has_the_report_before_its_line() {
    let (dir, series) = (tempdir().unwrap(), SeriesOfJob::default());
    let logs = JobLogs::new(dir.path().to_owned(), &[worker(0)]);
    [(1, 100), (2, 200), (3, 300)].into_iter().for_each(|(step, at)| {
        series.note(worker(0), &status(step), UnixMillis(at));
    });
    logs.of(worker(0)).unwrap().append(0, Bytes::from("loss: 2\n"), UnixMillis(250)).await.unwrap();
    series.read_metrics(&view(), &logs, UnixMillis(400)).await.unwrap();
    assert_eq!(steps(&series, None, None), [1, 2, 2, 3]);
    assert_eq!(losses(&points(&series, None, None)), [(250, 1, 2.0)]);
}

#[tokio::test]
async fn frequent_usage_displaces_no_number_of_the_output() {
    let (dir, series) = (tempdir().unwrap(), SeriesOfJob::default());
    let logs = JobLogs::new(dir.path().to_owned(), &[worker(0)]);
    let log = logs.of(worker(0)).unwrap();
    for tick in 0..6000_u64 {
        let now = UnixMillis(tick * 5_000);
        series.note(worker(0), &running(None, using(1)), now);
        if tick % 120 == 0 {
            log.append(log.progress().end, Bytes::from("loss: 1\n"), now).await.unwrap();
        }
    }
    series.read_metrics(&view(), &logs, UnixMillis(6000 * 5_000)).await.unwrap();
    let kept = points(&series, None, None);
    assert_eq!(losses(&kept).len(), 50);
    assert!((128..=REPLICA_POINTS_MAX + 2).contains(&kept.len()), "{} points", kept.len());
}

/// The bytes of a report on the heap. A tree of values has at least one node of 11 names and numbers.
fn bytes_of(report: &Progress) -> usize {
    const NODE: usize = 11 * (size_of::<String>() + size_of::<f64>()) + 16;
    let names: usize = report.values.iter().map(|(name, _)| name.len()).sum();
    size_of::<Progress>() + if report.values.is_empty() { 0 } else { NODE + names }
}

/// The bytes of all points in memory.
fn bytes(series: &SeriesOfJob) -> usize {
    series.kept.lock().replicas.values().map(|points| points.bytes(bytes_of)).sum()
}

fn count(series: &SeriesOfJob) -> usize {
    series.kept.lock().replicas.values().map(Points::len).sum()
}

#[test]
fn a_day_of_64_replicas_takes_at_most_2_mb_and_an_answer_500_kb() {
    const BEGIN: u64 = 1_700_000_000_000;
    let series = SeriesOfJob::default();
    let (mut now, mut before, mut most) = (BEGIN, 0, 0);
    let (mut largest, mut longest) = (0, 0);
    while now < BEGIN + 24 * 3600 * 1000 {
        let step = (now - BEGIN) / 250;
        let report = json!({
            "step": step, "batch": 128, "steps": step, "samples": step * 128, "compute_us": step * 200_123,
            "wall_us": step * 250_123, "saved": step / 1000 * 1000, "values": {"accuracy": 0.934_567_8, "loss": 0.012_345_678},
        });
        let usage = Usage { cpu_us: step * 987_654, rss_bytes: (3 << 30) + step * 4096, memory_limit: None };
        let status = running(Some(serde_json::from_value(report).unwrap()), Some(usage));
        (0..64).for_each(|index| series.note(ReplicaId { index, ..worker(0) }, &status, UnixMillis(now)));
        let points = count(&series);
        if points != before && points >= most {
            most = points;
            largest = largest.max(bytes(&series));
            longest = longest.max(serde_json::to_vec(&series.shown(None, None)).unwrap().len());
        }
        before = points;
        now += u64::try_from(series.interval().as_millis()).unwrap();
    }
    assert!((POINTS_MAX - 64..=POINTS_MAX + 64).contains(&most), "{most} points");
    assert!(largest <= 2_000_000 && longest <= 500_000, "{largest} bytes in memory, {longest} bytes in an answer");
}
