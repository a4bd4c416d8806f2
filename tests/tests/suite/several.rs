//! Replicas of several processes, with real programs on this machine.

use e2e::journeys::RANKS_MEET;
use e2e::{Place, Scene, Stage};

e2e::journeys_of_several_processes!(Place::Processes, #[cfg(unix)]);

#[test]
fn the_ranks_of_a_job_whose_workers_have_one_process_cannot_be_chosen() {
    let stage = Stage::new(Place::Processes, "print('hello')");
    stage.submit(&["--task", "one", "--worker-num", "1"]).code(0);
    let refused = stage.verb(&["logs", "one", "--rank", "0"]).code(2).stderr;
    assert!(refused.contains("the workers of job one have one process each"), "{refused}");
}

#[test]
fn a_number_of_processes_that_makes_no_sense_is_refused_before_anything_starts() {
    let scene = Scene::new(RANKS_MEET);
    for (flags, said) in [
        (vec!["--nproc-per-node", "0"], "use a number from 1 to 64, or gpu"),
        (vec!["--nproc-per-node", "65"], "use a number from 1 to 64, or gpu"),
        (vec!["--nproc-per-node", "gpus"], "use a number from 1 to 64, or gpu"),
        (vec!["--nproc-per-node", "gpu"], "give --gpus N too, or --nproc-per-node N"),
        (vec!["--nproc-per-node", "2", "--strategy", "ps"], "nproc-per-node needs AllReduce"),
        (vec!["--nproc-per-node", "2", "--global-batch", "64"], "global-batch cannot be divided"),
    ] {
        let refused = scene.run(&flags).code(2);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}
