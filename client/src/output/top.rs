//! The tables of `top`: what jobs, or the replicas of a job, do and use now.

use protocol::ids::UnixMillis;
use protocol::progress::{JobSeries, Progress};
use protocol::usage::ReplicaUsage;
use protocol::view::{JobSummary, JobView};

use super::reports::{ShownReport, furthest, newest_report, newest_reports};
use super::table::{per_step, plain_table, shown};
use super::{size, spelled};

/// The jobs that have not ended, one per line. `series` contains the newest numbers of each job, if they are known.
pub(crate) fn top_of_jobs(jobs: &[(JobSummary, Option<JobSeries>)], now: UnixMillis) -> String {
    let header = ["NAME", "STATE", "REPLICAS", "STEP", "MS/STEP", "BATCH", "CPU", "MEMORY", "SEEN"];
    let mut table = plain_table(&header);
    for (job, series) in jobs.iter().filter(|(job, _)| !job.state.is_finished()) {
        let reports = series.as_ref().map(newest_reports).unwrap_or_default();
        let usage: Vec<&ReplicaUsage> = series.iter().flat_map(|series| &series.usage).collect();
        let first = furthest(&reports);
        let reports: Vec<ShownReport<'_>> = reports.into_iter().map(|(_, report)| report).collect();
        let batch = reports.iter().map(|report| u64::from(report.progress.batch)).sum::<u64>();
        let name = [job.name.to_string(), job.state.to_string(), job.replica_num.to_string()];
        let progress = first.map(|(_, report)| steps(report.progress)).unwrap_or_default();
        let age = age(&reports, &usage, now);
        table.add_row(name.into_iter().chain(progress).chain([number(batch)]).chain(used(&usage)).chain([age]));
    }
    if table.is_empty() { "no job runs".to_owned() } else { shown(&table) }
}

/// The replicas of a job, one per line.
pub(crate) fn top_of_replicas(view: &JobView, series: &JobSeries, now: UnixMillis) -> String {
    let mut table = plain_table(&["REPLICA", "STATE", "STEP", "MS/STEP", "BATCH", "CPU", "MEMORY", "SEEN"]);
    for replica in view.replicas.iter() {
        let id = replica.replica;
        let of = series.replicas.iter().find(|series| series.replica == id);
        let report = of.and_then(|series| newest_report(&series.points));
        // The numbers of an earlier start do not describe this run.
        let report = report.filter(|report| Some(report.generation) == view.generation);
        let usage: Vec<&ReplicaUsage> = series.usage.iter().filter(|usage| usage.replica == id).collect();
        let progress = report.map(|report| steps(report.progress)).unwrap_or_default();
        let batch = report.map(|report| number(report.progress.batch.into())).unwrap_or_default();
        let age = age(report.as_slice(), &usage, now);
        let name = [id.to_string(), replica.state.as_str().to_owned()];
        table.add_row(name.into_iter().chain(progress).chain([batch]).chain(used(&usage)).chain([age]));
    }
    format!("{} is {}\n\n{}", view.name, view.state, shown(&table))
}

/// The step, and the milliseconds of a step.
fn steps(progress: &Progress) -> [String; 2] {
    [progress.step.map(|step| step.to_string()).unwrap_or_default(), per_step(progress).unwrap_or_default()]
}

/// The processor time and the memory of all these replicas.
fn used(usage: &[&ReplicaUsage]) -> [String; 2] {
    let cpu: Option<u32> = usage.iter().filter_map(|usage| usage.cpu_percent).reduce(u32::saturating_add);
    let memory: u64 = usage.iter().map(|usage| usage.rss_bytes).sum();
    let limit = match usage {
        [ReplicaUsage { memory_limit: Some(limit), .. }] => format!(" of {}", size(*limit)),
        _ => String::new(),
    };
    let memory = if usage.is_empty() { String::new() } else { format!("{}{limit}", size(memory)) };
    [cpu.map(|cpu| format!("{cpu} %")).unwrap_or_default(), memory]
}

/// The age of the oldest usage. If no usage is known, the age of the oldest report. The master gets usage and progress
/// together, but records only progress that has changed. So a report can look older than it is.
fn age(reports: &[ShownReport<'_>], usage: &[&ReplicaUsage], now: UnixMillis) -> String {
    let of_usage = usage.iter().map(|usage| usage.at).min();
    let oldest = of_usage.or_else(|| reports.iter().map(|report| report.at).min());
    oldest.map(|at| format!("{} ago", spelled(now.since(at)))).unwrap_or_default()
}

/// The number. Empty for 0.
pub(crate) fn number(count: u64) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn series(points: &[(u32, &str, u64)], usage: &[Value]) -> JobSeries {
        let of = |(index, generation, step): &(u32, &str, u64)| {
            let progress = json!({"step": step, "steps": 50, "wall_us": 615_000, "batch": 32});
            let point = json!({"at": 58_000, "generation": generation, "progress": progress});
            json!({"replica": format!("worker-{index}"), "points": [point]})
        };
        let replicas: Vec<Value> = points.iter().map(of).collect();
        serde_json::from_value(json!({"replicas": replicas, "usage": usage})).unwrap()
    }

    fn usage(index: u32, cpu: u32) -> Value {
        json!({
            "replica": format!("worker-{index}"), "at": 59_000, "generation": "1.2", "cpu_percent": cpu,
            "rss_bytes": 512 << 20, "memory_limit": 2_u64 << 30,
        })
    }

    /// The cells of each line of a table.
    fn cells(table: &str) -> Vec<Vec<&str>> {
        table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
    }

    fn summary(state: &str) -> JobSummary {
        let times = json!({});
        let job = json!({
            "name": "digits", "uid": "u", "state": state, "strategy": "AllReduce", "replica_num": 2, "times": times,
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_has_the_newest_step_and_the_sums_of_its_replicas() {
        let series = series(&[(0, "1.2", 61), (1, "1.2", 60), (2, "1.1", 99)], &[usage(0, 90), usage(1, 110)]);
        let jobs = [(summary("running"), Some(series)), (summary("failed"), None), (summary("pending"), None)];
        let table = top_of_jobs(&jobs, UnixMillis(60_000));
        assert_eq!(
            cells(&table)[1..],
            [
                vec!["digits", "running", "2", "61", "12.3", "64", "200 %", "1.0 GiB", "1.0 s ago"],
                vec!["digits", "pending", "2"]
            ]
        );
        assert_eq!(top_of_jobs(&[(summary("failed"), None)], UnixMillis(0)), "no job runs");
    }
}
