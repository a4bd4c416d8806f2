//! Scripts in the style of Scavenger and of OmniLearn, with the command lines of docs/guides/mixed-machines.md. Each trains
//! with batches of unequal sizes, and must end with the weight of a single process.

use std::fs;

use e2e::Scene;
use e2e::programs::root;
use serde_json::{Value, json};

fn scene(script: &str) -> Scene {
    let path = root().join("tests/other_launchers").join(script);
    Scene::new(&fs::read_to_string(path).expect("cannot read the script"))
}

/// The weight after 50 steps of one process: each step uses all 96 samples (x, 3 x).
fn weight() -> f64 {
    let square_mean = (0..96).map(|number| (f64::from(number) / 96.0).powi(2)).sum::<f64>() / 96.0;
    (0..50).fold(0.0, |weight, _| weight - 0.5 * 2.0 * (weight - 3.0) * square_mean)
}

#[test]
fn a_script_in_scavengers_style_finds_its_sizes_and_the_folder_of_the_model_in_tf_config() {
    let scene = scene("in_scavengers_style.py");
    let model_dir = format!("model_dir={}", scene.path().display());
    let cluster = ["--chief-num", "1", "--chief-name", "master", "--worker", "batch=16:1", "--worker", "batch=48:1"];
    let keys = ["--global-batch", "96", "--tf-config", &model_dir, "--tf-config", "environment=cloud"];
    let sizes = ["--", "--node_batch_size", "$(BATCH_SIZE)", "--global_batch_size_value", "$(GLOBAL_BATCH_SIZE)"];
    let run = scene.run(&[&cluster[..], &keys, &sizes].concat()).code(0);
    scene.assert_empty();
    for (task, size) in [("master 0", 32), ("worker 0", 16), ("worker 1", 48)] {
        assert_eq!(run.lines(&format!("{task}: {size} of 96, weight {:.9}", weight())), [""], "{}", run.stdout);
    }
    let model = fs::read(scene.path().join("model.json")).expect("the master has written no model");
    let model: Value = serde_json::from_slice(&model).expect("the model is not JSON");
    assert_eq!((&model["batch_size_list"], &model["environment"]), (&json!([32, 16, 48]), &json!("cloud")));
}

#[test]
fn a_script_in_omnilearns_style_gets_its_rank_address_and_sizes_as_arguments() {
    let scene = scene("in_omnilearns_style.py");
    let workers = ["--worker", "cpu=1:2", "--worker", "cpu=2:1", "--worker", "cpu=4:1", "--global-batch", "96", "--"];
    let place = ["--rank", "$(RANK)", "--world-size", "$(WORLD_SIZE)"];
    let address = ["--master-addr", "$(MASTER_ADDR)", "--master-port", "$(MASTER_PORT)"];
    let sizes = ["--bsz", "$(BATCH_SIZE)", "--globalB", "$(GLOBAL_BATCH_SIZE)"];
    let run = scene.run(&[&workers[..], &place, &address, &sizes].concat()).code(0);
    scene.assert_empty();
    for (rank, size) in [12, 12, 24, 48].into_iter().enumerate() {
        assert_eq!(run.lines(&format!("rank {rank}: {size} of 96, weight {:.9}", weight())), [""], "{}", run.stdout);
    }
}
