//! Batch sizes on machines of unequal speed, in virtual time: Muster's rule, that of OmniLearn, and the best possible one.

use std::time::Duration;

use e2e::mixed_machines::{Costs, Outcome, Rule, run};

use crate::sample::{Figure, Row};

/// Random numbers of the runs with noise.
const SEEDS: u64 = 50;

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
