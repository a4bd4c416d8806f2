//! The rule for batch sizes on machines of unequal speed, in virtual time; and a job whose sizes follow measured times.

use std::collections::BTreeMap;

use e2e::Scene;
use e2e::balanced::{self, Journal, Line, slow_down};
use e2e::machines::Machines;
use e2e::mixed_machines::{Costs, Outcome, Rule, run};
use e2e::scripts::UNEQUAL;
use protocol::ids::Generation;
use testkit::chaos::STRIKE_VARIABLE;

const BATCH: u32 = 256;
const SEEDS: u64 = 200;
const FIXED: Costs = Costs { fixed_ms: 20.0, least_ms: 0.0, overlapping_ms: 0.0, noise: 0.0 };

/// The share of the time of equal sizes that this run saves.
fn saved(outcome: &Outcome, costs: Costs) -> f64 {
    1.0 - outcome.seconds / run(Rule::Equal, BATCH, costs, 0).seconds
}

#[test]
fn without_noise_each_phase_has_one_change_to_nearly_equal_times() {
    for (costs, ceiling) in [(Costs::default(), 0.467), (FIXED, 0.459)] {
        let outcome = run(Rule::Muster, BATCH, costs, 0);
        assert!(outcome.changes.iter().all(|&changes| changes <= 1), "{outcome:?}");
        assert!(outcome.spreads.iter().all(|&spread| spread <= 1.04), "{outcome:?}");
        assert_eq!((outcome.changes[0], outcome.changes[4]), (0, 0));
        assert_eq!(outcome.sums, (BATCH, BATCH));
        let best = saved(&run(Rule::Ceiling, BATCH, costs, 0), costs);
        assert!((best - ceiling).abs() < 0.005, "{best}");
        assert!(saved(&outcome, costs) >= 0.93 * best, "{} of {best}", saved(&outcome, costs));
    }
}

#[test]
fn with_noise_of_5_percent_a_step_sizes_change_at_most_twice_a_phase() {
    for costs in [Costs { noise: 0.05, ..Costs::default() }, Costs { noise: 0.05, ..FIXED }] {
        let runs: Vec<Outcome> = (0..SEEDS).map(|seed| run(Rule::Muster, BATCH, costs, seed)).collect();
        let phases = runs.len() as f64 * 8.0;
        for outcome in &runs {
            assert!(outcome.changes.iter().all(|&changes| changes <= 2), "{outcome:?}");
            assert_eq!((outcome.changes[0], outcome.changes[4], outcome.sums), (0, 0, (BATCH, BATCH)), "{outcome:?}");
        }
        let changes = runs.iter().flat_map(|outcome| &outcome.changes).sum::<usize>() as f64 / phases;
        let spread = runs.iter().flat_map(|outcome| &outcome.spreads).sum::<f64>() / phases;
        assert!(changes <= 0.85 && spread <= 1.05, "{changes} changes a phase, a spread of {spread}");
    }
}

#[test]
fn where_small_batches_take_the_same_time_or_communication_overlaps_no_run_is_longer_than_with_equal_sizes() {
    for noise in [0.0, 0.05] {
        for limit in [200.0, 500.0, 1_000.0, 2_000.0] {
            let knee = Costs { least_ms: limit, noise, ..FIXED };
            let overlap = Costs { overlapping_ms: limit, noise, ..FIXED };
            for (costs, seed) in [knee, overlap].into_iter().flat_map(|costs| (0..5).map(move |seed| (costs, seed))) {
                let (ours, equal) = (run(Rule::Muster, BATCH, costs, seed), run(Rule::Equal, BATCH, costs, seed));
                assert!(ours.seconds <= equal.seconds * (1.0 + noise / 5.0), "{costs:?}: {ours:?}, {equal:?}");
            }
        }
    }
}

#[test]
fn sizes_follow_measured_times_at_the_same_step_of_all_ranks_and_with_the_same_sum() {
    let scene = Scene::new(UNEQUAL);
    let run = scene.run(&["--worker-num", "2", "--global-batch", "128"]).code(0);
    let run = run.says(&["--- batch sizes 64, 64 → 96, 32: worker-1 needed "]);
    let sizes = |rank: &str| -> Vec<String> {
        let lines = run.stdout.lines().filter_map(|line| line.strip_prefix(rank)?.split_once("size "));
        lines.map(|(_, size)| size.to_owned()).collect()
    };
    let (first, second) = (sizes("worker-0"), sizes("worker-1"));
    assert_eq!(first.len(), second.len());
    let changed = first.iter().position(|size| size != "64").expect("no change");
    assert!(first[..changed].iter().chain(&second[..changed]).all(|size| size == "64"), "{first:?} {second:?}");
    assert!(first[changed..].iter().all(|size| size == "96") && second[changed..].iter().all(|size| size == "32"));
    assert_eq!(first.len() - changed, 25);
}

