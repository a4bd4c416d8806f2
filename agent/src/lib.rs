//! Muster's agent: the first process of every pod. The agent receives an environment by HTTP and starts `python
//! exec.py` with this environment, once for each generation. The agent keeps the output, stops the script with all its
//! descendants, and reports how the script ended. The agent does not use the Kubernetes API, and does not interpret
//! ranks or worker counts. This file connects the modules.

pub mod activity;
mod agent;
pub mod code;
pub mod config;
pub mod diagnostics;
mod ending;
pub mod follow;
pub mod helper;
pub mod http;
mod install;
mod join;
pub mod last_words;
pub mod log;
pub mod mirror;
mod posts;
pub mod process;
pub mod pump;
pub mod refusal;
pub mod run;
mod server;
mod stacks;
mod token;
pub mod warm;
mod wind_down;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustix::process::setsid;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::info;

use activity::Activity;
use agent::{Agent, DeliveredCode};
use config::{Config, Folders, Invocation, Supervision};
use ending::Stops;
use helper::HelperFolder;
use join::{Joining, JoiningMachine};
use log::{AgentOutput, LogSize};
use process::child::RunTemplate;
use process::reaper::Reaper;
use run::runner::Runner;
use stacks::StacksOfRun;
use token::Access;
use wind_down::{HttpTask, wind_down};

/// Disk space that an agent reserves for each log: enough for the traceback of a script that fails because the disk is
/// full. Agents share the disk of their machine or node, and most of them print little.
const RESERVE_BYTES: u64 = 256 * 1024;

/// Maximum number of requests in the runner's queue. Further requests wait in their connections.
const REQUESTS_MAX: usize = 64;

/// Exit code of an agent that could not start, for example because of a bad command line or a port that is taken. The
/// code is not 1, because an agent exits with 1 after a Python script that raised an exception.
const NOT_STARTED: u8 = 2;

/// Runs the program `agent`.
pub fn main() -> ExitCode {
    let code = match config::from_process() {
        Ok(Invocation::Agent(config)) => run_agent(*config),
        Ok(Invocation::Shim(shim)) => process::shim::become_command(shim),
        Ok(Invocation::Install(target)) => match install::install(&target) {
            Ok(()) => 0,
            Err(error) => complain(&format!("cannot copy the agent to {target:?}: {error}")),
        },
        Ok(Invocation::Help) => print(config::HELP),
        Ok(Invocation::Version) => print(concat!("agent ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(error) => complain(&error.to_string()),
    };
    ExitCode::from(code)
}

fn print(text: &str) -> u8 {
    u8::from(io::stdout().write_all(text.as_bytes()).is_err())
}

/// Prints why the agent could not start. Returns the exit code.
fn complain(error: &str) -> u8 {
    // If stderr is closed, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "error: {error}");
    NOT_STARTED
}

fn run_agent(config: Config) -> u8 {
    if config.supervision == Supervision::Parent {
        // Leave the master's terminal. Otherwise the agent would get the Ctrl-C that is meant for the master. A run
        // that asks for a password on the terminal would wait for ever. The call fails only for the leader of a process
        // group. A master's child is not a leader.
        let _ = setsid();
    }
    // One thread is enough. It also starts the runs, so it must live as long as the agent: see `run::child::spawn`.
    let result =
        runtime::Builder::new_current_thread().enable_all().build().context("start the runtime").and_then(|runtime| {
            let diagnostics = diagnostics::start().context("start the log")?;
            let code = runtime.block_on(serve(config));
            // Do not wait for blocking calls: a read of stdin, or a write to a stdout that nobody reads, may never
            // return.
            runtime.shutdown_background();
            diagnostics.flush();
            code
        });
    result.unwrap_or_else(|error| complain(&format!("{error:#}")))
}

/// Runs the agent until it ends, and returns the exit code.
async fn serve(mut config: Config) -> anyhow::Result<u8> {
    let machine = config.join.take().map(|join| JoiningMachine::prepare(join, &config.environment)).transpose()?;
    config.listen = config.listen.or(machine.as_ref().map(JoiningMachine::address));
    let addresses = config.addresses();
    let Config {
        listen: _,
        folders: Folders { work_dir, code_dir },
        log_bytes,
        linger,
        termination_grace: grace,
        termination_log,
        token,
        supervision,
        join: _,
        entrypoint,
        command,
        environment,
    } = config;
    check_work_dir(&work_dir)?;
    let stops = Stops::new(supervision, grace).context("handle signals")?;
    let reaper = Reaper::new().context("become the parent of orphans")?;
    let folders = [std::env::temp_dir(), PathBuf::from("/dev/shm"), work_dir.clone()];
    let size = LogSize { capacity: log_bytes, reserved: RESERVE_BYTES };
    let output = AgentOutput::create(&folders, size).map(Arc::new).context("create the files for the output")?;
    let listener = http::listen(&addresses)?;
    let address = listener.local_addr().context("read the address of the listening socket")?;

    let helper = HelperFolder::new(helper::places(&environment, &folders));
    let entrypoint_words = entrypoint.len();
    let command = [entrypoint, command].concat();
    let template = RunTemplate { command, entrypoint_words, work_dir, environment, helper: None };
    let code = DeliveredCode::new(template.work_dir.clone(), code_dir);
    let shared = Arc::new(template.clone());
    // Identifies this start of the agent.
    let boot_id = uuid::Uuid::new_v4().to_string();
    let (runner, status) = Runner::new(template, helper, Arc::clone(&output), reaper, boot_id);
    let stacks = StacksOfRun::new(runner.stacks_files(), shared.work_dir.clone());
    let (requests, queue) = mpsc::channel(REQUESTS_MAX);
    let access = machine.as_ref().map_or_else(|| Access::of(token, address), JoiningMachine::access);
    let (activity, polls) = (Activity::default(), Activity::default());
    let log_base = Arc::default();
    let agent = Agent { requests, status, output, log_base, activity, polls, access, code, template: shared, stacks };

    let mirror = use_stdout(supervision, &agent, address)?;
    info!(%address, version = env!("CARGO_PKG_VERSION"), "listening");
    let stops = tokio::spawn(stops.pass_on(agent.clone()));
    let joining = machine.map(|machine| Joining::begin(machine, address, agent.clone(), linger));
    let retire = tokio::spawn(ending::retire(agent.clone(), joining.is_none().then_some(linger)));
    let (activity, status) = (agent.activity.clone(), agent.status.clone());
    let (end_http, ending) = oneshot::channel();
    let http = tokio::spawn(http::serve(listener, agent, ending));
    // Do not spawn the runner as a task: it starts processes, and only the main thread may do that.
    let end = runner.run(queue).await;

    stops.abort();
    retire.abort();
    if let Some(file) = termination_log {
        last_words::leave(&status.borrow(), &file);
    }
    wind_down(end, &activity, HttpTask { end: end_http, task: http }, mirror).await;
    let code = join::leave(joining, end).await?;
    info!(code, "the agent ends");
    Ok(code)
}

/// In a pod, begins to copy the output to stdout. For a master that has started this agent, prints the address instead.
fn use_stdout(supervision: Supervision, agent: &Agent, address: SocketAddr) -> anyhow::Result<Option<JoinHandle<()>>> {
    match supervision {
        Supervision::Pod => Ok(Some(tokio::spawn(mirror::mirror(Arc::clone(&agent.output), agent.status.clone())))),
        Supervision::Parent => {
            io::stdout().write_all(format!("{address}\n").as_bytes()).context("tell the master the address")?;
            Ok(None)
        }
    }
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
