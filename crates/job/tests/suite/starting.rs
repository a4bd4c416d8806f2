//! Tests of the phases from the creation of pods until the gang runs.

use std::time::Duration;

use job::observation::PodState;
use job::observation::Presence::{Absent, Live};
use job::phase::{Action, Attempt, Ending, Halt, JobEvent, JobPhase, Restart, Seen, StartStage, next_look};
use job::policy::{RELEASE_TIMEOUT, STOP_GRACE};
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Requested, Running, Scheduled};
use job::turns::Turn;
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::Failure;
use protocol::view::{JobResult, JobState};

use crate::support::{
    FIRST, GATHERING, POLICY, SINCE, SOON, absent, begin_start, begun, changed, create, ending_of, exit, exited, fixed,
    id, look, look_at, lost, observed, pending, place, restarting, running, seen, starting, step, stop_with, stopped,
    stopping, with_pods, workers,
};

#[test]
fn a_replica_whose_stopped_run_left_it_in_a_pod_that_leaves_is_missing_when_the_gang_is_late() {
    let not_started = ExitReport { outcome: ExitOutcome::NotStarted("stopped".to_owned()), ..stopped(1) };
    let leaving = observed(&place("worker-1", Exited(FIRST, not_started), Live), |seen| {
        seen.pod = Some(PodState::Leaving { reason: "drained".to_owned() });
    });
    let gang = fixed(vec![place("worker-0", Joined, Live), leaving]);
    let (phase, _) = look_at(SINCE + POLICY.rules.start_timeout, pending(), &gang);
    let Ending::Failed(Failure::StartTimeout { missing, .. }) = ending_of(phase) else { panic!("not late") };
    assert_eq!(missing, [id("worker-1")]);
}

fn starting_since(since: Duration, stage: StartStage) -> JobPhase {
    JobPhase::Starting(Attempt { generation: FIRST, stage, since, pushes: 0 })
}

#[test]
fn a_new_job_creates_the_pods_that_do_not_exist() {
    assert_eq!(begun(FIRST, None, SINCE), (pending(), vec![]));
    let gang = with_pods(&[(Requested, Absent), (Requested, Live), (Joined, Live), (Requested, Absent)]);
    assert_eq!(look(pending(), &gang), (pending(), create(&["worker-0", "worker-3"])));
}

#[test]
fn the_start_timeout_does_not_run_while_a_gang_waits_for_an_earlier_one() {
    let (gang, held) = (absent(2), Turn::Hold(Some("earlier".parse().expect("a valid name"))));
    let held_until = SINCE + 10 * POLICY.rules.start_timeout;
    let mut phase = pending();
    for now in [SOON, SINCE + POLICY.rules.start_timeout, held_until] {
        let (next, actions) = step(phase, JobEvent::Observed, Seen { turn: &held, ..seen(&gang, &POLICY, now) });
        assert_eq!((next.deadline(&POLICY), actions), (None, vec![]));
        phase = next;
    }
    let (phase, _) = look_at(held_until, phase, &gang);
    assert_eq!(phase, JobPhase::Pending { gathering: GATHERING, since: held_until });
    let (phase, _) = look_at(held_until + POLICY.rules.start_timeout, phase, &gang);
    assert!(matches!(ending_of(phase), Ending::Failed(Failure::StartTimeout { .. })));
}

#[test]
fn a_requested_pod_that_is_not_listed_in_time_is_requested_again() {
    let gang = with_pods(&[(Joined, Live), (Requested, Absent)]);
    let policy = POLICY;
    let seen = seen(&gang, &policy, SOON);
    let (phase, actions) = step(pending(), JobEvent::Observed, seen);
    assert_eq!(next_look(&phase, &actions, seen), Some(SOON + RELEASE_TIMEOUT));
}

#[test]
fn a_suspended_job_creates_no_pods() {
    let suspended = changed(POLICY, |policy| policy.wishes.is_suspended = true);
    let (phase, actions) = step(pending(), JobEvent::Observed, seen(&absent(2), &suspended, SOON));
    assert_eq!(actions, stop_with(STOP_GRACE), "{phase:?}");
}

#[test]
fn a_job_whose_result_is_on_record_begins_by_releasing_its_pods() {
    for result in [JobResult::Succeeded, JobResult::Cancelled] {
        let begun = begun(FIRST, Some(result.clone()), SINCE);
        assert_eq!(begun, (JobPhase::Releasing { result, since: SINCE }, vec![Action::ReleasePods]));
    }
}

