//! Compares the agent with a minimal web server, `python3 -m http.server`.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use e2e::{Scene, programs};
use master::agents::client::AgentClient;

use crate::elastic::site::Launcher;
use crate::sample::{Figure, RUNS, Row, median};
use crate::spawn::BareAgent;

/// Compares the memory of agent and server, and the time from the start of each process until it serves. The agent
/// serves when it has answered a request, and the server when it has accepted a connection. Also measures the size of
/// the agent's file.
pub(crate) async fn compare() -> anyhow::Result<Vec<Row>> {
    let scene = Scene::new("");
    let (mut agent_starts, mut server_starts) = (vec![], vec![]);
    let (mut agent_memory, mut server_memory) = (0, 0);
    for _ in 0..RUNS {
        let begin = Instant::now();
        let agent = BareAgent::start(scene.path())?;
        AgentClient::new().status(agent.address, None).await?;
        agent_starts.push(begin.elapsed());
        agent_memory = resident(agent.pid())?;
        let begin = Instant::now();
        let server = start_server()?;
        server_starts.push(begin.elapsed());
        server_memory = resident(server.pid())?;
    }
    let bare_is = "python3 -m http.server";
    let time = |times| Figure::Time(median(times));
    let size = fs::metadata(programs::built("agent"))?.len();
    Ok(vec![
        Row::new("agent's file", Figure::Bytes(size)),
        Row::new("agent's resident memory", Figure::Bytes(agent_memory)).against(Figure::Bytes(server_memory), bare_is),
        Row::new("start until it serves", time(agent_starts)).against(time(server_starts), bare_is),
    ])
}

/// Starts the web server, and waits until it listens.
fn start_server() -> anyhow::Result<Launcher> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let server = Launcher::start(
        Command::new("python3")
            .args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()])
            .current_dir(programs::root())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )?;
    let begin = Instant::now();
    while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
        anyhow::ensure!(begin.elapsed() < Duration::from_secs(30), "python3 -m http.server does not answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(server)
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmRSS:")
}

/// The maximum of the memory that a process has used so far.
pub(crate) fn peak(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, which: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(which)).with_context(|| format!("no {which} in {status}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
