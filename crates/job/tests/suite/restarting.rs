//! Tests of the phases from a failed start to the next start, or to the end of a job that has no restarts left.

use std::time::Duration;

use job::gang::{Gang, Place};
use job::observation::Presence::{Absent, Ended, Live};
use job::observation::{Enrolled, LostRun, Observation, PodDeletion};
use job::phase::{
    Action, Attempt, Ending, Gathering, JobEvent, JobPhase, PodSelection, Restart, Seen, StartStage, Stop,
};
use job::policy::{Deadline, Policy};
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Requested, Running, Scheduled};
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState};
use protocol::failure::{Failure, Loss, Restarts};
use protocol::ids::Generation;
use protocol::lease::Lease;
use protocol::run_policy::{CleanPods, OnStartTimeout};
use protocol::view::JobResult;

use crate::support::{
    FIRST, GATHERING, NO_RESTARTS, POLICY, SINCE, SOON, absent, begin_start, changed, create, delete, ending_of, exit,
    exited, fixed, id, lost, observed, pending, place, reported, restarting, running, running_pod, seen, starting,
    status, step, stop_with, stopped, stopping, stopping_unstarted, was_lost, with_pods, with_restarts, workers,
};

/// The second start of a job under its first master.
const AGAIN: Generation = Generation { epoch: 1, sequence: 2 };
/// [`POLICY`] with three restarts.
const THREE: Policy = with_restarts(3);

/// One step that observes the gang under `policy`, after `counted` restarts that count.
fn look(phase: JobPhase, gang: &Gang<'_>, policy: &Policy, counted: u32) -> (JobPhase, Vec<Action>) {
    look_at(SOON, phase, gang, (policy, counted))
}

fn look_at(now: Duration, phase: JobPhase, gang: &Gang<'_>, rules: (&Policy, u32)) -> (JobPhase, Vec<Action>) {
    let (policy, counted) = rules;
    let restarts = Restarts { counted, ..NO_RESTARTS.clone() };
    step(phase, JobEvent::Observed, Seen { restarts: &restarts, ..seen(gang, policy, now) })
}

/// The phase before the second start. It lasts until `until`, and until all unfit pods are deleted.
fn waiting(until: Duration) -> JobPhase {
    JobPhase::Restarting(Restart { next: AGAIN, is_empty: false, until, since: until })
}

/// The expected phase and actions when a failure leads to a restart after `pause`.
fn restarted_after(failure: Failure, pause: Duration) -> (JobPhase, Vec<Action>) {
    (waiting(SOON + pause), vec![Action::RecordRestart(failure)])
}

/// The expected phase and actions when a failure is final.
fn concluded(failure: Failure) -> (JobPhase, Vec<Action>) {
    let result = JobResult::Failed { failure };
    let releasing = JobPhase::Releasing { result: result.clone(), since: SOON };
    (releasing, vec![Action::Conclude(result), Action::ReleasePods])
}

/// The phase that gathers the gang for the second start.
fn gathering_again(since: Duration) -> JobPhase {
    JobPhase::Pending { gathering: Gathering { next: AGAIN, horizon: Some(AGAIN), ..GATHERING }, since }
}

fn lost_by(loss: Loss) -> ReplicaPhase {
    ReplicaPhase::Lost(LostRun { reason: "its node died".to_owned(), loss })
}

fn was_lost_by(replica: &str, loss: Loss) -> Failure {
    Failure::ReplicaLost { replica: id(replica), reason: "its node died".to_owned(), loss }
}

fn not_started(stopped: bool) -> ExitReport {
    ExitReport { outcome: ExitOutcome::NotStarted("there is no python3".to_owned()), stopped, ..exit(0, 1) }
}

