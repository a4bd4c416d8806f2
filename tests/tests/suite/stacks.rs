//! Tests that `client stacks` and `client why` name the replica and the line at which a job hangs, and that `client top`
//! shows what a job uses, with real programs.

use e2e::scripts::with_peers;
use e2e::{Running, Scene, within};
use protocol::stacks::JobStacks;

/// The ranks wait for each other on sockets, except the last rank, which opens a pipe that nobody writes to.
const HANGS: &str = r#"
def load(path):
    os.mkfifo(path)
    print("ready", flush=True)
    with open(path) as file:
        return file.read()

def all_reduce(peers):
    print("ready", flush=True)
    return [peer.recv(4) for peer in peers]

def step(peers):
    if INDEX == len(ALL) - 1: load("pipe")
    all_reduce(peers)

def connect(address):
    host, port = address.rsplit(":", 1)
    while True:
        try: return socket.create_connection((host, int(port)))
        except ConnectionRefusedError: time.sleep(0.01)

if INDEX == 0:
    server = serve()
    peers = [server.accept()[0] for _ in ALL[1:]]
else:
    peers = [connect(ALL[0])]
step(peers)
"#;

/// The number of the line with this text.
fn line_of(script: &str, text: &str) -> usize {
    script.lines().position(|line| line.contains(text)).expect("the script has no such line") + 1
}

/// The sentence about four ranks that hang.
fn sentence(script: &str) -> String {
    let (waits, opens) = (line_of(script, "    all_reduce(peers)"), line_of(script, "with open(path)"));
    format!("3 of 4 wait in all-reduce (exec.py:{waits}), worker-3 is in open() (exec.py:{opens})")
}

#[test]
fn stacks_names_the_rank_and_the_line_at_which_a_job_hangs_and_the_job_runs_on() {
    let script = with_peers(HANGS);
    let scene = Scene::new(&script);
    let client = Running::of(&mut scene.client(&["--task", "hangs", "--worker-num", "4"]));
    client.until_printed(4, "ready");
    let shown = || scene.run(&["stacks", "hangs"]).code(0).stdout;
    let expected = sentence(&script);
    within("the stacks of all ranks are shown", || shown().starts_with(&expected).then_some(()), shown);
    let text = shown();
    assert!(text.contains("all 4") && text.contains(": with open(path) as file:\n"), "{text}");
    let json = scene.run(&["stacks", "hangs", "-o", "json"]).code(0).stdout;
    let stacks: JobStacks = serde_json::from_str(&json).expect("not stacks");
    assert_eq!((stacks.summary.as_str(), stacks.replicas.len()), (expected.as_str(), 4));

    let top = || scene.run(&["top", "hangs"]).code(0).stdout;
    let has_usage = |table: &str| table.lines().filter(|line| line.contains(" MiB")).count() == 4;
    within("the usage of all ranks is shown", || has_usage(&top()).then_some(()), top);
    let all = scene.run(&["top", "--once"]).code(0).stdout;
    assert!(all.starts_with("NAME") && all.contains("hangs"), "{all}");

    let view = scene.run(&["status", "hangs", "-o", "json"]).code(0).view();
    assert!(view.restarts.is_empty() && view.result.is_none(), "the requests have changed the job: {view:?}");
    scene.run(&["stacks", "other"]).code(2).says(&["no job is named \"other\""]);
    scene.run(&["cancel", "hangs"]).code(0);
    client.ended().code(1);
    scene.until_empty();
}

#[test]
fn after_a_deadline_why_names_the_rank_and_the_line_at_which_the_job_hung() {
    let script = with_peers(HANGS);
    let scene = Scene::new(&script);
    let master = scene.master();
    let flags = ["--task", "late", "--worker-num", "4", "--deadline", "8s", "--master", &master.url];
    scene.run(&flags).code(1).says(&["the job exceeded its deadline of 8 s"]);
    let why = scene.run(&["why", "late", "--master", &master.url]).code(0).stdout;
    assert!(why.contains(&format!("\nwhere          {}\n", sentence(&script))), "{why}");
    assert!(scene.run(&["stacks", "late", "--master", &master.url]).code(0).stdout.starts_with("no replica runs"));
}
