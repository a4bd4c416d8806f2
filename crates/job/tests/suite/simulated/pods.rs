//! The pods of the simulated world: their true state, and how they carry out orders. A simulated agent refuses the same
//! orders as a real agent.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use job::observation::{self, Addresses, AgentState, LostRun, PodDeletion, PodState, Presence};
use job::phase::JobPhase;
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::lease::{Lease, Standing};

use super::tracked::Tracked;

/// The TensorFlow address of each seat of a start.
pub(crate) type Cluster = BTreeMap<ReplicaId, SocketAddr>;

/// An order of the master: to create a pod, or a request to a pod's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Create,
    Configure(Generation, Membership, Cluster),
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
    /// The agent does not stop its run.
    NotStopped,
    /// The agent does not shut down.
    NotFinished,
}

/// Why a pod ended, is being removed, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    NodeDied,
    Disrupted,
    /// A master deleted the pod.
    Deleted,
    CutOff,
}

/// What is left of a removed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remains {
    Nothing,
    /// The pod is still listed, as ended.
    Listed,
}

/// The state of an agent whose network is broken.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// When the agent and a master last exchanged a message. The agent computes its fence from this time.
    fence_from: Duration,
    /// When the current master last received a message from the agent, or when this master began.
    heard: Duration,
}

/// One replica: the true state of its newest pod, and what the master knows of it.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: ReplicaId,
    pub(crate) tracked: Tracked,
    place: u16,
    /// How many pods this replica has had.
    instance: u16,
    truth: Option<PodState>,
    fates: Vec<(u16, Fate)>,
    run: RunStatus,
    /// The earlier runs, also those of earlier pods.
    past: Vec<RunStatus>,
    newest: Option<Generation>,
    cluster: Cluster,
    cut: Option<Cut>,
}

impl Pod {
    /// A replica without a pod.
    pub(crate) fn absent(id: ReplicaId, place: usize) -> Self {
        Self {
            id,
            tracked: Tracked::new(false, false),
            place: u16::try_from(place).expect("a gang of tests is small"),
            instance: 0,
            truth: None,
            fates: vec![],
            run: RunStatus::idle("boot"),
            past: vec![],
            newest: None,
            cluster: Cluster::new(),
            cut: None,
        }
    }

    /// Gives the replica a pod of an earlier master, with a run in this state.
    pub(crate) fn find(&mut self, state: RunState, generation: Generation, membership: Membership) {
        self.create();
        self.arrive();
        if state != RunState::Idle {
            self.newest = Some(generation);
            let (generation, membership) = (Some(generation), Some(membership));
            self.run = RunStatus { state, generation, membership, ..RunStatus::idle("boot") };
        }
    }

    pub(crate) fn join(&mut self, cluster: &Cluster) {
        self.cluster.clone_from(cluster);
    }

    fn create(&mut self) {
        self.instance += 1;
        self.truth = Some(PodState::Pending { has_node: false, wait: None });
        self.past.push(mem::replace(&mut self.run, RunStatus::idle("boot")));
        (self.newest, self.cut) = (None, None);
    }

    fn arrive(&mut self) {
        self.truth = Some(PodState::Running(self.addresses()));
    }

    /// The pod's addresses. They differ from those of every other pod.
    pub(crate) fn addresses(&self) -> Addresses {
        let address = SocketAddr::from(([10, 0, 0, 1], 1000 * (self.place + 1) + self.instance));
        Addresses { agent: address, tensorflow: address }
    }

    fn is_pending(&self) -> bool {
        matches!(self.truth, Some(PodState::Pending { .. }))
    }

