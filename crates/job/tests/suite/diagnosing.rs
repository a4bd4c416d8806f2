//! Tests of the diagnosis of a failed start: the time of the failure, whether the failure counts, the last lines of the
//! replica that failed, and the consequences.

use std::collections::BTreeMap;
use std::time::Duration;

use job::diagnosis::{Evidence, diagnose, longest_silent};
use job::gang::Gang;
use job::observation::LostRun;
use job::policy::Budget;
use job::replica::ReplicaPhase::{self, Exited, Joined, Lost, Running};
use protocol::agent::ExitReport;
use protocol::failure::{CONSEQUENCES_MAX, Consequence, FailedStart, Failure, LAST_LINES_MAX, LeftBefore};
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::progress::Progress;

use crate::support::{FIRST, exit, exited, fixed, gang, id, lost, stopped, was_lost, with_progress, workers};

const NOW: UnixMillis = UnixMillis(1000);

fn evidence(budget: Option<Budget>) -> Evidence {
    Evidence { generation: Some(FIRST), now: NOW, budget, last_lines: vec![], silence: BTreeMap::new(), stacks: None }
}

fn diagnosed(failure: Failure, gang: &Gang<'_>) -> FailedStart {
    diagnose(failure, gang, evidence(None))
}

fn consequence(replica: &str, how: &str, stopped: bool) -> Consequence {
    Consequence { replica: id(replica), how: how.to_owned(), stopped }
}

#[test]
fn consequences_list_failed_and_lost_replicas_first_and_stopped_runs_last() {
    let gang = workers(&[
        Exited(FIRST, stopped(9)),
        Exited(FIRST, exit(3, 5)),
        Exited(FIRST, exit(0, 4)),
        Exited(FIRST, exit(134, 6)),
        lost(),
        Running(FIRST),
        Joined,
    ]);
    let expected = [
        consequence("worker-3", "exited with code 134", false),
        consequence("worker-4", "was lost: its node died", false),
        consequence("worker-0", "was killed by signal 9 (SIGKILL)", true),
    ];
    assert_eq!(diagnosed(exited("worker-1", exit(3, 5)), &gang).consequences, expected);
}

#[test]
fn the_first_replica_that_trained_and_succeeded_before_the_failure_is_named() {
    let left = |at: [u64; 2]| {
        workers(&[Exited(FIRST, exit(3, 5000)), Exited(FIRST, exit(0, at[0])), Exited(FIRST, exit(0, at[1]))])
    };
    let of = |gang: &Gang<'_>| diagnosed(exited("worker-0", exit(3, 5000)), gang).left_before;
    assert_eq!(of(&left([4000, 3000])), Some(LeftBefore { replica: id("worker-2"), earlier_millis: 2000 }));
    assert_eq!(of(&left([5000, 6000])), None, "a replica that ended later is named");
    let evaluator = gang(&[("worker-0", Exited(FIRST, exit(3, 5000))), ("evaluator-0", Exited(FIRST, exit(0, 1000)))]);
    assert_eq!(of(&evaluator), None, "no replica needs the evaluator");
}

#[test]
fn a_stopped_run_with_exit_code_0_is_a_consequence() {
    let saved = ExitReport { stopped: true, ..exit(0, 9) };
    let gang = workers(&[Exited(FIRST, exit(3, 5)), Exited(FIRST, saved)]);
    let expected = [consequence("worker-1", "exited with code 0", true)];
    assert_eq!(diagnosed(exited("worker-0", exit(3, 5)), &gang).consequences, expected);
}

#[test]
fn the_steps_that_rank_0_has_not_saved_are_lost_unless_it_has_succeeded() {
    let lost_steps = |phase: ReplicaPhase, saved| {
        let mut members = workers(&[phase, Exited(FIRST, stopped(9))]).places().to_vec();
        let progress = |saved| Progress { step: Some(61), saved, ..Progress::default() };
        members[0] = with_progress(&members[0], progress(saved));
        members[1] = with_progress(&members[1], progress(Some(0)));
        let gang = fixed(members);
        diagnosed(was_lost("worker-1"), &gang).lost_steps.map(|lost| lost.to_string())
    };
    let killed = || Exited(FIRST, stopped(9));
    let sentence = |steps: &str| Some(format!("{steps} lost, because worker-0 ended before it had saved"));
    assert_eq!(lost_steps(killed(), Some(50)), sentence("steps 51 to 61 are"));
    assert_eq!(lost_steps(killed(), Some(60)), sentence("step 61 is"));
    assert_eq!(lost_steps(lost(), Some(50)), sentence("steps 51 to 61 are"));
    assert_eq!(lost_steps(killed(), None), None);
    assert_eq!(lost_steps(Exited(FIRST, exit(0, 9)), Some(50)), None);
}