#[test]
fn a_start_goes_on_when_all_agents_are_ready_for_its_next_stage() {
    let [configuring, launching] = [StartStage::Configuring, StartStage::Launching].map(starting);
    let ended = || Exited(FIRST, exit(0, 1));
    for (before, replicas, after) in [
        (pending(), vec![Joined, Requested, Joined], None),
        (pending(), vec![Joined, Scheduled, Joined], None),
        (pending(), vec![Joined, Joined], Some((starting_since(SOON, StartStage::Configuring), begin_start(FIRST, 2)))),
        (configuring.clone(), vec![Configured(FIRST), Joined, Configured(FIRST)], None),
        (
            configuring,
            vec![Configured(FIRST), Configured(FIRST)],
            Some((starting_since(SOON, StartStage::Launching), vec![Action::Launch(FIRST)])),
        ),
        // The launch is not ordered a second time.
        (launching.clone(), vec![Running(FIRST), Configured(FIRST)], None),
        (launching.clone(), vec![ended(), Configured(FIRST)], None),
        (launching.clone(), vec![Running(FIRST), Running(FIRST)], Some((running(), vec![]))),
        (launching.clone(), vec![ended(), Running(FIRST)], Some((running(), vec![]))),
        // Nobody has seen the gang run.
        (launching, vec![ended(), ended()], Some((stopping(Ending::Succeeded), stop_with(STOP_GRACE)))),
    ] {
        let expected = after.unwrap_or_else(|| (before.clone(), vec![]));
        assert_eq!(look(before.clone(), &workers(&replicas)), expected, "{before:?}: {replicas:?}");
    }
}

#[test]
fn new_code_begins_the_next_start_while_the_agents_are_configured_and_not_while_scripts_are_started() {
    let pushed = changed(POLICY, |policy| policy.wishes.pushes = 1);
    let gang = workers(&[Configured(FIRST), Joined]);
    let at = |stage| step(starting(stage), JobEvent::Observed, seen(&gang, &pushed, SOON));
    let next = JobPhase::Restarting(Restart { next: FIRST.next(), is_empty: false, until: SOON, since: SOON });
    assert_eq!(at(StartStage::Configuring), (next, vec![]));
    assert_eq!(at(StartStage::Launching), (starting(StartStage::Launching), vec![]));
}

#[test]
fn a_gang_that_is_complete_exactly_at_the_start_timeout_is_configured() {
    let last = SINCE + POLICY.rules.start_timeout;
    let moved = look_at(last, pending(), &workers(&[Joined, Joined]));
    assert_eq!(moved, (starting_since(last, StartStage::Configuring), begin_start(FIRST, 2)));
}

#[test]
fn each_phase_of_a_job_without_a_deadline_has_the_expected_time_limit() {
    let deadline = |phase: JobPhase| phase.deadline(&POLICY).map(|deadline| deadline.as_secs());
    let releasing = JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    assert_eq!(deadline(pending()), Some(700));
    assert_eq!(deadline(starting(StartStage::Configuring)), Some(700));
    assert_eq!(deadline(starting(StartStage::Launching)), Some(700));
    assert_eq!(deadline(restarting()), Some(105));
    assert_eq!(deadline(running()), None);
    assert_eq!(deadline(stopping(Ending::Cancelled)), Some(SOON.as_secs() + 4 + 15));
    assert_eq!(deadline(stopping(Ending::Succeeded)), Some(SOON.as_secs() + 2 + 15));
    let failed = Ending::Failed(exited("worker-0", exit(1, 9)));
    assert_eq!(deadline(stopping(failed)), Some(SOON.as_secs() + 15));
    assert_eq!(deadline(stopping(Ending::Regroup)), Some(SOON.as_secs() + 2 + 15));
    assert_eq!(deadline(releasing), Some(115));
    assert_eq!(deadline(JobPhase::Finished { result: JobResult::Succeeded }), None);
}

#[test]
fn each_phase_is_shown_to_users_as_the_expected_state() {
    let failure = Failure::StartTimeout { missing: vec![], after_seconds: 1, reason: None };
    let halt = Halt {
        generation: FIRST,
        next: FIRST.next(),
        failure: failure.clone(),
        fingerprint: None,
        pushes: 0,
        until: SOON,
    };
    let shown = [
        (pending(), JobState::Pending),
        (starting(StartStage::Launching), JobState::Starting),
        (running(), JobState::Running),
        (restarting(), JobState::Restarting),
        (stopping(Ending::Cancelled), JobState::Stopping),
        (JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE }, JobState::Stopping),
        (JobPhase::Suspended { next: FIRST.next() }, JobState::Suspended),
        (JobPhase::Halted(halt), JobState::Halted),
        (JobPhase::Finished { result: JobResult::Succeeded }, JobState::Succeeded),
        (JobPhase::Finished { result: JobResult::Cancelled }, JobState::Cancelled),
        (JobPhase::Finished { result: JobResult::Failed { failure } }, JobState::Failed),
    ];
    for (phase, state) in shown {
        assert_eq!(phase.state(), state, "{phase:?}");
    }
}

#[test]
fn the_phase_of_a_replica_tells_what_the_replica_has_reached() {
    // The columns are: joined, configured, launched, dead.
    let reached: [(ReplicaPhase, [bool; 4]); 7] = [
        (Requested, [false, false, false, false]),
        (Scheduled, [false, false, false, false]),
        (Joined, [true, false, false, false]),
        (Configured(FIRST), [true, true, false, false]),
        (Running(FIRST), [true, true, true, false]),
        (Exited(FIRST, exit(1, 1)), [true, true, true, true]),
        (lost(), [false, false, false, true]),
    ];
    for (phase, expected) in reached {
        let seen = [phase.has_joined(), phase.was_configured(), phase.was_launched(), phase.is_dead()];
        assert_eq!(seen, expected, "{phase:?}");
    }
}
