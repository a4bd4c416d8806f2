//! Divides the time of a job into the parts of [`Spent`].

use crate::ids::UnixMillis;
use crate::spent::Spent;
use crate::starts::ChangeCause;
use crate::timeline::{Folded, StartEnding, StartFacts, StepAt};

impl Spent {
    /// The time of a job from `begin` to `end`. `folded` are the starts before `starts`.
    pub fn of(folded: Option<&Folded>, starts: &[StartFacts], (begin, end): (UnixMillis, UnixMillis)) -> Self {
        let spent = folded.map(|folded| folded.spent).unwrap_or_default();
        let cursor = folded.map_or(begin, |folded| folded.until);
        let mut walk =
            Walk { cursor, end, reports_steps: spent.reports_steps() || starts.iter().any(has_stepped), spent };
        for (index, start) in starts.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &starts[before]);
            walk.start(start, before, &starts[index + 1..]);
        }
        let rest = walk.go_to(end);
        *rest_after(starts.last(), &mut walk.spent) += rest;
        walk.spent
    }
}

fn has_stepped(start: &StartFacts) -> bool {
    start.first_step.is_some()
}

/// A walk through the time of a job. Each moment is counted once, even if clocks disagree about the order of two times.
struct Walk {
    /// The time until which everything is counted.
    cursor: UnixMillis,
    end: UnixMillis,
    /// Whether the scripts of the job report steps.
    reports_steps: bool,
    spent: Spent,
}

impl Walk {
    /// Goes on to this time. Returns the milliseconds since the last time.
    fn go_to(&mut self, at: UnixMillis) -> u64 {
        let at = at.min(self.end).max(self.cursor);
        let passed = at.0 - self.cursor.0;
        self.cursor = at;
        passed
    }

    fn start(&mut self, start: &StartFacts, before: Option<&StartFacts>, later: &[StartFacts]) {
        if let (Some(before), Some(began)) = (before, start.began) {
            let passed = self.go_to(began);
            *rest_after(Some(before), &mut self.spent) += passed;
        }
        let stop = start.stopped.unwrap_or(self.end);
        let passed = self.go_to(start.started.map_or(stop, |started| started.min(stop)));
        if is_recovery(start, before) {
            self.spent.recovery_ms += passed;
        } else {
            self.spent.gathering_ms += passed;
        }
        match start.first_step {
            Some(first) => self.steps(start, (first, stop), later),
            None if self.reports_steps => self.spent.program_startup_ms += self.go_to(stop),
            None => self.spent.running_ms += self.go_to(stop),
        }
        let passed = self.go_to(start.dead.unwrap_or(self.end));
        *match &start.ending {
            Some(StartEnding::Suspended) => &mut self.spent.suspended_ms,
            Some(StartEnding::Succeeded | StartEnding::Cancelled) => &mut self.spent.after_steps_ms,
            Some(StartEnding::Regrouped) if later.first().is_some_and(|next| !is_recovery(next, Some(start))) => {
                &mut self.spent.gathering_ms
            }
            Some(StartEnding::Failed { .. } | StartEnding::Regrouped) | None => &mut self.spent.recovery_ms,
        } += passed;
    }

    /// The time from the launch to the stop of a start whose scripts report steps.
    fn steps(&mut self, start: &StartFacts, (first, stop): (StepAt, UnixMillis), later: &[StartFacts]) {
        self.spent.program_startup_ms += self.go_to(first.at.min(stop));
        let last = start.last_step.unwrap_or(first);
        // While the scripts run, they compute the next step, so the time until now belongs to steps.
        let last_at = if start.stopped.is_none() { stop } else { last.at.min(stop) };
        let stepping = self.go_to(last_at);
        let lost = lost_share(stepping, (first.step, last.step), later);
        self.spent.lost_steps_ms += lost;
        self.spent.kept_steps_ms += stepping - lost;
        self.spent.after_steps_ms += self.go_to(stop);
    }
}

/// The part that gets the time from the end of this start to the beginning of the next start. This time is long only if
/// the job is suspended, or halts after a failure. If `start` is `None`, no start has begun.
fn rest_after<'a>(start: Option<&StartFacts>, spent: &'a mut Spent) -> &'a mut u64 {
    let Some(start) = start else { return &mut spent.gathering_ms };
    match start.ending {
        Some(StartEnding::Suspended) => &mut spent.suspended_ms,
        Some(StartEnding::Failed { .. }) => &mut spent.halted_ms,
        Some(StartEnding::Succeeded | StartEnding::Cancelled | StartEnding::Regrouped) | None => {
            &mut spent.after_steps_ms
        }
    }
}

/// Whether this start follows a failure or a loss.
fn is_recovery(start: &StartFacts, before: Option<&StartFacts>) -> bool {
    match &start.cause {
        Some(ChangeCause::Left { .. } | ChangeCause::TakenOver) => true,
        Some(
            ChangeCause::First
            | ChangeCause::Joined { .. }
            | ChangeCause::Shrunk
            | ChangeCause::Resumed
            | ChangeCause::Pushed,
        ) => false,
        None => before.is_some_and(|before| matches!(before.ending, Some(StartEnding::Failed { .. }))),
    }
}

/// The part of `stepping_ms` that belongs to lost steps. The start made the steps from `first` to `last`. A step is
/// lost if a later start began at this step or before it, or if the next start reports it as lost. Every step counts
/// the same.
fn lost_share(stepping_ms: u64, (first, last): (u64, u64), later: &[StartFacts]) -> u64 {
    let known_lost = later.first().and_then(|next| next.lost_steps).map(|lost| lost.first);
    let began = later.iter().filter_map(|start| Some(start.first_step?.step)).chain(known_lost).min();
    let Some(began) = began else { return 0 };
    let steps = last.saturating_sub(first).saturating_add(1);
    let lost = last.saturating_add(1).saturating_sub(began.max(first)).min(steps);
    let share = u128::from(stepping_ms) * u128::from(lost) / u128::from(steps);
    u64::try_from(share).unwrap_or(stepping_ms)
}
