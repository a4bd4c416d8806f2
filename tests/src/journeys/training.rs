//! Journeys of the examples, with real TensorFlow.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use std::collections::BTreeSet;

use crate::place::{Place, Stage};

/// Uses two workers, not four like `make demo`, because each import of TensorFlow occupies a processor for ten seconds.
pub fn workers_of_an_all_reduce_training_reduce_the_loss_and_end_with_the_same_weights(place: Place) {
    let stage = Stage::of_example(place, "allreduce");
    let run = stage.submit(&["--strategy", "AllReduce", "--worker-num", "2", "--", "--steps", "100"]).code(0);
    stage.assert_nothing_runs();
    let digests = run.lines("digest ");
    assert_eq!(digests.len(), 2, "{}", run.stdout);
    assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 1, "{digests:?}");
    assert_falling(&run.lines("step "));
}

pub fn a_parameter_server_training_succeeds_with_a_falling_loss(place: Place) {
    let stage = Stage::of_example(place, "parameter_server");
    let flags = ["--strategy", "ParameterServer", "--ps-num", "1", "--worker-num", "2", "--", "--steps", "100"];
    let run = stage.submit(&flags).code(0);
    stage.assert_nothing_runs();
    assert_falling(&run.lines("step "));
}

/// Asserts that the loss falls in lines such as `50 loss 1.8495`.
fn assert_falling(steps: &[String]) {
    let losses: Vec<f64> = steps.iter().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect();
    let (first, last) = (losses.first().copied(), losses.last().copied());
    assert!(losses.len() >= 2 && last < first, "the loss does not fall: {losses:?}");
}