#[test]
fn a_worker_whose_memory_is_too_small_gets_a_smaller_batch_in_the_next_start() {
    // The first change makes the batch of worker-0 too large for it.
    let limited = UNEQUAL.replace(
        "    with job.measure():",
        "    if job.batch > 80: raise MemoryError(f'a batch of {job.batch}')\n    last = last or (12 if job.generation > '1.1' else None)\n    with job.measure():",
    );
    let scene = Scene::new(&limited);
    let run =
        scene.run(&["--worker-num", "2", "--global-batch", "128", "--max-restarts", "3", "--backoff", "0s"]).code(0);
    run.says(&["worker-0 has too little memory for a batch of 96, so it gets at most 64 in later starts"]);
}

#[test]
fn a_job_fails_when_no_sizes_fit_into_the_memory_of_its_workers() {
    let scene = Scene::new(
        "import os\nif os.environ['RANK'] == '0' and int(os.environ['BATCH_SIZE']) > 40: raise MemoryError('a large batch')",
    );
    let flags =
        ["--worker-num", "2", "--global-batch", "96", "--max-batch", "60", "--max-restarts", "3", "--backoff", "0s"];
    let run = scene.run(&flags).code(1);
    assert!(!run.stderr.contains("restart 1"), "a start that cannot succeed\n{}", run.stderr);
    run.says(&["has too little memory for a batch of 48: use --global-batch 84 or less, or machines with more memory"]);
}

#[test]
fn sizes_and_start_outlive_a_master_that_is_killed_during_a_change_and_the_next_master_changes_them_again() {
    let mut job = Machines::begin(&[(STRIKE_VARIABLE, "after-notify:kill:1")]);
    job.replace_the_struck_master();
    let first = job.until_changed(0);
    slow_down(&job.folder(), 0);
    let second = job.until_changed(first);
    let view = job.view().expect("the master does not answer");
    balanced::end(&job.folder());
    job.ended();

    let journal = job.journal();
    assert_eq!(journal.violations(), Vec::<String>::new());
    let starts: Vec<Generation> = journal.starts.keys().copied().collect();
    assert_eq!((starts, view.restarts.total()), (vec![Generation { epoch: 1, sequence: 1 }], 0), "{view:#?}");
    let versions = journal.versions(Generation { epoch: 1, sequence: 1 });
    assert_ne!(versions[&first], versions[&second], "{versions:?}");
    // A version tells the epoch of its master.
    assert_eq!(second % 16, 2, "{versions:?}");
}

/// A journal of an epoch. From step 4 on, the two ranks use version 17.
fn faultless() -> Journal {
    let mut journal = Journal::default();
    let steps = journal.starts.entry(Generation { epoch: 1, sequence: 1 }).or_default();
    for (step, begin) in (1..).zip((0..balanced::SAMPLES).step_by(96)) {
        let split = if step < 4 { 0 } else { 17 };
        let (middle, end) = (begin + if step < 4 { 48 } else { 58 }, balanced::SAMPLES.min(begin + 96));
        let parts = [begin..middle, middle..end].map(|part| Line { samples: part.collect(), split, noticed: split });
        steps.insert(step, parts.into_iter().enumerate().collect());
    }
    journal
}

/// A part of the sentence that the checks must find, and the change of the journal that causes this violation. The change
/// gets the lines of the ranks at each step.
type Tampering = (&'static str, fn(&mut BTreeMap<u64, BTreeMap<usize, Line>>));

const TAMPERINGS: [Tampering; 6] = [
    ("step 3 is missing", |steps| drop(steps.remove(&3))),
    ("only [0] of 2 ranks made step 3", |steps| drop(steps.get_mut(&3).and_then(|ranks| ranks.remove(&1)))),
    ("step 5 in start 1.1 used 95 samples: [58, 37]", |steps| line(steps, 5, 1).samples.truncate(37)),
    ("step 2 in start 1.1 used sample 0 again", |steps| line(steps, 2, 1).samples[0] = 0),
    ("the ranks made step 2 in start 1.1 with versions {0, 17}", |steps| line(steps, 2, 1).split = 17),
    ("version 17 in start 1.1 had [58, 38], and [57, 39] at step 5", |steps| {
        let moved = line(steps, 5, 0).samples.pop().expect("no sample");
        line(steps, 5, 1).samples.push(moved);
    }),
];

fn line(steps: &mut BTreeMap<u64, BTreeMap<usize, Line>>, step: u64, rank: usize) -> &mut Line {
    steps.get_mut(&step).and_then(|ranks| ranks.get_mut(&rank)).expect("no such line")
}

#[test]
fn the_checks_of_a_journal_find_the_violation_in_each_tampered_journal() {
    assert_eq!(faultless().violations(), Vec::<String>::new());
    for (sentence, tamper) in TAMPERINGS {
        let mut journal = faultless();
        journal.starts.values_mut().for_each(tamper);
        let found = journal.violations();
        assert!(found.iter().any(|one| one.contains(sentence)), "\"{sentence}\" is not among {found:#?}");
    }
}
