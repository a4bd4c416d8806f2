//! Muster's agent: process 1 of every pod. It takes an environment by HTTP, starts `python exec.py` with it once a
//! generation, keeps its output, stops it with everything it started, and says how it ended. It knows nothing of
//! Kubernetes, ranks or worker counts. This file is the wiring.

pub mod activity;
pub mod config;
pub mod diagnostics;
pub mod follow;
pub mod http;
pub mod last_words;
pub mod log;
pub mod mirror;
pub mod pump;
pub mod reaper;
pub mod run;
pub mod shim;

use std::convert::Infallible;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::process::setsid;
use tokio::io::AsyncReadExt;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;
use tracing::{info, warn};

use activity::Activity;
use config::{Config, Invocation, Supervision};
use http::Agent;
use log::{LogSize, Output};
use reaper::Reaper;
use run::event::Event;
use run::memory::{CGROUP, Memory};
use run::{Command, Left, Runner, child::Recipe};

/// Disk space that an agent on a machine shared with others reserves for each log.
const LOCAL_RESERVE_BYTES: u64 = 256 * 1024;

/// Requests that wait for the runner at most; more of them wait in their connections.
const COMMANDS_MAX: usize = 64;

/// How long copying the last output may take when the agent ends.
const MIRROR_LIMIT: Duration = Duration::from_secs(5);

/// How long the answers that are open when the agent ends may take.
const HTTP_LIMIT: Duration = Duration::from_secs(5);

/// How long an agent that was told to end still answers whoever reads what its run has left: a master that hears of the
/// end copies the rest of the output.
const READERS_LIMIT: Duration = Duration::from_secs(2);

/// Without a request for so long, nobody reads.
const READERS_PAUSE: Duration = Duration::from_millis(500);

/// The exit code of an agent that could not start: its command line cannot be understood, its port is taken, or the
/// machine lacks something. Not 1, with which exec.py ends when it raises an exception, and the agent then as well.
const NOT_STARTED: u8 = 2;