fn timed_out(missing: &[&str]) -> Failure {
    let missing = missing.iter().map(|name| id(name)).collect();
    Failure::StartTimeout { missing, after_seconds: 600, reason: None }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_failure_within_the_budget_restarts_the_whole_gang_in_the_next_generation() {
    let failure = exited("worker-1", exit(3, 9));
    let dead = workers(&[Exited(FIRST, stopped(10)), Exited(FIRST, exit(3, 9))]);
    let stopping = stopping(Ending::Failed(failure.clone()));
    assert_eq!(look(stopping, &dead, &THREE, 0), restarted_after(failure, POLICY.rules.retries.backoff));

    let fit = workers(&[Joined, Joined]);
    let until = SOON + POLICY.rules.retries.backoff;
    let begun = look_at(until, waiting(until), &fit, (&THREE, 1));
    assert_eq!(begun, (gathering_again(until), vec![]));
    let (phase, actions) = look_at(until, gathering_again(until), &fit, (&THREE, 1));
    let configuring =
        JobPhase::Starting(Attempt { generation: AGAIN, stage: StartStage::Configuring, since: until, pushes: 0 });
    assert_eq!((phase, actions), (configuring, begin_start(AGAIN, 2)));
}

#[test]
fn the_pause_doubles_with_each_counted_restart_up_to_five_minutes() {
    let generous = changed(POLICY, |policy| policy.rules.retries.max_restarts = u32::MAX);
    let failure = exited("worker-0", exit(1, 9));
    let dead = workers(&[Exited(FIRST, exit(1, 9))]);
    for (counted, pause) in [(0, 5), (1, 10), (2, 20), (5, 160), (6, 300), (7, 300), (40, 300), (4_000_000, 300)] {
        let moved = look(stopping(Ending::Failed(failure.clone())), &dead, &generous, counted);
        assert_eq!(moved, restarted_after(failure.clone(), seconds(pause)), "wrong pause after {counted} restarts");
    }
}

#[test]
fn when_all_runs_are_dead_the_job_restarts_or_fails_by_the_verdict_on_the_failure() {
    let strict = changed(THREE, |policy| policy.rules.retries.no_retry_exit_codes = [2].into());
    let (crash, timeout) = (exited("worker-0", exit(1, 1)), timed_out(&["worker-1"]));
    let late = Failure::DeadlineExceeded { after_seconds: 3600 };
    let dead = || vec![Exited(FIRST, exit(1, 1)), Exited(FIRST, stopped(2))];
    for (failure, replicas, counted, restarts) in [
        (crash.clone(), dead(), 0, true),
        (crash, dead(), 3, false),
        // An eviction leads to a restart even without restarts left.
        (was_lost_by("worker-0", Loss::Disrupted), vec![lost_by(Loss::Disrupted), Exited(FIRST, stopped(1))], 3, true),
        (exited("worker-0", exit(2, 1)), vec![Exited(FIRST, exit(2, 1))], 0, false),
        (exited("worker-0", not_started(false)), vec![Exited(FIRST, not_started(false))], 0, false),
        (was_lost_by("worker-0", Loss::Hopeless), vec![lost_by(Loss::Hopeless)], 0, false),
        (timeout, vec![Joined, Requested], 0, false),
        // After the deadline, no failed run is the cause.
        (late, dead(), 0, false),
    ] {
        let moved = look(stopping(Ending::Failed(failure.clone())), &workers(&replicas), &strict, counted);
        let expected =
            if restarts { restarted_after(failure, POLICY.rules.retries.backoff) } else { concluded(failure) };
        assert_eq!(moved, expected, "after {counted} restarts");
    }
}

#[test]
fn a_pod_is_unfit_while_a_run_of_an_old_start_is_alive_in_it() {
    for state in [RunState::Running, RunState::Stopping] {
        let seen = Observation { agent: reported(status(state, FIRST, None)), ..running_pod() };
        let place = Place::of(id("worker-0"), &seen, Some(AGAIN));
        assert!(!place.is_fit() && !place.phase.has_joined(), "{place:?}");
    }
}

#[test]
fn nothing_is_created_before_the_pause_is_over() {
    let until = SINCE + POLICY.rules.retries.backoff;
    let fit = workers(&[Joined, Joined]);
    let early = look_at(until - Duration::from_nanos(1), restarting(), &fit, (&THREE, 1));
    assert_eq!(early, (restarting(), vec![]));
}

#[test]
fn unfit_pods_are_replaced_during_the_pause() {
    for unfit in [(lost(), Live), (lost(), Ended), (Joined, Ended)] {
        let seen = with_pods(&[(Joined, Live), unfit.clone()]);
        assert_eq!(look(restarting(), &seen, &THREE, 1), (restarting(), delete(&["worker-1"])), "{unfit:?}");
    }
    let swept = with_pods(&[(Joined, Live), (Requested, Absent)]);
    assert_eq!(look(restarting(), &swept, &THREE, 1), (restarting(), create(&["worker-1"])));
}

#[test]
fn a_lost_pod_that_still_exists_after_the_pause_is_no_failure_of_the_next_start_and_its_start_timeout_names_it() {
    let until = SINCE + POLICY.rules.retries.backoff;
    let lost = observed(&place("worker-1", lost(), Live), |seen| seen.deletion = PodDeletion::Asked);
    let seen = fixed(vec![place("worker-0", Joined, Live), lost]);
    let (gathering, actions) = look_at(until, restarting(), &seen, (&THREE, 1));
    assert_eq!((&gathering, actions), (&gathering_again(until), delete(&["worker-1"])));
    assert_eq!(look_at(until, gathering.clone(), &seen, (&THREE, 1)), (gathering.clone(), delete(&["worker-1"])));

    let (phase, _) = look_at(until + POLICY.rules.start_timeout, gathering, &seen, (&THREE, 1));
    assert_eq!(ending_of(phase), Ending::Failed(timed_out(&["worker-1"])));
}

#[test]
fn a_pod_that_is_evicted_before_the_start_is_replaced_and_does_not_extend_the_start_timeout() {
    let seen = with_pods(&[(Joined, Live), (lost_by(Loss::Disrupted), Ended)]);
    assert_eq!(look(pending(), &seen, &POLICY, 0), (pending(), delete(&["worker-1"])));
    assert_eq!(pending().deadline(&POLICY), Some(SINCE + POLICY.rules.start_timeout));
}

#[test]
fn a_second_start_that_times_out_does_not_report_the_failure_of_the_first() {
    let (phase, _) = look_at(seconds(900), gathering_again(SINCE), &workers(&[Joined, Requested]), (&THREE, 1));
    assert_eq!(phase.horizon(), Some(AGAIN));
    let JobPhase::Stopping(Stop { generation: None, next: AGAIN, ending, .. }) = phase else { panic!("{phase:?}") };
    assert_eq!(ending, Ending::Failed(timed_out(&["worker-1"])));
}

#[test]
fn a_start_times_out_in_each_of_its_stages_and_names_the_missing_replicas() {
    let stages = [
        (pending(), vec![Joined, Scheduled, Requested], vec!["worker-1", "worker-2"]),
        (starting(StartStage::Configuring), vec![Configured(FIRST), Joined], vec!["worker-1"]),
        (starting(StartStage::Launching), vec![Running(FIRST), Configured(FIRST)], vec!["worker-1"]),
    ];
    let late = SINCE + POLICY.rules.start_timeout;
    for (phase, members, missing) in stages {
        let early = look_at(late - Duration::from_nanos(1), phase.clone(), &workers(&members), (&THREE, 0));
        assert_eq!(early, (phase.clone(), vec![]));
        let (moved, actions) = look_at(late, phase.clone(), &workers(&members), (&THREE, 0));
        assert_eq!((ending_of(moved), actions), (Ending::Failed(timed_out(&missing)), stop_with(Duration::ZERO)));
    }
}

#[test]
fn a_requeue_deletes_all_pods_and_creates_them_again_after_a_pause() {
    let requeue = changed(POLICY, |policy| policy.rules.retries.on_start_timeout = OnStartTimeout::Requeue);
    let failure = timed_out(&["worker-1"]);
    let until = SOON + POLICY.rules.retries.requeue_pause;
    let given_back = JobPhase::Restarting(Restart { next: AGAIN, is_empty: true, until, since: until });
    let actions = vec![Action::RecordRestart(failure.clone()), Action::DeletePods(PodSelection::All)];
    let held = workers(&[Joined, Requested]);
    assert_eq!(look(stopping(Ending::Failed(failure)), &held, &requeue, 0), (given_back.clone(), actions));

    let waits = look_at(until, given_back.clone(), &held, (&requeue, 0));
    let asked_again = vec![Action::DeletePods(PodSelection::All)];
    assert_eq!(waits, (given_back.clone(), asked_again), "the requeue does not delete all pods again");
    let again = look_at(until, given_back, &absent(2), (&requeue, 0));
    assert_eq!(again, (gathering_again(until), create(&["worker-0", "worker-1"])));
}

#[test]
fn a_job_fails_at_its_deadline_while_it_waits_or_starts_or_runs() {
    let deadline = Deadline { at: seconds(102), given: seconds(3600) };
    let hurried = changed(THREE, |policy| policy.wishes.deadline = Some(deadline));
    let launching = workers(&[Running(FIRST), Configured(FIRST)]);
    let phases = [
        (pending(), workers(&[Joined, Scheduled])),
        (starting(StartStage::Configuring), workers(&[Configured(FIRST), Joined])),
        (starting(StartStage::Launching), launching),
        (running(), workers(&[Running(FIRST), Running(FIRST)])),
        (restarting(), workers(&[Joined, Joined])),
    ];
    for (phase, gang) in phases {
        assert_eq!(phase.deadline(&hurried), Some(deadline.at), "{phase:?}");
        let early = look_at(deadline.at - Duration::from_nanos(1), phase.clone(), &gang, (&hurried, 0));
        assert_eq!(early, (phase.clone(), vec![]));
        let (moved, _) = look_at(deadline.at, phase.clone(), &gang, (&hurried, 0));
        let failure = Failure::DeadlineExceeded { after_seconds: 3600 };
        assert_eq!(ending_of(moved), Ending::Failed(failure), "{phase:?}");
    }
}

#[test]
fn a_success_that_is_observed_while_stopping_overrides_the_failure_of_a_stopped_run() {
    let known = Ending::Failed(exited("worker-1", stopped(9)));
    let (phase, actions) = look(stopping(known), &workers(&[Exited(FIRST, exit(0, 1))]), &THREE, 0);
    assert_eq!(phase, JobPhase::Releasing { result: JobResult::Succeeded, since: SOON });
    assert_eq!(actions, [Action::Conclude(JobResult::Succeeded), Action::ReleasePods]);
}

#[test]
fn a_stopped_run_with_exit_code_0_has_not_succeeded() {
    let saved = ExitReport { stopped: true, ..exit(0, 1) };
    let failure = exited("worker-0", saved.clone());
    let gang = workers(&[Exited(FIRST, saved)]);
    assert_eq!(look(running(), &gang, &POLICY, 0), (stopping(Ending::Failed(failure)), stop_with(Duration::ZERO)));
    // With a lease, the agent may have stopped the run, because it heard nothing from its master.
    let leased = changed(POLICY, |policy| policy.rules.lease = Some(Lease::new(Duration::from_secs(5))));
    let (phase, _) = look(running(), &gang, &leased, 0);
    assert!(matches!(phase, JobPhase::Stopping(Stop { ending: Ending::Regroup, .. })), "{phase:?}");
}

#[test]
fn a_cancel_ends_a_job_that_waits_for_its_next_start() {
    let gang = workers(&[Joined, Joined]);
    let (phase, actions) = step(restarting(), JobEvent::CancelWished, seen(&gang, &THREE, SOON));
    let ending = Ending::Cancelled;
    let expected = JobPhase::Stopping(Stop {
        generation: None,
        horizon: Some(AGAIN),
        next: AGAIN,
        ending,
        since: SOON,
        evaluates_until: SOON,
        grace: POLICY.rules.graces.cancel,
    });
    assert_eq!((&phase, actions), (&expected, vec![Action::StopRuns { grace: POLICY.rules.graces.cancel }]));
    let (phase, _) = step(phase, JobEvent::CancelWished, seen(&gang, &THREE, SOON));
    assert_eq!(phase, JobPhase::Releasing { result: JobResult::Cancelled, since: SOON });
}

#[test]
fn a_job_that_keeps_its_pods_is_finished_when_its_last_run_has_ended() {
    let keep = changed(POLICY, |policy| policy.rules.clean_pods = CleanPods::None);
    let dead = workers(&[Exited(FIRST, exit(0, 1)), Exited(FIRST, stopped(2))]);
    let finished = JobPhase::Finished { result: JobResult::Cancelled };
    let moved = look(stopping(Ending::Cancelled), &dead, &keep, 0);
    let (releasing, actions) = moved;
    let idle = Action::DeletePods(PodSelection::Idle);
    assert_eq!(actions, [Action::Conclude(JobResult::Cancelled), idle.clone()]);
    assert_eq!(look(releasing, &dead, &keep, 0), (finished.clone(), vec![]));
    assert_eq!(look(finished.clone(), &dead, &keep, 0), (finished.clone(), vec![]));
    // An agent that never got a run does not end by itself, so its pod is deleted.
    assert_eq!(look(finished.clone(), &workers(&[Joined]), &keep, 0), (finished, vec![idle]));
}

#[test]
fn with_clean_pods_all_every_pod_of_a_finished_job_is_deleted() {
    let clean = changed(POLICY, |policy| policy.rules.clean_pods = CleanPods::All);
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    for left in [Live, Ended] {
        let seen = with_pods(&[(Exited(FIRST, exit(0, 1)), Absent), (Exited(FIRST, exit(0, 1)), left)]);
        let expected = (finished.clone(), vec![Action::DeletePods(PodSelection::All)]);
        assert_eq!(look(finished.clone(), &seen, &clean, 0), expected, "{left:?}");
    }
    let none = with_pods(&[(Requested, Absent)]);
    assert_eq!(look(finished.clone(), &none, &clean, 0), (finished, vec![]));
}

#[test]
fn a_pod_that_broke_before_the_first_start_leads_to_a_restart() {
    let failure = was_lost("worker-1");
    let failing = stopping_unstarted(Ending::Failed(failure.clone()));
    let (phase, actions) = look(failing, &workers(&[Joined, lost()]), &THREE, 2);
    let until = SOON + POLICY.rules.retries.backoff * 4;
    assert_eq!(phase, JobPhase::Restarting(Restart { next: FIRST, is_empty: false, until, since: until }));
    assert_eq!(actions, [vec![Action::RecordRestart(failure)], delete(&["worker-1"])].concat());
}

#[test]
fn a_pod_of_an_earlier_start_that_ends_between_two_starts_is_replaced_and_is_no_failure() {
    let ended = || ReplicaPhase::Lost(LostRun::broken("its agent ended with exit code 0"));
    let gang = |enrolled| {
        let ended = observed(&place("worker-1", ended(), Ended), |seen| seen.enrolled = enrolled);
        Gang::new(vec![place("worker-0", Joined, Live), ended], Some(AGAIN))
    };
    let membership = Membership { seat: 1, of: 2, start: 0, pushes: 0 };
    let old = gang(Some(Enrolled { generation: FIRST, membership }));
    assert_eq!(look(gathering_again(SINCE), &old, &THREE, 1), (gathering_again(SINCE), delete(&["worker-1"])));
    let (phase, _) = look(gathering_again(SINCE), &gang(None), &THREE, 1);
    assert!(matches!(phase, JobPhase::Stopping(Stop { ending: Ending::Failed(_), .. })), "{phase:?}");
}
