//! The status of the run, for the wire and for the agent's log.

use protocol::agent::{CodeStatus, MESSAGES, RunStatus};
use protocol::progress::Progress;
use protocol::warm::WarmState;
use tracing::field::display;
use tracing::info;

use super::phase::RunPhase;

/// What a script has reported about its progress.
#[derive(Debug, Default)]
pub(super) struct ScriptReports {
    /// With the helper.
    pub(super) helper: Option<Progress>,
    /// Without the helper.
    pub(super) posted: Option<Progress>,
}

/// Builds the status message. `reports` are those of the newest started run. The caller sets `seq`.
pub(super) fn status_of(
    phase: &RunPhase,
    code: CodeStatus,
    warm: Option<WarmState>,
    reports: ScriptReports,
    boot_id: String,
) -> RunStatus {
    let ScriptReports { helper, posted } = reports;
    let (started_at, exit) = match phase {
        RunPhase::Idle | RunPhase::Configured { .. } | RunPhase::Starting { .. } => (None, None),
        RunPhase::Running { run } | RunPhase::Stopping { run, .. } | RunPhase::Ending { run, .. } => {
            (Some(run.started_at), None)
        }
        RunPhase::Exited { started_at, report, .. } => (*started_at, Some(report.clone())),
    };
    RunStatus {
        seq: 0,
        boot_id,
        state: phase.wire_state(),
        generation: phase.generation(),
        pid: phase.main_process().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()),
        started_at,
        exit,
        membership: phase.assignment().and_then(|assignment| assignment.membership),
        code,
        messages: MESSAGES,
        warm,
        // Until this run starts, the reports still belong to an earlier run.
        helper: started_at.and(helper),
        posted: started_at.and(posted),
        usage: None,
        clock_ms: None,
        log_base: None,
    }
}

/// Writes a new status to the agent's log.
pub(super) fn log_change(status: &RunStatus) {
    let generation = status.generation.map(display);
    let exit = status.exit.as_ref().map(|exit| display(&exit.outcome));
    info!(state = ?status.state, generation, pid = status.pid, exit, "the status of the run has changed");
}
