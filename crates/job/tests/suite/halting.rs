//! Tests of jobs that wait for new code after their script has failed, and of new masters that find new code on record.

use std::time::Duration;

use job::gang::{Gang, HelperUse, Place};
use job::observation::{AgentState, Observation};
use job::phase::{
    Action, Attempt, Ending, Gathering, Halt, JobEvent, JobPhase, Known, PodSelection, Restart, StartStage, Stop, begin,
};
use job::policy::{Deadline, Policy, RELEASE_TIMEOUT};
use job::replica::ReplicaPhase::{Exited, Running, Scheduled};
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState, RunStatus};
use protocol::failure::{Failure, Loss};
use protocol::ids::Generation;
use protocol::view::JobResult;

use crate::support::{
    FIRST, GATHERING, POLICY, SECOND, SINCE, SOON, changed, exit, exited, fixed, found_place, id, lost, pending,
    reported, running_pod, seen, seen_anew, step, stop_with, stopped, stopping, was_lost, with_restarts, workers,
};

const AGAIN: Generation = Generation { epoch: 1, sequence: 2 };
const WAIT: Duration = Duration::from_secs(500);

/// The policy of a job that waits for new code after a failure, and that may restart `max_restarts` times.
fn halting(max_restarts: u32) -> Policy {
    changed(with_restarts(max_restarts), |policy| policy.rules.retries.halt = Some(WAIT))
}

/// The failure of worker-1.
fn failure() -> Failure {
    exited("worker-1", exit(1, 9))
}

/// The gang after [`failure`], when all runs are dead.
fn dead() -> Gang<'static> {
    workers(&[Exited(FIRST, stopped(10)), Exited(FIRST, exit(1, 9))])
}

/// The phase after the start [`FIRST`] has failed. `pushes` is the number of pushes before that start.
fn halted(pushes: u32) -> JobPhase {
    let (next, until) = (AGAIN, SOON + WAIT);
    JobPhase::Halted(Halt { generation: FIRST, next, failure: failure(), fingerprint: None, pushes, until })
}

fn look_at(now: Duration, phase: JobPhase, gang: &Gang<'_>, policy: &Policy) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::Observed, seen(gang, policy, now))
}

#[test]
fn a_job_whose_script_has_failed_waits_for_new_code_when_all_runs_are_dead() {
    let failing = stopping(Ending::Failed(failure()));
    let alive = workers(&[Running(FIRST), Exited(FIRST, exit(1, 9))]);
    assert_eq!(look_at(SOON, failing.clone(), &alive, &halting(0)).0, failing);
    assert_eq!(look_at(SOON, failing, &dead(), &halting(0)), (halted(0), vec![Action::RecordHalt]));
    assert_eq!(halted(0).deadline(&halting(0)), Some(SOON + WAIT));
    assert_eq!(look_at(SOON, halted(0), &dead(), &halting(0)), (halted(0), vec![]));
    let gone = workers(&[lost(), Exited(FIRST, exit(1, 9))]);
    assert_eq!(look_at(SOON, halted(0), &gone, &halting(0)), (halted(0), vec![]), "lost pods have ended the wait");
}

#[test]
fn a_job_waits_for_new_code_only_after_a_failure_of_its_script() {
    let never = ExitReport { outcome: ExitOutcome::NotStarted("a syntax error".to_owned()), ..exit(0, 1) };
    let disrupted =
        Failure::ReplicaLost { replica: id("worker-0"), reason: "drained".to_owned(), loss: Loss::Disrupted };
    let left = || exited("worker-0", exit(75, 1));
    let cases = [
        (failure(), HelperUse::None, true),
        (exited("worker-0", never), HelperUse::None, true),
        (exited("worker-0", exit(3, 1)), HelperUse::None, true),
        (left(), HelperUse::None, true),
        (left(), HelperUse::Stepped, false),
        (exited("worker-0", stopped(1)), HelperUse::None, false),
        (was_lost("worker-0"), HelperUse::None, false),
        (disrupted, HelperUse::None, false),
        (Failure::StartTimeout { missing: vec![], after_seconds: 1, reason: None }, HelperUse::None, false),
        (Failure::DeadlineExceeded { after_seconds: 1 }, HelperUse::None, false),
    ];
    let strict = changed(halting(0), |policy| policy.rules.retries.no_retry_exit_codes = [3].into());
    for (failure, helper, waits) in cases {
        assert_eq!(strict.wait_after(&failure, helper), waits.then_some(WAIT), "{failure:?}, {helper:?}");
        assert_eq!(POLICY.wait_after(&failure, helper), None);
    }
}

