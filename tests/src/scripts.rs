//! Small scripts that behave like a training in one respect, and print their progress on stdout. Some scripts listen at
//! their TensorFlow address, to which tests and other replicas connect.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use protocol::view::JobView;

use crate::processes::within;

/// Prints `ready`, ignores SIGTERM and does not end.
pub const STUBBORN: &str = r#"
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
while True: time.sleep(60)
"#;

/// Prints `ready`. After SIGTERM, the script takes 1 s to save its state, prints `saved`, and ends.
pub const SAVES: &str = r#"
import signal, sys, time
def save(*_):
    time.sleep(1)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
while True: time.sleep(60)
"#;

/// The beginning of scripts that talk to other replicas of their job.
pub const PEERS: &str = r#"
import json, os, signal, socket, sys, time
CONFIG = json.loads(os.environ["TF_CONFIG"])
ROLE, INDEX = CONFIG["task"]["type"], CONFIG["task"]["index"]
OWN = CONFIG["cluster"][ROLE][INDEX]
ALL = [address for role in CONFIG["cluster"].values() for address in role]

def serve():
    """Listens at this replica's address, like a TensorFlow server."""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", int(OWN.rsplit(":", 1)[1])))
    server.listen()
    return server

def call(address):
    """Returns when a replica listens at this address."""
    host, port = address.rsplit(":", 1)
    while True:
        try: return socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError: time.sleep(0.01)

def serve_stubbornly():
    """Ignores SIGTERM and does not end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = serve()
    while True: time.sleep(60)
"#;

/// Prints `begun`. Prints `still here` for each caller, and answers the caller with the same text. When a caller sends
/// `end`, prints `ended` and ends without an answer.
pub const AWAITS_ITS_END: &str = r#"
server = serve()
print("begun")
while True:
    caller, _ = server.accept()
    word = caller.makefile().readline().strip()
    if word == "end": break
    print("still here")
    caller.sendall(b"still here\n")
print("ended")
"#;

/// Returns `PEERS`, followed by this script.
pub fn with_peers(script: &str) -> String {
    format!("{PEERS}\n{script}")
}

/// Sends a word to the TensorFlow address of the replica with the index `worker` in the view. Returns the answer.
///
/// # Panics
/// If the replica does not listen before the deadline.
pub fn tell(job: &JobView, worker: usize, word: &str) -> String {
    let address = job.replicas[worker].address.as_deref().expect("the replica has no address");
    // The job is running as soon as its agents have started exec.py. A little later, exec.py listens.
    let mut stream = within("exec.py listens", || TcpStream::connect(address).ok(), || format!("{job:#?}"));
    writeln!(stream, "{word}").expect("cannot send to exec.py");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("cannot read the answer of exec.py");
    answer
}

/// Two ranks that sum over a socket. Rank 1 needs three times as long for a sample. The script prints the size of each
/// step, and ends 25 steps after a change of the sizes, when the master knows the change. Muster measures with a clock
/// that the script moves, so a busy machine changes no size.
pub const UNEQUAL: &str = include_str!("unequal.py");
