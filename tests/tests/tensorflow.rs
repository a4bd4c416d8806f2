//! The examples with real TensorFlow. `make test` installs it and puts its `python` on the path.

use std::collections::BTreeSet;

use e2e::Scene;

#[test]
fn workers_of_an_all_reduce_training_end_with_the_same_weights() {
    let scene = Scene::of_example("allreduce");
    let run = scene.run(&["--strategy", "AllReduce", "--worker-num", "2", "--", "--steps", "100"]).code(0);
    scene.assert_empty();
    let digests = run.lines("digest ");
    assert_eq!(digests.len(), 2, "{}", run.stdout);
    assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 1, "{digests:?}");
    assert_falling(&run.lines("step "));
}

#[test]
fn a_parameter_server_training_ends_with_its_chief() {
    let scene = Scene::of_example("parameter_server");
    let args = ["--strategy", "ParameterServer", "--ps-num", "1", "--worker-num", "2", "--", "--steps", "200"];
    let run = scene.run(&args).code(0);
    scene.assert_empty();
    assert_falling(&run.lines("step "));
}

/// Lines such as `50 loss 1.8495`.
fn assert_falling(steps: &[String]) {
    let losses: Vec<f64> = steps.iter().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect();
    let (first, last) = (losses.first().copied(), losses.last().copied());
    assert!(losses.len() >= 2 && last < first, "the loss falls: {losses:?}");
}
