//! Tests of the examples with real TensorFlow. `make test` installs TensorFlow, and puts its `python` on the PATH.

use std::collections::BTreeSet;
use std::fs;

use e2e::{Place, Scene};

e2e::journeys_of_trainings!(Place::OwnMaster, #[cfg(unix)]);

#[test]
fn a_training_starts_and_restarts_warm_and_its_workers_end_with_the_same_weights() {
    let scene = Scene::of_example("allreduce");
    let path = scene.path().join("exec.py");
    let example = fs::read_to_string(&path).expect("cannot read the example");
    let seen = "import sys\nprint('imported', 'tensorflow' in sys.modules)\n";
    let fail = "\nif os.environ['MUSTER_RESTART_COUNT'] == '0': sys.exit(3)\n";
    fs::write(path, [seen, &example, fail].concat()).expect("cannot write exec.py");
    let flags = ["--worker-num", "2", "--max-restarts", "1", "--backoff", "0s", "--preload", "--", "--steps", "20"];
    let run = scene.run(&flags).code(0);
    scene.assert_empty();
    assert_eq!(run.lines("imported True").len(), 4, "{}", run.stdout);
    let digests = run.lines("digest ");
    assert!(digests.len() >= 2, "{}", run.stdout);
    assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 1, "{digests:?}");
}

#[test]
fn new_batch_sizes_lose_no_step_and_trace_no_function_again() {
    let scene = Scene::of_example("heterogeneous");
    let path = scene.path().join("exec.py");
    let mut script = fs::read_to_string(&path).expect("cannot read the example");
    for (old, new) in [
        ("for step in range(1, options.steps + 1):", "for step in until_120_steps_after_a_change():"),
        ("    if job.is_chief and step % 10 == 0:\n", "    if True:\n"),
        (
            "job.done()",
            "print('traces', *(part.experimental_get_tracing_count() for part in (local_gradients, update)))\njob.done()",
        ),
        (
            "\ntry:\n",
            "
def until_120_steps_after_a_change():
    step, last = 0, None
    while step != last:
        step += 1
        yield step
        last = last or (step + 120 if job._split else None)

try:
",
        ),
    ] {
        assert!(script.contains(old), "the example has no {old:?}");
        script = script.replace(old, new);
    }
    fs::write(&path, script).expect("cannot write exec.py");
    let run = scene.run(&["--worker-num", "2", "--global-batch", "256", "--", "--work", "1=4"]).code(0);
    let run = run.says(&["--- batch sizes 128, 128 → ", "worker-1 needed "]);
    assert_eq!(run.lines("traces "), ["1 1", "1 1"]);
    let of = |worker: &str| -> Vec<String> {
        run.stdout
            .lines()
            .filter_map(|line| Some(line.strip_prefix(worker)?.strip_prefix(" │ step ")?.to_owned()))
            .collect()
    };
    let steps = of("worker-0");
    // Both workers have the same losses and sizes in each step.
    assert_eq!(steps, of("worker-1"));
    let numbers: Vec<usize> = steps.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    assert_eq!(numbers, (1..=steps.len()).collect::<Vec<_>>());
    let with_first_sizes = steps.iter().filter(|line| line.ends_with("sizes [128, 128]")).count();
    assert_eq!(steps.len() - with_first_sizes, 120, "{steps:?}");
}
