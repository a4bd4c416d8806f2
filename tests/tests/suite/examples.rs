//! Tests of the examples for PyTorch and JAX. `make test` runs a test if `python` has the example's library.

use e2e::Scene;

#[track_caller]
fn assert_sum_of_two_ranks(example: &str, what: &str) {
    let scene = Scene::of_example(example);
    let run = scene.run(&["--worker-num", "2"]).code(0);
    scene.assert_empty();
    for rank in 0..2 {
        assert_eq!(run.lines(&format!("{what} {rank} of 2: the sum is 3")).len(), 1, "{}", run.stdout);
    }
}

#[test]
#[ignore = "needs PyTorch"]
fn torch_sums_over_both_ranks() {
    assert_sum_of_two_ranks("torch", "rank");
}

#[test]
#[ignore = "needs JAX"]
fn jax_sums_over_both_processes() {
    assert_sum_of_two_ranks("jax", "process");
}
