//! The report of a run's end, and the exit code of the agent.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::ids::UnixMillis;

use super::event::Now;
use super::phase::Cause;

/// The exit code of an agent after such a run: the run's own code; after a signal 128 and its number, as in a shell; for a
/// run that never started 143 (SIGTERM) if it was stopped, else 126. It is 0 only after a success: a failed run must not
/// look like a pod that succeeded.
pub fn exit_code(report: &ExitReport) -> u8 {
    match &report.outcome {
        ExitOutcome::Code(code) => u8::try_from(*code).unwrap_or(1),
        ExitOutcome::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        ExitOutcome::OutOfMemory { .. } => 137,
        ExitOutcome::NotStarted(_) => {
            if report.stopped {
                143
            } else {
                126
            }
        }
    }
}

pub(super) fn report(outcome: ExitOutcome, cause: Cause, ended_at: UnixMillis) -> ExitReport {
    let (stopped, terminated) = (cause != Cause::Own, cause == Cause::Terminated);
    ExitReport { stopped, terminated, ..ExitReport::new(outcome, ended_at) }.bounded()
}

pub(super) fn not_started(reason: String, cause: Cause, now: Now) -> ExitReport {
    report(ExitOutcome::NotStarted(reason), cause, now.wall)
}
