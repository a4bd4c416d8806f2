//! The text of `timeline`: the starts of a job with their times, the replicas, and how the time was spent. All times
//! count from the submit.

use protocol::failure::Failure;
use protocol::ids::UnixMillis;
use protocol::spent::{Goodput, Spent, TimePart};
use protocol::starts::counted_workers;
use protocol::timeline::{Folded, ReplicaFacts, StartEnding, StartFacts, StepAt, Timeline};

use super::table::{one_line, plain_table, shown};
use crate::output::narrate::between;
use crate::output::spelled;

/// Maximum replicas in a table. The replicas that were ready last are the most useful ones.
const REPLICAS_MAX: usize = 16;

/// When a job reached each step, and how its time was spent.
pub(crate) fn timeline_text(timeline: &Timeline) -> String {
    let mut paragraphs = vec![headline(timeline)];
    paragraphs.extend(earlier(timeline));
    paragraphs.extend(timeline.starts.iter().map(|start| start_text(timeline, start)));
    paragraphs.extend(replicas_table(timeline, "replicas of the start that failed last", &timeline.failed_replicas));
    paragraphs.extend(replicas_table(timeline, "replicas", &timeline.replicas));
    paragraphs.extend(spent_text(&timeline.spent));
    paragraphs.join("\n\n")
}

fn headline(Timeline { name, state, accepted, now, ended, .. }: &Timeline) -> String {
    let time = between(Some(*accepted), ended.or(Some(*now))).map(spelled).unwrap_or_default();
    match ended {
        Some(_) => format!("job {name}: {state} {time} after the submit"),
        None => format!("job {name}: {state}, {time} after the submit"),
    }
}

