//! The status of the run, for the wire and for the agent's log.

use std::iter::repeat;

use protocol::agent::{CodeStatus, MESSAGES_OF_SEVERAL, ProcessStatus, RunStatus, messages_for};
use protocol::progress::Progress;
use protocol::warm::WarmState;
use rustix::process::Pid;
use tracing::field::display;
use tracing::info;

use super::helpers::together;
use super::phase::{Run, RunPhase};

/// What a script has reported about its progress.
#[derive(Debug, Default)]
pub(super) struct ScriptReports {
    /// With the helper, in each process.
    pub(super) helpers: Vec<Option<Progress>>,
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
    let ScriptReports { helpers, posted } = reports;
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
        pid: phase.main_processes().first().map(number),
        processes: phase.run().map(|run| processes_of(run, &helpers)).unwrap_or_default(),
        started_at,
        exit,
        membership: phase.assignment().and_then(|assignment| assignment.membership),
        code,
        messages: messages_for(phase.assignment().map_or(1, |assignment| assignment.environments.len())),
        newest_messages: MESSAGES_OF_SEVERAL,
        warm,
        // Until this run starts, the reports still belong to an earlier run.
        helper: started_at.and_then(|_| together(&helpers)),
        posted: started_at.and(posted),
        usage: None,
        clock_ms: None,
        log_base: None,
    }
}

/// The processes of a run with several processes.
fn processes_of(run: &Run, helpers: &[Option<Progress>]) -> Vec<ProcessStatus> {
    if !run.assignment.has_several() {
        return vec![];
    }
    let reports = helpers.iter().cloned().chain(repeat(None));
    let status = |(pid, helper): (Option<Pid>, _)| ProcessStatus { pid: pid.as_ref().map(number), helper, usage: None };
    run.processes.pids().zip(reports).map(status).collect()
}

fn number(pid: &Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Writes a new status to the agent's log.
pub(super) fn log_change(status: &RunStatus) {
    let generation = status.generation.map(display);
    let exit = status.exit.as_ref().map(|exit| display(&exit.outcome));
    info!(state = ?status.state, generation, pid = status.pid, exit, "the status of the run has changed");
}
