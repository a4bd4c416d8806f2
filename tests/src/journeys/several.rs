//! Journeys of replicas with several processes.

use std::collections::BTreeSet;

use crate::{Place, Stage};

/// Rank 0 waits for all other ranks at MASTER_PORT. Then each rank prints what it knows.
pub const RANKS_MEET: &str = "import os, socket, time
rank, world, processes = (int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE', 'PET_NPROC_PER_NODE'))
address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
if rank == 0:
    server = socket.create_server(('', address[1]))
    peers = [server.accept()[0] for _ in range(world - 1)]
    for peer in peers:
        peer.sendall(b'!')
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.01)
    peer.recv(1)
print('rank', rank, 'of', world, 'process', os.environ.get('MUSTER_PROCESS'), 'of', processes)
";

/// Each process of each worker is a rank, and its lines say so.
pub fn each_process_of_each_worker_is_a_rank(place: Place) {
    let stage = Stage::new(place, RANKS_MEET);
    let done = stage.submit(&["--task", "ranks", "--worker-num", "2", "--nproc-per-node", "2"]).code(0);
    let lines: BTreeSet<&str> = done.stdout.lines().collect();
    for (worker, process, rank) in [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)] {
        let line = format!("worker-{worker} │ [rank{rank}] rank {rank} of 4 process {process} of 2");
        assert!(lines.contains(&*line), "{line}\n{}", done.stdout);
    }
    let logs = |flags: &[&str]| stage.verb(&[&["logs", "ranks"], flags].concat());
    assert_eq!(logs(&["--rank", "3"]).code(0).stdout, "worker-1 │ rank 3 of 4 process 1 of 2\n");
    assert_eq!(logs(&["--rank", "3", "--replica", "worker-1"]).code(0).stdout, "rank 3 of 4 process 1 of 2\n");
    let two = logs(&["--rank", "0,2"]).code(0).stdout;
    assert!(two.lines().count() == 2 && two.contains("[rank2] rank 2 of 4"), "{two}");
}

/// `client why` names the rank that failed first, with its own exception.
pub fn why_names_the_rank_that_failed_first(place: Place) {
    let script = format!("{RANKS_MEET}\nif rank == 3:\n    raise ValueError('no data')\ntime.sleep(1000)");
    let stage = Stage::new(place, &script);
    stage.submit(&["--task", "ranks", "--worker-num", "2", "--nproc-per-node", "2", "--max-restarts", "0"]).code(1);
    let why = stage.verb(&["why", "ranks"]).code(0).stdout;
    let raises = script.lines().count() - 1;
    let headline = format!("job ranks failed: worker-1/1 (rank 3): ValueError: no data (exec.py:{raises})");
    assert!(why.starts_with(&headline), "{why}");
    assert!(why.contains("first to fail  worker-1/1 (rank 3)\n") && !why.contains("│ …"), "{why}");
}