/// The lines about starts whose times are unknown or no longer kept.
fn earlier(timeline: &Timeline) -> Option<String> {
    let taken_over = timeline.taken_over.map(|at| {
        let starts = if timeline.unseen == 1 { "1 start".to_owned() } else { format!("{} starts", timeline.unseen) };
        let after = since_submit(timeline, at);
        format!("before this master took the job over, {after} after the submit: {starts}; their times are unknown")
    });
    let folded = timeline.folded.as_ref().map(|folded| {
        let Folded { causes, .. } = folded;
        let counts: Vec<String> = causes.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
        format!("{} earlier starts, by cause: {}", folded.starts(), counts.join(", "))
    });
    let lines: Vec<String> = taken_over.into_iter().chain(folded).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn start_text(timeline: &Timeline, start: &StartFacts) -> String {
    let events = events(start).into_iter();
    let lines = events.map(|(at, what)| format!("  {:>10}  {what}", since_submit(timeline, at)));
    std::iter::once(start_headline(start)).chain(lines).collect::<Vec<_>>().join("\n")
}

fn start_headline(StartFacts { generation, cause, workers, lost_steps, began, .. }: &StartFacts) -> String {
    let name = match generation {
        Some(generation) => format!("start {generation} with {}", counted_workers(*workers)),
        None => "next start".to_owned(),
    };
    let cause = cause.as_ref().map(|cause| one_line(&cause.to_string()));
    let cause = cause.or_else(|| began.is_none().then(|| "an earlier master began it".to_owned()));
    let lost = lost_steps.map(|lost| lost.to_string());
    let parts: Vec<String> = cause.into_iter().chain(lost).collect();
    if parts.is_empty() { name } else { format!("{name}: {}", parts.join("; ")) }
}

/// What happened in a start, in the order of the times. The last report of a script can arrive after the script has
/// failed.
fn events(start: &StartFacts) -> Vec<(UnixMillis, String)> {
    let StartFacts { began, complete, configured, started, first_step, last_step, stopped, dead, ending, .. } = start;
    let step = |at: &Option<StepAt>, what: &str| at.map(|StepAt { step, at }| (at, format!("{what} {step}")));
    let at = |at: &Option<UnixMillis>, what: &str| at.map(|at| (at, what.to_owned()));
    let last = last_step.filter(|last| Some(*last) != *first_step);
    let stopping = stopped.map(|at| (at, ending.as_ref().map_or_else(|| "stopping".to_owned(), ending_text)));
    let events = [
        at(began, "gathering"),
        at(complete, "gang complete: every agent has answered"),
        at(configured, "every agent has its environment"),
        at(started, "running: every script was started"),
        step(first_step, "first reported step:"),
        step(&last, "last reported step:"),
        stopping,
        at(dead, "every run has ended"),
    ];
    let mut events: Vec<_> = events.into_iter().flatten().collect();
    events.sort_by_key(|(at, _)| *at);
    events
}

fn ending_text(ending: &StartEnding) -> String {
    match ending {
        StartEnding::Succeeded => "succeeded".to_owned(),
        StartEnding::Failed { failure: Failure::ReplicaExited { replica, exit } } => {
            one_line(&format!("failed: {replica}{}", exit.how()))
        }
        StartEnding::Failed { failure } => one_line(&format!("failed: {failure}")),
        StartEnding::Cancelled => "cancelled".to_owned(),
        StartEnding::Regrouped => "stopping, to start again".to_owned(),
        StartEnding::Suspended => "stopping: suspended".to_owned(),
    }
}

/// The replicas with the times of their steps. If there are too many, only the replicas that were ready last.
fn replicas_table(timeline: &Timeline, title: &str, replicas: &[ReplicaFacts]) -> Option<String> {
    if replicas.is_empty() {
        return None;
    }
    let mut chosen: Vec<&ReplicaFacts> = replicas.iter().collect();
    // A replica whose agent has not answered comes first.
    chosen.sort_by_key(|facts| std::cmp::Reverse(facts.joined.map_or(UnixMillis(u64::MAX), |joined| joined)));
    chosen.truncate(REPLICAS_MAX);
    chosen.sort_by_key(|facts| (facts.replica, facts.pod));
    let mut table =
        plain_table(&["REPLICA", "REQUESTED", "NODE", "ADDRESS", "AGENT", "STARTED", "FIRST STEP", "ENDED", "REASON"]);
    for facts in &chosen {
        let cell = |at: Option<UnixMillis>| at.map(|at| since_submit(timeline, at)).unwrap_or_default();
        let ReplicaFacts {
            replica, requested, scheduled, addressed, joined, started, first_step, ended, reason, ..
        } = facts;
        let times = [requested, scheduled, addressed, joined, started, first_step, ended].map(|at| cell(*at));
        let reason = reason.as_deref().map(one_line).unwrap_or_default();
        table.add_row(std::iter::once(replica.to_string()).chain(times).chain(std::iter::once(reason)));
    }
    let title = match replicas.len() - chosen.len() {
        0 => format!("{title}:"),
        more => format!("{title} ({more} that were ready earlier are left out):"),
    };
    Some(format!("{title}\n{}", shown(&table)))
}

/// How the time was spent. `None` if no time has passed.
fn spent_text(spent: &Spent) -> Option<String> {
    let goodput = match spent.goodput()? {
        Goodput::KeptSteps(share) => {
            format!("goodput: {}, the share of the time in steps that are kept", percent(share))
        }
        Goodput::Running(share) => {
            format!("running share: {}; no script has reported steps with muster.py", percent(share))
        }
    };
    let line = |TimePart { words, millis, .. }: TimePart| {
        let time = spelled(std::time::Duration::from_millis(millis));
        let share = spent.thousandths(millis).map(percent).unwrap_or_default();
        format!("  {time:>10}  {share:>7}  {words}")
    };
    let parts = spent.parts().into_iter().filter(|part| part.millis > 0).map(line);
    Some(std::iter::once(goodput).chain(parts).collect::<Vec<_>>().join("\n"))
}

fn percent(thousandths: u64) -> String {
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// The time from the submit to `at`. Clocks of agents may differ from the master's clock.
fn since_submit(timeline: &Timeline, at: UnixMillis) -> String {
    spelled(at.since(timeline.accepted))
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
