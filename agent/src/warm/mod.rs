//! The warm interpreter: one process for each agent. It imports the heavy modules once and forks a process for each
//! run, so that a restart need not import them again. If the warm interpreter cannot be used, a run starts in a new
//! interpreter.
//!
//! If the script's imports have changed, a new warm interpreter replaces the old one.
//!
//! This module starts and kills the interpreter, and owns the run that waits for the interpreter. The runner reaps all
//! processes.

mod fork;
pub mod rules;
mod wire;

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::{Pin, pin};
use std::time::Duration;

use protocol::warm::{WarmRequest, WarmState};
use rustix::process::Pid;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tracing::info;

use crate::process::child::{self, RunTemplate, Start};
use crate::process::environment::{EnvChanges, Environment};
use crate::process::proc;
use crate::process::reaper::kill_group;
pub use fork::Forked;
use fork::{Forking, Outcome};
use wire::{WarmAnswer, exchange};

/// The interpreter's program.
const SOURCE: &str = concat!(include_str!("../../python/plan.py"), "\n", include_str!("../../python/warm.py"));

/// The imports are given up when they use no processor time for this long. A requested run waits for the imports, which
/// may take minutes on a busy machine or on a slow network file system.
const IMPORT_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Maximum characters of a reason. The text of a Python exception can be long.
const REASON_CHARS_MAX: usize = 1024;

/// The reason if the interpreter's process has ended, for example because memory ran out.
const ENDED: &str = "the warm interpreter has ended";

/// An answer that has not arrived yet, and the stream on which it arrives.
type AwaitedAnswer = Pin<Box<dyn Future<Output = io::Result<(UnixStream, WarmAnswer)>> + Send>>;

/// The interpreter of one agent, and the run that waits for it.
#[derive(Default)]
pub struct Warm {
    request: Option<WarmRequest>,
    interpreter: Interpreter,
    run: WarmRun,
}

#[derive(Default)]
enum Interpreter {
    /// Not requested.
    #[default]
    None,
    Importing {
        /// `None` when the process has been reaped. Its last answer may still be unread.
        pid: Option<Pid>,
        environment: Environment,
        ready: AwaitedAnswer,
    },
    Ready {
        pid: Pid,
        environment: Environment,
        requests: StdStream,
    },
    /// Ended, or never started.
    Cold(String),
}

#[derive(Default)]
enum WarmRun {
    #[default]
    None,
    /// The run waits for the imports.
    Waits(Vec<Start>),
    /// The run has been requested from the interpreter.
    Requested { starts: Vec<Start>, forking: Forking },
}

/// What has happened to the interpreter or to the run.
pub enum News {
    /// The interpreter's state has changed.
    Changed,
    /// The imports were given up, for this reason. Runs start in a new interpreter.
    GaveUp(String),
    /// The run can start.
    Forked(Vec<Forked>),
    /// The run must start in a new interpreter.
    Cold(Vec<Start>),
    /// The run must start in a new interpreter, because the script has other imports now. Call [`Warm::begin_again`].
    Outdated(Vec<Start>),
}

impl Warm {
    /// Starts the interpreter, if this is the first request.
    pub fn begin(&mut self, template: &RunTemplate, request: WarmRequest) {
        if self.request.is_none() {
            self.request = Some(request);
            self.begin_again(template);
        }
    }

    /// Starts an interpreter in place of the present one, if a request was made.
    pub fn begin_again(&mut self, template: &RunTemplate) {
        let Some(request) = &self.request else { return };
        self.pid().into_iter().for_each(kill_group);
        let changes: EnvChanges = request.env.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        let environment = template.environment_with(&changes);
        let modules = serde_json::to_string(&request.modules).expect("names always serialize");
        self.interpreter = match spawn(template, &environment, modules) {
            Ok((pid, stream)) => {
                let used = move || proc::stat(pid.as_raw_nonzero().get()).map(|stat| stat.cpu + stat.cpu_of_ended);
                let ready = Box::pin(while_used(used, IMPORT_PAUSE_MAX, exchange(stream, Vec::new())));
                Interpreter::Importing { pid: Some(pid), environment, ready }
            }
            Err(reason) => cold(&reason),
        };
    }

