//! Tests of elastic jobs whose unreachable machines are replaced (`on_unreachable` is `replace`). The master cannot
//! observe when the script of an unreachable machine ends.

use std::time::Instant;

use protocol::job::JobSpec;
use protocol::run_policy::{OnUnreachable, RunPolicy};
use protocol::starts::ChangeCause;
use protocol::view::{JobState, JobView};
use testkit::fake::{AgentEvent, FakeAgent};

use crate::service::elastic::{agents, elastic, running_with, succeed};
use crate::service::harness::{Master, reach, worker};

/// An elastic job of 2 to 3 workers with a lease of 1 s.
fn leased(name: &str) -> JobSpec {
    let run_policy = RunPolicy {
        backoff_seconds: 0,
        on_unreachable: OnUnreachable::Replace,
        lease_seconds: 1,
        ..RunPolicy::default()
    };
    JobSpec { run_policy, ..elastic(name, 2, 3) }
}

/// When this agent's run ended.
fn ended_at(agent: &FakeAgent) -> Instant {
    let events = agent.history().events;
    let ended = events.iter().rev().find(|(_, event)| matches!(event, AgentEvent::Ended { .. }));
    ended.unwrap_or_else(|| panic!("the agent's run has not ended: {events:#?}")).0
}

fn cause(view: &JobView) -> Option<String> {
    let of =
        |cause: &ChangeCause| if let ChangeCause::Left { failure } = cause { Some(failure.to_string()) } else { None };
    view.changes.iter().rev().find_map(|change| of(&change.cause))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_cut_off_is_replaced_when_its_script_is_dead() {
    let master = Master::new();
    let spec = leased("partition");
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    let agents = agents(&master, &spec, &[0, 1, 2]).await;
    master.backend.hold(worker(1));
    agents[&1].cut_off(true);
    let view = running_with(&job, &[0, 2, 1]).await;
    assert_eq!(cause(&view).as_deref(), Some("worker-1 was lost: its agent did not answer for 1 s"));
    assert_eq!((view.restarts.total(), view.changes[1].workers), (0, 2), "{:#?}", view.changes);
    let began = agents[&0].history().configured_at[1];
    assert!(ended_at(&agents[&1]) <= began, "the script that was cut off still ran when the next start began");
    succeed(&self::agents(&master, &spec, &[0, 1, 2]).await);
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_pod_that_can_be_deleted_is_replaced() {
    let master = Master::new();
    let spec = leased("replaced");
    let job = master.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    let before = agents(&master, &spec, &[1]).await;
    before[&1].cut_off(true);
    let view = running_with(&job, &[0, 2, 1]).await;
    assert_eq!(view.restarts.total(), 0);
    let agents = agents(&master, &spec, &[0, 1, 2]).await;
    assert_ne!(agents[&1].address(), before[&1].address());
    succeed(&agents);
    reach(&job, JobState::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_waits_for_the_fence_of_an_agent_that_it_cannot_reach() {
    let first = Master::new();
    let spec = leased("inherited");
    let job = first.submit(spec.clone()).await;
    running_with(&job, &[0, 1, 2]).await;
    let agents = agents(&first, &spec, &[0, 1, 2]).await;
    first.backend.hold(worker(1));
    agents[&1].cut_off(true);
    let second = first.successor().await;
    let job = second.job(&spec.name);
    let view = running_with(&job, &[0, 2, 1]).await;
    assert_eq!((view.restarts.total(), view.changes[0].workers), (0, 2), "{:#?}", view.changes);
    let began = agents[&0].history().configured_at[1];
    assert!(ended_at(&agents[&1]) <= began, "the script that was cut off still ran when the next start began");
    succeed(&self::agents(&second, &spec, &[0, 1, 2]).await);
    reach(&job, JobState::Succeeded).await;
}
