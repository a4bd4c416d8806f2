//! The code that the job brings: which code agents receive before the next start, which agents have code, and how agents
//! receive new code while their scripts run. After a push has arrived everywhere, the registry writes it into the
//! record, and the gang restarts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use job::observation::Wait;
use protocol::agent::CodeStatus;
use protocol::code::CodeId;
use protocol::ids::ReplicaId;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::context::Common;
use super::delivery::{Delivery, DeliveryError};
use super::holders::Holders;
use super::tasks::AGENTS_AT_ONCE;
use super::{Staged, Staging};
use crate::error_chain::error_chain;

/// The code of one job.
pub(super) struct JobCode {
    common: Common,
    /// The delivery of the code that the job brings, if any. After a push, it is another delivery.
    delivery: watch::Sender<Option<Arc<Delivery>>>,
    /// The agents that have code of the job.
    holders: watch::Sender<Holders>,
    /// Locked while agents receive new code that a user pushes.
    staging: Arc<Mutex<()>>,
    /// The deliveries of pushed code. A finished delivery stays here until the next push.
    staged: BTreeMap<CodeId, watch::Receiver<Staged>>,
}

impl JobCode {
    /// `code` is the code of the next start, if the job brings code.
    pub(super) fn new(common: Common, code: Option<CodeId>) -> Self {
        let new = Self {
            common,
            delivery: watch::Sender::new(None),
            holders: watch::Sender::default(),
            staging: Arc::default(),
            staged: BTreeMap::new(),
        };
        new.follow(code);
        new
    }

    /// Makes this code the code that agents receive before the next start. Agents that wait for earlier code receive the
    /// new code instead.
    pub(super) fn follow(&self, code: Option<CodeId>) {
        self.delivery.send_if_modified(|delivery| {
            let is_new = delivery.as_ref().map(|delivery| delivery.id()) != code;
            if is_new {
                *delivery = code.map(|id| Arc::new(self.delivery_of(id)));
            }
            is_new
        });
    }

    /// The delivery of the code of the next start.
    pub(super) fn delivery(&self) -> watch::Receiver<Option<Arc<Delivery>>> {
        self.delivery.subscribe()
    }

    fn delivery_of(&self, code: CodeId) -> Delivery {
        Delivery::new(code, self.common.clone(), self.holders.subscribe())
    }

    /// Notes which code a replica's agent has; `None` if its pod has ended.
    pub(super) fn note_held(&self, id: ReplicaId, held: Option<(SocketAddr, CodeStatus)>) {
        self.holders.send_if_modified(|holders| holders.note(id, held));
    }

    /// The code that an agent of the job waits for and that nobody has. `waits` are the reasons for which agents wait.
    pub(super) fn wanted<'a>(&self, mut waits: impl Iterator<Item = &'a Wait>) -> Option<CodeId> {
        let wanted = self.delivery.borrow().as_ref().map(|delivery| delivery.id())?;
        waits.any(|wait| matches!(wait, Wait::Code { id, .. } if *id == wanted)).then_some(wanted)
    }

    /// Sends new code to these agents. Other agents receive the code before their next start. A client repeats a request
    /// that has timed out. The repeated request waits for the delivery in progress.
    pub(super) fn stage(
        &mut self,
        Staging { code, progress }: Staging,
        agents: impl Iterator<Item = (ReplicaId, SocketAddr)>,
        tasks: &mut JoinSet<()>,
    ) {
        self.staged.retain(|_, staged| matches!(*staged.borrow(), Staged::Underway(_)));
        let underway = self.staged.get(&code).cloned();
        let staged = underway.unwrap_or_else(|| self.begin_to_stage(code, agents.collect(), tasks));
        // The send fails only if the request has timed out, so the error does not matter.
        let _ = progress.send(staged);
    }

    fn begin_to_stage(
        &mut self,
        code: CodeId,
        agents: BTreeMap<ReplicaId, SocketAddr>,
        tasks: &mut JoinSet<()>,
    ) -> watch::Receiver<Staged> {
        let delivery = self.delivery_of(code);
        let (sender, staged) = watch::channel(Staged::Underway(agents.keys().copied().collect()));
        let turn = Arc::clone(&self.staging);
        tasks.spawn(async move {
            let _turn = turn.lock().await;
            let deliver = async |(id, agent): (ReplicaId, SocketAddr)| {
                delivery.deliver(agent).await.map_err(|error| (id, error))?;
                sender.send_modify(|staged| {
                    if let Staged::Underway(left) = staged {
                        left.remove(&id);
                    }
                });
                Ok(())
            };
            let deliveries = stream::iter(agents).map(deliver).buffer_unordered(AGENTS_AT_ONCE);
            sender.send_replace(match deliveries.try_collect().await {
                Ok(()) => Staged::Everywhere,
                Err((_, DeliveryError::Lost(_))) => Staged::Lost,
                Err((id, error)) => Staged::Refused(format!("{id}: {}", error_chain(&error))),
            });
        });
        self.staged.insert(code, staged.clone());
        staged
    }
}
