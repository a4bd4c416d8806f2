//! What the simulated master knows of one replica, as a driver tracks it. The rules are those of `driver/pods/replica.rs`.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use job::gang::Member;
use job::observation::{AgentState, Observation, PodState};
use job::phase::JobPhase;
use job::upkeep::Replacements;
use protocol::agent::{ExitOutcome, RunStatus};
use protocol::ids::{Generation, ReplicaId};

use super::pods::Order;

/// A replica, as the current master tracks it.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) seen: Observation,
    /// The orders that are on their way, each with the pod that it is for.
    pub(crate) orders: VecDeque<(u16, Order)>,
    /// Whether the master knows that the replica exists.
    pub(crate) is_known: bool,
    pub(crate) is_stopped: bool,
    pub(crate) is_released: bool,
    pub(crate) replacements: Replacements,
    /// The number of the replica's newest pod that the master has seen.
    instance: Option<u16>,
    may_be_found: bool,
    has_lost_run: bool,
    requested_at: Option<Duration>,
    is_given_up: bool,
    deletion_asked_at: Option<Duration>,
}

impl Tracked {
    /// A replica when its master begins. `may_be_found`: whether an earlier master may have created its pod.
    /// `is_known`: whether the record contains the replica.
    pub(crate) fn new(may_be_found: bool, is_known: bool) -> Self {
        Self {
            seen: Observation::NEW,
            orders: VecDeque::new(),
            is_known,
            is_stopped: false,
            is_released: false,
            replacements: Replacements::default(),
            instance: None,
            may_be_found,
            has_lost_run: false,
            requested_at: None,
            is_given_up: false,
            deletion_asked_at: None,
        }
    }

    pub(crate) fn member(&self, id: ReplicaId, horizon: Option<Generation>) -> Member {
        let mut member = Member::of(id, &self.seen, horizon);
        member.create_at = self.replacements.next_at();
        member
    }

    /// Applies the listed pod.
    pub(crate) fn see(&mut self, pod: Option<(u16, PodState)>, phase: &JobPhase) {
        let was_listed = self.seen.pod.is_some();
        let (instance, state) = pod.unzip();
        self.seen.pod = state;
        let is_replaced = instance.is_some_and(|instance| {
            self.is_known = true;
            self.requested_at = None;
            self.seen.is_found |= mem::take(&mut self.may_be_found);
            self.instance.replace(instance).is_some_and(|known| known != instance)
        });
        let is_deleted = was_listed && self.seen.pod.is_none();
        let is_coming_up = matches!(phase, JobPhase::Pending { .. } | JobPhase::Starting { .. });
        let horizon = phase.horizon();
        if (is_replaced || is_deleted) && !self.is_member_since(horizon) {
            self.lose_pod();
        } else if is_replaced || is_deleted && is_coming_up {
            self.lose_run(horizon);
        }
    }

    /// Applies a poll of the agent. A master polls an agent that has answered, or whose pod has an address.
    pub(crate) fn poll(&mut self, run: &RunStatus) {
        let is_first = self.seen.agent == AgentState::Silent && self.seen.addresses().is_some();
        if !self.has_lost_run && (is_first || self.seen.agent.has_answered()) {
            self.hear(AgentState::Status(Box::new(run.clone())));
        }
    }

    pub(crate) fn hear(&mut self, agent: AgentState) {
        match agent {
            AgentState::Failed(_) => self.requested_at = None,
            AgentState::Unreachable { is_fenced: true, .. } => self.deletion_asked_at = None,
            AgentState::Unreachable { is_fenced: false, .. }
            | AgentState::Silent
            | AgentState::SeedOnly
            | AgentState::Status(_)
            | AgentState::Configured(_)
            | AgentState::Started(_) => {}
        }
        self.seen.hear(agent);
    }

    fn is_member_since(&self, horizon: Option<Generation>) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| horizon.is_none_or(|horizon| enrolled.generation >= horizon))
    }

    pub(crate) fn is_member(&self, start: Option<Generation>) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| Some(enrolled.generation) == start)
    }

    fn lose_run(&mut self, horizon: Option<Generation>) {
        self.orders.retain(|(_, order)| *order == Order::Create);
        self.has_lost_run = true;
        self.deletion_asked_at = None;
        let is_current = |status: &RunStatus| horizon.is_none() || status.generation >= horizon;
        let has_ended = |status: &RunStatus| is_current(status) && status.exit.is_some() && !was_called_back(status);
        if !self.seen.agent.status().is_some_and(has_ended) {
            self.seen.agent_becomes(AgentState::Failed(self.seen.lost("its pod was deleted")));
        }
    }

    fn lose_pod(&mut self) {
        let mut orders = mem::take(&mut self.orders);
        orders.retain(|(_, order)| *order == Order::Create);
        let seen = Observation { pod: self.seen.pod.take(), ..Observation::NEW };
        let instance = self.instance.filter(|_| seen.pod.is_some());
        let Self { is_known, replacements, is_given_up, .. } = *self;
        *self = Self { seen, orders, is_known, replacements, instance, is_given_up, ..Self::new(false, false) };
    }

    /// Orders the replica's pod, unless an earlier order may still take effect.
    pub(crate) fn request(&mut self, now: Duration, release_timeout: Duration) {
        let is_on_its_way = self.orders.iter().any(|(_, order)| *order == Order::Create);
        if self.requested_at.is_some_and(|at| is_on_its_way || now < at + release_timeout) {
            return;
        }
        if self.seen.agent != AgentState::Silent {
            self.lose_pod();
        }
        self.requested_at = Some(now);
        if !mem::take(&mut self.is_given_up) {
            self.replacements.note(now);
        }
        self.orders.retain(|(_, order)| *order != Order::Create);
        self.orders.push_back((0, Order::Create));
    }

    /// Withdraws the orders to configure or to launch that the agent has not carried out.
    pub(crate) fn cancel_start(&mut self) {
        self.orders.retain(|(_, order)| !matches!(order, Order::Configure(..) | Order::Launch(_)));
    }

    /// Withdraws the orders to create, configure or launch that are not carried out.
    pub(crate) fn call_start_back(&mut self) {
        self.cancel_start();
        self.orders.retain(|(_, order)| *order != Order::Create);
        self.is_given_up |= self.requested_at.take().is_some();
    }

    /// Whether the master may ask for the deletion of the pod now. Notes that it asks.
    pub(crate) fn ask_deletion(&mut self, now: Duration, release_timeout: Duration) -> bool {
        let is_due = self.deletion_asked_at.is_none_or(|at| now >= at + release_timeout);
        self.deletion_asked_at = if is_due { Some(now) } else { self.deletion_asked_at };
        is_due
    }

    /// Prepares for the next start.
    pub(crate) fn begin_again(&mut self) {
        if self.seen.pod.is_none() || self.has_lost_run {
            return self.lose_pod();
        }
        (self.is_stopped, self.deletion_asked_at) = (false, None);
    }

    /// Prepares for a later turn of the gang.
    pub(crate) fn queue(&mut self) {
        if self.seen.pod.is_none() {
            self.lose_pod();
        }
        self.replacements = Replacements::default();
    }
}

/// Whether the run was stopped before it began.
fn was_called_back(run: &RunStatus) -> bool {
    run.exit.as_ref().is_some_and(|exit| exit.stopped && matches!(exit.outcome, ExitOutcome::NotStarted(_)))
}
