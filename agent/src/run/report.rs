//! The report of a run's end, and the exit code of the agent.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::ids::UnixMillis;

use super::event::Now;
use super::phase::EndCause;

/// The exit code of an agent after a run with this report. It is the run's exit code, or 128 plus the number of the
/// signal that ended the run. For a run that never started, it is 143 (SIGTERM) if the run was stopped, else 126. Only
/// a successful run gives 0, because Kubernetes shows a pod with exit code 0 as succeeded.
pub fn exit_code(report: &ExitReport) -> u8 {
    match &report.outcome {
        ExitOutcome::Code(code) => u8::try_from(*code).unwrap_or(1),
        ExitOutcome::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        ExitOutcome::OutOfMemory { .. } => 137,
        ExitOutcome::NotStarted(_) if report.stopped => 143,
        ExitOutcome::NotStarted(_) => 126,
    }
}

pub(super) fn report(outcome: ExitOutcome, cause: EndCause, ended_at: UnixMillis) -> ExitReport {
    let (stopped, terminated) = (cause != EndCause::Own, cause == EndCause::Terminated);
    ExitReport { stopped, terminated, ..ExitReport::new(outcome, ended_at) }.bounded()
}

pub(super) fn not_started(reason: String, cause: EndCause, now: Now) -> ExitReport {
    report(ExitOutcome::NotStarted(reason), cause, now.wall)
}
