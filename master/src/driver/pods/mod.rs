//! The pods of a job: which pods the back end lists, and the requests to create and to delete pods. What is known of each
//! replica is in its [`ReplicaTable`], and the requests to agents are in [`Runs`].

mod awaited;
mod create;
mod delete;
mod prototype;
mod replica;
mod runs;
mod stacks;
mod table;
mod views;

use std::sync::Arc;
use std::time::Duration;

use job::observation::{Pod, Presence};
use job::policy::Policy;
use job::tracked::Tracked;
use job::warm;
use protocol::job::JobSpec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

pub(super) use self::awaited::{awaits_others, is_awaited};
pub(super) use self::runs::{Runs, last_launch, ranks};
pub(super) use self::table::{LAST_OUTPUT_TIMEOUT, ReplicaTable};
pub(super) use self::views::{initial, until_unusual, views};
use super::balance::Balance;
use super::context::{Common, Kept};
use super::follower::{self, Followed, Follower};
use super::job_code::JobCode;
use super::machine::Current;
use crate::agents::token::AgentToken;
use crate::backend::PodTable;
use crate::error_chain::error_chain;

/// Interval for renewing the network policy of a job's pods, in case somebody has deleted it.
const PREPARE_INTERVAL: Duration = Duration::from_secs(300);

/// The pods of one job, and the work in progress on them.
pub(super) struct Pods {
    common: Common,
    kept: Kept,
    listed: watch::Receiver<PodTable>,
    token: AgentToken,
    /// The tasks that create pods.
    creations: Vec<AbortOnDropHandle<()>>,
    /// When to renew the network policy of the job's pods.
    prepare_at: Instant,
}

impl Pods {
    pub(super) fn new(common: Common, token: AgentToken, kept: Kept) -> Self {
        let listed = common.context.backend.watch(&common.job);
        Self { common, kept, listed, token, creations: vec![], prepare_at: Instant::now() + PREPARE_INTERVAL }
    }

    /// Waits until the back end lists other pods. Fails when this master shuts down.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.listed.changed().await
    }

    pub(super) fn have_changed(&self) -> bool {
        self.listed.has_changed().unwrap_or(false)
    }

    /// Takes the pods that the back end lists now. `has_run` is whether a start of the job has begun.
    pub(super) fn take(
        &mut self,
        replicas: &mut ReplicaTable,
        has_run: bool,
        Current { record, machine }: Current<'_>,
        code: &JobCode,
    ) {
        let listed = self.listed.borrow_and_update();
        // Track also the pods of a job that now needs fewer workers, or has ended.
        replicas.add(listed.keys().copied(), record.epoch);
        for (id, replica) in replicas.iter_mut() {
            let pod = listed.get(&id).cloned().map(|Pod { incarnation, state }| {
                let state = if has_run { state.after_a_start() } else { state };
                Pod { incarnation, state }
            });
            replica.see(pod, machine.phase());
            prototype::count_as_launched(&mut replica.tracked.seen, record, id);
            if replica.tracked.seen.presence() != Presence::Live {
                replica.follower.iter().for_each(Follower::pod_has_ended);
                code.note_held(id, None);
            }
        }
        drop(listed);
        if !machine.is_finished() {
            self.follow(replicas, &record.spec, machine.policy(), code);
        }
    }

    /// Begins to follow the pods that have an address and are not followed yet.
    pub(super) fn follow(&self, replicas: &mut ReplicaTable, spec: &JobSpec, policy: &Policy, code: &JobCode) {
        let balance_every = Balance::interval(spec);
        for (id, replica) in replicas.iter_mut() {
            let Some(address) = replica.to_follow() else { continue };
            replica.follower = Some(Follower::begin(Followed {
                common: self.common.clone(),
                subject: replica.subject(id),
                address,
                log: replica.log.clone(),
                kept: self.kept.clone(),
                warm: warm::request(spec, id.role, address.ip()),
                delivery: code.delivery(),
                lease: policy.rules.lease,
                processes: spec.processes_of(id),
                is_found: replica.tracked.seen.is_found,
                balance_every,
            }));
        }
    }

    /// What the master keeps of the job.
    pub(super) fn kept(&self) -> Kept {
        self.kept.clone()
    }

    /// Marks the logs as complete when the copies in progress have ended or have taken too long.
    pub(super) fn complete_logs(&self, replicas: &mut ReplicaTable, tasks: &mut JoinSet<()>) {
        let followers: Vec<_> = replicas.iter_mut().filter_map(|(_, replica)| replica.follower.take()).collect();
        let logs = Arc::clone(&self.kept.logs);
        tasks.spawn(async move {
            follower::await_copies(followers).await;
            logs.complete().await;
        });
    }

    /// Removes the job's output.
    pub(super) async fn remove_logs(&self) {
        if let Err(error) = self.kept.logs.remove().await {
            warn!(job = %self.common.job.name, %error, "could not remove the job's output");
        }
    }

    /// When to renew the network policy of the job's pods, if it has pods.
    pub(super) fn prepare_at(&self, replicas: &ReplicaTable) -> Option<Instant> {
        Some(self.prepare_at).filter(|_| replicas.any(is_live))
    }

    /// Renews the NetworkPolicy of a job that has pods, if it is time. No watch reports the policy's deletion.
    pub(super) fn prepare_again(&mut self, replicas: &ReplicaTable, tasks: &mut JoinSet<()>) {
        if Instant::now() < self.prepare_at {
            return;
        }
        self.prepare_at = Instant::now() + PREPARE_INTERVAL;
        if !replicas.any(is_live) {
            return;
        }
        let Common { job, context, .. } = self.common.clone();
        tasks.spawn(async move {
            if let Err(error) = context.backend.prepare(&job).await {
                warn!(job = %job.name, error = error_chain(&error), "could not renew the job's network policy");
            }
        });
    }
}

fn is_live(replica: &Tracked) -> bool {
    replica.seen.presence() == Presence::Live
}
