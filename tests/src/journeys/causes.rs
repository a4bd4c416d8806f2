//! Journeys of failed jobs, whose causes `client why` shows.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use crate::place::{Place, Stage};
use crate::scripts::with_peers;

/// Worker 1 executes STATEMENT. The other workers are connected to worker 1.
const FAILS: &str = r#"
def connect(address):
    host, port = address.rsplit(":", 1)
    while True:
        try: return socket.create_connection((host, int(port)))
        except ConnectionRefusedError: time.sleep(0.01)

if INDEX == 1:
    server = serve()
    peers = [server.accept() for _ in ALL[1:]]
    print("last words", flush=True)
    STATEMENT
peer = connect(ALL[1])
try: peer.recv(1)
finally:
    time.sleep(0.5)
    os._exit(1)
"#;

pub fn why_names_the_replica_that_exited_first_and_the_replicas_that_ended_because_of_it(place: Place) {
    names_worker_1(place, "sys.exit(3)", "worker-1 exited with code 3");
}

pub fn why_names_the_replica_that_crashed(place: Place) {
    names_worker_1(place, "os.kill(os.getpid(), signal.SIGSEGV)", "worker-1 was killed by signal 11 (SIGSEGV)");
}

/// Runs a job in which worker 1 executes this statement, and asserts that the client and `why` say how worker 1 ended.
/// The other workers are connected to worker 1 and fail 0.5 s later, like TensorFlow's workers.
fn names_worker_1(place: Place, statement: &str, how: &str) {
    let stage = Stage::new(place, &with_peers(&FAILS.replace("STATEMENT", statement)));
    let flags = ["--task", "broken", "--worker-num", "3", "--max-restarts", "1", "--backoff", "0s"];
    stage.submit(&flags).code(1).says(&[how]);
    stage.assert_nothing_runs();
    let why = stage.verb(&["why", "broken"]).code(0).stdout;
    assert!(why.starts_with(&format!("job broken failed, after 1 restart: {how}\n")), "{why}");
    assert!(why.contains(&format!("\nfirst to fail  worker-1\nhow            {how}\n")), "{why}");
    assert!(why.contains(", start 1.2\nlast lines of worker-1:\n  │ last words\n"), "{why}");
    assert!(why.contains(&format!("\n  start 1.1: {how}")), "{why}");
    let consequences: Vec<&str> = why.lines().filter(|line| line.starts_with("because of it")).collect();
    // The other workers fail because of worker-1, or the master stops them before they fail.
    assert!(["worker-0", "worker-2"].iter().all(|other| consequences.concat().contains(other)), "{why}");
}
