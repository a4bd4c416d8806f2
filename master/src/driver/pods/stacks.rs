//! Asks the agents of a start where their scripts are.

use std::iter;
use std::net::SocketAddr;

use futures_util::{StreamExt, stream};
use job::replica::ReplicaPhase;
use protocol::ids::{Generation, ReplicaId};
use protocol::stacks::{Answer, Dump, ProcessStacks, ReplicaStacks};
use protocol::text;
use tokio::time::{Instant, timeout_at};

use super::replica::Replica;
use crate::agents::client::{AgentClient, STACKS_TIMEOUT};
use crate::driver::tasks::AGENTS_AT_ONCE;
use crate::error_chain::error_chain;

/// Maximum bytes of the dumps of all replicas, as JSON. Each replica may have an equal share.
const DUMPS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum number of processes of a replica, and maximum bytes of a name. These limits matter if another program
/// answers at an agent's address.
const PROCESSES_MAX: usize = 64;
const NAME_BYTES: usize = 256;

/// What is known of a member before its agent is asked.
type Member = Result<(SocketAddr, Generation), String>;

/// The address of the member's agent, and the start of the member's exec.py. If exec.py does not run, the reason.
pub(super) fn to_ask(phase: &ReplicaPhase, replica: Option<&Replica>) -> Member {
    match phase {
        ReplicaPhase::Running(start) => {
            let agent = replica.and_then(Replica::agent);
            agent.map(|agent| (agent, *start)).ok_or_else(|| "the address of its agent is unknown".to_owned())
        }
        ReplicaPhase::Exited(_, exit) => Err(format!("exec.py {}", exit.outcome)),
        ReplicaPhase::Lost(lost) => Err(protocol::failure::was_lost(&lost.reason)),
        ReplicaPhase::Requested | ReplicaPhase::Scheduled | ReplicaPhase::Joined | ReplicaPhase::Configured(_) => {
            Err(format!("exec.py has not started: {}", phase.state().as_str()))
        }
    }
}

/// Asks the agents of these members where their scripts are.
pub(super) async fn of(agents: AgentClient, members: Vec<(ReplicaId, Member)>, until: Instant) -> Vec<ReplicaStacks> {
    let share = DUMPS_BYTES_MAX / members.len().max(1);
    let agents = &agents;
    let turn = timeout_at(until, agents.turn_for_stacks()).await;
    let has_turn = turn.is_ok();
    let asked = stream::iter(members).map(|(replica, member)| async move {
        let answer = match member {
            Ok((agent, start)) if has_turn => asked(agents, agent, start, until).await,
            Ok(_) => Answer::WhyNot("the master asked for the stacks of other jobs meanwhile".to_owned()),
            Err(reason) => Answer::WhyNot(reason),
        };
        ReplicaStacks { replica, answer: within(answer, share) }
    });
    let mut all: Vec<ReplicaStacks> = asked.buffer_unordered(AGENTS_AT_ONCE).collect().await;
    all.sort_by_key(|stacks| stacks.replica);
    all
}

async fn asked(agents: &AgentClient, agent: SocketAddr, start: Generation, until: Instant) -> Answer {
    let until = until.min(Instant::now() + STACKS_TIMEOUT);
    match timeout_at(until, agents.stacks(agent, Some(start))).await {
        Ok(Ok(stacks)) if stacks.processes.is_empty() => Answer::WhyNot("exec.py has just ended".to_owned()),
        Ok(Ok(stacks)) => Answer::Processes(stacks.processes),
        Ok(Err(error)) => Answer::WhyNot(error_chain(&error)),
        Err(_) => Answer::WhyNot("its agent did not answer in time".to_owned()),
    }
}

/// Shortens the dumps to at most `room` bytes in total, counted as JSON. Each main process has an equal part with its child
/// processes. In this part, the dumps of the last processes are cut first.
fn within(answer: Answer, room: usize) -> Answer {
    let Answer::Processes(mut processes) = answer else { return answer };
    processes.truncate(PROCESSES_MAX);
    let share = room / processes.iter().filter(|process| process.process.is_some()).count().max(1);
    let mut left = share;
    for ProcessStacks { process, program, waits_in, dump, .. } in &mut processes {
        if process.is_some() {
            left = share;
        }
        for name in iter::once(program).chain(waits_in) {
            name.truncate(text::beginning(name, NAME_BYTES).len());
        }
        let (Dump::Text(dump) | Dump::WhyNot(dump)) = dump;
        dump.truncate(text::beginning(dump, left).len());
        left -= text::json_length(dump).min(left);
    }
    Answer::Processes(processes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_agents_of_a_few_jobs_are_asked_at_once_and_those_of_further_jobs_later_or_not_at_all() {
        let agents = AgentClient::new();
        let of_job = || {
            let exited: Member = Err("exec.py exited with code 1".to_owned());
            let runs: Member = Ok((([127, 0, 0, 1], 1).into(), Generation { epoch: 1, sequence: 1 }));
            let members = [("worker-0", exited), ("worker-1", runs)];
            let members = members.map(|(name, member)| (name.parse().unwrap(), member)).to_vec();
            of(agents.clone(), members, Instant::now() + Duration::from_secs(2))
        };
        let why_not = |stacks: &[ReplicaStacks]| {
            stacks.iter().map(|it| it.mains()[0].why_not().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut turns: Vec<_> = iter::from_fn(|| agents.turn_for_stacks().now_or_never()).collect();
        assert!(of_job().now_or_never().is_none(), "a further job does not wait");
        let waited = why_not(&of_job().await);
        assert_eq!(waited, ["exec.py exited with code 1", "the master asked for the stacks of other jobs meanwhile"]);
        turns.pop();
        let asked = why_not(&of_job().await);
        assert!(asked[1].contains("127.0.0.1:1"), "{asked:?}");
    }

    #[test]
    fn the_dumps_of_a_replica_are_cut_to_its_share_of_the_answer() {
        let process = |text: &str| ProcessStacks {
            pid: 1,
            process: None,
            program: "python3".to_owned(),
            state: 'S',
            cpu_percent: 0,
            waits_in: None,
            dump: Dump::Text(text.to_owned()),
        };
        let of = |texts: [&str; 2]| Answer::Processes(texts.map(process).to_vec());
        assert_eq!(within(of(["four", "four"]), 8), of(["four", "four"]));
        assert_eq!(within(of(["four", "four"]), 6), of(["four", "fo"]));
        assert_eq!(within(of(["\n\n", "four"]), 3), of(["\n", "f"]));
        let none = Answer::WhyNot("lost".to_owned());
        assert_eq!(within(none.clone(), 0), none);
    }
}
