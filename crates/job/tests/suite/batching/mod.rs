//! Batch sizes: how a batch is divided, what the reports of scripts say about speeds, and when sizes change.

mod balancing;

use std::collections::BTreeMap;

use job::batching::{BatchRules, Decision, Window, Windows, decide, sizes_by_rank};
use proptest::prelude::{prop, prop_assert, proptest};
use protocol::batching::{BatchBounds, Batching};
use protocol::failure::Restarts;
use protocol::group::Group;
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::progress::Progress;

#[test]
fn first_sizes_follow_measured_speeds_and_for_other_places_the_resources_that_they_ask_for() {
    let sized = |groups: &[Group], batching: Batching, measured: &[Option<f64>]| {
        let groups = groups.to_vec();
        let name = "digits".parse().expect("not a name");
        let places: BTreeMap<ReplicaId, ReplicaId> = plan_of(measured.len()).into_iter().map(|id| (id, id)).collect();
        let request = JobRequest {
            worker_num: Some(u32::try_from(measured.len()).expect("a small number")),
            groups,
            batching: Batching { global_batch: Some(96), ..batching },
            ..JobRequest::new(name, Strategy::AllReduce)
        };
        let spec = JobSpec::try_from(request).expect("the request is refused");
        sizes_by_rank((&spec, &Restarts::default()), &places, |place| measured[place.index as usize]).expect("no sizes")
    };
    let none = Batching::default;
    let with =
        |cpu: &str, count| Group { cpu: Some(cpu.parse().expect("not an amount")), ..Group::new(Role::Worker, count) };
    let unequal = [with("1", 1), with("2", 1)];
    assert_eq!(sized(&unequal, none(), &[None, None]), [32, 64]);
    assert_eq!(sized(&unequal, none(), &[Some(10.0), None]), [32, 64], "as fast as its CPUs");
    assert_eq!(sized(&unequal, none(), &[Some(10.0), Some(10.0)]), [48, 48]);
    assert_eq!(sized(&[], none(), &[Some(1.0), Some(1_000.0)]), [12, 84], "at least a quarter of an equal share");
    let small = Batching { max_batch: Some(60), ..none() };
    assert_eq!(sized(&[], small, &[Some(1.0), Some(1_000.0)]), [36, 60]);
    let bounds = Some(BatchBounds { min: 80, max: 90 });
    let large = [Group { batch: bounds, ..Group::new(Role::Worker, 1) }, with("1", 3)];
    assert_eq!(sized(&large, none(), &[None; 4]), [80, 6, 5, 5], "the usual minimum does not fit beside the first");
}

fn plan_of(workers: usize) -> Vec<ReplicaId> {
    let worker = |index| ReplicaId { role: Role::Worker, index: u32::try_from(index).expect("a small number") };
    (0..workers).map(worker).collect()
}

fn rules(global_batch: u32, bounds: &[(u32, u32)], multiple: u32) -> BatchRules {
    let bounds = bounds.iter().map(|&(min, max)| BatchBounds { min, max }).collect();
    BatchRules { global_batch, bounds, multiple }
}

fn free(global_batch: u32, ranks: usize) -> BatchRules {
    rules(global_batch, &vec![(1, global_batch); ranks], 1)
}

#[test]
fn sizes_are_in_proportion_to_speeds_within_bounds_and_in_multiples() {
    let mixed = rules(176, &[(64, 64), (64, 64), (16, 32), (16, 32)], 1);
    for (rules, speeds, sizes) in [
        (free(96, 2), vec![1.0, 2.0], vec![32, 64]),
        (free(256, 4), vec![6.0, 6.0, 4.0, 32.0], vec![32, 32, 21, 171]),
        (free(10, 3), vec![1.0; 3], vec![4, 3, 3]),
        (mixed.clone(), vec![1.0; 4], vec![64, 64, 24, 24]),
        (mixed, vec![1.0, 1.0, 100.0, 1.0], vec![64, 64, 32, 16]),
        (rules(256, &[(16, 96); 4], 8), vec![6.0, 6.0, 4.0, 32.0], vec![64, 56, 40, 96]),
    ] {
        assert_eq!(rules.divide(&speeds), Some(sizes), "{rules:?} {speeds:?}");
    }
}

