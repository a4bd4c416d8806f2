//! Pods in memory, for the tests and the benchmark. Each running pod has an agent that answers over real HTTP on its
//! own loopback address. The caller decides when a run ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use job::key::JobKey;
use job::observation::{Addresses, Incarnation, Others, Pod, PodState, Wait};
use job::wait::Resources;
use protocol::dry_run::PodsOfKind;
use protocol::ids::{JobName, PodName, ReplicaId};
use protocol::job::JobSpec;
use protocol::pod::ObjectName;
use protocol::routes::TENSORFLOW_PORT;
use serde_json::json;
use tokio::sync::watch;

use master::backend::{BackendError, PodBackend, PodSpec, PodTable, Refusal, new_incarnation};
use master::mutex::Mutex;

use super::agent::{AgentKind, FakeAgent, TakesCode};
use super::routes;

/// How pods start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Pods start at once, with an agent that answers.
    AtOnce,
    /// Pods start at once, with an agent of the first prototype. The agent answers.
    Prototypes,
    /// Pods start at once, with an agent that speaks another version of the messages.
    OtherVersion,
    /// Pods never start. They stay pending, for this reason.
    Never(&'static str),
}

/// A back end in memory.
#[derive(Debug, Clone)]
pub struct FakeBackend(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    arrival: Arrival,
    jobs: Mutex<HashMap<JobName, JobPods>>,
    history: Mutex<Vec<PodEvent>>,
    orders: Mutex<Orders>,
    /// The number of pods that can run at the same time, if it is limited.
    pub(super) room: watch::Sender<Option<usize>>,
    /// The number of pods that can exist at the same time, if a quota limits it.
    pub(super) quota: watch::Sender<Option<usize>>,
    /// How long each creation of a pod takes.
    pub(super) creation: watch::Sender<Duration>,
    /// The jobs whose folders were removed.
    forgotten: watch::Sender<Vec<JobKey>>,
    /// Locked while pods are placed, or are created within a quota.
    pub(super) scheduler: tokio::sync::Mutex<()>,
}

/// How the pods of certain replicas must behave.
#[derive(Debug, Default)]
struct Orders {
    /// The replicas whose next pods stay pending, and the reason.
    pending: Option<(Vec<ReplicaId>, Wait)>,
    /// The replicas whose pods are removed only by [`PodBackend::delete_unconfirmed`].
    held: BTreeSet<ReplicaId>,
    /// The replicas whose next pods are deleted before the watch lists them.
    unlisted: BTreeSet<ReplicaId>,
    /// Whether the pods' other containers continue after their agents have ended.
    side_cars_stay: bool,
    /// How the next agents of these replicas respond to new code.
    take_code: BTreeMap<ReplicaId, TakesCode>,
}

/// A change of a pod.
#[derive(Debug, Clone)]
pub struct PodEvent {
    /// The time of the change.
    pub at: Instant,
    /// The job of the pod.
    pub job: JobName,
    /// The replica of the pod.
    pub replica: ReplicaId,
    /// The kind of change.
    pub change: PodChange,
}

/// The kind of change in a [`PodEvent`].
#[derive(Debug, Clone)]
pub enum PodChange {
    /// The pod was created, with this agent. `None` if the pod has no agent.
    Created(Option<FakeAgent>),
    /// The pod ended, and is still listed.
    Ended,
    /// The pod was deleted.
    Deleted,
}

#[derive(Debug)]
pub(super) struct JobPods {
    /// The uid of the job that the pods belong to.
    uid: String,
    pub(super) table: watch::Sender<PodTable>,
    pub(super) agents: BTreeMap<ReplicaId, FakeAgent>,
}

impl Default for JobPods {
    fn default() -> Self {
        Self { uid: String::new(), table: watch::Sender::new(PodTable::new()), agents: BTreeMap::new() }
    }
}

impl JobPods {
    fn list(&mut self, replica: ReplicaId, state: PodState, agent: Option<FakeAgent>) {
        self.agents.extend(agent.map(|agent| (replica, agent)));
        let pod = Pod { incarnation: new_incarnation(), state };
        self.table.send_modify(|table| drop(table.insert(replica, pod)));
    }

    /// Whether this pod is listed.
    pub(super) fn has(&self, replica: ReplicaId, incarnation: &Incarnation) -> bool {
        self.table.borrow().get(&replica).is_some_and(|pod| pod.incarnation == *incarnation)
    }

    pub(super) fn set(&self, replica: ReplicaId, state: PodState) {
        self.table.send_modify(|table| {
            table.entry(replica).and_modify(|pod| pod.state = state);
        });
    }
}

/// The next pod's address. Each pod of this process has its own address, because all pods use the same TensorFlow port.
static NEXT_ADDRESS: AtomicU32 = AtomicU32::new(u32::from_be_bytes([127, 1, 0, 1]));

impl FakeBackend {
    /// A back end without pods.
    pub fn new(arrival: Arrival) -> Self {
        Self(Arc::new(Shared {
            arrival,
            jobs: Mutex::default(),
            history: Mutex::default(),
            orders: Mutex::default(),
            room: watch::Sender::new(None),
            quota: watch::Sender::new(None),
            creation: watch::Sender::new(Duration::ZERO),
            forgotten: watch::Sender::default(),
            scheduler: tokio::sync::Mutex::default(),
        }))
    }

