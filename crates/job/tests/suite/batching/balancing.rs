//! The sizes of one start: what the balancer orders, and what it says about the sizes.

use job::batching::{Balancer, BatchRules, Order, Tried};
use protocol::batching::{BatchBounds, Held, Split};
use protocol::ids::{ReplicaId, Role};
use protocol::progress::Progress;

const BATCH: u32 = 96;

fn member(rank: usize) -> ReplicaId {
    ReplicaId { role: Role::Worker, index: u32::try_from(rank).expect("a small number") }
}

fn balancer(ranks: usize, epoch: u32) -> Balancer {
    let bounds = vec![BatchBounds { min: 1, max: BATCH }; ranks];
    Balancer::new((0..ranks).map(member).collect(), BatchRules { global_batch: BATCH, bounds, multiple: 1 }, epoch)
}

/// Scripts with the helper. A step takes as long as the longest computation.
struct Scripts {
    /// Microseconds of a rank's computation for a size.
    compute: fn(usize, u32) -> u64,
    totals: Vec<Progress>,
    /// Ranks that send no reports.
    silent: Vec<usize>,
}

impl Scripts {
    fn new(sizes: &[u32], compute: fn(usize, u32) -> u64) -> Self {
        let total = |&batch: &u32| Progress { batch, ..Progress::default() };
        Self { compute, totals: sizes.iter().map(total).collect(), silent: vec![] }
    }

    fn report(&self, balancer: &mut Balancer) -> Option<Order> {
        let reports = self.totals.iter().enumerate().filter(|(rank, _)| !self.silent.contains(rank));
        reports.filter_map(|(rank, report)| balancer.hear(member(rank), report)).last()
    }

    /// Trains for one window, and reports.
    fn window(&mut self, balancer: &mut Balancer) -> Option<Order> {
        let compute: Vec<u64> =
            self.totals.iter().enumerate().map(|(rank, total)| (self.compute)(rank, total.batch)).collect();
        let longest = compute.iter().copied().max().expect("there are ranks").max(1_000);
        let steps = 2_000_000_u64.div_ceil(longest).max(8);
        for (total, compute) in self.totals.iter_mut().zip(compute) {
            total.steps += steps;
            total.compute_us += steps * compute;
            total.wall_us += steps * longest;
        }
        self.report(balancer)
    }

    fn windows(&mut self, count: usize, balancer: &mut Balancer) -> Vec<Order> {
        (0..count).filter_map(|_| self.window(balancer)).collect()
    }

    fn obey(&mut self, order: Option<Order>) -> Split {
        let Some(Order::Use(split)) = order else { panic!("no new sizes, but {order:?}") };
        for (total, &batch) in self.totals.iter_mut().zip(&split.sizes) {
            *total = Progress { split: split.version, noticed: split.version, batch, ..Progress::default() };
        }
        split
    }
}

/// Worker 1 needs twice as long for a sample.
fn unequal(rank: usize, size: u32) -> u64 {
    u64::from(size) * 1_000 * (rank as u64 + 1)
}

#[test]
fn sizes_follow_the_measured_speeds_and_the_gain_is_measured() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    for rank in [0, 1] {
        assert_eq!(balancer.hear(member(rank), &Progress::default()), None, "a greeting has no size");
    }
    assert_eq!((balancer.sizes(), balancer.held()), (None, None));
    scripts.report(&mut balancer);
    assert_eq!(balancer.sizes(), Some(&[48, 48][..]));
    assert_eq!(scripts.window(&mut balancer), None, "one window is too little");
    let order = scripts.window(&mut balancer);
    assert_eq!(scripts.obey(order), Split { version: 17, sizes: vec![64, 32] });
    assert_eq!((balancer.sizes(), balancer.changed()), (Some(&[48, 48][..]), None), "the scripts have not agreed yet");
    assert!(!balancer.is_proven());
    assert_eq!(scripts.windows(20, &mut balancer), []);
    let changed = balancer.changed().unwrap();
    assert_eq!((&changed.from[..], changed.change.slowest, changed.change.fastest), (&[48, 48][..], 1, 0));
    assert!((changed.step_time.unwrap() - 2.0 / 3.0).abs() < 0.01, "{changed:?}");
    assert!(balancer.is_proven());
    assert_eq!((balancer.sizes(), balancer.held()), (Some(&[64, 32][..]), None));
    let speeds = balancer.speeds().unwrap();
    assert!((speeds[0] / speeds[1] - 2.0).abs() < 1e-9 && (speeds[0] - 1_000.0).abs() < 1e-6, "{speeds:?}");
}

