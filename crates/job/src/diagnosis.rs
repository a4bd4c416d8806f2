//! Turns a failure and the state of the gang into the report for users: the cause and its consequences.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::{
    CONSEQUENCES_MAX, Consequence, FINGERPRINT_JSON_BYTES, FailedStart, Failure, Fingerprint, LAST_LINES_MAX,
    LeftBefore, was_lost,
};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::text;

use super::gang::{Gang, Place};
use super::policy::Budget;
use super::replica::ReplicaPhase;

/// The inputs of [`diagnose`] besides the failure and the gang.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The number of the start, if there was one.
    pub generation: Option<Generation>,
    /// The current time, by the store's clock.
    pub now: UnixMillis,
    /// Whether a restart would use up one of the job's restarts. `None` if a restart cannot help, or if the restart
    /// rule of the replica's role forbids a restart.
    pub budget: Option<Budget>,
    /// The last lines of the replica that failed first. At the job's deadline: the last lines of the replica that
    /// [`longest_silent`] returns.
    pub last_lines: Vec<String>,
    /// For each replica that still ran at the deadline: the time since its last output.
    pub silence: BTreeMap<ReplicaId, Duration>,
    /// Where the scripts were at the deadline, in one sentence.
    pub stacks: Option<String>,
}

/// Builds the report of a failed start.
pub fn diagnose(failure: Failure, gang: &Gang<'_>, evidence: Evidence) -> FailedStart {
    let Evidence { generation, now, budget, last_lines, silence, stacks } = evidence;
    let (at, stderr_tail) = match &failure {
        Failure::ReplicaExited { exit, .. } => (exit.ended_at, exit.stderr_tail.as_str()),
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => (now, ""),
    };
    let last_lines = if last_lines.is_empty() { last_of(stderr_tail) } else { last_lines };
    let consequences = match failure {
        Failure::DeadlineExceeded { .. } => at_the_deadline(gang, &silence),
        Failure::ReplicaExited { .. } | Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } => {
            consequences(&failure, gang)
        }
    };
    let counted = budget == Some(Budget::Counted);
    let left_before = left_before(&failure, gang);
    let (lost_steps, fingerprint) = (gang.lost_steps(), fingerprint(&failure, gang));
    let too_large = gang.too_large().iter().take(CONSEQUENCES_MAX).copied().collect();
    FailedStart {
        generation,
        at,
        failure,
        counted,
        last_lines,
        stacks,
        consequences,
        left_before,
        lost_steps,
        fingerprint,
        too_large,
    }
}

/// Identifies the failure of a script that ended with an exception. `None` for all other failures: a signal, too little
/// memory and a lost pod depend on the machine.
pub fn fingerprint(failure: &Failure, gang: &Gang<'_>) -> Option<Fingerprint> {
    let Failure::ReplicaExited {
        exit: ExitReport { outcome: ExitOutcome::Code(_), stopped: false, process, exception, .. },
        ..
    } = failure
    else {
        return None;
    };
    let member = gang.failed(failure)?;
    let (step, split) = member.reported().unzip();
    Some(Fingerprint {
        seat: gang.seat(member),
        process: process.map(|process| process.index),
        exception: text::beginning(exception.as_deref()?, FINGERPRINT_JSON_BYTES).to_owned(),
        step,
        split: split.unwrap_or_default(),
        members: gang.members().count().try_into().unwrap_or(u32::MAX),
        pushes: gang.pushes_of(failure).unwrap_or_default(),
    })
}

fn last_of(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let from = lines.len().saturating_sub(LAST_LINES_MAX);
    lines[from..].iter().map(|line| (*line).to_owned()).collect()
}

/// The replica with the longest time since its last output. If a job hangs, this replica is the most likely cause.
pub fn longest_silent(silence: &BTreeMap<ReplicaId, Duration>) -> Option<ReplicaId> {
    silence.iter().max_by_key(|(id, silent)| (**silent, Reverse(**id))).map(|(id, _)| *id)
}

/// The state of each replica at the deadline. Running replicas come first, sorted by their silence, longest first.
fn at_the_deadline(gang: &Gang<'_>, silence: &BTreeMap<ReplicaId, Duration>) -> Vec<Consequence> {
    let mut members: Vec<&Place<'_>> = gang.members().collect();
    members.sort_by_key(|member| Reverse(silence.get(&member.id)));
    let stood = |member: &&Place<'_>| {
        let (how, stopped) = match (&member.phase, silence.get(&member.id)) {
            (ReplicaPhase::Exited(_, exit), _) if !exit.stopped => (exit.outcome.to_string(), false),
            (_, Some(silent)) => (format!("had printed nothing for {} s", silent.as_secs()), true),
            (ReplicaPhase::Lost(lost), None) => (was_lost(&lost.reason), false),
            (phase, None) if phase.was_launched() => ("had printed nothing".to_owned(), true),
            (_, None) => match member.seen.waits_for() {
                Some(reason) => (format!("was not started: {reason}"), false),
                None => ("was not started".to_owned(), false),
            },
        };
        Consequence { replica: member.id, how, stopped }
    };
    let mut stood: Vec<Consequence> = members.iter().map(stood).collect();
    stood.sort_by_key(|consequence| !consequence.stopped);
    stood.truncate(CONSEQUENCES_MAX);
    stood
}

/// The failed and stopped replicas except the replica that failed first. Replicas that ended by themselves come first.
fn consequences(failure: &Failure, gang: &Gang<'_>) -> Vec<Consequence> {
    // After a start timeout, no member has failed.
    let Some(first) = failure.replica().filter(|_| !matches!(failure, Failure::StartTimeout { .. })) else {
        return vec![];
    };
    let others = gang.members().filter(|member| member.id != first);
    let mut consequences: Vec<Consequence> = others.filter_map(consequence).collect();
    consequences.sort_by_key(|consequence| consequence.stopped);
    consequences.truncate(CONSEQUENCES_MAX);
    consequences
}

/// The first member that trains and succeeded before another member's script failed.
fn left_before(failure: &Failure, gang: &Gang<'_>) -> Option<LeftBefore> {
    let Failure::ReplicaExited { exit: failed, .. } = failure else { return None };
    let ended =
        |member: &Place<'_>| member.phase.exit().filter(|_| member.phase.has_succeeded()).map(|exit| exit.ended_at);
    let training = gang.members().filter(|member| member.id.role.trains());
    let left = training.filter_map(|member| Some((ended(member)?, member.id)));
    let (at, replica) = left.min().filter(|(at, _)| *at < failed.ended_at)?;
    Some(LeftBefore { replica, earlier_millis: failed.ended_at.0 - at.0 })
}

fn consequence(member: &Place<'_>) -> Option<Consequence> {
    let failed = member.phase.failed();
    let lost = || Some((was_lost(&member.phase.lost()?.reason), false));
    let (how, stopped) = failed.map(|exit| (exit.outcome.to_string(), exit.stopped)).or_else(lost)?;
    Some(Consequence { replica: member.id, how, stopped })
}