    /// Waits until a pod runs, and returns its agent.
    pub async fn agent(&self, job: &JobName, replica: ReplicaId) -> FakeAgent {
        let mut table = self.table(job);
        let is_up = |table: &PodTable| matches!(table.get(&replica), Some(Pod { state: PodState::Running(_), .. }));
        table.wait_for(is_up).await.expect("the table lives as long as the back end");
        self.lock()[job].agents[&replica].clone()
    }

    /// Waits until the folder of a job is removed.
    pub async fn forgotten(&self, job: &JobKey) {
        // The sender lives as long as `self`.
        let _ = self.0.forgotten.subscribe().wait_for(|jobs| jobs.contains(job)).await;
    }

    /// From now on, new pods of these replicas stay pending for this reason.
    pub fn keep_pending(&self, replicas: &[ReplicaId], wait: Wait) {
        self.0.orders.lock().pending = Some((replicas.to_vec(), wait));
    }

    /// From now on, only [`PodBackend::delete_unconfirmed`] removes this replica's pod, as on a dead node.
    pub fn hold(&self, replica: ReplicaId) {
        self.0.orders.lock().held.insert(replica);
    }

    /// Makes somebody delete the next pod of this replica before the watch lists it.
    pub fn lose_unlisted(&self, replica: ReplicaId) {
        self.0.orders.lock().unlisted.insert(replica);
    }

    /// From now on, each creation of a pod takes this time.
    pub fn create_slowly(&self, creation: Duration) {
        self.0.creation.send_replace(creation);
    }

    /// From now on, the other containers of each pod continue after the pod's agent has ended.
    pub fn keep_side_cars(&self) {
        self.0.orders.lock().side_cars_stay = true;
    }

    /// From now on, new agents of these replicas respond to new code in this way.
    pub fn take_code(&self, replicas: impl IntoIterator<Item = ReplicaId>, how: TakesCode) {
        self.0.orders.lock().take_code.extend(replicas.into_iter().map(|id| (id, how)));
    }

    /// Makes a pod fail.
    pub fn lose(&self, job: &JobName, replica: ReplicaId, reason: &str) {
        self.end(job, replica, PodState::ended(None, reason));
    }

    /// Makes the cluster evict a pod.
    pub fn evict(&self, job: &JobName, replica: ReplicaId, reason: &str) {
        self.end(job, replica, PodState::disrupted(reason));
    }

    fn end(&self, job: &JobName, replica: ReplicaId, ended: PodState) {
        let mut jobs = self.lock();
        let pods = jobs.entry(job.clone()).or_default();
        if let Some(agent) = pods.agents.remove(&replica) {
            agent.vanish();
        }
        pods.set(replica, ended);
        self.note(job, replica, PodChange::Ended);
        self.schedule();
    }

    /// All changes of pods, in order.
    pub fn history(&self) -> Vec<PodEvent> {
        self.0.history.lock().clone()
    }

    pub(super) fn note(&self, job: &JobName, replica: ReplicaId, change: PodChange) {
        let event = PodEvent { at: Instant::now(), job: job.clone(), replica, change };
        self.0.history.lock().push(event);
    }

    /// The agents of a job's existing pods.
    pub fn agents(&self, job: &JobName) -> BTreeMap<ReplicaId, FakeAgent> {
        self.lock().get(job).map(|pods| pods.agents.clone()).unwrap_or_default()
    }

    /// The number of pods, including ended pods.
    pub fn pods(&self) -> usize {
        self.lock().values().map(|pods| pods.table.borrow().len()).sum()
    }

    /// Replaces a pod by another pod, in one change of the table.
    ///
    /// # Panics
    /// If the job has no pods.
    pub async fn replace(&self, job: &JobName, replica: ReplicaId) {
        let (state, agent) = self.arrive().await;
        let mut jobs = self.lock();
        let pods = jobs.get_mut(job).expect("the job has no pods");
        if let Some(before) = pods.agents.remove(&replica) {
            before.vanish();
        }
        pods.list(replica, state, agent.clone());
        self.note(job, replica, PodChange::Deleted);
        self.note(job, replica, PodChange::Created(agent));
    }

