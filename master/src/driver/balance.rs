//! Balances the batch sizes of a running start. Passes the scripts' reports to the balancer, and the balancer's orders
//! to the agents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use backon::Retryable;
use futures_util::{StreamExt, stream};
use job::batching::{Balancer, Order, Tried, rules, too_large};
use job::gang::{Gang, Place};
use protocol::batching::{BatchChange, Batches, Notice};
use protocol::failure::TooLargeBatch;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::job::JobSpec;
use protocol::progress::Progress;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::context::Common;
use super::reports::Subject;
use super::retry::{is_unreachable, patience};
use super::tasks::{self, AGENTS_AT_ONCE};
use crate::error_chain::error_chain;
use crate::store::JobRecord;

/// The time between two requests to an agent, in jobs with at most [`AGENTS_OF_INTERVAL`] agents. In larger jobs, this
/// time is longer, up to [`INTERVAL_MAX`].
const INTERVAL: Duration = Duration::from_secs(2);
const AGENTS_OF_INTERVAL: u32 = 64;
const INTERVAL_MAX: Duration = Duration::from_secs(30);

/// A member with a batch, and the address of its agent.
pub(super) type Rank = (Subject, SocketAddr);

/// The batch sizes of a job's newest start, and the speeds of its pods.
pub(super) struct Balance {
    common: Common,
    current: Option<Current>,
    /// The newest start that this master has configured, with its first sizes.
    first: Option<(Generation, BTreeMap<ReplicaId, u32>)>,
    /// For each replica, the number of its pod, and the measured samples per second of this pod.
    speeds: BTreeMap<ReplicaId, (u32, f64)>,
    /// The task that tells the agents the newest order.
    notices: Option<AbortOnDropHandle<()>>,
}

struct Current {
    generation: Generation,
    balancer: Balancer,
    ranks: Vec<Rank>,
    /// When the newest change was complete.
    changed_at: Option<UnixMillis>,
}

impl Balance {
    pub(super) fn new(common: Common) -> Self {
        Self { common, current: None, first: None, speeds: BTreeMap::new(), notices: None }
    }

    /// Whether the sizes of this job can follow measured times. With parameter servers, the sizes cannot change,
    /// because the workers have no common step.
    fn is_possible(spec: &JobSpec) -> bool {
        spec.global_batch().is_some() && spec.ps_num == 0
    }

    /// How often to ask an agent for the reports of its script. `None` if the sizes of this job never change.
    pub(super) fn interval(spec: &JobSpec) -> Option<Duration> {
        let agents = spec.replica_num().div_ceil(AGENTS_OF_INTERVAL);
        Self::is_possible(spec).then(|| (INTERVAL * agents).min(INTERVAL_MAX))
    }

    /// The samples per second of this pod, if they were measured. `None` if the newest start has not trained for long
    /// enough with its newest sizes: these sizes may be the reason why the start has ended.
    pub(super) fn speed(&self, subject: Subject) -> Option<f64> {
        if self.current.as_ref().is_some_and(|current| !current.balancer.is_proven()) {
            return None;
        }
        self.speeds.get(&subject.id).filter(|(pod, _)| *pod == subject.pod).map(|(_, speed)| *speed)
    }

    /// Notes the sizes with which this start begins.
    pub(super) fn begin_with(&mut self, generation: Generation, sizes: BTreeMap<ReplicaId, u32>) {
        self.first = Some((generation, sizes));
    }

    /// The batches that were too large for members whose runs have ended for lack of memory. Leaves out members whose
    /// sizes are unknown.
    pub(super) fn too_large(&self, gang: &Gang<'_>, record: &JobRecord) -> Vec<TooLargeBatch> {
        let tried = |member: &Place<'_>| Some((member.id, self.tried(member.id, member.out_of_memory()?)?));
        let tried: Vec<_> = gang.members().filter_map(tried).collect();
        if tried.is_empty() { vec![] } else { too_large(&tried, &record.scaled_spec(), &record.restarts) }
    }