#[test]
fn a_new_master_begins_with_the_sizes_in_use_and_never_reuses_a_version() {
    let (mut first, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    scripts.report(&mut first);
    scripts.window(&mut first);
    // Only rank 1 has the order of the old master, so the scripts have not agreed.
    let Some(Order::Use(lost)) = scripts.window(&mut first) else { panic!("no order") };
    scripts.totals[1].noticed = lost.version;
    let mut second = balancer(2, 2);
    scripts.report(&mut second);
    assert_eq!(second.sizes(), Some(&[48, 48][..]));
    scripts.window(&mut second);
    let order = scripts.window(&mut second);
    assert_eq!(scripts.obey(order).version, 34, "lost: {}", lost.version);
    let mut third = balancer(2, 17);
    scripts.report(&mut third);
    assert_eq!(third.sizes(), Some(&[64, 32][..]));
    scripts.compute = |rank, size| unequal(1 - rank, size);
    scripts.window(&mut third);
    let order = scripts.window(&mut third);
    assert_eq!(scripts.obey(order), Split { version: 49, sizes: vec![32, 64] });
}

#[test]
fn sizes_that_a_rank_does_not_use_are_withdrawn_and_the_rank_is_named() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    scripts.report(&mut balancer);
    scripts.windows(2, &mut balancer);
    let told = |balancer: &Balancer| [0, 1].map(|rank| balancer.is_to_be_told(member(rank)));
    assert_eq!(told(&balancer), [true, true]);
    scripts.totals[0].noticed = 17;
    let repeated = scripts.windows(9, &mut balancer);
    assert_eq!(told(&balancer), [false, true], "the first has the order");
    assert!(
        repeated.len() == 9 && repeated.iter().all(|order| matches!(order, Order::Use(split) if split.version == 17))
    );
    assert!(!balancer.is_proven());
    assert_eq!(scripts.window(&mut balancer), Some(Order::Withdraw));
    assert_eq!(told(&balancer), [true, true], "both forget the order");
    assert_eq!(balancer.held(), Some(&Held::NotUsed { replica: member(1) }));
    assert_eq!(scripts.windows(20, &mut balancer), [], "nothing is ordered again in this start");
}

#[test]
fn scripts_that_have_new_sizes_and_do_not_vote_are_told_why() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    scripts.report(&mut balancer);
    scripts.windows(2, &mut balancer);
    scripts.totals.iter_mut().for_each(|total| total.noticed = 17);
    assert_eq!(scripts.windows(9, &mut balancer), [], "all have the order");
    assert_eq!(scripts.window(&mut balancer), Some(Order::Withdraw));
    assert_eq!(balancer.held(), Some(&Held::NotAgreed));
}

#[test]
fn a_change_that_achieves_nothing_is_the_last_until_the_machines_change() {
    // Worker 1 needs the same time for all small batches.
    let flat = |rank, size| if rank == 0 { u64::from(size) * 1_000 } else { 100_000.max(unequal(rank, size)) };
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], flat));
    scripts.report(&mut balancer);
    scripts.window(&mut balancer);
    let order = scripts.window(&mut balancer);
    scripts.obey(order);
    assert_eq!(scripts.windows(20, &mut balancer), []);
    assert_eq!(balancer.held(), Some(&Held::NoGain));
    scripts.compute = |rank, size| unequal(1 - rank, size);
    for _ in 0..10 {
        if let order @ Some(_) = scripts.window(&mut balancer) {
            scripts.obey(order);
        }
    }
    assert_eq!(balancer.sizes(), Some(&[32, 64][..]));
    assert_eq!(balancer.held(), None);
}

#[test]
fn sizes_also_follow_speeds_that_change_right_after_a_change_of_the_sizes() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    scripts.report(&mut balancer);
    scripts.window(&mut balancer);
    let order = scripts.window(&mut balancer);
    assert_eq!(scripts.obey(order).sizes, [64, 32]);
    scripts.compute = |rank, size| unequal(1 - rank, size);
    let order = scripts.windows(3, &mut balancer).pop();
    assert_eq!(scripts.obey(order).sizes, [32, 64]);
    assert_eq!(balancer.held(), None);
}

