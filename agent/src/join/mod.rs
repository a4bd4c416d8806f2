//! Joins a job from a bare machine. The agent's only message to a master is: "I am here". The agent sends this message
//! to join, and again whenever no master has asked for the agent's status during one lease. So the agent joins
//! again after its machine was cut off, or when a new master has replaced the old master.

mod call;
mod devices;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZeroU16;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use listener::ReservedPorts;
use protocol::error::ErrorCode;
use protocol::join::{JoinAnswer, JoinRequest, Left, pause};
use protocol::lease::Lease;
use protocol::processes::{NprocName, NprocPerNode, PROCESSES_MAX};
use protocol::routes::{AGENT_PORT, LOCAL_TENSORFLOW_PORTS, MASTER_PORT};
use protocol::run_policy::LEASE_SECONDS;
use protocol::view::JobState;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::agent::Agent;
use crate::config::join::{Endpoint, Join, JoinOptions};
use crate::process::environment::Environment;
use crate::run::{AgentEnd, Command};
use crate::token::{Access, TokenHash};
use call::{CallError, MasterOfJob};

/// How long an agent tries to tell the master that it ends.
const GOODBYE_LIMIT: Duration = Duration::from_secs(3);

/// Exit code of an agent whose job did not succeed, if the agent's last run succeeded or the agent had no run.
const NOT_SUCCEEDED: u8 = 1;

/// A machine that joins a job.
pub(crate) struct JoiningMachine {
    join: Join,
    address: SocketAddr,
    /// The number of processes, if the user has set it.
    processes: Option<u32>,
    tensorflow: ReservedPorts,
    token: watch::Sender<Option<TokenHash>>,
}

impl JoiningMachine {
    /// Finds this machine's address, and claims the ports for TensorFlow.
    ///
    /// # Errors
    /// Fails if a host is unknown, no port is free, or there are no GPUs to count.
    pub(crate) fn prepare(join: Join, environment: &Environment) -> anyhow::Result<Self> {
        let address = match &join.options.address {
            Some(given) => resolve(given, AGENT_PORT).context("--address")?,
            None => own_address(&join.master).context("find this machine's address (--address)")?,
        };
        let processes = join.options.nproc_per_node.map(|wish| processes_of_machine(wish, environment)).transpose()?;
        let tensorflow = ReservedPorts::first_free(LOCAL_TENSORFLOW_PORTS, processes.unwrap_or(1));
        let tensorflow = tensorflow.context("find a free port for TensorFlow")?;
        Ok(Self { join, address, processes, tensorflow, token: watch::Sender::new(None) })
    }

    /// The address at which the master and the other members reach this machine. Port 0 means any free port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Only the master of the job may send requests.
    pub(crate) fn access(&self) -> Access {
        Access::OfJob(self.token.subscribe())
    }
}

fn processes_of_machine(wish: NprocPerNode, environment: &Environment) -> anyhow::Result<u32> {
    match wish {
        NprocPerNode::Number(number) => Ok(number),
        NprocPerNode::Named(NprocName::Gpu) => match devices::gpus(Path::new("/dev"), environment) {
            0 => Err(anyhow!("--nproc-per-node gpu: this machine has no /dev/nvidia0\nhint: give a number")),
            gpus => Ok(gpus.min(PROCESSES_MAX)),
        },
    }
}

fn resolve(endpoint: &Endpoint, default_port: u16) -> io::Result<SocketAddr> {
    let Endpoint { host, port } = endpoint;
    let mut found = (host.as_str(), port.unwrap_or(default_port)).to_socket_addrs()?;
    found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")))
}

/// The address from which this machine sends to the master. Sends no packet.
fn own_address(master: &Endpoint) -> io::Result<SocketAddr> {
    let master = resolve(master, MASTER_PORT)?;
    let any: SocketAddr =
        if master.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(master)?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), AGENT_PORT))
}

/// The task that keeps this machine in its job.
pub(crate) struct Joining {
    leaving: oneshot::Sender<Left>,
    task: JoinHandle<anyhow::Result<Option<JobState>>>,
}

impl Joining {
    /// Begins to join. `listening` is the address on which the agent listens. If the master does not answer for
    /// `patience` and nothing runs, the agent ends.
    pub(crate) fn begin(machine: JoiningMachine, listening: SocketAddr, agent: Agent, patience: Duration) -> Self {
        let JoiningMachine { join, mut address, processes, tensorflow, token } = machine;
        if address.port() == 0 {
            address.set_port(listening.port());
        }
        let Join { master, token: bearer, task, options } = join;
        let JoinOptions { address: _, workers, nproc_per_node: _, lease_seconds, max_restarts } = options;
        let message = JoinRequest {
            boot_id: agent.status.borrow().boot_id.clone(),
            address,
            tensorflow_port: NonZeroU16::new(tensorflow.first()).expect("the range does not begin with 0"),
            workers,
            nproc_per_node: processes,
            lease_seconds,
            max_restarts,
            uid: None,
            place: None,
            left: None,
        };
        let master = MasterOfJob { endpoint: master, token: bearer, task };
        let lease = Lease::new(Duration::from_secs(lease_seconds.unwrap_or(LEASE_SECONDS).into()));
        let member = JoinedRun { master, message, token, lease, said: String::new(), agent, _tensorflow: tensorflow };
        let (leaving, told) = oneshot::channel();
        Self { leaving, task: tokio::spawn(member.run(told, patience)) }
    }
}