    fn tried(&self, member: ReplicaId, start: Generation) -> Option<Tried> {
        let current = self.current.as_ref().filter(|current| current.generation == start);
        let first = self.first.as_ref().filter(|(configured, _)| *configured == start);
        let first = || Some(Tried { size: *first?.1.get(&member)?, lasted: None });
        current.and_then(|current| current.balancer.tried(member)).or_else(first)
    }

    /// Handles a report of a member of this start. `ranks` lists the members that have a batch, in the order of their
    /// ranks.
    pub(super) fn hear(
        &mut self,
        (subject, report): (Subject, &Progress),
        generation: Generation,
        record: &JobRecord,
        ranks: impl FnOnce() -> Vec<Rank>,
    ) {
        if self.current.as_ref().is_none_or(|current| current.generation != generation) {
            self.begin(generation, record, ranks());
        }
        let Some(Current { balancer, changed_at, .. }) = &mut self.current else { return };
        let before = balancer.changed().map(|changed| changed.version);
        let order = balancer.hear(subject.id, report);
        if let Some(changed) = balancer.changed().filter(|changed| Some(changed.version) != before) {
            *changed_at = Some(self.common.context.store.now());
            info!(job = %self.common.job.name, sizes = ?balancer.sizes(), from = ?changed.from, "batch sizes changed");
        }
        if let Some(order) = order {
            self.tell(order);
        }
    }

    /// Keeps the speeds that were measured in the newest start. Call this before [`Balance::speed`].
    pub(super) fn keep_speeds(&mut self) {
        let Some(Current { balancer, ranks, .. }) = &self.current else { return };
        for (speed, (subject, _)) in balancer.speeds().into_iter().flatten().zip(ranks) {
            self.speeds.insert(subject.id, (subject.pod, *speed));
        }
    }

    /// Begins to balance a start, which an earlier master may have begun.
    fn begin(&mut self, generation: Generation, record: &JobRecord, ranks: Vec<Rank>) {
        self.notices = None;
        self.keep_speeds();
        let places: Vec<ReplicaId> = ranks.iter().map(|(subject, _)| subject.id).collect();
        let rules = rules(&record.spec, &record.restarts, &places);
        let balancer = rules.map(|rules| Balancer::new(places, rules, record.epoch));
        self.current = balancer.map(|balancer| Current { generation, balancer, ranks, changed_at: None });
    }

    /// Sends the order to the agents that may lack it. If one of these agents does not receive the order, no script
    /// changes its size, and the balancer withdraws the order later.
    fn tell(&mut self, order: Order) {
        let Some(Current { generation, ranks, balancer, .. }) = &self.current else { return };
        let notice = match order {
            Order::Use(split) => Notice { split: Some(split) },
            Order::Withdraw => Notice::default(),
        };
        let told = |(subject, _): &&Rank| balancer.is_to_be_told(subject.id);
        let ranks: Vec<Rank> = ranks.iter().filter(told).copied().collect();
        let (agents, generation) = (self.common.agents.clone(), *generation);
        self.notices = Some(tasks::spawn(&self.common.reporter, async move {
            let tell = async |(subject, agent): Rank| {
                let notify = async || agents.notify(agent, generation, &notice).await;
                if let Err(error) = notify.retry(patience()).when(is_unreachable).await {
                    warn!(replica = %subject.id, error = error_chain(&error), "cannot tell an agent the batch sizes");
                }
            };
            stream::iter(ranks).for_each_concurrent(AGENTS_AT_ONCE, tell).await;
        }));
    }

    /// What users see of the sizes. `None` until all members of this start have reported their sizes.
    pub(super) fn shown(&self, generation: Option<Generation>) -> Option<Batches> {
        let current = self.current.as_ref().filter(|current| Some(current.generation) == generation)?;
        let sizes = current.balancer.sizes()?.to_vec();
        let changed = current.balancer.changed().zip(current.changed_at).map(|(changed, at)| BatchChange {
            at,
            from: changed.from.clone(),
            slowest: current.ranks[changed.change.slowest].0.id,
            fastest: current.ranks[changed.change.fastest].0.id,
            ratio: changed.change.ratio,
            step_time: changed.step_time,
        });
        Some(Batches {
            global: current.balancer.global_batch(),
            sizes,
            changed,
            held: current.balancer.held().cloned(),
        })
    }
}
