//! Sends new code to the agents of a job while their scripts run. After that, the registry writes the push into the
//! record, and the gang restarts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use job::observation::Wait;
use protocol::code::CodeId;
use protocol::ids::ReplicaId;
use tokio::sync::watch;

use super::delivery::{Common, Delivery, DeliveryError};
use super::tasks::AGENTS_AT_ONCE;
use super::tracked::Replica;
use super::{Driver, Staged, Staging};
use crate::error_chain::error_chain;

impl Driver {
    /// Makes this code the code that agents receive before the next start. Agents that wait for earlier code receive the
    /// new code instead.
    pub(super) fn follow_code(&self, code: Option<CodeId>) {
        self.delivery.send_if_modified(|delivery| {
            let is_new = delivery.as_ref().map(|delivery| delivery.id()) != code;
            if is_new {
                *delivery = code.map(|id| Arc::new(self.delivery_of(id)));
            }
            is_new
        });
    }

    fn delivery_of(&self, code: CodeId) -> Delivery {
        let (job, holders) = (self.stored.name().clone(), self.holders.subscribe());
        let (agents, context, reporter) = (self.agents.clone(), Arc::clone(&self.context), self.reporter.clone());
        Delivery::new(code, Common { job, agents, context, reporter, holders })
    }

    /// The code that an agent of the job waits for and that nobody has.
    pub(super) fn wanted_code(&self) -> Option<CodeId> {
        let wanted = self.delivery.borrow().as_ref().map(|delivery| delivery.id())?;
        let waits =
            |replica: &Replica| matches!(replica.seen.waits_for(), Some(Wait::Code { id, .. }) if *id == wanted);
        self.replicas.values().any(waits).then_some(wanted)
    }

    /// Sends new code to all agents that answer. Other agents receive the code before their next start. A client
    /// repeats a request that has timed out. The repeated request waits for the delivery in progress.
    pub(super) fn stage(&mut self, Staging { code, progress }: Staging) {
        self.staged.retain(|_, staged| matches!(*staged.borrow(), Staged::Underway(_)));
        let underway = self.staged.get(&code).cloned();
        let staged = underway.unwrap_or_else(|| self.begin_to_stage(code));
        // The send fails only if the request has timed out, so the error does not matter.
        let _ = progress.send(staged);
    }

    fn begin_to_stage(&mut self, code: CodeId) -> watch::Receiver<Staged> {
        let agents = self.replicas.iter().filter_map(|(id, replica)| Some((*id, replica.agent()?)));
        let agents: BTreeMap<ReplicaId, SocketAddr> = agents.collect();
        let delivery = self.delivery_of(code);
        let (sender, staged) = watch::channel(Staged::Underway(agents.keys().copied().collect()));
        let turn = Arc::clone(&self.staging);
        self.tasks.spawn(async move {
            let _turn = turn.lock().await;
            let deliver = async |(id, agent): (ReplicaId, SocketAddr)| {
                delivery.deliver(agent).await.map_err(|error| (id, error))?;
                sender.send_modify(|staged| staged.arrived(id));
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
