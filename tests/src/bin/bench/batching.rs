//! Compares rules for batch sizes on machines of unequal speed, in virtual time: Muster's rule, OmniLearn's rule, and
//! the best possible rule. Also measures what Muster's rule costs a master.

use std::time::{Duration, Instant};

use e2e::mixed_machines::{Costs, Outcome, Rule, run};
use job::batching::{Balancer, BatchRules, Order};
use protocol::batching::BatchBounds;
use protocol::ids::{ReplicaId, Role};
use protocol::progress::Progress;

use crate::sample::{Figure, Row};

/// Number of runs of each rule. Each run has another seed for the random noise.
const SEEDS: u64 = 50;
/// Workers of a large job, and their mean batch.
const RANKS: u32 = 1_000;
const BATCH: u32 = 64;
/// Pause between two requests of the master to an agent of a job of this size for a report (`INTERVAL_MAX` in
/// `master/src/driver/balance.rs`).
const INTERVAL: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 200;

/// Measures the mean time that a balancer needs for one report of each rank of a large job. The speeds of the ranks
/// change often, so that the balancer also orders sizes.
pub(crate) fn balancer() -> Row {
    let bounds = vec![BatchBounds { min: 1, max: RANKS * BATCH }; RANKS as usize];
    let rules = BatchRules { global_batch: RANKS * BATCH, bounds, multiple: 1 };
    let worker = |index| ReplicaId { role: Role::Worker, index };
    let mut balancer = Balancer::new((0..RANKS).map(worker).collect(), rules, 1);
    let mut totals = vec![Progress { batch: BATCH, ..Progress::default() }; RANKS as usize];
    let (mut took, mut changes) = (Duration::ZERO, 0);
    for round in 0..ROUNDS {
        let sample_us = |rank: u32| 1_000 + 250 * u64::from((rank + round / 8) % 7);
        let compute_us = |(rank, total): (u32, &Progress)| sample_us(rank) * u64::from(total.batch);
        let steps: Vec<u64> = (0..).zip(&totals).map(compute_us).collect();
        let longest = steps.iter().copied().max().unwrap_or_default();
        for (total, step) in totals.iter_mut().zip(steps) {
            total.steps += 200;
            total.wall_us += 200 * longest;
            total.compute_us += 200 * step;
        }
        let begin = Instant::now();
        let orders = (0..).zip(&totals).filter_map(|(index, total)| balancer.hear(worker(index), total));
        let order = orders.last();
        took += begin.elapsed();
        if let Some(Order::Use(split)) = order {
            changes += 1;
            let total = |batch: &u32| Progress {
                split: split.version,
                noticed: split.version,
                batch: *batch,
                ..Progress::default()
            };
            totals = split.sizes.iter().map(total).collect();
        }
    }
    let round = took / ROUNDS;
    let share = round.as_secs_f64() / INTERVAL.as_secs_f64() * 100.0;
    let what = format!(
        "the rule with {RANKS} ranks: one report of each, {changes} changes in {ROUNDS} rounds ({share:.4} % of a core)"
    );
    Row::new(what, Figure::Time(round)).against(Figure::Time(INTERVAL / 1_000), "0.1 % of a core in 30 s")
}

pub(crate) fn compare() -> Vec<Row> {
    let fixed = Costs { fixed_ms: 20.0, ..Costs::default() };
    let noisy = Costs { noise: 0.05, ..Costs::default() };
    let mut rows = vec![];
    for (what, costs) in [("", Costs::default()), (", 3 % fixed cost", fixed), (", 5 % noise", noisy)] {
        for (batch, rule, name) in [
            (256, Rule::Ceiling, "the best sizes"),
            (256, Rule::Muster, "Muster's rule"),
            (256, Rule::OmniLearn { min: 1.0, max: 256.0 }, "OmniLearn's rule, any size"),
            (256, Rule::OmniLearn { min: 16.0, max: 96.0 }, "OmniLearn's rule, its bounds 16 and 96"),
            (128, Rule::OmniLearn { min: 16.0, max: 96.0 }, "OmniLearn's rule and batch, its bounds 16 and 96"),
        ] {
            rows.push(row(&format!("mixed machines{what}, batch {batch}: {name}"), rule, batch, costs));
        }
    }
    rows
}

fn row(what: &str, rule: Rule, batch: u32, costs: Costs) -> Row {
    let runs = |rule| -> Vec<Outcome> { (0..SEEDS).map(|seed| run(rule, batch, costs, seed)).collect() };
    let times = |runs: &[Outcome]| runs.iter().map(|outcome| Duration::from_secs_f64(outcome.seconds)).collect();
    let outcomes = runs(rule);
    let changes: usize = outcomes.iter().flat_map(|outcome| &outcome.changes).sum();
    let spread = outcomes.iter().flat_map(|outcome| outcome.spreads.iter().copied()).fold(0.0, f64::max);
    let sums = outcomes.iter().map(|outcome| outcome.sums.1).max().unwrap_or_default();
    let phases = outcomes.iter().map(|outcome| outcome.changes.len()).sum::<usize>();
    let mean = changes as f64 / phases as f64;
    Row {
        what: format!("{what} ({mean:.2} changes a phase, spread at most {spread:.2}, sum at most {sums})"),
        muster: Figure::Times(times(&outcomes)),
        bare: Some(Figure::Times(times(&runs(Rule::Equal)))),
        bare_is: "equal sizes, in virtual time",
    }
}
