//! The driver's background work: calls of agents and of the back end, with their retries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use job::key::JobKey;
use job::observation::{AgentState, LostRun};
use job::rendezvous::Rendezvous;
use protocol::agent::{FirstSignal, Membership, RunState, RunStatus};
use protocol::error::ErrorCode;
use protocol::ids::{Generation, ReplicaId};
use protocol::job::JobSpec;
use protocol::lease::{Renewal, Standing};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::context::Common;
use super::delivery::Delivery;
use super::reports::{Report, Subject};
use super::retry::{is_unreachable, patience};
use crate::agents::client::{AgentAnswer, AgentClient, AgentError, POLL_WAIT_MAX, PartOfStart, Poll};
use crate::backend::PodBackend;
use crate::error_chain::error_chain;
use crate::logs::ReplicaLog;

/// Maximum number of agents that are called at the same time.
pub(super) const AGENTS_AT_ONCE: usize = 64;
/// Maximum time to copy the rest of a dead run's output before the run's pod ends.
pub(super) const COPY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a [`Rendezvous`] is built from, besides the generation.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) spec: Arc<JobSpec>,
    pub(super) uid: String,
    /// The address of each seat's TensorFlow server.
    pub(super) members: BTreeMap<ReplicaId, SocketAddr>,
    /// How many times the gang has restarted.
    pub(super) restarts: u32,
    /// The first batch size of each rank, if the job divides a batch.
    pub(super) sizes: Option<Vec<u32>>,
}

/// A member of a start, and the address of its agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) subject: Subject,
    pub(super) agent: SocketAddr,
    /// The member's role and index in this start.
    pub(super) seat: ReplicaId,
    pub(super) membership: Membership,
    /// The renewal of the agent's lease, if the job has leases.
    pub(super) renewal: Option<Renewal>,
}

/// What a request to every agent of a gang needs.
#[derive(Clone)]
pub(super) struct Fanout {
    pub(super) common: Common,
    pub(super) generation: Generation,
    /// The pauses between two attempts to reach an agent.
    pub(super) pauses: ExponentialBuilder,
    /// The delivery of the code for this start, if the job brings its code.
    pub(super) delivery: Option<Arc<Delivery>>,
}

impl Fanout {
    /// Reports an agent's answer: its new state, or its refusal.
    async fn report(&self, subject: Subject, what: &str, answer: Result<AgentState, AgentError>) {
        let state = answer.unwrap_or_else(|error| {
            let reason = format!("{what}: {}", error_chain(&error));
            match error {
                AgentError::Ending(_) => AgentState::Failed(LostRun::disrupted(reason)),
                // A new pod would have the same image and the same code.
                AgentError::Unfit { code: ErrorCode::BadCode | ErrorCode::NoPython, .. } => {
                    AgentState::Failed(LostRun::hopeless(reason))
                }
                AgentError::Unreachable { .. } | AgentError::Refused { .. } | AgentError::Unfit { .. } => {
                    refused(reason)
                }
            }
        });
        self.common.report(Report::Agent(subject, state)).await;
    }
}

/// Spawns work that is aborted when the handle is dropped. If the work panics, reports [`Report::Broken`].
pub(super) fn spawn(
    reporter: &mpsc::Sender<Report>,
    work: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let reporter = reporter.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            // The send fails only if the driver has ended, so the error does not matter.
            let _ = reporter.send(Report::Broken).await;
        }
    }))
}

/// Sends every agent its environment.
pub(super) async fn configure(call: Fanout, seats: Vec<Seat>, meeting: Meeting) {
    let Meeting { spec, uid, members, restarts, sizes } = meeting;
    let mut rendezvous = Rendezvous::new(&spec, call.generation, &members).of_job(&uid).after_restarts(restarts);
    if let Some(sizes) = sizes {
        rendezvous = rendezvous.with_sizes(sizes);
    }
    let configure = async |Seat { subject, agent, seat, membership, renewal }: Seat| {
        let processes = spec.processes_of(seat);
        let body = serde_json::to_vec(&rendezvous.body(seat)).expect("strings and numbers always serialize");
        let body = Bytes::from(body);
        let code = call.delivery.as_ref().map(|code| code.id());
        let part = PartOfStart { generation: call.generation, membership, code, renewal, processes };
        let answer = configure_one(&call, (subject, agent), part, &body).await;
        let answer = answer.map(|()| AgentState::Configured(call.generation));
        call.report(subject, "its agent did not accept the environment", answer).await;
    };
    stream::iter(seats).for_each_concurrent(AGENTS_AT_ONCE, configure).await;
}

/// Configures an agent. If the agent lacks the code, first sends the code. If the agent still has a run that an earlier
/// master launched, first stops that run.
async fn configure_one(
    call: &Fanout,
    (subject, agent): (Subject, SocketAddr),
    part: PartOfStart,
    body: &Bytes,
) -> Result<(), AgentError> {
    let send = async || call.common.agents.configure(agent, part, body.clone()).await;
    match (send.retry(call.pauses).when(is_unreachable).await, &call.delivery) {
        (Err(AgentError::Refused { status: 409, .. }), _) => {}
        (Err(AgentError::Unfit { code: ErrorCode::CodeMissing, detail }), Some(delivery)) => {
            let deliver = async || {
                let delivered = delivery.deliver_when_found(agent, subject).await;
                delivered.map_err(|error| error.at_agent(&detail))
            };
            deliver.retry(call.pauses).when(is_unreachable).await?;
            return send.retry(call.pauses).when(is_unreachable).await;
        }
        (answer, _) => return answer,
    }
    stop(&call.common.agents, agent, Some(call.generation), FirstSignal::Term, Duration::ZERO).await?;
    while_status(call, agent, |status| !matches!(status.state, RunState::Exited | RunState::Idle)).await?;
    send.retry(call.pauses).when(is_unreachable).await
}