    /// The state of a new pod, and its agent.
    pub(super) async fn arrive(&self) -> (PodState, Option<FakeAgent>) {
        let ip = Ipv4Addr::from_bits(NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed));
        match self.0.arrival {
            Arrival::Never(reason) => {
                (PodState::Pending { has_node: false, wait: Some(Wait::Other(reason.to_owned())) }, None)
            }
            Arrival::AtOnce | Arrival::OtherVersion | Arrival::Prototypes => {
                let kind = match self.0.arrival {
                    Arrival::Prototypes => AgentKind::Prototype,
                    Arrival::OtherVersion => AgentKind::OtherVersion,
                    Arrival::AtOnce | Arrival::Never(_) => AgentKind::Ours,
                };
                let agent = routes::serve(SocketAddr::from((ip, 0)), kind).await;
                let tensorflow = SocketAddr::from((ip, TENSORFLOW_PORT));
                (PodState::Running(Addresses { agent: agent.address(), tensorflow }), Some(agent))
            }
        }
    }

    /// Prepares the agent of a pod that now runs.
    pub(super) fn begin(&self, agent: &FakeAgent, job: &JobName, replica: ReplicaId) {
        self.0.orders.lock().take_code.get(&replica).into_iter().for_each(|how| agent.take_code(*how));
        self.end_with(agent.clone(), job.clone(), replica);
    }

    /// Ends the pod when its agent finishes.
    fn end_with(&self, agent: FakeAgent, job: JobName, replica: ReplicaId) {
        let backend = self.clone();
        tokio::spawn(async move {
            agent.finished().await;
            let mut jobs = backend.lock();
            let Some(pods) = jobs.get_mut(&job) else { return };
            if pods.agents.get(&replica).is_some_and(|current| current.is(&agent)) {
                let (exit, reason) = (agent.last_words(), "its agent finished".to_owned());
                let side_cars_stay = backend.0.orders.lock().side_cars_stay;
                let others = if side_cars_stay { Others::Running } else { Others::Ended };
                pods.set(replica, PodState::Terminated { exit, reason, others });
                backend.note(&job, replica, PodChange::Ended);
                backend.schedule();
            }
        });
    }

    /// The pods of a job now, and then each change.
    pub fn table(&self, job: &JobName) -> watch::Receiver<PodTable> {
        self.lock().entry(job.clone()).or_default().table.subscribe()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<JobName, JobPods>> {
        self.0.jobs.lock()
    }
}

#[async_trait]
impl PodBackend for FakeBackend {
    async fn admit(&self, _: &JobSpec) -> Result<(), Refusal> {
        Ok(())
    }

    /// Resolves priority classes such as `priority-10`, as a cluster does.
    async fn preview(&self, spec: &JobSpec) -> Result<Vec<PodsOfKind>, Refusal> {
        let priority = |class: &ObjectName| class.to_string().strip_prefix("priority-")?.parse::<i32>().ok();
        let resolved = spec.pod.priority_class.as_ref().and_then(priority);
        let first = |priority: i32| json!({ "spec": { "priority": priority } });
        Ok(resolved
            .map(|priority| PodsOfKind { count: spec.replica_num() as usize, first: first(priority) })
            .into_iter()
            .collect())
    }

    fn asks(&self, _: &JobSpec) -> Option<Resources> {
        self.asked()
    }

    async fn forget(&self, job: &JobKey) {
        self.0.forgotten.send_modify(|jobs| jobs.push(job.clone()));
    }

    async fn create(&self, pod: PodSpec) -> Result<(), BackendError> {
        let PodSpec { job: JobKey { name: job, uid }, replica, .. } = pod;
        let creation = *self.0.creation.borrow();
        tokio::time::sleep(creation).await;
        if self.table(&job).borrow().contains_key(&replica) || self.0.orders.lock().unlisted.remove(&replica) {
            return Ok(());
        }
        let _one_at_a_time = self.within_quota(&PodName::new(&job, replica)).await?;
        let is_limited = self.0.room.borrow().is_some();
        let pending = self.0.orders.lock().pending.clone();
        let waits = pending.filter(|(replicas, _)| replicas.contains(&replica));
        let (state, agent) = match waits {
            Some((_, wait)) => {
                let has_node = matches!(wait, Wait::Preparing { .. });
                (PodState::Pending { has_node, wait: Some(wait) }, None)
            }
            None if is_limited => (PodState::Pending { has_node: false, wait: None }, None),
            None => self.arrive().await,
        };
        if let Some(agent) = &agent {
            self.begin(agent, &job, replica);
        }
        let mut jobs = self.lock();
        let pods = jobs.entry(job.clone()).or_default();
        // Another master may have created the pod while the agent started.
        if pods.table.borrow().contains_key(&replica) {
            agent.iter().for_each(FakeAgent::vanish);
            return Ok(());
        }
        pods.uid = uid;
        pods.list(replica, state, agent.clone());
        if is_limited {
            self.schedule();
        } else {
            self.note(&job, replica, PodChange::Created(agent));
        }
        Ok(())
    }

    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        let is_held = self.0.orders.lock().held.contains(&replica);
        if is_held { Ok(()) } else { self.delete_unconfirmed(job, replica).await }
    }

    async fn delete_unconfirmed(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        let is_its = |pods: &&mut JobPods| job.uid.is_empty() || pods.uid == job.uid;
        if let Some(pods) = self.lock().get_mut(&job.name).filter(is_its) {
            if let Some(agent) = pods.agents.remove(&replica) {
                agent.vanish();
            }
            if pods.table.send_if_modified(|table| table.remove(&replica).is_some()) {
                self.note(&job.name, replica, PodChange::Deleted);
                self.schedule();
            }
        }
        Ok(())
    }

    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        self.table(&job.name)
    }

    async fn shutdown(&self) {
        for pods in self.lock().values() {
            pods.agents.values().for_each(FakeAgent::vanish);
        }
    }
}