#[test]
fn a_script_that_cannot_be_balanced_is_told_why() {
    let held = |sizes: &[u32], compute: fn(usize, u32) -> u64, wait: u64| {
        let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(sizes, compute));
        scripts.report(&mut balancer);
        for _ in 0..4 {
            scripts.totals.iter_mut().for_each(|total| total.wall_us += wait);
            assert_eq!(scripts.window(&mut balancer), None);
        }
        balancer.held().cloned()
    };
    assert_eq!(held(&[48, 48], |_, size| u64::from(size) * 1_000, 0), None, "equal machines need no change");
    assert_eq!(held(&[48, 48], |_, _| 0, 0), Some(Held::NotMeasured));
    assert_eq!(held(&[48, 48], unequal, 2_000_000), Some(Held::NotComputeBound));
    assert_eq!(held(&[48, 49], unequal, 0), Some(Held::OtherGlobalBatch { script: 97 }));
}

#[test]
fn a_rank_without_reports_is_named() {
    for (has_begun, expected) in
        [(false, Held::NoHelper { replica: member(1) }), (true, Held::Stalled { replica: member(1) })]
    {
        let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
        if has_begun {
            scripts.report(&mut balancer);
        }
        scripts.silent = vec![1];
        assert_eq!(scripts.windows(12, &mut balancer), []);
        assert_eq!(balancer.held(), Some(&expected));
        scripts.silent.clear();
        scripts.windows(3, &mut balancer);
        assert_eq!(balancer.held(), None);
    }
}

#[test]
fn sizes_stay_when_the_votes_of_the_scripts_would_not_be_exact() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    scripts.totals.iter_mut().for_each(|total| total.split = (1 << 23) - 16);
    scripts.report(&mut balancer);
    assert_eq!(scripts.windows(4, &mut balancer), []);
    assert_eq!(balancer.held(), Some(&Held::OutOfVersions));
    let mut absurd = self::balancer(2, 1);
    scripts.totals.iter_mut().for_each(|total| (total.split, total.noticed) = (0, u64::MAX));
    scripts.report(&mut absurd);
    assert_eq!(scripts.windows(4, &mut absurd), []);
    assert_eq!(absurd.held(), Some(&Held::OutOfVersions));
}

#[test]
fn reports_of_strangers_and_absurd_reports_change_nothing() {
    let (mut balancer, scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    let most = u64::MAX / 2;
    let absurd =
        Progress { split: most, batch: u32::MAX, noticed: most, steps: most, compute_us: most, ..Progress::default() };
    assert_eq!(balancer.hear(member(7), &absurd), None);
    scripts.report(&mut balancer);
    assert_eq!(balancer.sizes(), Some(&[48, 48][..]));
    for _ in 0..3 {
        assert_eq!(balancer.hear(member(0), &absurd), None);
        assert_eq!(balancer.hear(member(1), &absurd), None);
    }
    assert_eq!(balancer.held(), Some(&Held::OtherGlobalBatch { script: 2 * u64::from(u32::MAX) }));
}

#[test]
fn while_the_scripts_vote_a_member_may_use_the_larger_size_already() {
    let (mut balancer, mut scripts) = (balancer(2, 1), Scripts::new(&[48, 48], unequal));
    let tried = |balancer: &Balancer, rank| balancer.tried(member(rank)).map(|Tried { size, lasted }| (size, lasted));
    assert_eq!(tried(&balancer, 0), None, "no size is known yet");
    scripts.report(&mut balancer);
    assert_eq!(tried(&balancer, 0), Some((48, None)));
    let order = scripts.windows(2, &mut balancer).pop();
    assert_eq!(tried(&balancer, 0), Some((64, Some(48))));
    assert_eq!(tried(&balancer, 1), Some((48, None)));
    scripts.obey(order);
    scripts.report(&mut balancer);
    assert_eq!(tried(&balancer, 0), Some((64, Some(48))), "the size before the change has lasted");
    assert_eq!(tried(&balancer, 1), Some((32, None)), "no smaller size has lasted");
    assert_eq!(tried(&balancer, 2), None, "no member");
}
