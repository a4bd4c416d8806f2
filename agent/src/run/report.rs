//! How the end of a run is told: in its report, and by the agent's own exit code.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::ids::UnixMillis;

use super::event::Now;
use super::phase::Cause;

/// The code with which an agent exits after a run that ended so: the run's own; 128 and the number of the signal that
/// killed it, as shells say it; for a run that never started 143, as if SIGTERM had ended it, if it was stopped, else
/// 126. Never 0 for a run that did not do its work: the pod's end must not look like success.
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
