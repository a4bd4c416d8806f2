//! The text of `list` and `status`. The time is an argument.

use comfy_table::{ContentArrangement, Table};
use protocol::ids::UnixMillis;
use protocol::view::{JobResult, JobView, ReplicaView};

use crate::narrate::{between, composition, members, workers_now};
use crate::output::spelled;

/// All jobs, one per line.
pub(crate) fn jobs_table(jobs: &[JobView], now: UnixMillis) -> String {
    let mut table = plain_table(&["NAME", "STRATEGY", "STATE", "REPLICAS", "TIME", "RESULT"]);
    for view in jobs {
        table.add_row([
            view.name.to_string(),
            view.spec.strategy.to_string(),
            view.state.to_string(),
            members(view).to_string(),
            time(view, now),
            view.result.as_ref().map(result).unwrap_or_default(),
        ]);
    }
    shown(&table)
}

/// One job, with one line for each replica.
pub(crate) fn status_text(view: &JobView, now: UnixMillis) -> String {
    let mut head = vec![
        ("job", view.name.to_string()),
        ("asked for", composition(&view.spec)),
        ("state", view.state.to_string()),
        ("time", time(view, now)),
    ];
    head.extend(view.generation.map(|generation| ("generation", generation.to_string())));
    head.extend(view.workers.map(|wanted| ("workers", format!("{} take part, {wanted} wanted", workers_now(view)))));
    head.extend(view.changes.last().map(|change| ("last start", one_line(&change.to_string()))));
    head.extend(view.result.as_ref().map(|ended| ("result", result(ended))));
    head.extend((view.restarts.total() > 0).then(|| ("restarts", restarts(view))));
    head.extend(view.restarts.failed_starts.last().map(|failed| ("failed", one_line(&failed.failure.to_string()))));
    head.extend(view.restarts.failed_starts.last().map(|_| ("", format!("for details: client why {}", view.name))));
    let head: Vec<String> = head.iter().map(|(label, value)| format!("{label:<10}  {value}")).collect();

    let mut table = plain_table(&["REPLICA", "STATE", "POD", "ADDRESS", "EXIT OR REASON"]);
    for replica in view.replicas.iter() {
        table.add_row([
            replica.replica.to_string(),
            replica.state.as_str().to_owned(),
            replica.pod.clone(),
            replica.address.clone().unwrap_or_default(),
            exit_or_reason(replica),
        ]);
    }
    format!("{}\n\n{}", head.join("\n"), shown(&table))
}

fn exit_or_reason(replica: &ReplicaView) -> String {
    match (&replica.exit, &replica.reason) {
        (Some(exit), _) if exit.stopped => format!("{}, when stopped", exit.outcome),
        (Some(exit), _) => exit.outcome.to_string(),
        (None, Some(reason)) => one_line(reason),
        (None, None) => String::new(),
    }
}

/// `2 of 3, and 1 not counted`.
fn restarts(view: &JobView) -> String {
    let counted = format!("{} of {}", view.restarts.spent(), view.spec.run_policy.max_restarts);
    match view.restarts.uncounted {
        0 => counted,
        uncounted => format!("{counted}, and {uncounted} not counted"),
    }
}

/// How long a finished job took, or how long ago an unfinished job was accepted. The clean-up of pods does
/// not count, because a restarted master records the end of the clean-up again.
fn time(view: &JobView, now: UnixMillis) -> String {
    let end = if view.state.is_finished() { view.times.ended.or(view.times.finished) } else { Some(now) };
    between(view.times.accepted, end).map(spelled).unwrap_or_default()
}

fn result(result: &JobResult) -> String {
    match result {
        JobResult::Succeeded => "succeeded".to_owned(),
        JobResult::Failed { failure } => one_line(&failure.to_string()),
        JobResult::Cancelled => "cancelled".to_owned(),
    }
}

/// A line break in a cell would break its row.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

fn shown(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
