//! The pods of the simulated world: their orders, their true state, and the state that the master sees. A simulated
//! agent refuses the same orders as a real agent.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use job::observation::{Addresses, AgentState, LostRun, Observation, PodState, Presence};
use protocol::agent::{ExitOutcome, ExitReport, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId, UnixMillis};

/// The addresses of all members of a start.
pub(crate) type Cluster = Vec<SocketAddr>;

/// An order of the master: to create a pod, or a request to a pod's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Create,
    Configure(Generation, Cluster),
    Launch(Generation),
    Stop(Option<Generation>),
    Finish,
}

/// The effect of an order, for the checks of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// The agent accepted this environment.
    Configured(Generation, Cluster),
    /// exec.py was started.
    Launched(Generation),
    /// The agent does not obey, so the master deletes the agent's pod.
    Defied,
}

/// Why a pod ended or is being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    NodeDied,
    Disrupted,
    /// A master deleted the pod.
    Deleted,
}

/// One replica: the true state of its newest pod, and the state that the master sees.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: ReplicaId,
    pub(crate) seen: Observation,
    pub(crate) orders: VecDeque<(u16, Order)>,
    pub(crate) is_stopped: bool,
    pub(crate) is_released: bool,
    place: u16,
    truth: Option<PodState>,
    fates: Vec<Fate>,
    run: RunStatus,
    newest: Option<Generation>,
    pub(crate) cluster: Cluster,
    /// How many pods this replica has had.
    instance: u16,
}

impl Pod {
    /// A replica without a pod.
    pub(crate) fn absent(id: ReplicaId, place: usize) -> Self {
        Self {
            id,
            seen: Observation::NEW,
            orders: VecDeque::new(),
            is_stopped: false,
            is_released: false,
            place: u16::try_from(place).expect("a gang of tests is small"),
            truth: None,
            fates: vec![],
            run: RunStatus::idle("boot"),
            newest: None,
            cluster: vec![],
            instance: 0,
        }
    }

    /// A replica whose pod has a run of an earlier master.
    pub(crate) fn found(id: ReplicaId, place: usize, (state, generation): (RunState, Generation)) -> Self {
        let mut pod = Self::absent(id, place);
        pod.create();
        if state != RunState::Idle {
            pod.run = RunStatus { state, generation: Some(generation), ..RunStatus::idle("boot") };
            pod.newest = Some(generation);
        }
        pod
    }

    fn create(&mut self) {
        self.instance += 1;
        self.truth = Some(PodState::Running(self.addresses()));
        (self.fates, self.run, self.newest) = (vec![], RunStatus::idle("boot"), None);
    }

    /// The pod's addresses. They differ from those of every other pod.
    pub(crate) fn addresses(&self) -> Addresses {
        let address = SocketAddr::from(([10, 0, 0, 1], 1000 * (self.place + 1) + self.instance));
        Addresses { agent: address, tensorflow: address }
    }

