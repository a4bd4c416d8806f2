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
