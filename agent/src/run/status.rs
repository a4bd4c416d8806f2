//! The status of the run, for the wire and for the agent's log.

use protocol::agent::{Features, HelperStatus, RunStatus};
use protocol::warm::WarmState;
use tracing::field::display;
use tracing::info;

use super::phase::Phase;

/// The phase, the warm interpreter and the helper of the newest run as a message. The caller sets `seq`.
pub(super) fn status_of(
    phase: &Phase,
    warm: Option<WarmState>,
    helper: Option<HelperStatus>,
    boot_id: String,
) -> RunStatus {
    let (started_at, exit) = match phase {
        Phase::Idle | Phase::Configured { .. } | Phase::Starting { .. } => (None, None),
        Phase::Running { run } | Phase::Stopping { run, .. } | Phase::Ending { run, .. } => {
            (Some(run.started_at), None)
        }
        Phase::Exited { started_at, report, .. } => (*started_at, Some(report.clone())),
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
        features: Features { seats: true, warm: true, fence: true },
        warm,
        // Before its start, the newest run is an earlier one.
        helper: started_at.and(helper),
        clock_ms: None,
    }
}

/// Whether long polls get the new status at once. They get a new step with their next answer.
pub(super) fn is_news(known: &RunStatus, new: &RunStatus) -> bool {
    let differs_besides_step = RunStatus { helper: new.helper, ..known.clone() } != *new;
    differs_besides_step || known.helper.is_some() != new.helper.is_some()
}

/// Writes a new status to the agent's log.
pub(super) fn log_change(status: &RunStatus) {
    let generation = status.generation.map(display);
    let exit = status.exit.as_ref().map(|exit| display(&exit.outcome));
    info!(state = ?status.state, generation, pid = status.pid, exit, "run");
}
