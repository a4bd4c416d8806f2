//! Makes the sentences about a job's progress from its views. Uses no clock and prints nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::{Failure, was_lost};
use protocol::ids::{Generation, JobName, ReplicaId, Role, UnixMillis};
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::run_policy::{HALT_SECONDS, NO_RESTART_LIMIT};
use protocol::view::{JobResult, JobState, JobTimes, JobView, ReplicaState, ReplicaView};

use super::batches;
use crate::output::command_line::command;
use crate::output::spelled;

/// Maximum sentences of one kind for one change. If there are more, a last sentence counts the omitted ones.
const LINES_MAX: usize = 5;

/// Maximum lines shown of a failed replica's last output.
const LAST_WORDS_MAX: usize = 20;

/// The sentence about a job that this command has submitted.
pub(crate) fn accepted(view: &JobView) -> String {
    format!("job {} accepted: {}", view.name, composition(&view.spec))
}

/// Where the scripts of a job run, if the master has told it.
pub(crate) fn where_it_runs(view: &JobView) -> Option<String> {
    let folder = view.folder.as_ref()?.display();
    Some(match view.spec.code {
        Some(_) => format!("{folder}, a copy that is deleted with the job"),
        None => format!("{folder}, in place"),
    })
}

/// The sentence about a job that has not ended, and that an earlier command submitted with the same arguments.
pub(crate) fn submitted_before(view: &JobView) -> String {
    format!("job {} was submitted before and is {}; add --replace to delete it and start again", view.name, view.state)
}

/// The sentence about a job that this command follows but did not submit.
pub(crate) fn standing(view: &JobView) -> String {
    let standing = format!("job {} is {}: {}", view.name, view.state, composition(&view.spec));
    match &view.queued_behind {
        Some(first) => format!("{standing}; {}", queued_behind(first)),
        None if view.state == JobState::Halted => format!("{standing}; {}", waits_for_code(view)),
        None => standing,
    }
}

/// The strategy and the replicas, such as `AllReduce, 4 workers`.
pub(crate) fn composition(spec: &JobSpec) -> String {
    let counts = Role::ALL.into_iter().filter_map(|role| {
        let (one, many) = match role {
            Role::Chief => ("chief", "chiefs"),
            Role::Worker => ("worker", "workers"),
            Role::Ps => ("parameter server", "parameter servers"),
            Role::Evaluator => ("evaluator", "evaluators"),
        };
        match spec.count(role) {
            count if role == Role::Worker && spec.worker_min.is_some_and(|min| min != count) => {
                Some(format!("{} to {count} {many}", spec.worker_min.unwrap_or(count)))
            }
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        }
    });
    let parts: Vec<String> = std::iter::once(spec.strategy.to_string()).chain(counts).collect();
    parts.join(", ")
}

/// The number of workers of an elastic job in the current start.
pub(crate) fn workers_now(view: &JobView) -> usize {
    view.roster.iter().filter(|id| id.role == Role::Worker).count()
}

/// One sentence for each difference from `before`. Without `before`, everything is new.
pub(crate) fn changes(before: Option<&JobView>, now: &JobView) -> Vec<String> {
    let mut sentences = waiting(before, now);
    if let (Some(old), Some(new)) = (before.and_then(|view| view.generation), now.generation)
        && old < new
    {
        let changes: Vec<_> = now.changes.iter().filter(|change| change.generation > old).collect();
        sentences.extend(changes.iter().map(|change| format!("--- {change} ---")));
        sentences.extend(
            changes.is_empty().then(|| format!("--- start {new}, after {} ---", cause_of_start(now, old, new))),
        );
    }
    sentences.extend(complete(before, now));
    sentences.extend(running(before, now));
    sentences.extend(batches::changed(before, now));
    sentences.extend(failures(before, now));
    sentences.extend(restart(before, now));
    sentences.extend(stopping(before, now));
    sentences.extend(halted(before, now));
    sentences.extend(suspended(before, now));
    sentences.extend(queued(before, now));
    sentences
}

/// Why the start `new` followed the start `old`.
fn cause_of_start(view: &JobView, old: Generation, new: Generation) -> String {
    let failed =
        view.restarts.failed_starts.last().filter(|failed| failed.generation.is_some_and(|start| start >= old));
    match failed {
        Some(failed) => failed.failure.to_string(),
        None if new.epoch > old.epoch => "the previous start was lost with its master".to_owned(),
        // A push or a resume began this start. A master that took over the job later does not know which of them.
        None => "a user's request".to_owned(),
    }
}