#[test]
fn new_code_starts_the_gang_again_at_once_and_uses_no_restart() {
    let pushed = changed(halting(0), |policy| policy.wishes.pushes = 1);
    let again = JobPhase::Restarting(Restart { next: AGAIN, is_empty: false, until: SOON, since: SOON });
    assert_eq!(look_at(SOON, halted(0), &dead(), &pushed), (again, vec![]));
    assert_eq!(look_at(SOON, halted(1), &dead(), &pushed), (halted(1), vec![]), "the failed code ends the wait");
}

#[test]
fn without_new_code_the_failure_is_judged_at_the_end_of_the_wait_or_at_the_deadline() {
    let late = SOON + WAIT;
    let result = JobResult::Failed { failure: failure() };
    let concluded = |now| {
        let releasing = JobPhase::Releasing { result: result.clone(), since: now };
        (releasing, vec![Action::Conclude(result.clone()), Action::ReleasePods])
    };
    let early = late - Duration::from_nanos(1);
    assert_eq!(look_at(early, halted(0), &dead(), &halting(0)), (halted(0), vec![]));
    assert_eq!(look_at(late, halted(0), &dead(), &halting(0)), concluded(late));
    let at = SOON + Duration::from_secs(1);
    let hurried = changed(halting(0), |policy| policy.wishes.deadline = Some(Deadline { at, given: at }));
    assert_eq!(halted(0).deadline(&hurried), Some(at));
    assert_eq!(look_at(at, halted(0), &dead(), &hurried), concluded(at));

    let three = halting(3);
    let (phase, actions) = look_at(late, halted(0), &dead(), &three);
    assert!(matches!(phase, JobPhase::Restarting(Restart { next: AGAIN, .. })), "{phase:?}");
    assert_eq!(actions, [Action::RecordRestart(failure())]);
}

#[test]
fn a_halted_job_can_be_cancelled_and_suspended() {
    let (gang, suspended) = (dead(), changed(halting(0), |policy| policy.wishes.is_suspended = true));
    let (phase, _) = step(halted(0), JobEvent::CancelWished, seen(&gang, &halting(0), SOON));
    assert_eq!(phase, stopping(Ending::Cancelled));
    let (phase, _) = look_at(SOON, halted(0), &gang, &suspended);
    // Every script is dead, so no script lacks the helper.
    let (next, grace) = (AGAIN, POLICY.rules.graces.saving);
    let (generation, ending) = (Some(FIRST), Ending::Suspended);
    assert_eq!(
        phase,
        JobPhase::Stopping(Stop {
            generation,
            horizon: generation,
            next,
            ending,
            since: SOON,
            evaluates_until: SOON,
            grace
        })
    );
    assert_eq!(look_at(SOON, phase, &gang, &suspended).0, JobPhase::Suspended { next: AGAIN });
}

#[test]
fn a_run_that_appears_while_the_job_waits_for_code_is_stopped_and_later_its_pod_is_deleted() {
    let late = workers(&[Running(FIRST), Exited(FIRST, exit(1, 9))]);
    let look = |now, policy: &Policy| look_at(now, halted(0), &late, policy);
    assert_eq!(look(SOON, &halting(0)), (halted(0), stop_with(Duration::ZERO)));
    let deleted = || (halted(0), vec![Action::DeletePods(PodSelection::Unended)]);
    assert_eq!(look(SOON + WAIT, &halting(0)), deleted(), "after the wait, the pod of the late run is not deleted");
    assert_eq!(look(SOON, &changed(halting(0), |policy| policy.wishes.pushes = 1)), deleted());
}

#[test]
fn a_new_master_reports_the_recorded_failure_after_the_recorded_wait_although_the_pod_is_lost() {
    let policy = halting(0);
    let JobPhase::Halted(halt) = halted(0) else { panic!("the phase is not Halted") };
    let halt = Halt { next: SECOND, ..halt };
    let (newest_failed, halted) = (Some(FIRST), Some(halt.clone()));
    let (phase, actions) = begin(Known { first: SECOND, newest_failed, halted, result: None }, &policy, SOON);
    assert_eq!((&phase, actions), (&JobPhase::Halted(halt.clone()), vec![]));
    let gang = workers(&[Exited(FIRST, stopped(10)), lost()]);
    let look = |now| step(phase.clone(), JobEvent::Observed, seen_anew(&gang, &policy, now)).0;
    assert_eq!(look(SOON), phase);
    let result = JobResult::Failed { failure: failure() };
    assert_eq!(look(halt.until), JobPhase::Releasing { result, since: halt.until });
}