    /// The interpreter's state for the agent's status.
    pub fn state(&self) -> Option<WarmState> {
        match &self.interpreter {
            Interpreter::None => None,
            Interpreter::Importing { .. } => Some(WarmState::Importing),
            Interpreter::Ready { .. } => Some(WarmState::Ready),
            Interpreter::Cold(reason) => Some(WarmState::Cold { reason: reason.clone() }),
        }
    }

    /// The interpreter's process, while it imports modules or is ready.
    pub fn pid(&self) -> Option<Pid> {
        match &self.interpreter {
            Interpreter::Importing { pid, .. } => *pid,
            Interpreter::Ready { pid, .. } => Some(*pid),
            Interpreter::None | Interpreter::Cold(_) => None,
        }
    }

    /// Accepts the processes of a run. [`Warm::next`] then returns the run's news. `Err` gives them back, because they
    /// must start in new interpreters.
    pub fn take(&mut self, starts: Vec<Start>) -> Result<(), Vec<Start>> {
        match &self.interpreter {
            Interpreter::None | Interpreter::Cold(_) => Err(starts),
            Interpreter::Importing { .. } => {
                self.run = WarmRun::Waits(starts);
                Ok(())
            }
            Interpreter::Ready { environment: imported, requests, .. } => {
                match Forking::begin(requests, imported, &starts) {
                    Ok(forking) => {
                        self.run = WarmRun::Requested { starts, forking };
                        Ok(())
                    }
                    Err(reason) => {
                        info!(reason, "the run starts cold");
                        Err(starts)
                    }
                }
            }
        }
    }

    /// Drops the waiting run, if there is one. If its process was already forked, the process exits.
    pub fn drop_run(&mut self) {
        self.run = WarmRun::None;
    }

    /// Waits for news. Dropping the future loses no news.
    pub async fn next(&mut self) -> News {
        match (&mut self.interpreter, &mut self.run) {
            (Interpreter::Importing { ready, .. }, _) => {
                let answer = ready.await;
                self.imported(answer)
            }
            (_, WarmRun::Requested { forking, .. }) => {
                forking.answered().await;
                self.forked()
            }
            (_, WarmRun::Waits(_)) => self.waited(),
            (Interpreter::None | Interpreter::Ready { .. } | Interpreter::Cold(_), WarmRun::None) => pending().await,
        }
    }

    fn imported(&mut self, answer: io::Result<(UnixStream, WarmAnswer)>) -> News {
        let Interpreter::Importing { pid, environment, .. } = std::mem::take(&mut self.interpreter) else {
            return News::Changed;
        };
        let requests = answer.and_then(|(stream, answer)| match answer {
            WarmAnswer::Ready { modules, rss_bytes } => {
                info!(modules = modules.join(","), rss_bytes, "the interpreter is warm");
                stream.into_std()
            }
            WarmAnswer::Cold(reason) | WarmAnswer::Outdated(reason) => Err(io::Error::other(reason)),
            WarmAnswer::Pid(_) => Err(io::Error::other("the interpreter answered with a process id")),
        });
        let gave_up =
            requests.as_ref().err().filter(|error| error.kind() == io::ErrorKind::TimedOut).map(ToString::to_string);
        self.interpreter = match (pid, requests) {
            (Some(pid), Ok(requests)) => Interpreter::Ready { pid, environment, requests },
            (None, Ok(_)) => cold(ENDED),
            (pid, Err(error)) => {
                pid.into_iter().for_each(kill_group);
                cold(&error.to_string())
            }
        };
        gave_up.map_or(News::Changed, News::GaveUp)
    }