/// The program: understands how it was started, and does it.
pub fn main() -> ExitCode {
    let code = match config::from_process() {
        Ok(Invocation::Agent(config)) => be_agent(*config),
        Ok(Invocation::Shim(shim)) => shim::become_command(shim),
        Ok(Invocation::Help) => print(&config::help()),
        Ok(Invocation::Version) => print(concat!("agent ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(error) => complain(&error.to_string()),
    };
    ExitCode::from(code)
}

fn print(text: &str) -> u8 {
    u8::from(io::stdout().write_all(text.as_bytes()).is_err())
}

/// Says why there is no agent. Returns the code to exit with.
fn complain(error: &str) -> u8 {
    // The exit code says it too.
    let _ = writeln!(io::stderr(), "error: {error}");
    NOT_STARTED
}

fn be_agent(config: Config) -> u8 {
    if config.supervision == Supervision::Parent {
        // Ctrl-C in the master's terminal is the master's to answer, and a run that asked there for a password would wait
        // for ever, since it is in the terminal's background. Only who leads a group cannot leave it, as no child of a master does.
        let _ = setsid();
    }
    // One thread: runs must be started from one that lives as long as the agent, and there is little to do.
    let result =
        runtime::Builder::new_current_thread().enable_all().build().context("start the runtime").and_then(|runtime| {
            let diagnostics = diagnostics::start().context("start the log")?;
            let code = runtime.block_on(serve(config));
            // A read of stdin or a write to a stdout that nobody reads may never return.
            runtime.shutdown_background();
            diagnostics.flush();
            code
        });
    result.unwrap_or_else(|error| complain(&format!("{error:#}")))
}

/// Is an agent until it is to end. Returns the code to exit with. All that can fail comes before a run can be started,
/// so a failure means that the agent has not started.
async fn serve(config: Config) -> anyhow::Result<u8> {
    let addresses = config.addresses(std::process::id() == 1);
    let Config {
        listen: _,
        work_dir,
        log_bytes,
        linger,
        termination_grace: grace,
        termination_log,
        token,
        supervision,
        command,
        // Part of `command` by now.
        entrypoint: _,
        environment,
    } = config;
    check_work_dir(&work_dir)?;
    let orders = Orders {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        supervision,
        grace,
    };
    let reaper = Reaper::new().context("become the parent of orphans")?;
    let folders = [std::env::temp_dir(), PathBuf::from("/dev/shm"), work_dir.clone()];
    let size = log_size(log_bytes, supervision);
    let output = Output::create(&folders, size).map(Arc::new).context("create the files for the output")?;
    let listener = http::listen(&addresses)?;
    let address = listener.local_addr().context("read the own address")?;

    let recipe = Recipe { command, work_dir, environment };
    let boot_id = uuid::Uuid::new_v4().to_string();
    let (runner, status) = Runner::new(recipe, Arc::clone(&output), reaper, Memory::of(CGROUP), boot_id);
    let (commands, queue) = mpsc::channel(COMMANDS_MAX);
    let agent = Agent { commands, status, output, activity: Activity::new(), token };

    let mirror = match supervision {
        Supervision::Pod => Some(tokio::spawn(mirror::mirror(Arc::clone(&agent.output), agent.status.clone()))),
        Supervision::Parent => {
            io::stdout().write_all(format!("{address}\n").as_bytes()).context("tell the master the address")?;
            None
        }
    };
    info!(%address, version = env!("CARGO_PKG_VERSION"), "listening");
    let orders = tokio::spawn(orders.pass_on(agent.commands.clone()));
    let retire = tokio::spawn(retire(agent.clone(), linger));
    let (activity, status) = (agent.activity.clone(), agent.status.clone());
    let (end_http, ending) = oneshot::channel();
    let http = tokio::spawn(http::serve(listener, agent, ending));
    // Not a task of its own: the runner starts processes, and the main thread is the one that stays.
    let left = runner.run(queue).await;

    orders.abort();
    retire.abort();
    if let Some(file) = termination_log {
        last_words::leave(&status.borrow(), &file);
    }
    wind_down(left, &activity, Http { end: end_http, task: http }, mirror).await;
    info!(code = left.code, "ends");
    Ok(left.code)
}

/// Refuses a working directory in which no run could start.
fn check_work_dir(work_dir: &Path) -> anyhow::Result<()> {
    let hint = "create it, or name another directory with --work-dir";
    match work_dir.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(anyhow!("the working directory {work_dir:?} is not a directory\nhint: {hint}")),
        Err(error) => Err(anyhow!("cannot use the working directory {work_dir:?}: {error}\nhint: {hint}")),
    }
}

/// A pod's agent reserves all of its disk space. Local agents share a disk, and most of them print little: each
/// reserves enough for the traceback of a script that fails because that disk is full.
fn log_size(capacity: NonZeroU64, supervision: Supervision) -> LogSize {
    let reserved = match supervision {
        Supervision::Pod => capacity.get(),
        Supervision::Parent => LOCAL_RESERVE_BYTES,
    };
    LogSize { capacity, reserved }
}

/// The task that answers requests.
struct Http {
    /// Tells it to end when it is dropped.
    end: oneshot::Sender<Infallible>,
    task: JoinHandle<()>,
}

/// Lets those who read come to an end, as far as there is time.
async fn wind_down(left: Left, activity: &Activity, Http { end, task }: Http, mirror: Option<JoinHandle<()>>) {
    let mut cut_off = left.at_most(HTTP_LIMIT);
    if left.killed_at.is_some() {
        cut_off = left.at_most(READERS_LIMIT);
        // Whoever still reads then is cut off below.
        let _ = timeout_at(cut_off, activity.quiet(READERS_PAUSE)).await;
    }
    drop(end);
    if timeout_at(cut_off, task).await.is_err() {
        warn!("open answers are cut off");
    }
    if let Some(mirror) = mirror
        && timeout_at(left.at_most(MIRROR_LIMIT), mirror).await.is_err()
    {
        warn!("nobody reads the agent's own output; its end is lost");
    }
}

impl Left {
    /// The end of a wait that begins now and takes no longer than `limit`, or than the agent lives.
    fn at_most(&self, limit: Duration) -> tokio::time::Instant {
        let end = Instant::now() + limit;
        self.killed_at.map_or(end, |killed_at| killed_at.min(end)).into()
    }
}

/// Who can tell the agent to end, other than by HTTP.
struct Orders {
    terminate: Signal,
    interrupt: Signal,
    supervision: Supervision,
    /// What a signal leaves to the agent.
    grace: Duration,
}

impl Orders {
    /// Passes on each order to the runner.
    async fn pass_on(mut self, commands: mpsc::Sender<Command>) {
        let mut parent_gone = pin!(parent_gone(self.supervision));
        loop {
            let order = tokio::select! {
                _ = self.terminate.recv() => Command::Terminate { grace: self.grace },
                _ = self.interrupt.recv() => Command::Terminate { grace: self.grace },
                () = &mut parent_gone => break,
            };
            // An agent that ends already takes no more orders.
            let _ = commands.send(order).await;
        }
        // A master that is gone cannot wait for a graceful end, and its successor needs the ports.
        let _ = commands.send(Command::Abandon).await;
    }
}

/// Returns when stdin has ended, if that is where a master would be.
async fn parent_gone(supervision: Supervision) {
    match supervision {
        Supervision::Pod => std::future::pending().await,
        Supervision::Parent => {
            let mut stdin = tokio::io::stdin();
            let mut ignored = [0; 256];
            while matches!(stdin.read(&mut ignored).await, Ok(1..)) {}
        }
    }
}

/// Ends an agent whose run is over and whom nobody asks anything any more.
async fn retire(agent: Agent, linger: Duration) {
    loop {
        agent.activity.abandoned(agent.status.clone(), linger).await;
        info!(linger_seconds = linger.as_secs(), "nobody asks any more");
        let (reply, answer) = oneshot::channel();
        let finish = Command::Request { event: Event::Finish, reply };
        // Someone may have started a run at the last moment; then this is refused, and the wait begins anew.
        if agent.commands.send(finish).await.is_err() || answer.await.is_err() {
            return;
        }
    }
}