#[test]
fn stopped_runs_are_dropped_first_if_there_are_too_many_consequences() {
    let mut phases = vec![Exited(FIRST, exit(3, 1))];
    phases.extend(vec![Exited(FIRST, stopped(9)); 50]);
    phases.extend(vec![Exited(FIRST, exit(134, 6)); 3]);
    let consequences = diagnosed(exited("worker-0", exit(3, 1)), &workers(&phases)).consequences;
    assert_eq!(consequences.len(), CONSEQUENCES_MAX);
    let own: Vec<ReplicaId> = consequences.iter().filter(|one| !one.stopped).map(|one| one.replica).collect();
    assert_eq!(own, [id("worker-51"), id("worker-52"), id("worker-53")]);
}

#[test]
fn a_start_timeout_has_no_consequences() {
    let gang = workers(&[Exited(FIRST, stopped(9)), lost()]);
    let failure = Failure::StartTimeout { missing: vec![id("worker-1")], after_seconds: 1, reason: None };
    assert_eq!(diagnosed(failure, &gang).consequences, []);
}

#[test]
fn after_a_deadline_the_run_that_was_silent_longest_is_listed_first_and_replicas_without_a_run_last() {
    let stopped = || Exited(FIRST, stopped(9));
    let gang = workers(&[Exited(FIRST, exit(0, 4)), stopped(), stopped(), stopped(), lost(), Joined]);
    let silence: BTreeMap<ReplicaId, Duration> =
        [("worker-1", 3), ("worker-3", 700)].map(|(name, seconds)| (id(name), Duration::from_secs(seconds))).into();
    assert_eq!(longest_silent(&silence), Some(id("worker-3")));
    let expected = [
        consequence("worker-3", "had printed nothing for 700 s", true),
        consequence("worker-1", "had printed nothing for 3 s", true),
        consequence("worker-2", "had printed nothing", true),
        consequence("worker-0", "exited with code 0", false),
        consequence("worker-4", "was lost: its node died", false),
        consequence("worker-5", "was not started", false),
    ];
    let failed =
        diagnose(Failure::DeadlineExceeded { after_seconds: 1 }, &gang, Evidence { silence, ..evidence(None) });
    assert_eq!(failed.consequences, expected);
}

#[test]
fn the_time_of_a_failure_comes_from_the_agents_report_or_is_now_if_there_is_no_report() {
    let gang = workers(&[Joined]);
    assert_eq!(diagnosed(exited("worker-0", exit(3, 5)), &gang).at, UnixMillis(5));
    assert_eq!(diagnosed(was_lost("worker-0"), &gang).at, NOW);
    assert_eq!(diagnosed(Failure::DeadlineExceeded { after_seconds: 1 }, &gang).at, NOW);
}

#[test]
fn only_a_failure_that_uses_the_budget_is_counted() {
    for (budget, counted) in [(Some(Budget::Counted), true), (Some(Budget::Free), false), (None, false)] {
        let failed = diagnose(was_lost("worker-0"), &workers(&[lost()]), evidence(budget));
        assert_eq!((failed.counted, failed.generation), (counted, Some(FIRST)), "{budget:?}");
    }
}

#[test]
fn the_last_lines_come_from_the_output_or_if_there_is_no_output_from_stderr() {
    let stderr_tail: String = (0..30).map(|line| format!("line {line}\n")).collect();
    let failure = exited("worker-0", ExitReport { stderr_tail, ..exit(3, 5) });
    let from_stderr = diagnosed(failure.clone(), &workers(&[Joined])).last_lines;
    assert_eq!(from_stderr.len(), LAST_LINES_MAX);
    assert_eq!((from_stderr[0].as_str(), from_stderr[19].as_str()), ("line 10", "line 29"));

    let last_lines = vec!["what it printed last".to_owned()];
    let evidence = Evidence { last_lines: last_lines.clone(), ..evidence(None) };
    assert_eq!(diagnose(failure, &workers(&[Joined]), evidence).last_lines, last_lines);
}

#[test]
fn a_lost_pod_among_the_consequences_is_listed_with_the_reason_of_its_loss() {
    let drained: ReplicaPhase = Lost(LostRun::disrupted("its node is drained"));
    let gang = workers(&[Exited(FIRST, exit(3, 5)), drained]);
    let expected = [consequence("worker-1", "was lost: its node is drained", false)];
    assert_eq!(diagnosed(exited("worker-0", exit(3, 5)), &gang).consequences, expected);
}