/// What the user knows of a job after the view `now`. After a takeover, the views of the new master lack the times of
/// earlier steps. They also lack the current start until that master has found it. Until then, the state, the start and
/// the times of `before` are kept.
pub(crate) fn known(before: Option<JobView>, now: JobView) -> JobView {
    let Some(JobView { state, generation, times, .. }) = before else { return now };
    if now.generation.is_none() && generation.is_some() {
        return JobView { state, generation, times, ..now };
    }
    let times = JobTimes {
        joined: times.joined.or(now.times.joined),
        configured: times.configured.or(now.times.configured),
        started: times.started.or(now.times.started),
        ..now.times
    };
    JobView { times, ..now }
}

/// The sentence that the gang of the job's first start is now complete.
fn complete(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let joined = now.times.joined.filter(|_| before.is_none_or(|view| view.times.joined.is_none()))?;
    let count = match now.workers {
        Some(wanted) => format!("{} of {wanted} workers", workers_now(now)),
        None => format!("{0} of {0}", now.members()),
    };
    Some(format!("gang complete: {count}{}", took(" in ", between(now.times.accepted, Some(joined)))))
}

/// The sentence about a start whose scripts all run now.
fn running(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let had_started = before.is_some_and(|view| view.times.started.is_some());
    let runs = |view: &JobView| (view.generation, view.state == JobState::Running);
    let is_new = now.state == JobState::Running && before.is_none_or(|view| runs(view) < runs(now));
    let has_started = now.times.started.is_some() && !had_started;
    // An elastic job has a sentence for each later start already.
    let is_told = now.workers.is_some() && before.is_some_and(|view| view.generation.is_some());
    if !has_started && (!is_new || is_told) {
        return None;
    }
    let generation = now.generation.map(|generation| format!(" generation {generation},")).unwrap_or_default();
    let total = now.members();
    if is_new && !is_told && before.is_some() && (now.restarts.total() > 0 || had_started) {
        return Some(format!("running again:{generation} all {total} started"));
    }
    // `joined` is a time of the first start, so the sentence about a later start has no duration.
    let started = if now.times.restarted.is_none() { now.times.started } else { None };
    let took = between(now.times.joined, started);
    let took = took.map(|took| format!(" {} after the gang was complete", spelled(took))).unwrap_or_default();
    Some(format!("running:{generation} all {total} started{took}"))
}

/// The counted restarts and their limit, such as `2 of 3` or `2 (no limit)`.
pub(crate) fn counted_restarts(view: &JobView) -> String {
    match (view.restarts.spent(), view.spec.run_policy.max_restarts) {
        (spent, NO_RESTART_LIMIT) => format!("{spent} (no limit)"),
        (spent, limit) => format!("{spent} of {limit}"),
    }
}

/// The sentence about a restart and its reason.
pub(crate) fn restart(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let is_new = before.is_some_and(|view| view.restarts.total() < now.restarts.total());
    let failed = now.restarts.failed_starts.last().filter(|_| is_new)?;
    let number =
        if failed.counted { format!("restart {}", counted_restarts(now)) } else { "restart (not counted)".to_owned() };
    let lost = failed.lost_steps.map(|lost| format!("; {lost}")).unwrap_or_default();
    let memory = failed.too_large.first().map(|batch| format!("; {batch}")).unwrap_or_default();
    Some(format!("{number}: {}{memory}{lost}", failed.failure))
}

/// Whether the job is in this state and was not before.
fn has_entered(state: JobState, before: Option<&JobView>, now: &JobView) -> bool {
    now.state == state && before.is_none_or(|view| view.state != state)
}

fn stopping(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let still_running = now.replicas.iter().filter(|replica| replica.state == ReplicaState::Running).count();
    match still_running {
        _ if !has_entered(JobState::Stopping, before, now) => None,
        0 => None,
        many => Some(
            evaluating(now)
                .unwrap_or_else(|| format!("stopping {many} running replica{}", if many == 1 { "" } else { "s" })),
        ),
    }
}

/// The sentence about an evaluator that goes on although the training has succeeded.
fn evaluating(now: &JobView) -> Option<String> {
    let mut running = now.replicas.iter().filter(|replica| replica.state == ReplicaState::Running);
    running.find_map(|replica| Some(format!("{} {}", replica.replica, replica.reason.as_ref()?)))
}

fn halted(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let is_known = before.is_some_and(|view| (view.state, view.generation) == (now.state, now.generation));
    (now.state == JobState::Halted && !is_known).then(|| format!("halted: {}", waits_for_code(now)))
}

