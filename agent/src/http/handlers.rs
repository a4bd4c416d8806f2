//! A function for each route, except those for code. Each function reads a request and builds the answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use protocol::agent::{FirstSignal, LogBase, RunState, RunStatus};
use protocol::routes::{LOG_BASE_HEADER, LONG_POLL_MAX_SECONDS, START_WAITS};
use rustix::process::Pid;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::code;
use super::query::{Query, WHOLE};
use crate::agent::Agent;
use crate::follow::{LogReader, Until};
use crate::process::clock::clock;
use crate::process::environment::{parse_config, parse_config_of_several, parse_notice, parse_warm};
use crate::run::event::{Event, Reply};
use crate::run::phase::Assignment;
use crate::run::{Command, LINE_BYTES, with_usage};
use crate::server::answer::{self, RequestFailure, Result};
use crate::server::body::OutputForm;
use crate::server::incoming::read_body;

/// Maximum bytes of a body. The largest body is a config. Up to four variables contain the addresses of the TensorFlow
/// cluster, each with at most 128 KiB, the kernel's limit. The job's own variables have at most 512 KiB, and two lists
/// of batch sizes have less than 64 KiB each.
const BODY_LIMIT: usize = (1024 + 128) * 1024;

/// Maximum bytes of a notice. The line for the helper adds `{"notice": …}` around the notice.
const NOTICE_LIMIT: usize = LINE_BYTES - 64;

/// How long another machine may take to accept a connection.
const REACH_LIMIT: Duration = Duration::from_secs(3);

/// Time from SIGTERM to SIGKILL if a stop request does not set it.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How long a request for a run waits until the script begins. A warm interpreter usually needs some milliseconds.
const BEGIN_LIMIT: Duration = Duration::from_millis(200);

/// Confirms that an agent listens here. With `boot_id`, also confirms that the agent has this id. A master checks the
/// address of a joining machine with this route.
pub(super) async fn healthz(request: Request<Incoming>, agent: &Agent) -> Result {
    match Query::of(&request).get("boot_id") {
        Some(asked) if agent.status.borrow().boot_id != asked => Err(RequestFailure::AnotherAgent),
        Some(_) | None => Ok(answer::ok()),
    }
}

/// Tries to connect to another agent. A master asks a member for this when a machine joins, because the members must
/// reach each other.
pub(super) async fn reach(request: Request<Incoming>) -> Result {
    let address = Query::of(&request).parse("address", "an address and port, such as 10.0.0.1:7896")?;
    let address: SocketAddr = address.ok_or_else(|| RequestFailure::Query("address is missing".to_owned()))?;
    match timeout(REACH_LIMIT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(answer::ok()),
        Ok(Err(error)) => Err(RequestFailure::OutOfReach(error.to_string())),
        Err(_) => Err(RequestFailure::OutOfReach(format!("no answer within {} s", REACH_LIMIT.as_secs()))),
    }
}

pub(super) async fn config(request: Request<Incoming>, agent: &Agent) -> Result {
    let query = Query::of(&request);
    let (generation, membership) = (query.generation()?, query.membership()?);
    let code = query.parse("code", "64 lower-case hexadecimal digits")?;
    let renewal = query.renewal()?;
    let processes = query.processes()?;
    let body = read_body(request.into_body(), BODY_LIMIT).await?;
    let environments = match processes {
        Some(processes) => parse_config_of_several(&body, processes)?,
        None => vec![parse_config(&body)?],
    };
    if code.is_some() {
        code::find_python(agent, &environments[0])?;
    }
    let assignment = Assignment { generation, membership, code, environments };
    let (mut next_code, agent) = (Arc::clone(&agent.code.next).lock_owned().await, agent.clone());
    to_its_end(async move {
        let ready = code::ready(&agent, code).await?;
        let answer = ask(&agent, Command::Configure { assignment, renewal }).await?;
        // The code changes only after the runner has accepted the environment, so no run is active.
        *next_code = code;
        code::put_in_place(&agent, ready).await.map(|()| answer)
    })
    .await
}

/// Does the work in a separate task, which continues if the caller disconnects. `work` holds the lock of
/// `DeliveredCode::next`, so the task also keeps other requests from this lock until the work is done.
async fn to_its_end(work: impl Future<Output = Result> + Send + 'static) -> Result {
    tokio::spawn(work).await.map_err(|_| RequestFailure::Ending)?
}

/// Starts the warm interpreter. Answers before the modules are imported.
pub(super) async fn warm(request: Request<Incoming>, agent: &Agent) -> Result {
    let body = read_body(request.into_body(), BODY_LIMIT).await?;
    let request = parse_warm(&body)?;
    ask(agent, Command::Warm(request)).await
}

