//! New code for a job that runs: its agents take it while their runs go on. Then the record says so, and the gang starts
//! again.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::code::CodeId;
use protocol::ids::ReplicaId;

use super::delivery::Delivery;
use super::tasks::AGENTS_AT_ONCE;
use super::{Driver, Staging};
use crate::error_chain::error_chain;

impl Driver {
    /// The delivery of this code, which may have begun.
    pub(super) fn delivery_of(&self, code: Option<CodeId>) -> Option<Arc<Delivery>> {
        let begun = self.delivery.as_ref().filter(|delivery| Some(delivery.id()) == code);
        begun.cloned().or_else(|| code.map(|id| Arc::new(Delivery::new(id, &self.agents, &self.context))))
    }

    /// Brings new code to all agents that answer. Later agents get it before their next start.
    pub(super) fn stage(&mut self, Staging { code, done }: Staging) {
        let agents = self.replicas.iter().filter_map(|(id, replica)| Some((*id, replica.agent()?)));
        let agents: Vec<(ReplicaId, SocketAddr)> = agents.collect();
        let delivery = Delivery::new(code, &self.agents, &self.context);
        let turn = Arc::clone(&self.staging);
        self.tasks.spawn(async move {
            let _turn = turn.lock().await;
            let deliver = async |(id, agent): (ReplicaId, SocketAddr)| {
                delivery.deliver(agent).await.map_err(|error| format!("{id}: {}", error_chain(&error)))
            };
            let deliveries = stream::iter(agents).map(deliver).buffer_unordered(AGENTS_AT_ONCE);
            // The request may have timed out.
            let _ = done.send(deliveries.try_collect().await);
        });
    }
}
