//! The texts of `list`, `get` and `status`. The present time is an argument.

use std::collections::BTreeMap;

use comfy_table::{ContentArrangement, Table};
use protocol::ids::{JobName, ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress};
use protocol::run_policy::HALT_SECONDS;
use protocol::view::{JobResult, JobState, JobSummary, JobTimes, JobView, ReplicaView};
use serde_json::Value;

use super::batches;
use super::pace::{Pace, paces, ratio, straggler};
use super::reports::{ShownReport, furthest, newest_reports, newest_values};
use crate::output::command_line::command;
use crate::output::narrate::{between, composition, counted_restarts, queued_behind, where_it_runs, workers_now};
use crate::output::spelled;
use launchers::timestamp;

/// All jobs, one per line.
pub(crate) fn jobs_table(jobs: &[JobSummary], now: UnixMillis) -> String {
    let mut table = plain_table(&["NAME", "STRATEGY", "STATE", "REPLICAS", "TIME", "RESULT"]);
    for job in jobs {
        table.add_row([
            job.name.to_string(),
            job.strategy.to_string(),
            job.state.to_string(),
            job.replica_num.to_string(),
            time(job.state, &job.times, now),
            result_or_queued(job),
        ]);
    }
    shown(&table)
}

/// The result of a job, or the job behind which it is queued. Empty for other jobs.
pub(crate) fn result_or_queued(job: &JobSummary) -> String {
    let headline = job.headline.as_deref().map(one_line);
    headline.or(job.result.as_ref().map(result)).or(job.queued_behind.as_ref().map(queued)).unwrap_or_default()
}

/// All TFJobs, one per line, as `kubectl get tfjobs` shows them.
pub(crate) fn tfjobs_table(objects: &[Value], now: UnixMillis) -> String {
    let mut table = plain_table(&["NAME", "STATE", "AGE"]);
    for object in objects {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let newest = object["status"]["conditions"].as_array().and_then(|conditions| conditions.last());
        let state = newest.and_then(|condition| condition["type"].as_str()).unwrap_or_default();
        let created = timestamp::time_of(text("/metadata/creationTimestamp"));
        let age = created.map(|at| spelled(now.since(at))).unwrap_or_default();
        table.add_row([text("/metadata/name").to_owned(), state.to_owned(), age]);
    }
    shown(&table)
}

/// The facts that `status` shows about a job, each with its label. `series` contains the last reports of the job's
/// scripts.
pub(crate) fn status_facts(view: &JobView, series: Option<&JobSeries>, now: UnixMillis) -> Vec<(&'static str, String)> {
    let mut head = vec![
        ("job", view.name.to_string()),
        ("asked for", composition(&view.spec)),
        ("state", view.state.to_string()),
        ("time", time(view.state, &view.times, now)),
    ];
    head.extend(where_it_runs(view).map(|folder| ("runs in", folder)));
    head.extend(view.generation.map(|generation| ("generation", generation.to_string())));
    head.extend(view.workers.map(|wanted| ("workers", format!("{} take part, {wanted} wanted", workers_now(view)))));
    let newest = view.changes.last().filter(|change| Some(change.generation) == view.generation);
    head.extend(newest.map(|change| ("last start", one_line(&change.to_string()))));
    head.extend(series.and_then(progress).map(|progress| ("progress", one_line(&progress))));
    head.extend(view.batches.as_ref().map(|sizes| ("batches", batches::in_use(sizes, now))));
    // If the batch sizes follow the speeds, a slow worker gets a smaller batch and does not delay the others.
    if view.batches.is_none() && view.state == JobState::Running {
        let slow = series.and_then(|series| straggler(series, view.generation, now));
        head.extend(slow.map(|sentence| ("slow", sentence)));
    }
    head.extend(view.times.halted.map(|since| ("waits", waits_for_code(view, since, now))));
    head.extend(view.queued_behind.as_ref().map(|first| ("waits", queued_behind(first))));
    head.extend(view.result.as_ref().map(|ended| ("result", result(ended))));
    head.extend((view.restarts.total() > 0).then(|| ("restarts", restarts(view))));
    head.extend(view.restarts.failed_starts.last().into_iter().flat_map(|failed| {
        let why = command(&format!("why {}", view.name));
        [("failed", one_line(&failed.failure.to_string())), ("", format!("for details: {why}"))]
    }));
    head
}

/// One job, with one line for each replica. `series` contains the last reports of the job's scripts.
pub(crate) fn status_text(view: &JobView, series: Option<&JobSeries>, now: UnixMillis) -> String {
    let head = status_facts(view, series, now);
    let head: Vec<String> = head.iter().map(|(label, value)| format!("{label:<10}  {value}")).collect();

    let paces = series.map(|series| paces(series, view.generation)).unwrap_or_default();
    format!("{}\n\n{}", head.join("\n"), replicas_table(&view.replicas, &paces))
}

