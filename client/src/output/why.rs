//! The text of `why`: the failed starts of a job, and the first start that follows a takeover. The last failed start is
//! shown in full.

use std::time::Duration;

use protocol::failure::{Consequence, FailedStart, Failure, Fingerprint};
use protocol::starts::{ChangeCause, GangChange};
use protocol::view::{JobResult, JobView};

use crate::output::narrate::between;
use crate::output::{hints, spelled};

/// Explains why a job failed or was restarted.
pub(crate) fn why_text(view: &JobView) -> String {
    let mut paragraphs = vec![headline(view)];
    if let Some((last, earlier)) = view.restarts.failed_starts.split_last() {
        paragraphs.push(in_full(view, last, earlier));
        if !earlier.is_empty() {
            let lines: Vec<String> = earlier.iter().rev().map(|start| format!("  {}", in_short(start))).collect();
            paragraphs.push(format!("before that:\n{}", lines.join("\n")));
        }
    }
    paragraphs.extend(taken_over(view).map(|change| after_takeover(view, change)));
    paragraphs.extend(hints::for_failure(view).map(|hint| format!("hint: {hint}")));
    paragraphs.join("\n\n")
}

/// The first new start under a master that took the job over. `None` if no such master had to start the scripts again.
fn taken_over(view: &JobView) -> Option<&GangChange> {
    view.changes.iter().find(|change| change.cause == ChangeCause::TakenOver)
}

fn after_takeover(view: &JobView, GangChange { generation, at, .. }: &GangChange) -> String {
    let after = between(view.times.accepted, Some(*at)).map(|time| format!(", {} after the submit", spelled(time)));
    format!(
        "start {generation}{}: the previous start was lost with its master (not counted)",
        after.unwrap_or_default()
    )
}

fn headline(view: &JobView) -> String {
    let name = &view.name;
    let restarts = match (view.restarts.counted, view.restarts.uncounted) {
        (0, 0) => String::new(),
        (counted, 0) => format!(", after {}", times(counted)),
        (counted, uncounted) => {
            format!(", after {}, {uncounted} of them not counted", times(counted.saturating_add(uncounted)))
        }
    };
    match &view.result {
        Some(JobResult::Failed { failure }) => format!("job {name} failed{restarts}: {failure}"),
        Some(JobResult::Succeeded) => format!("job {name} succeeded{restarts}"),
        Some(JobResult::Cancelled) => format!("job {name} was cancelled{restarts}"),
        None if view.restarts.is_empty() && taken_over(view).is_none() => {
            format!("job {name} is {}: nothing has failed", view.state)
        }
        None => format!("job {name} is {}{restarts}", view.state),
    }
}

fn times(restarts: u32) -> String {
    if restarts == 1 { "1 restart".to_owned() } else { format!("{restarts} restarts") }
}

fn in_full(view: &JobView, start: &FailedStart, earlier: &[FailedStart]) -> String {
    let FailedStart {
        generation,
        at,
        failure,
        counted: _,
        last_lines,
        stacks,
        consequences,
        left_before,
        lost_steps,
        fingerprint,
        too_large,
    } = start;
    let is_late = matches!(failure, Failure::DeadlineExceeded { .. });
    let mut lines = match failure.replica() {
        Some(replica) if matches!(failure, Failure::StartTimeout { .. }) => vec![format!("first missing  {replica}")],
        Some(replica) => vec![format!("first to fail  {replica}{}", process_of(failure))],
        None => consequences.iter().map(at_the_deadline).collect(),
    };
    lines.push(match failure {
        // The headline names the exception.
        Failure::ReplicaExited { replica, exit } => format!("how            {replica}{}", exit.how()),
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => {
            format!("how            {failure}")
        }
    });
    let after = between(view.times.accepted, Some(*at)).map(|time| format!("{} after the submit", spelled(time)));
    let start = generation.map(|generation| format!("start {generation}"));
    let when: Vec<String> = after.into_iter().chain(start).collect();
    lines.push(format!("when           {}", when.join(", ")));
    lines.extend(left_before.map(|left| {
        let earlier = spelled(Duration::from_millis(left.earlier_millis));
        format!("before it      {} ended with code 0, {earlier} earlier", left.replica)
    }));
    let same = fingerprint.as_ref().and_then(|one| same_before(one, earlier));
    lines.extend(same.map(|before| format!("same as        {before}")));
    lines.extend(too_large.iter().map(|batch| format!("memory         {batch}")));
    lines.extend(stacks.as_ref().map(|stacks| format!("where          {stacks}")));
    lines.extend(lost_steps.map(|lost| format!("lost           {lost}")));
    let longest_silent = consequences.iter().find(|one| is_late && one.stopped).map(|one| one.replica);
    if !last_lines.is_empty()
        && let Some(replica) = failure.replica().or(longest_silent)
    {
        lines.push(format!("last lines of {replica}:"));
        if let Some(exception) = exception_before(failure, last_lines) {
            lines.extend([format!("  │ {exception}"), "  │ …".to_owned()]);
        }
        lines.extend(last_lines.iter().map(|line| format!("  │ {line}")));
    }
    if !is_late {
        lines.extend(of_consequences(consequences));
    }
    lines.join("\n")
}

/// Names the earlier start that failed with the same exception, and the step after which both failed.
fn same_before(failure: &Fingerprint, earlier: &[FailedStart]) -> Option<String> {
    let start = failure.same_before(earlier)?.generation?;
    let step = failure.step.map(|step| format!(", after step {step}")).unwrap_or_default();
    Some(format!("start {start}: the same exception{step}"))
}

/// The first line of the exception that ended the replica, if the last lines of output do not contain this line.
fn exception_before<'a>(failure: &'a Failure, last_lines: &[String]) -> Option<&'a str> {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.exception_before(last_lines.iter().map(String::as_str)),
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => None,
    }
}

/// The process of the replica that failed, if the replica has several.
fn process_of(failure: &Failure) -> String {
    let process = if let Failure::ReplicaExited { exit, .. } = failure { exit.process } else { None };
    process.map(|process| process.to_string()).unwrap_or_default()
}

/// The state of a replica at the deadline.
fn at_the_deadline(Consequence { replica, how, stopped }: &Consequence) -> String {
    if *stopped { format!("still running  {replica}: {how}") } else { format!("not running    {replica}: {how}") }
}

/// One line for each replica that failed, and one line for all replicas that were stopped.
fn of_consequences(consequences: &[Consequence]) -> Vec<String> {
    let (stopped, failed): (Vec<_>, Vec<_>) = consequences.iter().partition(|consequence| consequence.stopped);
    let mut lines: Vec<String> =
        failed.iter().map(|one| format!("because of it  {} {}", one.replica, one.how)).collect();
    if !stopped.is_empty() {
        let names: Vec<String> = stopped.iter().map(|one| one.replica.to_string()).collect();
        lines.push(format!("because of it  stopped: {}", names.join(", ")));
    }
    lines
}

fn in_short(start: &FailedStart) -> String {
    let generation =
        start.generation.map_or_else(|| "before any start".to_owned(), |generation| format!("start {generation}"));
    let counted = if start.counted { "" } else { " (not counted)" };
    format!("{generation}: {}{counted}", start.failure)
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