/// Waits while the agent's status is like this.
async fn while_status(call: &Fanout, agent: SocketAddr, is_so: impl Fn(&RunStatus) -> bool) -> Result<(), AgentError> {
    let mut poll = None;
    while let AgentAnswer::Status(status) = call.common.agents.status(agent, poll).await?
        && is_so(&status)
    {
        poll = Some(Poll { after: status.seq, wait: POLL_WAIT_MAX, lease: None });
    }
    Ok(())
}

async fn launched(call: &Fanout, subject: Subject, answer: Result<(), AgentError>) {
    let answer = answer.map(|()| AgentState::Started(call.generation));
    call.report(subject, "its agent did not start exec.py", answer).await;
}

/// Asks every agent to run exec.py.
pub(super) async fn launch(call: Fanout, targets: Vec<(Subject, SocketAddr)>) {
    let launch = async |(subject, agent): (Subject, SocketAddr)| {
        let send = async || call.common.agents.run(agent, call.generation).await;
        let answer = send.retry(call.pauses).when(is_unreachable).await;
        if let Ok(false) = answer {
            return Some((subject, agent));
        }
        launched(&call, subject, answer.map(drop)).await;
        None
    };
    let asked = stream::iter(targets).map(launch).buffer_unordered(AGENTS_AT_ONCE);
    let waiting: Vec<_> = asked.filter_map(async |waiting| waiting).collect().await;
    // These agents import modules. They wait all at the same time, because nothing is sent to them.
    let imports =
        |status: &RunStatus| status.state == RunState::Configured && status.generation == Some(call.generation);
    let begin = async |(subject, agent): (Subject, SocketAddr)| {
        let send = async || while_status(&call, agent, imports).await;
        launched(&call, subject, send.retry(call.pauses).when(is_unreachable).await).await;
    };
    stream::iter(waiting).for_each_concurrent(None, begin).await;
}

/// Asks an agent to stop its run. An agent that is shutting down refuses the request but stops its run, so this refusal
/// is a success.
pub(super) async fn stop(
    agents: &AgentClient,
    agent: SocketAddr,
    generation: Option<Generation>,
    first: FirstSignal,
    grace: Duration,
) -> Result<(), AgentError> {
    let send = async || agents.stop(agent, generation, first, grace).await;
    match send.retry(patience()).when(is_unreachable).await {
        Err(AgentError::Ending(_)) => Ok(()),
        answer => answer,
    }
}

/// Marks a dead replica's output as complete after the copy in progress, or after [`COPY_TIMEOUT`].
pub(super) async fn complete(log: ReplicaLog, copied: impl Future<Output = ()>) {
    if timeout(COPY_TIMEOUT, copied).await.is_err() {
        warn!("the rest of a run's output took too long to copy");
    }
    log.complete();
}

/// Deletes a pod, with a limited number of retries. If the agent is fenced, its run is dead, so the pod is deleted
/// without a confirmation by its node.
pub(super) async fn delete(Common { job, context, .. }: &Common, id: ReplicaId, standing: Standing) {
    let delete = async || match standing {
        Standing::Held | Standing::Lapsed => context.backend.delete(job, id).await,
        Standing::Fenced => context.backend.delete_unconfirmed(job, id).await,
    };
    if let Err(error) = delete.retry(patience()).await {
        warn!(job = %job.name, replica = %id, error = error_chain(&error), "could not delete a pod; the master will try again");
    }
}

/// Deletes every pod of a job, with a limited number of retries.
pub(super) async fn delete_all(backend: &dyn PodBackend, job: &JobKey) {
    let delete = async || backend.delete_all(job).await;
    if let Err(error) = delete.retry(patience()).await {
        warn!(job = %job.name, error = error_chain(&error), "could not delete the pods of a job; the master will try again");
    }
}

/// The agent's state after this answer, if the replica has this many processes. `heard` is the agent's newest status before
/// this answer.
pub(super) fn state_of(
    answer: Result<AgentAnswer, AgentError>,
    heard: Option<&RunStatus>,
    processes: u32,
) -> AgentState {
    match answer {
        Ok(AgentAnswer::Status(status)) if !status.is_fit_for(processes) => {
            AgentState::Failed(LostRun::of_other_version(&status, processes))
        }
        Ok(AgentAnswer::SeedOnly) if heard.is_none() => AgentState::SeedOnly,
        Ok(AgentAnswer::Status(status)) if heard.is_none_or(|heard| heard.boot_id == status.boot_id) => {
            AgentState::Status(status)
        }
        Ok(AgentAnswer::SeedOnly | AgentAnswer::Status(_)) => {
            refused("its agent was restarted, and the run is lost".to_owned())
        }
        Err(error) => refused(format!("its agent did not report its status: {}", error_chain(&error))),
    }
}

pub(super) fn refused(reason: String) -> AgentState {
    AgentState::Failed(LostRun::broken(reason))
}
