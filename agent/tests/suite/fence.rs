//! A run that needs polls is killed if no polls arrive.

use protocol::agent::{ExitOutcome, RunState};
use protocol::lease::ClockMillis;

use crate::support::{Agent, wait_until};

fn clock(agent: &Agent) -> u64 {
    agent.status().clock_ms.expect("the status has no clock").0
}

/// Starts a run that needs polls. Returns the agent, and the time of the agent's clock that the config named.
fn started(fence_ms: u64) -> (Agent, u64) {
    let agent = Agent::of_shell("sleep 600 & sleep 600");
    let heard = clock(&agent);
    assert_eq!(agent.post(&format!("/config?fence_ms={fence_ms}&heard_ms={heard}"), "{}").status, 200);
    assert_eq!(agent.get("/run").status, 200);
    (agent, heard)
}

/// Waits until the agent's clock shows this time.
fn wait_for_clock(agent: &Agent, time: u64) {
    wait_until("the agent's clock", || (clock(agent) > time).then_some(()));
}

#[test]
fn a_run_without_polls_is_killed_with_its_children() {
    let (agent, heard) = started(700);
    let exit = agent.wait_for_exit();
    assert_eq!((exit.outcome, exit.stopped, exit.terminated), (ExitOutcome::Signal(9), true, false));
    assert!(clock(&agent) >= heard + 700, "the run was killed before its fence");
}

#[test]
fn polls_keep_a_run_alive_but_polls_that_name_an_old_time_do_not() {
    let (agent, heard) = started(1500);
    let renew = |heard: u64| agent.get(&format!("/status?fence_ms=1500&heard_ms={heard}"));
    while clock(&agent) < heard + 2000 {
        assert_eq!(renew(clock(&agent)).status, 200);
    }
    assert_eq!(agent.status().state, RunState::Running, "wrong state of a run with polls after its first fence");
    wait_until("the end of the run", || {
        renew(heard);
        (agent.status().state == RunState::Exited).then_some(())
    });
}

#[test]
fn a_run_whose_config_arrives_after_its_fence_is_not_started() {
    let agent = Agent::of_shell("echo started");
    assert_eq!(agent.post("/config?generation=1.1&fence_ms=1&heard_ms=0", "{}").status, 200);
    agent.get("/run?generation=1.1");
    let status = agent.wait_for(RunState::Exited);
    assert!(matches!(status.exit.expect("the exited run has no report").outcome, ExitOutcome::NotStarted(_)));
    assert_eq!(agent.logs("both"), b"");
    // A master that has read the agent's clock again can configure the next start.
    let heard = clock(&agent);
    assert_eq!(agent.post(&format!("/config?generation=1.2&fence_ms=60000&heard_ms={heard}"), "{}").status, 200);
    assert_eq!(agent.get("/run?generation=1.2").status, 200);
    agent.wait_for_output("started");
}

#[test]
fn a_run_whose_config_has_no_fence_needs_no_polls() {
    let (agent, heard) = started(600);
    agent.wait_for_exit();
    agent.go();
    wait_for_clock(&agent, heard + 1000);
    assert_eq!(agent.status().state, RunState::Running);
}

#[test]
fn an_incomplete_or_invalid_renewal_or_wait_is_refused() {
    let agent = Agent::of_shell("sleep 600");
    for query in ["fence_ms=1", "heard_ms=1", "fence_ms=1&heard_ms=x", "after=1&wait_ms=x"] {
        assert_eq!(agent.get(&format!("/status?{query}")).status, 400, "{query}");
    }
    assert!(agent.status().clock_ms > Some(ClockMillis(0)));
}