/// Tells the master that this agent ends, unless the job ended first. Returns the agent's exit code.
pub(crate) async fn leave(joining: Option<Joining>, end: AgentEnd) -> anyhow::Result<u8> {
    let Some(Joining { leaving, task }) = joining else { return Ok(end.code) };
    let left = if end.signal_deadline.is_some() { Left::Terminated } else { Left::Finished };
    // Sending fails if the task has ended. In this case, the agent ends because the task has ended.
    let _ = leaving.send(left);
    let outcome = task.await.context("a bug: the task that joins panicked")??;
    Ok(outcome.map_or(end.code, |outcome| exit_code(outcome, end.code)))
}

/// The exit code of an agent whose job has this outcome. `own` is the exit code of the agent's last run.
fn exit_code(outcome: JobState, own: u8) -> u8 {
    match (outcome, own) {
        (JobState::Succeeded, _) => 0,
        (_, 0) => NOT_SUCCEEDED,
        (_, own) => own,
    }
}

struct JoinedRun {
    master: MasterOfJob,
    /// The message, updated from the master's last answer.
    message: JoinRequest,
    token: watch::Sender<Option<TokenHash>>,
    lease: Lease,
    /// The newest line in the log about an answer. An equal line is not logged again.
    said: String,
    agent: Agent,
    _tensorflow: ReservedPorts,
}

impl JoinedRun {
    /// Keeps this machine in its job until the job or the agent ends. Returns the job's outcome, if it is known.
    async fn run(mut self, told: oneshot::Receiver<Left>, patience: Duration) -> anyhow::Result<Option<JobState>> {
        let outcome = tokio::select! {
            outcome = self.keep_joined(patience) => outcome,
            left = told => return Ok(self.say_goodbye(left.unwrap_or(Left::Terminated)).await),
        };
        self.agent.tell(Command::EndNow("the job has ended, or cannot be joined")).await;
        outcome.map(Some)
    }

    /// Returns when the job has ended.
    async fn keep_joined(&mut self, patience: Duration) -> anyhow::Result<JobState> {
        let mut answered = Instant::now();
        loop {
            match self.master.ask(&self.message).await {
                Ok(JoinAnswer::Joined { uid, place, token_sha256, lease_seconds }) => {
                    let token = token_sha256.parse().context("the master's answer")?;
                    self.token.send_replace(Some(token));
                    self.lease = Lease::new(Duration::from_secs(lease_seconds.into()));
                    self.say(&format!("joined the job as {place}, with a lease of {lease_seconds} s"));
                    (self.message.uid, self.message.place) = (Some(uid), Some(place));
                    self.agent.polls.quiet(self.lease.length()).await;
                    answered = Instant::now();
                    continue;
                }
                Ok(JoinAnswer::Waiting { uid }) => {
                    self.message.uid = Some(uid);
                    answered = Instant::now();
                    self.say("waits for a free place in the job");
                }
                Ok(JoinAnswer::Ended { outcome, reason }) => {
                    info!(%outcome, reason, "the job has ended");
                    return Ok(outcome);
                }
                Err(error) => {
                    if let Some(outcome) = self.outcome_of(&error)? {
                        return Ok(outcome);
                    }
                    self.warn(&format!("{:#}", anyhow!(error)));
                }
            }
            if answered.elapsed() >= patience && self.agent.status.borrow().pid.is_none() {
                let seconds = patience.as_secs();
                return Err(anyhow!("{} has given no valid answer for {seconds} s: {}", self.master, self.said));
            }
            sleep(pause(self.lease)).await;
        }
    }

    /// The outcome of a job that no longer exists. `None` if the agent can repeat its message.
    ///
    /// # Errors
    /// Fails if the master has never accepted this agent, and would refuse the same message again.
    fn outcome_of(&self, error: &CallError) -> anyhow::Result<Option<JobState>> {
        let CallError::Refused(problem) = error else { return Ok(None) };
        match (self.message.uid.is_some(), problem.code) {
            (true, ErrorCode::UnknownJob) => {
                warn!(reason = problem.detail, "the job no longer exists");
                Ok(Some(JobState::Cancelled))
            }
            (true, _) | (false, ErrorCode::Unavailable) => Ok(None),
            (false, _) => Err(anyhow!("{} refuses this agent: {}", self.master, problem.detail)),
        }
    }

    /// Tells the master that this agent ends. Returns the job's outcome if the job has ended.
    async fn say_goodbye(&self, left: Left) -> Option<JobState> {
        self.message.uid.as_ref()?;
        let message = JoinRequest { left: Some(left), ..self.message.clone() };
        let tell = async {
            loop {
                match self.master.ask(&message).await {
                    Ok(JoinAnswer::Ended { outcome, .. }) => return Some(outcome),
                    Ok(JoinAnswer::Joined { .. } | JoinAnswer::Waiting { .. }) => return None,
                    Err(CallError::Refused(problem)) if problem.code != ErrorCode::Unavailable => return None,
                    Err(CallError::Refused(_) | CallError::NoMaster(_) | CallError::Unreachable { .. }) => {
                        sleep(pause(self.lease)).await;
                    }
                }
            }
        };
        timeout(GOODBYE_LIMIT, tell).await.ok().flatten()
    }

    fn say(&mut self, text: &str) {
        if self.said != text {
            text.clone_into(&mut self.said);
            info!(job = %self.master.task, "{text}");
        }
    }

    fn warn(&mut self, text: &str) {
        if self.said != text {
            text.clone_into(&mut self.said);
            warn!(job = %self.master.task, "{text}; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_of_an_agent_depends_on_the_outcome_of_the_job_and_on_its_last_run() {
        let codes = [JobState::Succeeded, JobState::Failed, JobState::Cancelled]
            .map(|outcome| [0, 1, 143].map(|own| exit_code(outcome, own)));
        assert_eq!(codes, [[0, 0, 0], [1, 1, 143], [1, 1, 143]]);
    }
}