#[test]
fn without_sizes_that_keep_the_rules_there_is_no_division() {
    for rules in [
        rules(10, &[(6, 10), (6, 10)], 1),
        rules(30, &[(1, 10), (1, 10)], 1),
        rules(30, &[(1, 30), (1, 30)], 8),
        rules(32, &[(9, 15), (1, 32)], 8),
    ] {
        assert_eq!(rules.divide(&[1.0, 1.0]), None, "{rules:?}");
    }
}

/// Whether these sizes have the sum, and keep bounds and multiples.
fn keeps(rules: &BatchRules, sizes: &[u32]) -> bool {
    let is_right = |(&size, bounds): (&u32, &BatchBounds)| {
        (bounds.min..=bounds.max).contains(&size) && size.is_multiple_of(rules.multiple)
    };
    sizes.len() == rules.bounds.len()
        && sizes.iter().map(|&size| u64::from(size)).sum::<u64>() == u64::from(rules.global_batch)
        && sizes.iter().zip(&rules.bounds).all(is_right)
}

proptest! {
    #[test]
    fn every_division_has_the_sum_and_keeps_bounds_and_multiples(
        ranks in prop::collection::vec((1_u32..60, 0_u32..200, 0.01_f64..100.0), 1..40),
        multiple in 1_u32..9,
        filled in 0.0_f64..=1.0,
    ) {
        let bounds: Vec<(u32, u32)> = ranks.iter().map(|&(min, more, _)| (min * multiple, (min + more) * multiple)).collect();
        let speeds: Vec<f64> = ranks.iter().map(|rank| rank.2).collect();
        let (least, most) = bounds.iter().fold((0, 0), |sum, bounds| (sum.0 + bounds.0, sum.1 + bounds.1));
        let room = f64::from((most - least) / multiple) * filled;
        let rules = rules(least + room as u32 * multiple, &bounds, multiple);
        let sizes = rules.divide(&speeds).expect("the batch fits the bounds");
        prop_assert!(keeps(&rules, &sizes), "{sizes:?}");
        // No unit can move to a rank that would still end earlier than the rank that gives the unit up.
        let time = |rank: usize, size: u32| f64::from(size) / speeds[rank];
        for (from, to) in (0..sizes.len()).flat_map(|from| (0..sizes.len()).map(move |to| (from, to))) {
            let can_move = from != to && sizes[from] > bounds[from].0 && sizes[to] < bounds[to].1;
            let gains = time(to, sizes[to] + 2 * multiple) < time(from, sizes[from] - multiple);
            prop_assert!(!(can_move && gains), "{sizes:?}: from {from} to {to}");
        }
    }
}

/// The totals of a rank after so many steps, with so many milliseconds of computation and of waiting in each.
fn report(split: u64, steps: u64, (compute_ms, wait_ms): (u64, u64)) -> Progress {
    let compute_us = steps * compute_ms * 1000;
    Progress { split, steps, compute_us, wall_us: compute_us + steps * wait_ms * 1000, ..Progress::default() }
}

#[test]
fn a_window_needs_8_steps_and_2_seconds_of_every_rank() {
    let mut windows = Windows::new(2, 0);
    for rank in [0, 1] {
        assert!(!windows.hear(rank, &report(0, 100, (100, 0))));
    }
    assert!(!windows.hear(0, &report(0, 130, (100, 0))));
    assert!(!windows.hear(1, &report(0, 119, (100, 0))), "1.9 s");
    assert!(windows.hear(1, &report(0, 120, (100, 0))));
    assert_eq!(windows.closed(), &[Window { compute: vec![100_000.0; 2], wall: 100_000.0 }]);
    assert!(!windows.hear(1, &report(0, 200, (100, 0))), "the other rank has no step since the last window");
    let mut slow = Windows::new(1, 0);
    for (steps, closes) in [(0, false), (7, false), (8, true)] {
        assert_eq!(slow.hear(0, &report(0, steps, (500, 0))), closes, "{steps} steps of half a second");
    }
}

