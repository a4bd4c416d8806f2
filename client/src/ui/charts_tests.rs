//! Charts of prepared reports.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn series(replicas: &[(&str, Vec<Value>)]) -> Series {
    let replicas: Vec<Value> =
        replicas.iter().map(|(replica, points)| json!({"replica": replica, "points": points})).collect();
    let mut series = Series::default();
    series.add(serde_json::from_value(json!({"replicas": replicas})).unwrap());
    series
}

fn point(at: u64, generation: &str, progress: &Value) -> Value {
    json!({"at": at, "generation": generation, "progress": progress})
}

fn titles(charts: &[Chart]) -> Vec<&str> {
    charts.iter().map(|chart| chart.title.as_str()).collect()
}

#[test]
fn the_loss_is_drawn_first_with_a_part_for_each_start() {
    let logged =
        |at, start, loss: f64| point(at, start, &json!({"step": at, "values": {"accuracy": 0.5, "loss": loss}}));
    let points =
        vec![logged(0, "1.1", 4.0), logged(10_000, "1.1", 2.0), logged(20_000, "1.2", 3.0), logged(40_000, "1.2", 0.0)];
    let charts = charts(&series(&[("worker-0", points)]));
    assert_eq!(titles(&charts), ["loss of worker-0", "accuracy of worker-0"]);
    let loss = &charts[0];
    assert_eq!((loss.top.as_str(), loss.bottom.as_str(), loss.length.as_str()), ("4", "0", "40.0 s"));
    assert_eq!(loss.lines[0].parts, ["0.0,0.0 150.0,60.0", "300.0,30.0 600.0,120.0"]);
    assert_eq!(loss.lines[0].newest, "0");
    let row = |time: &str, value: &str| (time.to_owned(), vec![value.to_owned()]);
    assert_eq!(loss.rows, [row("0.00 s", "4"), row("13.3 s", "2"), row("26.7 s", "3"), row("40.0 s", "0")]);
    assert_eq!(charts[1].lines[0].parts[0], "0.0,60.0 150.0,60.0", "a constant is in the middle");
}

#[test]
fn the_time_of_a_step_is_that_since_the_report_before() {
    let stepped = |at, steps: u64, wall_us: u64, split: u64| {
        point(at, "1.1", &json!({"step": steps, "steps": steps, "wall_us": wall_us, "split": split}))
    };
    let points = vec![
        stepped(0, 10, 100_000, 0),
        stepped(1_000, 20, 300_000, 0),
        stepped(2_000, 20, 300_000, 0),
        stepped(3_000, 4, 120_000, 1),
    ];
    let charts = charts(&series(&[("worker-0", points)]));
    assert_eq!(titles(&charts), ["Time per step, in ms"]);
    let values: Vec<&str> = charts[0].rows.iter().map(|(_, values)| values[0].as_str()).collect();
    assert_eq!(values, ["10", "20", "30"]);
}

#[test]
fn many_replicas_are_drawn_as_a_range() {
    let stepped = |at, time: u64| {
        point(at, "1.1", &json!({"step": 1, "steps": at + 1, "wall_us": (at + 1) * time, "batch": 8 + at}))
    };
    let names: Vec<String> = (0..9).map(|index| format!("worker-{index}")).collect();
    let replicas: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let time = 1000 * (index as u64 + 1);
            (name.as_str(), vec![stepped(0, time), stepped(1000, time)])
        })
        .collect();
    let charts = charts(&series(&replicas));
    let lines: Vec<_> = charts[0].lines.iter().map(|line| (line.label.as_str(), line.newest.as_str())).collect();
    assert_eq!(lines, [("largest", "9"), ("median", "5"), ("smallest", "1")]);
    assert_eq!(titles(&charts)[1], "Batch size, in samples");
}

#[test]
fn processor_time_and_memory_are_drawn_for_each_replica_also_without_reports() {
    let used = |at: u64, cpu: Option<u32>, mebibytes: u64| json!({"at": at, "generation": "1.1", "cpu_percent": cpu, "rss_bytes": mebibytes << 20});
    let of = |scale: u64| {
        let cpu = u32::try_from(100 * scale).unwrap();
        vec![used(0, None, scale), used(1000, Some(cpu), 2 * scale), used(2000, Some(cpu + 50), 4 * scale)]
    };
    let names: Vec<String> = (0..9).map(|index| format!("worker-{index}")).collect();
    let all: Vec<_> = names.iter().zip(1..).map(|(name, scale)| (name.as_str(), of(scale))).collect();
    let shown = |replicas: &[(&str, Vec<Value>)]| {
        let charts = charts(&series(replicas));
        assert_eq!(titles(&charts), ["Processor time, in percent of a core", "Memory, in MiB"]);
        let newest = |chart: &Chart| {
            chart.lines.iter().map(|line| format!("{} {}", line.label, line.newest)).collect::<Vec<_>>().join(", ")
        };
        (newest(&charts[0]), newest(&charts[1]))
    };
    assert_eq!(shown(&all[..2]), ("worker-0 150, worker-1 250".to_owned(), "worker-0 4, worker-1 8".to_owned()));
    let (cpu, memory) = shown(&all);
    assert_eq!(cpu, "largest 950, median 550, smallest 150");
    assert_eq!(memory, "largest 36, median 20, smallest 4");
}

#[test]
fn a_point_without_a_report_does_not_interrupt_the_time_of_a_step() {
    let stepped = |at, steps: u64| point(at, "1.1", &json!({"step": steps, "steps": steps, "wall_us": steps * 10_000}));
    let used = json!({"at": 1_000, "generation": "1.1", "rss_bytes": 1});
    let points = vec![stepped(0, 10), used, stepped(2_000, 30)];
    let charts = charts(&series(&[("worker-0", points)]));
    assert_eq!(titles(&charts), ["Time per step, in ms"]);
    assert_eq!(charts[0].lines[0].parts, ["0.0,60.0 600.0,60.0"]);
}

#[test]
fn a_job_without_points_has_no_charts() {
    assert!(charts(&series(&[])).is_empty());
    assert!(charts(&series(&[("worker-0", vec![point(1, "1.1", &json!({}))])])).is_empty());
}

proptest! {
    #[test]
    fn all_corners_are_inside_the_chart(values in proptest::collection::vec(any::<f64>(), 2..1000), times in any::<u64>()) {
        let points = values.iter().enumerate().map(|(index, value)| {
            let number = if value.is_finite() { *value } else { 0.0 };
            point((times / 2).saturating_add(index as u64), "1.1", &json!({"step": index, "values": {"x": number}}))
        });
        for chart in charts(&series(&[("worker-0", points.collect())])) {
            prop_assert!(chart.lines[0].parts[0].split(' ').count() <= POINTS_MAX);
            for corner in chart.lines[0].parts[0].split(' ') {
                let (x, y) = corner.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                prop_assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{corner}");
            }
        }
    }
}