/// The sentence about a halted job, which waits for new code.
fn waits_for_code(view: &JobView) -> String {
    let minutes = HALT_SECONDS / 60;
    format!("the job waits {minutes} min for new code; to send the code: {}", command(&format!("push {}", view.name)))
}

fn suspended(before: Option<&JobView>, now: &JobView) -> Option<String> {
    has_entered(JobState::Suspended, before, now)
        .then(|| format!("suspended; to start the job again: {}", command(&format!("resume {}", now.name))))
}

fn queued(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let is_new = before.is_none_or(|view| view.queued_behind != now.queued_behind);
    if is_new { now.queued_behind.as_ref().map(queued_behind) } else { None }
}

/// The sentence that this job creates its pods after the gang of the job `first` has got room.
pub(crate) fn queued_behind(first: &JobName) -> String {
    format!("queued behind {first}, which gets room first")
}

/// The words and the duration, if it is known.
fn took(words: &str, duration: Option<Duration>) -> String {
    duration.map(|duration| format!("{words}{}", spelled(duration))).unwrap_or_default()
}

/// Pairs each replica of `now` with the same replica of `before`, if `before` contains it.
fn beside<'a>(
    before: Option<&'a JobView>,
    now: &'a JobView,
) -> impl Iterator<Item = (Option<&'a ReplicaView>, &'a ReplicaView)> {
    let replicas = before.map(|view| &*view.replicas).unwrap_or_default();
    let old: HashMap<ReplicaId, &ReplicaView> = replicas.iter().map(|view| (view.replica, view)).collect();
    now.replicas.iter().map(move |view| (old.get(&view.replica).copied(), view))
}

/// Why pods do not start. Pods that wait for the same reason share a sentence.
fn waiting(before: Option<&JobView>, now: &JobView) -> Vec<String> {
    let mut waiting: BTreeMap<&str, Vec<ReplicaId>> = BTreeMap::new();
    for (old, new) in beside(before, now) {
        let waits = matches!(new.state, ReplicaState::Requested | ReplicaState::Scheduled);
        let reason = new.reason.as_deref().filter(|reason| waits && !reason.is_empty());
        if let Some(reason) = reason.filter(|reason| old.and_then(|view| view.reason.as_deref()) != Some(reason)) {
            waiting.entry(reason).or_default().push(new.replica);
        }
    }
    let sentences = waiting.into_iter().map(|(reason, replicas)| match replicas.as_slice() {
        [first, _, ..] => format!("{first} and {} more are waiting: {reason}", replicas.len() - 1),
        [] | [_] => format!("{} is waiting: {reason}", replicas.first().map(ReplicaId::to_string).unwrap_or_default()),
    });
    shortened(sentences.collect(), "more reasons why replicas wait")
}

fn failures(before: Option<&JobView>, now: &JobView) -> Vec<String> {
    let failed = beside(before, now).filter_map(|(old, new)| match (new.state, &new.exit) {
        (ReplicaState::Exited, Some(exit)) if is_news(old, exit) => {
            Some(format!("{}{}{}", new.replica, exit.how(), alone(new, now)))
        }
        (ReplicaState::Lost, _) if !has_failed(old) => {
            let how = new.reason.as_deref().map_or("was lost".to_owned(), was_lost);
            Some(format!("{} {how}{}", new.replica, alone(new, now)))
        }
        (_, _) => None,
    });
    shortened(failed.collect(), "more replicas failed")
}

/// What follows the failure of an evaluator while the others train.
fn alone(failed: &ReplicaView, job: &JobView) -> &'static str {
    let goes_on = failed.replica.role == Role::Evaluator && job.state == JobState::Running;
    if goes_on { "; it starts again alone" } else { "" }
}

/// Whether this failure is new: `old` shows neither this exit nor the loss of the replica.
fn is_news(old: Option<&ReplicaView>, exit: &ExitReport) -> bool {
    let is_told = |view: &ReplicaView| view.state == ReplicaState::Lost || view.exit.as_ref() == Some(exit);
    is_failure(exit) && !old.is_some_and(is_told)
}

/// Whether a replica has already failed. If its pod is lost afterwards, the loss is not a second failure.
fn has_failed(old: Option<&ReplicaView>) -> bool {
    old.is_some_and(|view| view.state == ReplicaState::Lost || view.exit.as_ref().is_some_and(is_failure))
}

