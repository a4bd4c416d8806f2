//! Tests that each moment of a job is counted once, and in the right part.

use std::collections::BTreeMap;

use protocol::failure::{Failure, Loss};
use protocol::ids::UnixMillis;
use protocol::progress::LostSteps;
use protocol::spent::{Goodput, Spent};
use protocol::starts::ChangeCause;
use protocol::timeline::{Folded, StartEnding, StartFacts, StepAt};

fn at(second: u64) -> Option<UnixMillis> {
    Some(UnixMillis(second * 1000))
}

fn step(step: u64, second: u64) -> Option<StepAt> {
    Some(StepAt { step, at: UnixMillis(second * 1000) })
}

fn lost() -> Failure {
    Failure::ReplicaLost {
        replica: "worker-1".parse().expect("not a replica"),
        reason: "evicted".into(),
        loss: Loss::Disrupted,
    }
}

/// The time of these starts from second 0 to `end`, which is the sum of all parts.
fn spent(starts: &[StartFacts], end: u64) -> Spent {
    let spent = Spent::of(None, starts, (UnixMillis(0), UnixMillis(end * 1000)));
    assert_eq!(spent.whole_ms(), end * 1000, "{spent:?}");
    spent
}

/// A start that began, was launched and was stopped at these seconds, and whose last run ended a second later.
fn start(cause: ChangeCause, [began, started, stopped]: [u64; 3], ending: StartEnding) -> StartFacts {
    StartFacts {
        cause: Some(cause),
        began: at(began),
        started: at(started),
        stopped: at(stopped),
        dead: at(stopped + 1),
        ending: Some(ending),
        ..StartFacts::default()
    }
}

#[test]
fn a_start_that_repeats_steps_takes_their_time_from_the_start_before() {
    let first = StartFacts {
        first_step: step(1, 30),
        last_step: step(100, 130),
        ..start(ChangeCause::First, [0, 20, 140], StartEnding::Failed { failure: lost() })
    };
    let second = StartFacts {
        first_step: step(81, 165),
        last_step: step(180, 265),
        ..start(ChangeCause::Left { failure: lost() }, [141, 160, 265], StartEnding::Succeeded)
    };
    let expected = Spent {
        gathering_ms: 20_000,
        program_startup_ms: 10_000 + 5000,
        // Of 100 steps in 100 s, the second start repeats the last 20.
        kept_steps_ms: 80_000 + 100_000,
        lost_steps_ms: 20_000,
        after_steps_ms: 10_000,
        recovery_ms: 20_000,
        ..Spent::default()
    };
    assert_eq!(spent(&[first, second], 265), expected);
    assert_eq!(expected.goodput(), Some(Goodput::KeptSteps(679)));
}

#[test]
fn steps_that_are_known_to_be_lost_count_as_lost_before_the_next_start_repeats_them() {
    let first = StartFacts {
        first_step: step(1, 10),
        last_step: step(10, 20),
        ..start(ChangeCause::First, [0, 10, 20], StartEnding::Failed { failure: lost() })
    };
    let lost_steps = Some(LostSteps { replica: "worker-0".parse().expect("not a replica"), first: 8, last: 10 });
    let gathering = StartFacts { began: at(21), lost_steps, ..StartFacts::default() };
    let expected =
        Spent { gathering_ms: 10_000, kept_steps_ms: 7000, lost_steps_ms: 3000, recovery_ms: 5000, ..Spent::default() };
    assert_eq!(spent(&[first, gathering], 25), expected);
}

#[test]
fn without_reports_of_steps_the_goodput_is_the_share_in_which_the_scripts_ran() {
    let first = start(ChangeCause::First, [0, 4, 10], StartEnding::Regrouped);
    let pushed =
        StartFacts { began: at(11), started: at(12), cause: Some(ChangeCause::Pushed), ..StartFacts::default() };
    let expected = Spent { running_ms: 6000 + 8000, gathering_ms: 4000 + 2000, ..Spent::default() };
    assert_eq!(spent(&[first, pushed], 20), expected);
    assert_eq!(expected.goodput(), Some(Goodput::Running(700)));
    assert_eq!(Spent::default().goodput(), None);
}

#[test]
fn a_run_whose_steps_are_all_in_one_report_has_reported_steps() {
    let short = StartFacts {
        first_step: step(3, 9),
        last_step: step(3, 9),
        ..start(ChangeCause::First, [0, 4, 10], StartEnding::Succeeded)
    };
    let spent = spent(&[short], 10);
    assert_eq!((spent.program_startup_ms, spent.running_ms, spent.goodput()), (5000, 0, Some(Goodput::KeptSteps(0))));
}

#[test]
fn suspended_and_halted_time_has_parts_of_its_own() {
    let suspended = start(ChangeCause::First, [0, 1, 2], StartEnding::Suspended);
    let halted = start(ChangeCause::Resumed, [10, 11, 12], StartEnding::Failed { failure: lost() });
    let pushed = start(ChangeCause::Pushed, [20, 21, 30], StartEnding::Failed { failure: lost() });
    let expected = Spent {
        gathering_ms: 3000,
        running_ms: 1000 + 1000 + 9000,
        suspended_ms: 8000,
        recovery_ms: 2000,
        halted_ms: 7000 + 9000,
        ..Spent::default()
    };
    assert_eq!(spent(&[suspended, halted, pushed], 40), expected);
}

#[test]
fn times_in_a_wrong_order_change_no_sum() {
    let adopted =
        StartFacts { started: at(900), first_step: step(5, 3), last_step: step(2, 1), ..StartFacts::default() };
    spent(std::slice::from_ref(&adopted), 10);
    let behind = StartFacts { stopped: at(2), dead: at(1), began: at(7), ..adopted };
    spent(&[behind.clone(), behind], 10);
    assert_eq!(spent(&[], 10), Spent { gathering_ms: 10_000, ..Spent::default() });
    assert_eq!(Spent::of(None, &[], (UnixMillis(5), UnixMillis(1))), Spent::default());
}

#[test]
fn the_time_of_folded_starts_stays() {
    let part = Spent { kept_steps_ms: 3000, gathering_ms: 1000, ..Spent::default() };
    let folded = Folded { causes: BTreeMap::new(), until: UnixMillis(4000), spent: part };
    let next = StartFacts { began: at(4), started: at(5), cause: Some(ChangeCause::Pushed), ..StartFacts::default() };
    let spent = Spent::of(Some(&folded), &[next], (UnixMillis(0), UnixMillis(9000)));
    let expected = Spent { kept_steps_ms: 3000, gathering_ms: 2000, program_startup_ms: 4000, ..Spent::default() };
    assert_eq!(spent, expected);
}