#[test]
fn a_new_master_that_finds_the_wait_over_gives_the_agents_some_time_to_report() {
    let now = Duration::ZERO;
    let JobPhase::Halted(halt) = halted(0) else { panic!("the phase is not Halted") };
    let late = changed(halting(0), |policy| policy.wishes.deadline = Some(Deadline { at: now, given: SOON }));
    for (policy, until) in [(halting(0), now), (late, now + WAIT)] {
        let phase = || JobPhase::Halted(Halt { until, ..halt.clone() });
        let look = |now, other| {
            let gang = workers(&[other, Exited(FIRST, exit(1, 9))]);
            matches!(look_at(now, phase(), &gang, &policy).0, JobPhase::Releasing { .. })
        };
        assert!(!look(now, Scheduled), "the job ends before an agent has answered");
        assert!(look(now, Exited(FIRST, stopped(10))), "the job waits after all agents have answered");
        assert!(look(RELEASE_TIMEOUT, Scheduled), "the job still waits for a report after `release_timeout`");
    }
}

/// A worker as a new master observes it.
fn found(index: u32, agent: AgentState, horizon: Option<Generation>) -> Place<'static> {
    let seen = Observation { agent, is_found: true, ..running_pod() };
    found_place(id(&format!("worker-{index}")), seen, horizon)
}

/// An agent that was configured for `generation` after this number of pushes. If `exit` is given, the run has ended.
fn status(generation: Generation, pushes: u32, exit: Option<ExitReport>) -> AgentState {
    let state = if exit.is_some() { RunState::Exited } else { RunState::Configured };
    let membership = Some(Membership { seat: 0, of: 2, start: generation.sequence - 1, pushes });
    reported(RunStatus { membership, ..crate::support::status(state, generation, exit) })
}

/// A worker whose agent reports the end of its run in the first start. A user had pushed once before this start.
fn ended(index: u32, report: ExitReport) -> Place<'static> {
    found(index, status(FIRST, 1, Some(report)), None)
}

#[test]
fn a_new_master_halts_the_job_again_and_then_restarts_it_if_newer_code_is_on_record() {
    let gang = fixed(vec![ended(0, stopped(10)), ended(1, exit(1, 9))]);
    for (pushes, starts_again) in [(1, false), (2, true)] {
        let policy = changed(halting(0), |policy| policy.wishes.pushes = pushes);
        let seen = seen_anew(&gang, &policy, SOON);
        let look = |phase| step(phase, JobEvent::Observed, seen).0;
        let (halted, actions) = step(look(pending()), JobEvent::Observed, seen);
        let until = SOON + WAIT;
        let expected =
            Halt { generation: FIRST, next: SECOND, failure: failure(), fingerprint: None, pushes: 1, until };
        assert_eq!(halted, JobPhase::Halted(expected));
        assert_eq!(actions, if starts_again { vec![] } else { vec![Action::RecordHalt] });
        let next = look(halted);
        assert_eq!(matches!(next, JobPhase::Restarting(Restart { next: SECOND, .. })), starts_again, "{next:?}");
    }
}

/// An agent that was stopped after it was configured and before it started its run.
fn called_back(index: u32, generation: Generation, pushes: u32, horizon: Option<Generation>) -> Place<'static> {
    let never = ExitReport { outcome: ExitOutcome::NotStarted("stopped".to_owned()), ..stopped(10) };
    found(index, status(generation, pushes, Some(never)), horizon)
}

#[test]
fn a_new_master_repeats_a_start_with_new_code_that_an_earlier_master_was_configuring_and_records_no_failure() {
    let policies = [POLICY, halting(0)].map(|policy| changed(policy, |policy| policy.wishes.pushes = 1));
    // `end` is how the old runs ended: stopped, or failed because another script was stopped.
    for (policy, end) in policies.iter().flat_map(|policy| [(policy, stopped(9)), (policy, exit(1, 9))]) {
        let look = |phase, members: Vec<Place<'static>>| {
            let gang = fixed(members);
            step(phase, JobEvent::Observed, seen_anew(&gang, policy, SOON))
        };
        let ended = |horizon| found(1, status(FIRST, 0, Some(end.clone())), horizon);
        let is_next = |phase: &JobPhase| {
            matches!(phase, JobPhase::Starting(Attempt { generation: SECOND, stage: StartStage::Configuring, .. }))
        };
        let gathering = || JobPhase::Pending { gathering: Gathering { next: SECOND, ..GATHERING }, since: SINCE };
        // The earlier master died when one of the agents had the environment of the next start.
        let members = |third| vec![found(0, status(AGAIN, 1, None), None), ended(None), found(2, third, None)];
        assert_eq!(look(gathering(), members(AgentState::Silent)).0, gathering());
        for third in [reported(RunStatus::idle("boot")), status(FIRST, 0, Some(end.clone()))] {
            let (phase, _) = look(gathering(), members(third));
            assert!(is_next(&phase), "{phase:?}");
        }
        // Here an earlier master died after it had stopped agent 0, which had not started its run.
        let members = vec![called_back(0, AGAIN, 1, None), ended(None), ended(None)];
        let (phase, _) = look(gathering(), members);
        assert!(is_next(&phase), "{phase:?}");
    }
}
