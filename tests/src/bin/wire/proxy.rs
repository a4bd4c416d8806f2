//! A proxy for TCP connections that appends every piece of data to a log, before it passes the data on. So the log is
//! complete even if a program is killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::json;

/// Time for the last answer of an agent to reach the master.
const LAST_ANSWER: Duration = Duration::from_millis(300);

/// Starts a proxy in front of the program at `target`. `link` names the caller and the program. Returns the proxy's
/// address.
pub(crate) fn start(link: &'static str, target: SocketAddr, log: &Path) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let log = File::options().create(true).append(true).open(log).context("open the log")?;
    thread::spawn(move || serve(&listener, link, target, &Arc::new(Mutex::new(log))));
    Ok(address)
}

/// Starts an agent of a master's process back end behind a proxy, and ends with the agent's exit code. Like the agent,
/// prints the address at which the master reaches it.
pub(crate) fn run_agent(log: &Path, agent: &str, args: &[String]) -> anyhow::Result<ExitCode> {
    // The agent inherits the stdin. So it ends when the master ends, or when this process is killed.
    let mut child = Command::new(agent).args(args).stdout(Stdio::piped()).spawn().context("start the agent")?;
    let mut printed = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut line = String::new();
    printed.read_line(&mut line)?;
    let proxy = start("master to agent", line.trim().parse().context("not an address")?, log)?;
    writeln!(std::io::stdout(), "{proxy}")?;
    let status = child.wait()?;
    thread::sleep(LAST_ANSWER);
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

fn serve(listener: &TcpListener, link: &str, target: SocketAddr, log: &Arc<Mutex<File>>) {
    for (number, caller) in listener.incoming().flatten().enumerate() {
        // While a master restarts, its callers are cut off.
        let Ok(program) = TcpStream::connect(target) else { continue };
        let connection = format!("{target} {} {number}", std::process::id());
        let ends = [(&caller, &program, "request"), (&program, &caller, "answer")];
        for (from, to, side) in ends {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let piece = json!({ "link": link, "connection": connection, "side": side });
            let log = Arc::clone(log);
            thread::spawn(move || pass_on(from, to, piece, &log));
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, mut piece: serde_json::Value, log: &Mutex<File>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        piece["micros"] = u64::try_from(now.as_micros()).unwrap_or_default().into();
        piece["bytes"] = buffer[..count].into();
        let line = format!("{piece}\n");
        log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()).expect("cannot write the log");
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Fails if the other side has closed the connection.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