/// One line for each replica. If at least one replica measures its computation, the lines also contain the paces.
fn replicas_table(replicas: &[ReplicaView], paces: &BTreeMap<ReplicaId, Pace>) -> String {
    let of_pace: &[&str] = if paces.is_empty() { &[] } else { &["BATCH", "MS/STEP", "COMPUTE"] };
    let mut table = plain_table(&[&["REPLICA", "STATE"], of_pace, &["POD", "ADDRESS", "EXIT OR REASON"]].concat());
    for replica in replicas.iter() {
        let pace = paces.get(&replica.replica);
        let pace = [
            pace.map(|pace| pace.batch.to_string()),
            pace.map(|pace| shortened(pace.step_ms)),
            pace.map(|pace| shortened(pace.compute_ms)),
        ];
        let mut row = vec![replica.replica.to_string(), replica.state.as_str().to_owned()];
        row.extend(pace.into_iter().take(of_pace.len()).map(Option::unwrap_or_default));
        row.extend([replica.pod.clone(), replica.address.clone().unwrap_or_default(), exit_or_reason(replica)]);
        table.add_row(row);
    }
    shown(&table)
}

/// A text such as `3.2 s of at most 10 min for new code; to send the code: client push digits`.
fn waits_for_code(view: &JobView, since: UnixMillis, now: UnixMillis) -> String {
    let (waited, minutes, name) = (spelled(now.since(since)), HALT_SECONDS / 60, &view.name);
    format!("{waited} of at most {minutes} min for new code; to send the code: {}", command(&format!("push {name}")))
}

/// How the replica ended, or why it waits. Empty if neither is known.
pub(crate) fn exit_or_reason(replica: &ReplicaView) -> String {
    match (&replica.exit, &replica.reason) {
        (Some(exit), _) if exit.stopped => format!("{}, when stopped", exit.outcome),
        (Some(exit), _) => exit.outcome.to_string(),
        (None, Some(reason)) => one_line(reason),
        (None, None) => String::new(),
    }
}

/// A text such as `2 of 3, and 1 not counted`.
fn restarts(view: &JobView) -> String {
    let counted = counted_restarts(view);
    match view.restarts.uncounted {
        0 => counted,
        uncounted => format!("{counted}, and {uncounted} not counted"),
    }
}

/// The newest step, such as `step 310, loss 0.0177, 12.3 ms per step`.
fn progress(series: &JobSeries) -> Option<String> {
    let (replica, ShownReport { progress, .. }) = furthest(&newest_reports(series))?;
    let (step, values) = (progress.step, newest_values(series, replica));
    let per_step = time_per_step(progress).map(|time| format!("{time} per step"));
    let values = values.iter().map(|(name, number)| format!("{name} {}", shortened(number)));
    let parts: Vec<String> =
        step.map(|step| format!("step {step}")).into_iter().chain(values).chain(per_step).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The average time of a step in this report, such as `12.3 ms`. `None` before the first whole step.
pub(crate) fn time_per_step(progress: &Progress) -> Option<String> {
    per_step(progress).map(|millis| format!("{millis} ms"))
}

/// Like [`time_per_step`], without the unit.
pub(super) fn per_step(Progress { steps, wall_us, .. }: &Progress) -> Option<String> {
    (*steps > 0).then(|| shortened(ratio(*wall_us, *steps) / 1000.0))
}

/// The number with at most four significant digits. Very large and very small numbers have an exponent.
pub(crate) fn shortened(number: f64) -> String {
    let exponential = format!("{number:.3e}");
    let exponent = exponential.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let Some(decimals @ 0..=8) = exponent.map(|exponent: i32| 3 - exponent) else { return exponential };
    let text = format!("{number:.*}", usize::try_from(decimals).unwrap_or_default());
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// How long a finished job took, or how long ago an unfinished job was accepted. The clean-up of pods does
/// not count, because a restarted master records the end of the clean-up again.
pub(crate) fn time(state: JobState, times: &JobTimes, now: UnixMillis) -> String {
    let end = if state.is_finished() { times.ended.or(times.finished) } else { Some(now) };
    between(times.accepted, end).map(spelled).unwrap_or_default()
}

fn queued(first: &JobName) -> String {
    format!("queued behind {first}")
}

fn result(result: &JobResult) -> String {
    match result {
        JobResult::Succeeded => "succeeded".to_owned(),
        JobResult::Failed { failure } => one_line(&failure.to_string()),
        JobResult::Cancelled => "cancelled".to_owned(),
    }
}

/// The text on one line: a line break in a cell would break the row of the table.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(super) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

pub(super) fn shown(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_step_of_the_newest_start_is_shown() {
        let point = |generation: &str, step: u64, loss: f64| {
            let progress =
                json!({"step": step, "steps": 50, "wall_us": 615_000, "values": {"loss": loss, "rate": 1e-12}});
            json!({"at": 1, "generation": generation, "progress": progress})
        };
        let of = |replica: &str, point| json!({"replica": replica, "points": [point]});
        let shown =
            |replicas: &[serde_json::Value]| progress(&serde_json::from_value(json!({"replicas": replicas})).unwrap());
        let (old, chief, peer) = (point("1.1", 99, 0.5), point("1.2", 61, 0.017_654), point("1.2", 61, 7.0));
        let line = "step 61, loss 0.01765, rate 1.000e-12, 12.3 ms per step";
        let replicas = [of("worker-0", old), of("worker-1", chief), of("worker-2", peer)];
        assert_eq!(shown(&replicas).as_deref(), Some(line));
        assert_eq!(shown(&[]), None);
    }

    #[test]
    fn numbers_are_shown_with_at_most_four_significant_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (-12.345_67, "-12.35"),
            (1234.5, "1234"),
            (99_999.0, "1.000e5"),
            (0.000_012_34, "0.00001234"),
            (1e-9, "1.000e-9"),
        ] {
            assert_eq!(shortened(number), text);
        }
    }
}