/// Starts the run. First puts the code of the newest start in place, or waits until `/config` has done so. A master may
/// send this request before the code is in place, because the status shows `configured` earlier.
pub(super) async fn run(request: Request<Incoming>, agent: &Agent) -> Result {
    let generation = Query::of(&request).generation()?;
    let (next_code, agent) = (Arc::clone(&agent.code.next).lock_owned().await, agent.clone());
    to_its_end(async move {
        code::put_in_place(&agent, code::ready(&agent, *next_code).await?).await?;
        let answer = ask(&agent, Command::Apply(Event::Run(generation))).await?;
        let mut status = agent.status.clone();
        let begun = timeout(BEGIN_LIMIT, status.wait_for(|status| status.state != RunState::Configured)).await;
        Ok(if begun.is_ok() { answer } else { answer::text(StatusCode::OK, START_WAITS) })
    })
    .await
}

pub(super) async fn stop(request: Request<Incoming>, agent: &Agent) -> Result {
    let query = Query::of(&request);
    let grace = query.grace()?.unwrap_or(DEFAULT_GRACE);
    let first = if query.flag("interrupt")? { FirstSignal::Int } else { FirstSignal::Term };
    ask(agent, Command::Apply(Event::Stop { generation: query.generation()?, first, grace })).await
}

/// Passes a JSON object to the script's helper, which reads it as the value of `notice`. The agent does not interpret it.
pub(super) async fn notice(request: Request<Incoming>, agent: &Agent) -> Result {
    let generation = Query::of(&request).generation()?;
    let generation = generation.ok_or_else(|| RequestFailure::Query("generation is missing".to_owned()))?;
    let body = read_body(request.into_body(), NOTICE_LIMIT).await?;
    let line = format!("{{\"notice\": {}}}\n", parse_notice(&body)?).into_bytes();
    ask(agent, Command::Notice { generation, line }).await
}

/// Answers with the stacks of the run of this generation.
pub(super) async fn stacks(request: Request<Incoming>, agent: &Agent) -> Result {
    let asked = Query::of(&request).generation()?;
    let mains = {
        let status = agent.status.borrow();
        let is_asked = asked.is_none_or(|asked| Some(asked) == status.generation);
        if is_asked { status.pids() } else { vec![] }
    };
    if mains.is_empty() {
        return Err(RequestFailure::NotRunning);
    }
    let main = |(index, pid): (usize, u32)| Some((index, Pid::from_raw(pid.try_into().ok()?)?));
    Ok(answer::message(&*agent.stacks.of(mains.into_iter().filter_map(main).collect()).await))
}

pub(super) async fn finish(agent: &Agent) -> Result {
    ask(agent, Command::Apply(Event::Finish)).await
}

/// Without `after`, answers at once. With `after`, waits until the status has a different number. An `after` from an
/// earlier agent at this address usually differs, and is then answered at once.
pub(super) async fn status(request: Request<Incoming>, agent: &Agent) -> Result {
    let _open = agent.polls.begin();
    let query = Query::of(&request);
    let (after, wait, renewal) = (query.parse::<u64>("after", WHOLE)?, query.wait()?, query.renewal()?);
    if let Some(renewal) = renewal {
        // An ending agent has no run to keep alive, but still answers.
        agent.tell(Command::Renew(renewal)).await;
    }
    let mut status = agent.status.clone();
    if let Some(after) = after {
        let longest = Duration::from_secs(LONG_POLL_MAX_SECONDS);
        let wait = wait.unwrap_or(longest).min(longest);
        // If the wait times out or the agent ends, the present status is the answer.
        let _ = timeout(wait, status.wait_for(|status| status.seq != after)).await;
    }
    let mut status = status.borrow().clone();
    // This reads some files of each process of the run. Other requests need not wait, because a separate thread reads
    // them.
    if status.pid.is_some() {
        let measured = spawn_blocking(move || with_usage(status)).await;
        status = measured.map_err(|_| RequestFailure::Ending)?;
    }
    let log_base = Some(agent.log_base.get().map_or(LogBase::Unknown, |base| LogBase::At(*base)));
    Ok(answer::message(&RunStatus { clock_ms: Some(clock()), log_base, ..status }))
}

pub(super) async fn logs(request: Request<Incoming>, agent: &Agent) -> Result {
    let base = request.headers().get(LOG_BASE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    // A later master repeats what the first master has told.
    if let Some(base) = base {
        let _ = agent.log_base.set(base);
    }
    let query = Query::of(&request);
    let (stream, asked) = (query.stream()?, query.parse("offset", "a whole number of bytes")?.unwrap_or(0));
    let until = if query.flag("follow")? { Until::RunExited } else { Until::Offset(agent.output.log(stream).end()) };
    let follower = LogReader::open(Arc::clone(&agent.output), agent.status.clone(), stream, asked, until);
    let follower = follower.await.map_err(|_| RequestFailure::Ending)?;
    let dropped = follower.offset().saturating_sub(asked);
    let form = if query.flag("ages")? { OutputForm::Aged } else { OutputForm::Plain };
    Ok(answer::logs(follower, form, dropped, agent.activity.begin()))
}

/// Sends a command to the runner, and returns the runner's reply as an answer.
async fn ask(agent: &Agent, command: Command) -> Result {
    match agent.ask(command).await.ok_or(RequestFailure::Ending)? {
        Reply::Done => Ok(answer::ok()),
        Reply::Underway => Ok(answer::text(StatusCode::ACCEPTED, "stopping")),
        Reply::Refused(refusal) => Err(refusal.into()),
    }
}
