//! The processes that the warm interpreter forks for one run.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use rustix::process::Pid;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rules;
use super::wire::{RunRequest, WarmAnswer, exchange, request_run};
use crate::process::child::{Pipes, Start};
use crate::process::environment::Environment;
use crate::process::reaper::is_child;

/// Maximum time for the fork of one process and its answer. The answer usually takes 30 ms.
const FORK_LIMIT: Duration = Duration::from_secs(2);

/// A forked process that waits for the start of its script. Dropping this value ends the process.
pub struct Forked {
    /// The process id. The process is a child of the agent, and leads its process group.
    pub pid: Pid,
    pipes: Pipes,
    agent: UnixStream,
}

impl Forked {
    /// Lets the process execute the script. Returns its output.
    pub fn go(self) -> Pipes {
        // This fails only if the process has ended. The runner then reaps it.
        let _ = self.agent.into_std().and_then(|stream| Write::write_all(&mut &stream, b"g"));
        self.pipes
    }
}

/// An answer, and the stream on which it came.
type ForkAnswer = io::Result<(UnixStream, WarmAnswer)>;

/// The forks of one run: its processes, by their index. Dropping this value ends the processes.
pub(super) struct Forking {
    pipes: Vec<Pipes>,
    /// The answers that have not come, each with the number of its process.
    waiting: JoinSet<(u32, ForkAnswer)>,
    answers: Vec<(u32, ForkAnswer)>,
}

/// The result of the forks.
pub(super) enum Outcome {
    /// All processes wait for their start.
    Forked(Vec<Forked>),
    /// The script has other imports now.
    Outdated(String),
    /// The run must start in new interpreters.
    Cold(String),
    /// The interpreter does not answer.
    Failed(io::Error),
}

impl Forking {
    /// Asks the interpreter, which has imported its modules with the environment `imported`, for all these processes.
    ///
    /// # Errors
    /// Says why the processes must start in new interpreters.
    pub(super) fn begin(requests: &StdStream, imported: &Environment, starts: &[Start]) -> Result<Self, String> {
        let messages: Vec<_> = starts.iter().map(|start| message(imported, start)).collect::<Result<_, _>>()?;
        let mut forking = Self { pipes: vec![], waiting: JoinSet::new(), answers: vec![] };
        for (number, (start, message)) in (1..).zip(starts.iter().zip(messages)) {
            let (pipes, agent) = request(requests, start)
                .map_err(|error| format!("cannot send a request to the warm interpreter: {error}"))?;
            forking.pipes.push(pipes);
            // The interpreter forks one process after the other.
            let answer = within(FORK_LIMIT * number, exchange(agent, message));
            forking.waiting.spawn(async move { (number, answer.await) });
        }
        Ok(forking)
    }

    /// Waits until all processes have answered. Dropping the future loses no answer.
    pub(super) async fn answered(&mut self) {
        while let Some(joined) = self.waiting.join_next().await {
            self.answers.extend(joined);
        }
    }

    /// Call this when all have answered.
    pub(super) fn outcome(mut self) -> Outcome {
        self.answers.sort_by_key(|(number, _)| *number);
        let mut cold = None;
        let mut processes = Vec::new();
        for ((_, answer), pipes) in self.answers.into_iter().zip(self.pipes) {
            match answer {
                Ok((agent, WarmAnswer::Pid(pid))) => match Pid::from_raw(pid).filter(|pid| is_child(*pid)) {
                    Some(pid) => processes.push(Forked { pid, pipes, agent }),
                    // The process may have been killed and reaped meanwhile.
                    None => cold = Some("the forked process has ended".to_owned()),
                },
                Ok((_, WarmAnswer::Outdated(reason))) => return Outcome::Outdated(reason),
                Ok((_, WarmAnswer::Cold(reason))) => cold = Some(reason),
                Ok((_, WarmAnswer::Ready { .. })) => cold = Some("the answer is not a process id".to_owned()),
                Err(error) => return Outcome::Failed(error),
            }
        }
        cold.map_or(Outcome::Forked(processes), Outcome::Cold)
    }
}

/// The line that asks a forked process to become the script.
fn message(imported: &Environment, start: &Start) -> Result<Vec<u8>, String> {
    let changes = rules::changes(imported, &start.environment)
        .map_err(|name| format!("the variable {name} differs from that of the warm interpreter"))?;
    let words: Option<Vec<&str>> = start.command[1..].iter().map(|word| word.to_str()).collect();
    let request = RunRequest { argv: words.ok_or("an argument is not text")?, env: changes };
    let mut message = serde_json::to_vec(&request).expect("texts always serialize");
    message.push(b'\n');
    Ok(message)
}

/// Asks the interpreter to fork one process. Returns the process's output, and the stream to the process.
fn request(requests: &StdStream, start: &Start) -> io::Result<(Pipes, UnixStream)> {
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let (agent, run) = StdStream::pair()?;
    agent.set_nonblocking(true)?;
    let descriptors = [stdout_end.as_fd(), stderr_end.as_fd(), run.as_fd(), start.helper.as_fd()];
    let stacks = start.stacks.as_ref().map(AsFd::as_fd);
    request_run(requests, &descriptors.into_iter().chain(stacks).collect::<Vec<_>>())?;
    let pipes = Pipes {
        stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
        stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
    };
    Ok((pipes, UnixStream::from_std(agent)?))
}

async fn within(limit: Duration, exchange: impl Future<Output = ForkAnswer>) -> ForkAnswer {
    timeout(limit, exchange).await.unwrap_or_else(|_| {
        let text = format!("no answer within {} s", limit.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, text))
    })
}
