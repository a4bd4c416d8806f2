//! Balances the batch sizes of a running start: the scripts' reports go to the balancer, and its orders to the agents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use backon::Retryable;
use futures_util::{StreamExt, stream};
use job::batching::{Balancer, Order, rules};
use protocol::batching::{BatchChange, Batches, Notice};
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

/// How often to ask each agent, if there are at most [`AGENTS_OF_INTERVAL`] of them. More agents are asked less often.
const INTERVAL: Duration = Duration::from_secs(2);
const AGENTS_OF_INTERVAL: u32 = 64;

/// A member of a start that has a batch, and the address of its agent.
pub(super) type Rank = (Subject, SocketAddr);

/// The batch sizes of a job's newest start, and the speeds of its pods.
pub(super) struct Balance {
    common: Common,
    current: Option<Current>,
    /// The measured samples per second of each pod.
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
        Self { common, current: None, speeds: BTreeMap::new(), notices: None }
    }

    /// Whether the sizes of this job may follow measured times. With parameter servers, the workers train without a
    /// common step.
    fn is_possible(spec: &JobSpec) -> bool {
        spec.global_batch().is_some() && spec.ps_num == 0
    }

    /// How often to ask an agent for the reports of its script. `None` if the sizes stay.
    pub(super) fn interval(spec: &JobSpec) -> Option<Duration> {
        let agents = spec.replica_num().div_ceil(AGENTS_OF_INTERVAL);
        Self::is_possible(spec).then(|| INTERVAL * agents)
    }

    /// The samples per second of this pod, if they were measured.
    pub(super) fn speed(&self, subject: Subject) -> Option<f64> {
        self.speeds.get(&subject.id).filter(|(pod, _)| *pod == subject.pod).map(|(_, speed)| *speed)
    }

    /// Hears a report of a member of this start. `ranks` are the members of the start with a batch, in the order of their
    /// ranks.
    pub(super) fn hear(
        &mut self,
        (subject, report): (Subject, &Progress),
        generation: Generation,
        spec: &JobSpec,
        ranks: impl FnOnce() -> Vec<Rank>,
    ) {
        if self.current.as_ref().is_none_or(|current| current.generation != generation) {
            self.begin(generation, spec, ranks());
        }
        let Some(Current { balancer, ranks, changed_at, .. }) = &mut self.current else { return };
        let before = (balancer.changed().cloned(), balancer.sizes().map(<[u32]>::to_vec));
        let order = balancer.hear(subject.id, report);
        if balancer.sizes() != before.1.as_deref() && balancer.changed() != before.0.as_ref() {
            *changed_at = Some(self.common.context.store.now());
            info!(job = %self.common.job.name, sizes = ?balancer.sizes(), from = ?before.1, "batch sizes changed");
        }
        for (speed, (subject, _)) in balancer.speeds().into_iter().flatten().zip(ranks.iter()) {
            self.speeds.insert(subject.id, (subject.pod, speed));
        }
        if let Some(order) = order {
            self.tell(order);
        }
    }

    fn begin(&mut self, generation: Generation, spec: &JobSpec, ranks: Vec<Rank>) {
        self.notices = None;
        let places: Vec<ReplicaId> = ranks.iter().map(|(subject, _)| subject.id).collect();
        let balancer = rules(spec, &places).map(|rules| Balancer::new(places, rules, generation.epoch));
        self.current = balancer.map(|balancer| Current { generation, balancer, ranks, changed_at: None });
    }

    /// Tells all agents of the start. An agent that does not get the order keeps all scripts at their sizes, and the
    /// balancer then withdraws the order.
    fn tell(&mut self, order: Order) {
        let Some(Current { generation, ranks, .. }) = &self.current else { return };
        let notice = match order {
            Order::Use(split) => Notice { split: Some(split) },
            Order::Withdraw => Notice::default(),
        };
        let (agents, generation, ranks) = (self.common.agents.clone(), *generation, ranks.clone());
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
        Some(Batches { global: sizes.iter().sum(), sizes, changed, held: current.balancer.held().cloned() })
    }
}
