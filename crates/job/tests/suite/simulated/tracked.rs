//! What the simulated master knows of one replica, and its orders that are on their way.

use std::collections::VecDeque;
use std::time::Duration;

use job::observation::{AgentState, Pod};
use job::phase::JobPhase;
use job::tracked::{self, PodLoss};
use protocol::agent::RunStatus;

use super::pods::Order;

/// A replica, as the current master tracks it.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) known: tracked::Tracked,
    /// The orders that are on their way, each with the pod that it is for.
    pub(crate) orders: VecDeque<(u16, Order)>,
    /// Whether the master knows that the replica exists.
    pub(crate) is_known: bool,
    pub(crate) is_released: bool,
}

impl Tracked {
    /// A replica when its master begins. `may_be_found`: whether an earlier master may have created its pod.
    /// `is_known`: whether the record contains the replica.
    pub(crate) fn new(may_be_found: bool, is_known: bool) -> Self {
        let known = tracked::Tracked::new(may_be_found);
        Self { known, orders: VecDeque::new(), is_known, is_released: false }
    }

    /// Applies the listed pod.
    pub(crate) fn see(&mut self, pod: Option<Pod>, phase: &JobPhase) {
        self.is_known |= pod.is_some();
        let loss = self.known.see(pod, phase);
        self.forget(loss);
    }

    fn forget(&mut self, loss: PodLoss) {
        if loss != PodLoss::None {
            self.orders.retain(|(_, order)| *order == Order::Create);
        }
        self.is_released &= loss != PodLoss::Pod;
    }

    /// Applies a poll of the agent. A master polls an agent that has answered, or whose pod has an address.
    pub(crate) fn poll(&mut self, run: &RunStatus) {
        let seen = &self.known.seen;
        let is_first = seen.agent == AgentState::Silent && seen.addresses().is_some();
        if self.known.can_report() && (is_first || seen.agent.has_answered()) {
            self.hear(AgentState::Status(Box::new(run.clone())));
        }
    }

    pub(crate) fn hear(&mut self, agent: AgentState) {
        self.known.hear(self.known.pod_number(), agent);
    }

    /// Orders the replica's pod, unless an earlier order may still take effect.
    pub(crate) fn request(&mut self, now: Duration, soon: Duration) {
        let is_on_its_way = self.orders.iter().any(|(_, order)| *order == Order::Create);
        if self.known.is_to_be_requested(now, soon, is_on_its_way) {
            let loss = self.known.request(now);
            self.forget(loss);
            self.orders.retain(|(_, order)| *order != Order::Create);
            self.orders.push_back((0, Order::Create));
        }
    }

    /// Withdraws the orders to configure or to launch that the agent has not carried out.
    pub(crate) fn cancel_start(&mut self) {
        self.orders.retain(|(_, order)| !matches!(order, Order::Configure(..) | Order::Launch(_)));
    }

    /// Withdraws the orders to create, configure or launch that are not carried out.
    pub(crate) fn call_start_back(&mut self) {
        self.cancel_start();
        self.orders.retain(|(_, order)| *order != Order::Create);
        self.known.give_up_request();
    }

    /// Prepares for a later turn of the gang.
    pub(crate) fn queue(&mut self) {
        let loss = self.known.queue();
        self.forget(loss);
    }

    /// Prepares for the next start.
    pub(crate) fn begin_again(&mut self) {
        let loss = self.known.begin_again(true);
        self.forget(loss);
    }
}