    /// Whether the pod's agent is alive.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.truth, Some(PodState::Running(_) | PodState::Leaving { .. }))
    }

    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.truth, Some(PodState::Leaving { .. }))
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Whether the cluster can evict the pod.
    pub(crate) fn can_leave(&self) -> bool {
        self.truth.is_some() && !self.is_leaving() && !self.is_cut()
    }

    /// Whether the node of the pod can die so that the master learns of it.
    pub(crate) fn can_die(&self) -> bool {
        self.is_up() && !self.is_cut()
    }

    /// Whether the network of the agent can break. The master has heard the agent, so the agent has a lease.
    pub(crate) fn can_be_cut_off(&self) -> bool {
        self.can_die() && self.tracked.known.seen.agent.has_answered()
    }

    /// Whether the agent is cut off, and the master has not noticed it.
    pub(crate) fn can_reconnect(&self) -> bool {
        self.is_cut() && self.tracked.known.seen.agent.standing() == Standing::Held
    }

    pub(crate) fn runs(&self) -> bool {
        self.is_up() && self.run.state == RunState::Running
    }

    pub(crate) fn run(&self) -> &RunStatus {
        &self.run
    }

    /// All runs of this replica, newest first.
    pub(crate) fn history(&self) -> impl Iterator<Item = &RunStatus> {
        [&self.run].into_iter().chain(self.past.iter().rev())
    }

    /// Whether this happened to the replica's newest pod or to the pod before it.
    pub(crate) fn had(&self, fate: Fate) -> bool {
        self.fates.iter().any(|(instance, had)| *had == fate && instance + 1 >= self.instance)
    }

    /// Whether this pod has replaced another pod. The new pod's agent has not received the earlier orders.
    pub(crate) fn is_new(&self) -> bool {
        self.instance > 1
    }

    /// Whether the pod has an order to carry out, or waits for its node.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_pending() || !self.tracked.orders.is_empty() && !self.is_waiting_for_network()
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
        self.fates.push((self.instance, Fate::NodeDied));
        self.truth = Some(PodState::ended(None, "its node died"));
    }

    /// Begins to remove the pod. Its run continues until [`Self::go`] removes the pod.
    pub(crate) fn leave(&mut self, fate: Fate) {
        self.fates.push((self.instance, fate));
        self.truth = self.is_up().then(|| PodState::Leaving { reason: "it is taken away".to_owned() });
    }

    /// Removes a leaving pod, with its run. A node without a network cannot confirm that the pod has ended.
    pub(crate) fn go(&mut self, remains: Remains) {
        if self.is_leaving() && !self.is_cut() {
            self.truth = match remains {
                Remains::Nothing => None,
                Remains::Listed => Some(PodState::disrupted("it was taken away")),
            };
        }
    }

    /// Lets the master delete the pod. The pod of a fenced agent is deleted without a confirmation by its node.
    pub(crate) fn delete(&mut self) {
        if self.tracked.known.seen.presence() != Presence::Absent {
            self.tracked.known.seen.deletion = PodDeletion::Asked;
        }
        if self.tracked.known.seen.agent.standing() == Standing::Fenced {
            assert!(!self.runs(), "{} still runs although its fence has passed", self.id);
            (self.truth, self.cut) = (None, None);
        } else if self.truth.is_some() && !self.is_leaving() {
            self.leave(Fate::Deleted);
        }
    }

    pub(crate) fn cut_off(&mut self, now: Duration) {
        self.fates.push((self.instance, Fate::CutOff));
        self.cut = Some(Cut { fence_from: now, heard: now });
    }

    pub(crate) fn reconnect(&mut self) {
        self.cut = None;
    }

    /// If the agent is cut off, ends its run at the fence, and lets the master notice that the lease has lapsed.
    pub(crate) fn pass_time(&mut self, lease: Lease, now: Duration) {
        let Some(Cut { fence_from, heard }) = self.cut else { return };
        if now >= fence_from + lease.fence() && self.runs() {
            self.end_run(ExitOutcome::Signal(9), true, now);
        }
        let silent = now.saturating_sub(heard);
        let seen = &self.tracked.known.seen;
        // A master does not poll an agent that has failed, or whose pod was leaving when the master began.
        let is_polled = !matches!(seen.agent, AgentState::Silent | AgentState::Failed(_)) || seen.addresses().is_some();
        if silent >= lease.length() && is_polled {
            let (lost, is_fenced) = (LostRun::disrupted("its agent did not answer"), silent >= lease.death());
            self.tracked.hear(AgentState::Unreachable { lost, is_fenced });
        }
    }

    /// Queues an order. An order for one pod does not reach a later pod of the same replica.
    pub(crate) fn order(&mut self, order: Order) {
        self.tracked.orders.push_back((self.instance, order));
    }

    /// Whether the oldest order is for an agent that is not alive.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        let is_reached = |instance: u16| self.is_up() && instance == self.instance;
        let oldest = self.tracked.orders.front();
        oldest.is_some_and(|(instance, order)| *order != Order::Create && !is_reached(*instance))
    }

    /// Whether the oldest order waits until the network works again. With leases, a master repeats the orders of a
    /// start without a limit.
    fn is_waiting_for_network(&self) -> bool {
        let oldest = self.tracked.orders.front();
        self.is_cut() && oldest.is_some_and(|(_, order)| matches!(order, Order::Configure(..) | Order::Launch(_)))
    }

    /// Carries out the oldest order. A pod without a node gets a node first.
    pub(crate) fn carry_out(&mut self, now: Duration) -> Effect {
        if self.is_pending() {
            self.arrive();
            return Effect::Nothing;
        }
        if self.is_waiting_for_network() {
            return Effect::Nothing;
        }
        let Some((instance, order)) = self.tracked.orders.pop_front() else { return Effect::Nothing };
        let is_reached = self.is_up() && instance == self.instance && !self.is_cut();
        match order {
            Order::Create => {
                if self.truth.is_none() {
                    self.create();
                }
                Effect::Nothing
            }
            Order::Configure(..) | Order::Launch(_) if !is_reached => self.refuse("it cannot be reached"),
            Order::Configure(generation, membership, cluster) => self.configure(generation, membership, cluster),
            Order::Launch(generation) => self.launch(generation),
            Order::Stop(_) if !is_reached => Effect::NotStopped,
            Order::Stop(generation) => self.stop(generation, now),
            Order::Finish if !is_reached || self.run.state == RunState::Running => Effect::NotFinished,
            Order::Finish => {
                self.truth = Some(PodState::ended(None, "its agent finished"));
                Effect::Nothing
            }
        }
    }

    fn refuse(&mut self, reason: &str) -> Effect {
        self.tracked.hear(AgentState::Failed(LostRun::broken(reason)));
        Effect::Nothing
    }

    fn is_stale(&mut self, generation: Option<Generation>) -> bool {
        let is_stale = generation.is_some_and(|asked| Some(asked) < self.newest);
        self.newest = self.newest.max(generation);
        is_stale
    }

    fn configure(&mut self, generation: Generation, membership: Membership, cluster: Cluster) -> Effect {
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
            let (state, seq) = (RunState::Configured, self.run.seq + 1);
            let (known, membership) = (Some(generation), Some(membership));
            let run = RunStatus { state, seq, generation: known, membership, ..RunStatus::idle("boot") };
            self.past.push(mem::replace(&mut self.run, run));
            self.cluster.clone_from(&cluster);
        }
        self.tracked.hear(AgentState::Configured(generation));
        Effect::Configured(generation, cluster)
    }

    fn launch(&mut self, generation: Generation) -> Effect {
        if self.is_stale(Some(generation)) || self.run.generation != Some(generation) {
            return self.refuse("it is not configured for this start");
        }
        self.tracked.hear(AgentState::Started(generation));
        if self.run.state != RunState::Configured {
            return Effect::Nothing;
        }
        self.run.state = RunState::Running;
        Effect::Launched(generation)
    }

    fn stop(&mut self, generation: Option<Generation>, now: Duration) -> Effect {
        if self.is_stale(generation) {
            return Effect::NotStopped;
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

    /// Shows the master the pod's true state, and the status of an agent that it can reach.
    pub(crate) fn show(&mut self, phase: &JobPhase) {
        self.show_listed(phase);
        if self.is_up() && !self.is_cut() {
            self.tracked.poll(&self.run);
        }
    }

    fn show_listed(&mut self, phase: &JobPhase) {
        let incarnation = || self.instance.to_string().into();
        let pod = self.truth.clone().map(|state| observation::Pod { incarnation: incarnation(), state });
        self.tracked.see(pod, phase);
    }

    /// Shows a new master the first report of its watch of pods.
    pub(crate) fn begin_anew(&mut self, tracked: Tracked, phase: &JobPhase, now: Duration) {
        self.tracked = tracked;
        self.show_listed(phase);
        self.cut.iter_mut().for_each(|cut| cut.heard = now);
    }
}
