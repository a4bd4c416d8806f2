//! Requests of agents on bare machines: to join a job, and to leave a job.

use job::key::JobKey;
use protocol::error::ErrorCode;
use protocol::failure::Failure;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::join::{JoinAnswer, JoinRequest, Left};
use protocol::processes::NprocPerNode;
use protocol::run_policy::{OnUnreachable, RunPolicy};
use protocol::view::JobResult;

use super::error::JobsError;
use super::requests::in_time;
use super::{JobHandle, Requests, Submitted};
use crate::agents::client::AgentError;
use crate::backend::{Machines, Refusal};
use crate::error_chain::error_chain;

/// Maximum length of a boot id in bytes.
const BOOT_ID_MAX: usize = 64;

impl Requests {
    /// Handles the message of an agent on a bare machine. Gives the agent a place in this job, or notes that the agent
    /// leaves. The first agent that joins submits the job.
    pub async fn join(&self, name: &JobName, request: JoinRequest) -> Result<JoinAnswer, JobsError> {
        in_time(name, self.take_machine(name, request)).await
    }

    async fn take_machine(&self, name: &JobName, request: JoinRequest) -> Result<JoinAnswer, JobsError> {
        let machines = self.context.backend.machines().ok_or(JobsError::NoMachines)?;
        check_boot_id(&request.boot_id)?;
        let view = self.job_to_join(name, &request).await?.view.borrow().clone();
        check_rules(&view.spec, &request)?;
        let is_new = request.uid.is_none();
        if let (Some(_), true, None) = (&view.result, is_new, request.left) {
            return Err(JobsError::Ended(name.clone()));
        }
        let job = JobKey { name: name.clone(), uid: view.uid.clone() };
        if view.result.is_none() && request.left.is_none() {
            self.probe(&job, &request, machines).await?;
        }
        // If the job has ended, this answer ends the agent, and the agent sends no more messages. So note here that it
        // leaves.
        let left = request.left.or(view.result.as_ref().map(|_| Left::Finished));
        let lease_seconds = Some(view.spec.run_policy.lease_seconds);
        let message = JoinRequest { lease_seconds, left, ..request };
        let place = machines.join(&job, message).await.map_err(JobsError::NotWritten)?;
        Ok(match (&view.result, place) {
            (Some(result), _) => ended(result),
            (None, None) => JoinAnswer::Waiting { uid: view.uid },
            (None, Some(place)) => JoinAnswer::Joined {
                place,
                token_sha256: self.context.agent_key.token(&view.uid).sha256(),
                lease_seconds: view.spec.run_policy.lease_seconds,
                uid: view.uid,
            },
        })
    }

    /// The job of this name. The first agent submits the job. An agent that has joined before can only join the same
    /// job.
    async fn job_to_join(&self, name: &JobName, request: &JoinRequest) -> Result<JobHandle, JobsError> {
        match (self.table.find(name), &request.uid) {
            (Some(handle), None) => Ok(handle),
            (Some(handle), Some(uid)) if handle.uid() == *uid => Ok(handle),
            (_, Some(_)) => Err(JobsError::Unknown(name.clone())),
            (None, None) => match self.submit(spec_of(name, request)?).await {
                Ok(Submitted::Created(handle) | Submitted::Existing(handle)) => Ok(handle),
                // The agent of another machine has just submitted the job.
                Err(JobsError::Exists(name)) => self.table.find(&name).ok_or(JobsError::Exists(name)),
                Err(error) => Err(error),
            },
        }
    }

    /// Checks that this agent answers at its address. If the agent is new, also checks that another machine of the job
    /// can connect to the agent.
    async fn probe(&self, job: &JobKey, request: &JoinRequest, machines: &dyn Machines) -> Result<(), JobsError> {
        let agent = request.address;
        let unreachable = |by: String, reason| Err(JobsError::AgentUnreachable { by, agent, reason });
        match self.context.agents.find(agent, &request.boot_id).await {
            Ok(()) => {}
            Err(AgentError::Refused { status: 409, detail }) => return unreachable("the master".to_owned(), detail),
            Err(AgentError::Unreachable { source, .. }) => {
                return unreachable("the master".to_owned(), error_chain(&*source));
            }
            Err(error) => return unreachable("the master".to_owned(), error_chain(&error)),
        }
        let neighbour = machines.neighbour(job, agent).filter(|_| request.uid.is_none());
        let Some((replica, neighbour)) = neighbour else { return Ok(()) };
        let agents = self.context.agents.with_token(&self.context.agent_key.token(&job.uid));
        match agents.reach(neighbour, agent).await {
            Err(AgentError::Refused { status: 502, detail }) => {
                unreachable(format!("{replica} at {neighbour}"), detail)
            }
            // Any other error comes from the neighbour itself, which may have ended. It says nothing about the new
            // agent.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Checks a boot id, because it becomes a part of a URL.
fn check_boot_id(boot_id: &str) -> Result<(), Refusal> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !boot_id.is_empty() && boot_id.len() <= BOOT_ID_MAX && boot_id.bytes().all(is_fine) {
        return Ok(());
    }
    let sentence = format!("boot_id must consist of 1 to {BOOT_ID_MAX} letters, digits and hyphens");
    Err(Refusal { code: ErrorCode::BadRequest, sentence })
}

/// The job that the first agent submits.
fn spec_of(name: &JobName, request: &JoinRequest) -> Result<JobSpec, JobsError> {
    let workers = request.workers.ok_or_else(|| JobsError::NotBegun(name.clone()))?;
    let default = RunPolicy::default();
    let run_policy = RunPolicy {
        max_restarts: request.max_restarts.unwrap_or(default.max_restarts),
        lease_seconds: request.lease_seconds.unwrap_or(default.lease_seconds),
        on_unreachable: OnUnreachable::Replace,
        ..default
    };
    let job = JobRequest {
        worker_min: Some(workers.min),
        worker_num: Some(workers.max),
        nproc_per_node: request.nproc_per_node.map(NprocPerNode::Number),
        run_policy,
        ..JobRequest::new(name.clone(), Strategy::AllReduce)
    };
    JobSpec::try_from(job).map_err(JobsError::Spec)
}

/// Refuses an agent whose rules differ from those of its job.
fn check_rules(spec: &JobSpec, request: &JoinRequest) -> Result<(), JobsError> {
    let RunPolicy { lease_seconds, max_restarts, .. } = spec.run_policy;
    let is_same = request.workers.is_none_or(|workers| spec.workers() == Some(workers))
        // An agent of an earlier version, or one that has reserved only one port, gives none.
        && request.nproc_per_node.unwrap_or(1) == spec.nproc_per_node
        && request.lease_seconds.is_none_or(|given| given == lease_seconds)
        && request.max_restarts.is_none_or(|given| given == max_restarts);
    if is_same {
        return Ok(());
    }
    let range =
        spec.workers().map_or_else(String::new, |workers| format!(" --worker-num {}:{}", workers.min, workers.max));
    let processes = match spec.nproc_per_node {
        1 => String::new(),
        several => format!(" --nproc-per-node {several}"),
    };
    let rules = format!("{range}{processes} --lease {lease_seconds}s --max-restarts {max_restarts}");
    Err(JobsError::OtherRules { name: spec.name.clone(), rules })
}

/// The answer to an agent whose job has ended.
fn ended(result: &JobResult) -> JoinAnswer {
    let reason = match result {
        JobResult::Failed { failure } => Some(Failure::to_string(failure)),
        JobResult::Succeeded | JobResult::Cancelled => None,
    };
    JoinAnswer::Ended { outcome: result.state(), reason }
}