    /// Whether the pod's agent is alive.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.truth, Some(PodState::Running(_) | PodState::Leaving { .. }))
    }

    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.truth, Some(PodState::Leaving { .. }))
    }

    pub(crate) fn runs(&self) -> bool {
        self.is_up() && self.run.state == RunState::Running
    }

    /// The newest run, even if its pod is deleted.
    pub(crate) fn run(&self) -> &RunStatus {
        &self.run
    }

    pub(crate) fn had(&self, fate: Fate) -> bool {
        self.fates.contains(&fate)
    }

    /// Whether this pod has replaced another pod. The new pod's agent has not received the earlier orders.
    pub(crate) fn is_new(&self) -> bool {
        self.instance > 1
    }

    pub(crate) fn end_run(&mut self, outcome: ExitOutcome, stopped: bool, at: Duration) {
        let ended_at = UnixMillis(u64::try_from(at.as_nanos()).expect("a test is short"));
        self.run.state = RunState::Exited;
        // A run that is stopped in a leaving pod is stopped because the pod is leaving.
        let terminated = stopped && self.is_leaving();
        self.run.exit = Some(ExitReport { stopped, terminated, ..ExitReport::new(outcome, ended_at) });
    }

    /// The pod's node dies.
    pub(crate) fn lose(&mut self) {
        if self.is_up() {
            self.fates.push(Fate::NodeDied);
            self.end_pod("its node died");
        }
    }

    fn end_pod(&mut self, reason: &str) {
        self.truth = Some(PodState::ended(None, reason));
    }

    /// Begins to remove the pod. Its run continues until [`Self::go`] removes the pod.
    pub(crate) fn leave(&mut self, fate: Fate) {
        if self.is_up() {
            self.fates.push(fate);
            self.truth = Some(PodState::Leaving { reason: "it is taken away".to_owned() });
        } else if fate == Fate::Deleted {
            self.truth = None;
        }
    }

    /// Removes a leaving pod, with its run.
    pub(crate) fn go(&mut self, remains: Remains) {
        if self.is_leaving() {
            self.truth = match remains {
                Remains::Nothing => None,
                Remains::Listed => Some(PodState::disrupted("it was taken away")),
            };
        }
    }

    /// Queues an order. An order for one pod does not reach a later pod of the same replica.
    pub(crate) fn order(&mut self, order: Order) {
        self.orders.push_back((self.instance, order));
    }

    /// Whether the oldest order is for an agent that is not alive.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        let is_reached = |instance: u16| self.is_up() && instance == self.instance;
        self.orders.front().is_some_and(|(instance, order)| *order != Order::Create && !is_reached(*instance))
    }

    /// Withdraws the orders to create, configure or launch that the pod has not carried out.
    pub(crate) fn withdraw_start_orders(&mut self) {
        let is_of_start = |order: &Order| matches!(order, Order::Create | Order::Configure(..) | Order::Launch(_));
        self.orders.retain(|(_, order)| !is_of_start(order));
    }

    /// Carries out the oldest order.
    pub(crate) fn carry_out(&mut self, now: Duration) -> Effect {
        let Some((instance, order)) = self.orders.pop_front() else { return Effect::Nothing };
        let is_reached = self.is_up() && instance == self.instance;
        match order {
            Order::Create => {
                if self.truth.is_none() {
                    self.create();
                }
                Effect::Nothing
            }
            Order::Configure(..) | Order::Launch(_) if !is_reached => self.refuse("it cannot be reached"),
            Order::Configure(generation, cluster) => self.configure(generation, cluster),
            Order::Launch(generation) => self.launch(generation),
            Order::Stop(_) if !is_reached => Effect::Defied,
            Order::Stop(generation) => self.stop(generation, now),
            Order::Finish if !is_reached || self.run.state == RunState::Running => Effect::Defied,
            Order::Finish => {
                self.end_pod("its agent finished");
                Effect::Nothing
            }
        }
    }

    fn refuse(&mut self, reason: &str) -> Effect {
        self.seen.hear(AgentState::Failed(LostRun::broken(reason)));
        Effect::Nothing
    }

    fn is_stale(&mut self, generation: Option<Generation>) -> bool {
        let is_stale = generation.is_some_and(|asked| Some(asked) < self.newest);
        self.newest = self.newest.max(generation);
        is_stale
    }

    fn configure(&mut self, generation: Generation, cluster: Cluster) -> Effect {
        if self.is_stale(Some(generation)) {
            return self.refuse("it knows a newer start");
        }
        if self.run.generation == Some(generation) && self.cluster != cluster {
            return self.refuse("it has another environment");
        }
        if self.run.state == RunState::Running {
            return self.refuse("it still runs");
        }
        if self.run.generation != Some(generation) {
            self.run =
                RunStatus { state: RunState::Configured, generation: Some(generation), ..RunStatus::idle("boot") };
            self.cluster.clone_from(&cluster);
        }
        self.seen.hear(AgentState::Configured(generation));
        Effect::Configured(generation, cluster)
    }

    fn launch(&mut self, generation: Generation) -> Effect {
        if self.is_stale(Some(generation)) || self.run.generation != Some(generation) {
            return self.refuse("it is not configured for this start");
        }
        self.seen.hear(AgentState::Started(generation));
        if self.run.state != RunState::Configured {
            return Effect::Nothing;
        }
        self.run.state = RunState::Running;
        Effect::Launched(generation)
    }

    fn stop(&mut self, generation: Option<Generation>, now: Duration) -> Effect {
        if self.is_stale(generation) {
            return Effect::Defied;
        }
        match self.run.state {
            RunState::Running => self.end_run(ExitOutcome::Signal(9), true, now),
            RunState::Configured => {
                self.end_run(ExitOutcome::NotStarted("it was stopped first".to_owned()), true, now);
            }
            RunState::Idle | RunState::Stopping | RunState::Exited => {}
        }
        Effect::Nothing
    }

    /// Shows the master the pod's true state, and the status of a live agent.
    pub(crate) fn show(&mut self) {
        self.seen.pod = self.truth.clone();
        let begins = self.seen.agent == AgentState::Silent && !self.is_leaving();
        if self.is_up() && (begins || self.seen.agent.has_answered()) {
            self.seen.agent = AgentState::Status(Box::new(self.run.clone()));
        }
    }

    /// Resets the observation to the first report of a new watch of pods.
    pub(crate) fn begin_anew(&mut self) {
        (self.is_stopped, self.is_released) = (false, false);
        self.seen = Observation { pod: self.truth.clone(), ..Observation::NEW };
    }

    /// Forgets a failed start, as a driver does.
    pub(crate) fn let_go(&mut self) {
        self.is_stopped = false;
        if self.seen.presence() == Presence::Absent {
            self.seen = Observation::NEW;
        }
    }
}

/// What is left of a removed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remains {
    Nothing,
    /// The pod is still listed, as ended.
    Listed,
}