    fn waited(&mut self) -> News {
        let WarmRun::Waits(starts) = std::mem::take(&mut self.run) else { return News::Changed };
        match self.take(starts) {
            Ok(()) => News::Changed,
            Err(starts) => News::Cold(starts),
        }
    }

    fn forked(&mut self) -> News {
        let WarmRun::Requested { starts, forking } = std::mem::take(&mut self.run) else { return News::Changed };
        match forking.outcome() {
            Outcome::Forked(processes) => return News::Forked(processes),
            Outcome::Outdated(reason) => {
                info!(reason, "the run starts cold, and another interpreter begins");
                return News::Outdated(starts);
            }
            Outcome::Cold(reason) => info!(reason, "the run starts cold"),
            Outcome::Failed(error) => self.end(&format!("a run could not be forked: {error}")),
        }
        News::Cold(starts)
    }

    /// Call this when the interpreter's process has been reaped.
    pub fn has_ended(&mut self) {
        match &mut self.interpreter {
            Interpreter::Importing { pid, .. } => *pid = None,
            Interpreter::Ready { .. } => self.interpreter = cold(ENDED),
            Interpreter::None | Interpreter::Cold(_) => {}
        }
    }

    /// Ends the interpreter, if there is one.
    pub fn end(&mut self, reason: &str) {
        if let Some(pid) = self.pid() {
            kill_group(pid);
            self.interpreter = cold(reason);
        }
    }
}

fn cold(reason: &str) -> Interpreter {
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    info!(reason, "runs start cold");
    Interpreter::Cold(reason)
}

/// Starts the interpreter's process. Returns its id and the stream to it.
fn spawn(template: &RunTemplate, environment: &Environment, modules: String) -> Result<(Pid, UnixStream), String> {
    let script = rules::script_of(&template.command).ok_or("the command is not `python SCRIPT.py`")?;
    let program = [template.command[0].clone(), "-c".into(), SOURCE.into(), modules.into()];
    let command = [&program, script].concat();
    let start = || {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let (pid, pipes) = child::spawn(&command, &template.work_dir, environment, OwnedFd::from(theirs).into())?;
        // Output of modules during their import belongs to no run, so discard it.
        tokio::spawn(discard(pipes.stdout));
        tokio::spawn(discard(pipes.stderr));
        Ok((pid, UnixStream::from_std(ours)?))
    };
    start().map_err(|error: io::Error| error.to_string())
}

async fn discard(mut output: pipe::Receiver) {
    // The output ends when it is closed, or with the first error.
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
}

/// Waits for an exchange as long as `used`, the processor time of the other process, grows within each `pause`.
async fn while_used<T>(
    used: impl Fn() -> Option<Duration>,
    pause: Duration,
    exchange: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut exchange = pin!(exchange);
    let mut before = used();
    loop {
        if let Ok(answer) = timeout(pause, &mut exchange).await {
            return answer;
        }
        let now = used();
        if now <= before {
            let text = format!("the imports used no processor time for {} s", pause.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use super::*;

    /// Waits for an exchange that takes `pauses` pauses, beside a process that uses processor time in the first `busy`.
    async fn waited(busy: u64, pauses: u32) -> io::Result<()> {
        let looks = Cell::new(0);
        let used = || {
            looks.set(looks.get() + 1);
            Some(Duration::from_millis(10 * busy.min(looks.get())))
        };
        while_used(used, IMPORT_PAUSE_MAX, async {
            tokio::time::sleep(IMPORT_PAUSE_MAX * pauses).await;
            ready(Ok(())).await
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn imports_are_awaited_as_long_as_they_use_processor_time() {
        assert!(waited(100, 50).await.is_ok());
        let given_up = waited(20, 50).await.expect_err("imports that stand still were awaited");
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        assert_eq!(given_up.to_string(), "the imports used no processor time for 30 s");
        let ended = while_used(|| None, IMPORT_PAUSE_MAX, pending::<io::Result<()>>()).await;
        assert!(ended.is_err(), "imports of a process that has ended were awaited");
    }
}
