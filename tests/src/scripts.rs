//! What stands in for a training: small exec.py that behave like TensorFlow's in one respect. They tell a test how far
//! they are by their output, and hear from each other and from the test at their addresses, which is the same wherever
//! they run.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use protocol::view::JobView;

/// Says that it is ready, and then neither ends nor listens to SIGTERM.
pub const STUBBORN: &str = r#"
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
while True: time.sleep(60)
"#;

/// Says that it is ready, and saves its state when it is told to end, which takes it a while.
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

/// What a script begins with that talks to the other replicas of its job.
pub const PEERS: &str = r#"
import json, os, signal, socket, sys, time
CONFIG = json.loads(os.environ["TF_CONFIG"])
ROLE, INDEX = CONFIG["task"]["type"], CONFIG["task"]["index"]
OWN = CONFIG["cluster"][ROLE][INDEX]
ALL = [address for role in CONFIG["cluster"].values() for address in role]

def serve():
    """Takes this replica's address, as a TensorFlow server does."""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", int(OWN.rsplit(":", 1)[1])))
    server.listen()
    return server

def call(address):
    """Returns when a replica has taken this address."""
    host, port = address.rsplit(":", 1)
    while True:
        try: return socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError: time.sleep(0.01)

def serve_stubbornly():
    """Neither ends nor listens to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = serve()
    while True: time.sleep(60)
"#;

/// Says that it has begun, answers `still here` to each caller but the one who says `end`, and then says that it ended.
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

/// `PEERS`, and then this.
pub fn with_peers(script: &str) -> String {
    format!("{PEERS}\n{script}")
}

/// Says a word to a worker, at the address of its TensorFlow server, and gives its answer.
///
/// # Panics
/// When it does not listen there.
pub fn tell(job: &JobView, worker: usize, word: &str) -> String {
    let address = job.replicas[worker].address.as_deref().expect("it has one");
    let mut stream = TcpStream::connect(address).expect("exec.py listens");
    writeln!(stream, "{word}").expect("exec.py reads");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("exec.py answers");
    answer
}
