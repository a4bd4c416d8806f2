//! The reports that the phase needs from every member of a start: an acknowledgement, or the end of a run. Only the
//! last of these reports can move the phase. `step` takes long for a large gang, so the driver does not call it for the
//! earlier reports.

use job::observation::{AgentState, PodState};
use job::phase::{Attempt, JobPhase, StartStage};
use protocol::agent::RunState;
use protocol::ids::Generation;

use super::replica::Replica;
use super::table::ReplicaTable;
use crate::driver::reports::Report;

/// What the phase awaits from each member of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The member has its environment.
    Environment,
    /// The member's exec.py was started.
    Start,
    /// The member's run has ended after a stop request.
    End,
}

/// Whether this report is what the phase awaits from each member. Any other report may move the phase at once.
pub(in crate::driver) fn is_awaited(phase: &JobPhase, report: &Report) -> bool {
    let (Report::Agent(_, agent), Some((start, awaited))) = (report, awaited(phase)) else { return false };
    match (awaited, agent) {
        (Awaited::Environment, AgentState::Configured(of)) | (Awaited::Start, AgentState::Started(of)) => *of == start,
        (Awaited::End, AgentState::Status(status)) => {
            status.state == RunState::Exited && status.generation == Some(start)
        }
        (Awaited::Environment | Awaited::Start | Awaited::End, _) => false,
    }
}

/// Whether the phase still awaits a report from one of these replicas. If so, a step would change nothing.
pub(in crate::driver) fn awaits_others(phase: &JobPhase, replicas: &ReplicaTable) -> bool {
    let Some((start, awaited)) = awaited(phase) else { return false };
    let is_due = |replica: &Replica| {
        let is_asked = awaited != Awaited::End || replica.tracked.is_stopped;
        // If the pod is in any other state, the member is lost or has no run.
        let is_alive = matches!(replica.tracked.seen.pod, Some(PodState::Running(_)));
        is_asked
            && is_alive
            && is_before(&replica.tracked.seen.agent, start, awaited)
            && replica.tracked.is_member(start)
    };
    // Agents are called in the order of the table, so the last agents usually answer last. Search from the end.
    replicas.iter().rev().any(|(_, replica)| is_due(replica))
}

fn awaited(phase: &JobPhase) -> Option<(Generation, Awaited)> {
    if let JobPhase::Starting(Attempt { generation, stage, .. }) = phase {
        let awaited = match stage {
            StartStage::Configuring => Awaited::Environment,
            StartStage::Launching => Awaited::Start,
        };
        return Some((*generation, awaited));
    }
    let JobPhase::Stopping(stop) = phase else { return None };
    stop.generation.map(|generation| (generation, Awaited::End))
}

/// Whether the agent is usable and has not yet done what the phase awaits.
fn is_before(agent: &AgentState, start: Generation, awaited: Awaited) -> bool {
    let reached = match agent {
        AgentState::Configured(of) if *of >= start => RunState::Configured,
        AgentState::Started(of) if *of >= start => RunState::Running,
        AgentState::Status(status) if status.generation >= Some(start) => status.state,
        // An agent without this start's environment reports no start or an earlier start.
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

#[cfg(test)]
mod tests {
    use protocol::agent::RunStatus;

    use super::*;
    use job::observation::LostRun;

    #[test]
    fn a_phase_waits_only_for_usable_agents_that_have_not_done_what_the_phase_awaits() {
        let [earlier, start, later] = ["1.1", "1.2", "1.3"].map(|start| start.parse().unwrap());
        let status = |state, generation| {
            AgentState::Status(Box::new(RunStatus { state, generation, ..RunStatus::idle("boot") }))
        };
        let lost = || LostRun::broken("no answer");
        // For each state of an agent: whether a phase that awaits environments, starts or ends waits for this agent.
        let (none, environment, beginning, end) =
            ([false; 3], [true, false, false], [false, true, true], [false, false, true]);
        let cases = [
            (AgentState::Silent, none),
            (AgentState::Failed(lost()), none),
            (AgentState::Unreachable { lost: lost(), is_fenced: false }, none),
            (AgentState::SeedOnly, environment),
            (AgentState::Configured(earlier), environment),
            (AgentState::Started(earlier), environment),
            (AgentState::Configured(start), beginning),
            (AgentState::Started(start), end),
            (AgentState::Configured(later), beginning),
            (status(RunState::Idle, None), environment),
            (status(RunState::Exited, Some(earlier)), environment),
            (status(RunState::Running, Some(earlier)), environment),
            (status(RunState::Configured, Some(start)), beginning),
            (status(RunState::Running, Some(start)), end),
            (status(RunState::Stopping, Some(start)), end),
            (status(RunState::Exited, Some(start)), none),
            (status(RunState::Exited, Some(later)), none),
        ];
        for (agent, expected) in cases {
            let waits = [Awaited::Environment, Awaited::Start, Awaited::End].map(|it| is_before(&agent, start, it));
            assert_eq!(waits, expected, "{agent:?}");
        }
    }
}
