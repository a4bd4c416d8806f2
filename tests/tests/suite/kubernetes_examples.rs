//! Tests of the examples for PyTorch and JAX in a cluster. `make test` runs each test if Docker has its image:
//!
//! - `muster-test-torch`, for example from `FROM debian:bookworm-slim` and
//!   `RUN apt-get update && apt-get install -y python3-torch python-is-python3`
//! - `muster-test-jax`, for example from `FROM python:3.11-slim` and `RUN pip install jax`

use e2e::cluster::{Cluster, Image};
use e2e::{Finished, Scene};

#[track_caller]
fn assert_sum_of_two_ranks(example: &str, what: &str) {
    let scene = Scene::of_example(example);
    let shared = Image::shared();
    // The shared image contains the agent, so it serves as agent image.
    let agent_image = shared.wrapped();
    let cluster = Cluster::new(&scene, shared, &["--state-dir", "state", "--agent-image", &agent_image]);
    let image = format!("muster-test-{example}");
    let mut client = scene.client(&["--master", &cluster.master.url, ".", "--worker-num", "2", "--image", &image]);
    let run = Finished::of(&mut client).code(0);
    for rank in 0..2 {
        assert_eq!(run.lines(&format!("{what} {rank} of 2: the sum is 3")).len(), 1, "{}", run.stdout);
    }
}

#[test]
#[ignore = "needs an image with PyTorch"]
fn torch_sums_over_both_ranks() {
    assert_sum_of_two_ranks("torch", "rank");
}

#[test]
#[ignore = "needs an image with JAX"]
fn jax_sums_over_both_processes() {
    assert_sum_of_two_ranks("jax", "process");
}