/// Whether the replica failed. A replica that Muster stopped did not fail.
fn is_failure(exit: &ExitReport) -> bool {
    !exit.is_success() && !exit.stopped
}

fn shortened(mut sentences: Vec<String>, rest: &str) -> Vec<String> {
    if sentences.len() > LINES_MAX {
        let more = sentences.len() - LINES_MAX;
        sentences.truncate(LINES_MAX);
        sentences.push(format!("{more} {rest}"));
    }
    sentences
}

/// The last line about a finished job: its result, its duration, and the time of each step.
pub(crate) fn closing(view: &JobView) -> String {
    // The duration ends with the job's result. The clean-up of the pods is not included.
    let total = between(view.times.accepted, view.times.ended.or(view.times.finished));
    let parts = parts(&view.times);
    let in_brackets = if parts.is_empty() { String::new() } else { format!(" ({parts})") };
    let restarts = match view.restarts.total() {
        0 => String::new(),
        1 => " and 1 restart".to_owned(),
        many => format!(" and {many} restarts"),
    };
    match &view.result {
        Some(JobResult::Succeeded) if parts.is_empty() => format!("succeeded{}{restarts}", took(" in ", total)),
        Some(JobResult::Succeeded) => format!("succeeded{}{restarts}: {parts}", took(" in ", total)),
        Some(JobResult::Failed { failure }) => {
            format!("failed{}{restarts}: {failure}{in_brackets}", took(" after ", total))
        }
        Some(JobResult::Cancelled) => format!("cancelled{}{in_brackets}{}", took(" after ", total), cut_off(view)),
        None => format!("{}{}{in_brackets}", view.state, took(" after ", total)),
    }
}

/// The replicas of a cancelled job that SIGKILL has ended, because they had not ended when their grace was over.
fn cut_off(view: &JobView) -> String {
    let was_killed = |exit: &ExitReport| exit.stopped && exit.outcome == ExitOutcome::Signal(9);
    let killed = view.replicas.iter().filter(|replica| replica.exit.as_ref().is_some_and(was_killed));
    let killed: Vec<String> = killed.map(|replica| replica.replica.to_string()).collect();
    match killed.as_slice() {
        [] => String::new(),
        names => {
            let flag = if view.spec.origin.is_none() { " (more time: --termination-grace)" } else { "" };
            format!("; killed before they had ended: {}{flag}", names.join(", "))
        }
    }
}

/// The change of a job whose TFJob was applied again, such as `suspended and scaled to 2 workers`.
pub(crate) fn changed(change: JobPatch) -> String {
    let suspended = change.suspended.map(|is_suspended| if is_suspended { "suspended" } else { "resumed" }.to_owned());
    let scaled = change.worker_num.map(|workers| match workers {
        1 => "scaled to 1 worker".to_owned(),
        more => format!("scaled to {more} workers"),
    });
    suspended.into_iter().chain(scaled).collect::<Vec<_>>().join(" and ")
}

fn parts(times: &JobTimes) -> String {
    let JobTimes { accepted, joined, started, ended, .. } = times;
    let steps = [
        ("pods", between(*accepted, *joined)),
        ("start", between(*joined, *started)),
        ("training", between(*started, *ended)),
    ];
    let known = steps.into_iter().filter_map(|(step, took)| took.map(|took| format!("{step} {}", spelled(took))));
    // If it is not known when the job started, the job may never have run.
    if started.is_none() { String::new() } else { known.collect::<Vec<String>>().join(", ") }
}

/// The time between two steps. `None` unless both were reached.
pub(crate) fn between(from: Option<UnixMillis>, to: Option<UnixMillis>) -> Option<Duration> {
    Some(to?.since(from?))
}

/// The last lines on stderr of the replica whose failure ended the job. If these lines lack the exception's first line,
/// adds that line in front.
pub(crate) fn last_words(view: &JobView) -> Option<(ReplicaId, Vec<&str>)> {
    let Some(JobResult::Failed { failure: Failure::ReplicaExited { replica, exit } }) = &view.result else {
        return None;
    };
    let mut lines: Vec<&str> = exit.stderr_tail.trim_end().lines().collect();
    lines.drain(..lines.len().saturating_sub(LAST_WORDS_MAX));
    if let Some(exception) = exit.exception_before(lines.iter().copied()) {
        lines.splice(..0, [exception, "…"]);
    }
    if lines.is_empty() { None } else { Some((*replica, lines)) }
}

#[cfg(test)]
#[path = "narrate_tests.rs"]
pub(crate) mod tests;