#[test]
fn reports_with_other_sizes_and_of_unknown_ranks_are_ignored_and_smaller_totals_begin_again() {
    let mut windows = Windows::new(1, 16);
    assert!(!windows.hear(0, &report(16, 50, (100, 0))));
    assert!(!windows.hear(0, &report(0, 90, (100, 0))));
    assert!(!windows.hear(1, &report(16, 90, (100, 0))));
    assert!(!windows.hear(0, &report(16, 10, (100, 0))), "a new process");
    assert!(!windows.hear(0, &report(16, 29, (100, 0))));
    assert!(windows.hear(0, &report(16, 30, (100, 0))));
    let huge = Progress { split: 16, steps: u64::MAX, compute_us: u64::MAX, wall_us: u64::MAX, ..Progress::default() };
    assert!(windows.hear(0, &huge));
}

fn window(compute: &[f64]) -> Window {
    Window { compute: compute.to_vec(), wall: compute.iter().copied().fold(0.0, f64::max) }
}

/// The decision on windows, newest first, with 64 samples for each rank.
fn decided(windows: &[Window]) -> Decision {
    let ranks = windows[0].compute.len();
    let batch = 64 * u32::try_from(ranks).expect("a small number");
    decide(windows, &vec![64; ranks], &free(batch, ranks))
}

#[test]
fn a_large_gain_shows_in_two_windows_and_a_small_one_in_eight() {
    let large = window(&[10.0, 20.0]);
    assert_eq!(decided(&vec![large.clone(); 1]), Decision::Keep);
    let Decision::Change(change) = decided(&vec![large; 2]) else { panic!("no change") };
    assert_eq!((change.sizes, change.slowest, change.fastest), (vec![85, 43], 1, 0));
    assert!(
        (change.ratio - 2.0).abs() < 1e-9 && (1.48..1.51).contains(&change.gain),
        "{} {}",
        change.ratio,
        change.gain
    );
    let small = window(&[10.0, 11.5]);
    assert_eq!(decided(&vec![small.clone(); 7]), Decision::Keep);
    assert!(matches!(decided(&vec![small; 8]), Decision::Change(_)));
    assert_eq!(decided(&vec![window(&[10.0, 10.5]); 8]), Decision::Keep, "less than 5 %");
}

#[test]
fn a_gain_in_one_half_of_the_windows_is_noise() {
    let (slow, even) = (window(&[10.0, 20.0]), window(&[10.0, 10.0]));
    assert_eq!(decided(&[slow.clone(), even.clone()]), Decision::Keep);
    assert_eq!(decided(&[even, slow.clone(), slow]), Decision::Keep);
}

#[test]
fn sizes_stay_if_the_computation_is_not_measured_or_not_what_the_ranks_wait_for() {
    let unmeasured = Window { compute: vec![0.0, 10.0], wall: 20.0 };
    assert_eq!(decided(&vec![unmeasured.clone(); 8]), Decision::NotMeasured);
    assert_eq!(decided(&[window(&[10.0, 20.0]), unmeasured]), Decision::Keep, "one of two windows has speeds");
    let waiting = Window { compute: vec![10.0, 20.0], wall: 31.0 };
    assert_eq!(decided(&vec![waiting; 8]), Decision::NotComputeBound);
}

proptest! {
    /// A rank with a fixed cost, or a size below which all sizes take the same time, is never the slowest for longer.
    #[test]
    fn no_change_makes_a_step_longer(ranks in prop::collection::vec((0.1_f64..10.0, 0.0_f64..50.0, 0.0_f64..200.0), 2..9)) {
        let time = |rank: usize, size: u32| {
            let (sample, fixed, least) = ranks[rank];
            (fixed + sample * f64::from(size)).max(least)
        };
        let step = |sizes: &[u32]| sizes.iter().enumerate().map(|(rank, &size)| time(rank, size)).fold(0.0, f64::max);
        let rules = free(64 * u32::try_from(ranks.len()).unwrap(), ranks.len());
        let mut sizes = vec![64; ranks.len()];
        for _ in 0..20 {
            let measured = window(&sizes.iter().enumerate().map(|(rank, &size)| time(rank, size)).collect::<Vec<_>>());
            let Decision::Change(change) = decide(&vec![measured; 8], &sizes, &rules) else { break };
            prop_assert!(step(&change.sizes) <= step(&sizes) * (1.0 + 1e-9), "{sizes:?} {change:?}");
            sizes = change.sizes;
        }
    }
}
