//! From a failure and the gang as it was then to what people are told: what followed from what.

use protocol::agent::ExitReport;
use protocol::failure::{CONSEQUENCES_MAX, Consequence, FailedStart, Failure, LAST_LINES_MAX, was_lost};
use protocol::ids::{Generation, UnixMillis};

use super::gang::{Gang, Member};
use super::policy::Budget;
use super::replica::ReplicaPhase;

/// What is known of a failed start besides the gang.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The start, if there was one.
    pub generation: Option<Generation>,
    /// The time by this machine's clock.
    pub now: UnixMillis,
    /// What another start would cost.
    pub budget: Option<Budget>,
    /// The last lines of the replica that was the first to fail.
    pub last_lines: Vec<String>,
}

/// What there is to say of a failed start.
pub fn diagnose(failure: Failure, gang: &Gang, evidence: Evidence) -> FailedStart {
    let Evidence { generation, now, budget, last_lines } = evidence;
    let (at, stderr_tail) = match &failure {
        Failure::ReplicaExited { exit, .. } => (exit.ended_at, exit.stderr_tail.as_str()),
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => (now, ""),
    };
    let last_lines = if last_lines.is_empty() { last_of(stderr_tail) } else { last_lines };
    let consequences = consequences(&failure, gang);
    let counted = budget == Some(Budget::Counted);
    FailedStart { generation, at, failure, counted, last_lines, consequences }
}

fn last_of(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let from = lines.len().saturating_sub(LAST_LINES_MAX);
    lines[from..].iter().map(|line| (*line).to_owned()).collect()
}

/// First those that ended by themselves, then those that were told to.
fn consequences(failure: &Failure, gang: &Gang) -> Vec<Consequence> {
    // Of a gang that did not come together nobody has failed, and a deadline is nobody's failure.
    let Some(first) = failure.replica().filter(|_| !matches!(failure, Failure::StartTimeout { .. })) else {
        return vec![];
    };
    let others = gang.members().iter().filter(|member| member.id != first);
    let mut consequences: Vec<Consequence> = others.filter_map(consequence).collect();
    consequences.sort_by_key(|consequence| consequence.stopped);
    consequences.truncate(CONSEQUENCES_MAX);
    consequences
}

fn consequence(member: &Member) -> Option<Consequence> {
    let (how, stopped) = match &member.phase {
        succeeded if succeeded.has_succeeded() => return None,
        ReplicaPhase::Exited(_, ExitReport { outcome, stopped, .. }) => (outcome.to_string(), *stopped),
        ReplicaPhase::Lost(lost) => (was_lost(&lost.reason), false),
        ReplicaPhase::Requested
        | ReplicaPhase::Scheduled
        | ReplicaPhase::Joined
        | ReplicaPhase::Configured(_)
        | ReplicaPhase::Running(_) => return None,
    };
    Some(Consequence { replica: member.id, how, stopped })
}
