//! What a start needs from every member before the phase can move: an acknowledgement, or the end of its run. A look at the
//! whole gang takes long in a large gang, so the driver does not look at it for each of these reports, only for the last.

use protocol::agent::RunState;
use protocol::ids::Generation;

use super::tracked::Replica;
use super::{Driver, Report};
use crate::job::observation::{AgentState, PodState};
use crate::job::phase::{JobPhase, StartStage};

/// What the phase awaits from each member of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// It has its environment.
    Environment,
    /// Its exec.py was started.
    Start,
    /// Its run, which was asked to stop, has ended.
    End,
}

impl Driver {
    /// Whether a report is only what the phase awaits from this member. Any other report may move the phase by itself.
    pub(super) fn is_awaited(&self, report: &Report) -> bool {
        let (Report::Agent(_, agent), Some((start, awaited))) = (report, self.awaited()) else { return false };
        match (awaited, agent) {
            (Awaited::Environment, AgentState::Configured(of)) | (Awaited::Start, AgentState::Started(of)) => {
                *of == start
            }
            (Awaited::End, AgentState::Status(status)) => {
                status.state == RunState::Exited && status.generation == Some(start)
            }
            (Awaited::Environment | Awaited::Start | Awaited::End, _) => false,
        }
    }

    /// Whether the phase awaits something from another member. Then it stays the same.
    pub(super) fn waits_for_others(&self) -> bool {
        let Some((start, awaited)) = self.awaited() else { return false };
        let is_elastic = self.policy.elastic.is_some();
        let is_due = |replica: &Replica| {
            let is_member = !is_elastic || replica.seen.enrolled.is_some_and(|enrolled| enrolled.generation == start);
            let is_asked = awaited != Awaited::End || replica.is_stopped;
            // Every other state of the pod is a loss, or means that nothing runs there.
            let is_alive = matches!(replica.seen.pod, Some(PodState::Running(_)));
            is_member && is_asked && is_alive && is_before(&replica.seen.agent, start, awaited)
        };
        // Agents are called in this order, so the last ones are usually due for longest.
        self.replicas.values().rev().any(is_due)
    }

    fn awaited(&self) -> Option<(Generation, Awaited)> {
        match &self.phase {
            JobPhase::Starting { generation, stage: StartStage::Configuring, .. } => {
                Some((*generation, Awaited::Environment))
            }
            JobPhase::Starting { generation, stage: StartStage::Launching, .. } => Some((*generation, Awaited::Start)),
            JobPhase::Stopping { generation: Some(generation), .. } => Some((*generation, Awaited::End)),
            JobPhase::Stopping { generation: None, .. }
            | JobPhase::Pending { .. }
            | JobPhase::Running { .. }
            | JobPhase::Restarting { .. }
            | JobPhase::Suspended { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => None,
        }
    }
}

/// Whether an agent is known to be usable, and not to have done yet what is awaited.
fn is_before(agent: &AgentState, start: Generation, awaited: Awaited) -> bool {
    let reached = match agent {
        AgentState::Configured(of) if *of >= start => RunState::Configured,
        AgentState::Started(of) if *of >= start => RunState::Running,
        AgentState::Status(status) if status.generation >= Some(start) => status.state,
        // Before its environment, an agent reports nothing or an earlier start.
        AgentState::Configured(_) | AgentState::Started(_) | AgentState::Status(_) | AgentState::SeedOnly => {
            return awaited == Awaited::Environment;
        }
        AgentState::Silent | AgentState::Failed(_) | AgentState::Unreachable { .. } => return false,
    };
    match awaited {
        Awaited::Environment => reached == RunState::Idle,
        Awaited::Start => reached == RunState::Configured,
        Awaited::End => matches!(reached, RunState::Configured | RunState::Running | RunState::Stopping),
    }
}
