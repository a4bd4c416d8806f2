//! The rule for batch sizes on machines of unequal speed, in virtual time; and a job whose sizes follow measured times.

use e2e::Scene;
use e2e::mixed_machines::{Costs, Outcome, Rule, run};

const BATCH: u32 = 256;
const SEEDS: u64 = 200;
const FIXED: Costs = Costs { fixed_ms: 20.0, least_ms: 0.0, overlapping_ms: 0.0, noise: 0.0 };

/// The share of the time of equal sizes that this run saves.
fn saved(outcome: &Outcome, costs: Costs) -> f64 {
    1.0 - outcome.seconds / run(Rule::Equal, BATCH, costs, 0).seconds
}

#[test]
fn without_noise_each_phase_has_one_change_to_nearly_equal_times() {
    for (costs, ceiling) in [(Costs::default(), 0.467), (FIXED, 0.459)] {
        let outcome = run(Rule::Muster, BATCH, costs, 0);
        assert!(outcome.changes.iter().all(|&changes| changes <= 1), "{outcome:?}");
        assert!(outcome.spreads.iter().all(|&spread| spread <= 1.04), "{outcome:?}");
        assert_eq!((outcome.changes[0], outcome.changes[4]), (0, 0));
        assert_eq!(outcome.sums, (BATCH, BATCH));
        let best = saved(&run(Rule::Ceiling, BATCH, costs, 0), costs);
        assert!((best - ceiling).abs() < 0.005, "{best}");
        assert!(saved(&outcome, costs) >= 0.93 * best, "{} of {best}", saved(&outcome, costs));
    }
}

#[test]
fn with_noise_of_5_percent_a_step_sizes_change_at_most_twice_a_phase() {
    for costs in [Costs { noise: 0.05, ..Costs::default() }, Costs { noise: 0.05, ..FIXED }] {
        let runs: Vec<Outcome> = (0..SEEDS).map(|seed| run(Rule::Muster, BATCH, costs, seed)).collect();
        let phases = runs.len() as f64 * 8.0;
        for outcome in &runs {
            assert!(outcome.changes.iter().all(|&changes| changes <= 2), "{outcome:?}");
            assert_eq!((outcome.changes[0], outcome.changes[4], outcome.sums), (0, 0, (BATCH, BATCH)), "{outcome:?}");
        }
        let changes = runs.iter().flat_map(|outcome| &outcome.changes).sum::<usize>() as f64 / phases;
        let spread = runs.iter().flat_map(|outcome| &outcome.spreads).sum::<f64>() / phases;
        assert!(changes <= 0.85 && spread <= 1.05, "{changes} changes a phase, a spread of {spread}");
    }
}

#[test]
fn where_small_batches_take_the_same_time_or_communication_overlaps_no_run_is_longer_than_with_equal_sizes() {
    for noise in [0.0, 0.05] {
        for limit in [200.0, 500.0, 1_000.0, 2_000.0] {
            let knee = Costs { least_ms: limit, noise, ..FIXED };
            let overlap = Costs { overlapping_ms: limit, noise, ..FIXED };
            for (costs, seed) in [knee, overlap].into_iter().flat_map(|costs| (0..5).map(move |seed| (costs, seed))) {
                let (ours, equal) = (run(Rule::Muster, BATCH, costs, seed), run(Rule::Equal, BATCH, costs, seed));
                assert!(ours.seconds <= equal.seconds * (1.0 + noise / 5.0), "{costs:?}: {ours:?}, {equal:?}");
            }
        }
    }
}

/// Two ranks that sum over a socket. Rank 1 needs three times as long for a sample. The script prints the size of each
/// step, and ends 10 steps after a change of the sizes.
const UNEQUAL: &str = "import os, socket, struct, time, muster
job = muster.Job()
address = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if job.rank == 0:
    peer = socket.create_server(address).accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError: time.sleep(0.01)

def summed(numbers):
    peer.sendall(struct.pack('2d', *numbers))
    return [mine + theirs for mine, theirs in zip(numbers, struct.unpack('2d', peer.recv(16, socket.MSG_WAITALL)))]

job.started()
step, last = 0, None
while step != last:
    step += 1
    print('step', step, 'size', job.batch, flush=True)
    with job.measure():
        time.sleep(0.002 * job.batch * (1, 3)[job.rank])
    job.step(step, summed(job.signal()))
    last = last or (step + 10 if job._split else None)
job.done()";

#[test]
fn sizes_follow_measured_times_at_the_same_step_of_all_ranks_and_with_the_same_sum() {
    let scene = Scene::new(UNEQUAL);
    let run = scene.run(&["--worker-num", "2", "--global-batch", "128"]).code(0);
    let run = run.says(&["--- batch sizes 64, 64 → 96, 32: worker-1 needed "]);
    let sizes = |rank: &str| -> Vec<String> {
        let lines = run.stdout.lines().filter_map(|line| line.strip_prefix(rank)?.split_once("size "));
        lines.map(|(_, size)| size.to_owned()).collect()
    };
    let (first, second) = (sizes("worker-0"), sizes("worker-1"));
    assert_eq!(first.len(), second.len());
    let changed = first.iter().position(|size| size != "64").expect("no change");
    assert!(first[..changed].iter().chain(&second[..changed]).all(|size| size == "64"), "{first:?} {second:?}");
    assert!(first[changed..].iter().all(|size| size == "96") && second[changed..].iter().all(|size| size == "32"));
    assert_eq!(first.len() - changed, 10);
}

#[test]
fn a_worker_whose_memory_is_too_small_gets_a_smaller_batch_in_the_next_start() {
    // The first change makes the batch of worker-0 too large for it.
    let limited = UNEQUAL.replace(
        "    with job.measure():",
        "    if job.batch > 80: raise MemoryError(f'a batch of {job.batch}')\n    last = last or (12 if job.generation > '1.1' else None)\n    with job.measure():",
    );
    let scene = Scene::new(&limited);
    let run =
        scene.run(&["--worker-num", "2", "--global-batch", "128", "--max-restarts", "3", "--backoff", "0s"]).code(0);
    run.says(&["worker-0 has too little memory for a batch of 96, so it gets at most 64 in later starts"]);
}

#[test]
fn a_job_fails_when_no_sizes_fit_into_the_memory_of_its_workers() {
    let scene = Scene::new(
        "import os\nif os.environ['RANK'] == '0' and int(os.environ['BATCH_SIZE']) > 40: raise MemoryError('a large batch')",
    );
    let flags =
        ["--worker-num", "2", "--global-batch", "96", "--max-batch", "60", "--max-restarts", "3", "--backoff", "0s"];
    let run = scene.run(&flags).code(1);
    assert!(!run.stderr.contains("restart 1"), "a start that cannot succeed\n{}", run.stderr);
    run.says(&["has too little memory for a batch of 48: use --global-batch 84 or less, or machines with more memory"]);
}
