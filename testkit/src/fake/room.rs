//! A limited room for the pods of the fake back end, and a scheduler that places one pod after another in random order.

use protocol::ids::{JobName, ReplicaId};

use master::job::observation::{Incarnation, Pod, PodState, Wait};
use master::job::wait::Resources;

use super::backend::{FakeBackend, PodChange};

/// The resource of which each pod takes a part of the room.
pub(super) const RESOURCE: &str = "cpu";

/// A pod that the scheduler has not placed.
type Unplaced = (JobName, ReplicaId, Incarnation);

impl FakeBackend {
    /// From now on, at most this number of pods runs at the same time. Other pods wait until a pod ends.
    pub fn limit_room(&self, pods: usize) {
        self.0.room.send_replace(Some(pods));
        self.schedule();
    }

    /// The resources that pods ask for, if the room is limited.
    pub(super) fn asked(&self) -> Option<Resources> {
        self.0.room.borrow().map(|_| Resources::from([RESOURCE.to_owned()]))
    }

    /// Places pods in the background, if the room is limited.
    pub(super) fn schedule(&self) {
        if self.0.room.borrow().is_some() {
            let backend = self.clone();
            tokio::spawn(async move { backend.place_all().await });
        }
    }

    async fn place_all(&self) {
        let _scheduler = self.0.scheduler.lock().await;
        let mut unplaced = self.unplaced();
        fastrand::shuffle(&mut unplaced);
        for pod in unplaced {
            if self.has_room() { self.place(pod).await } else { self.refuse(&pod) }
        }
    }

    fn unplaced(&self) -> Vec<Unplaced> {
        let mut unplaced = vec![];
        for (job, pods) in self.lock().iter() {
            for (replica, Pod { incarnation, state }) in pods.table.borrow().iter() {
                if matches!(state, PodState::Pending { has_node: false, .. }) {
                    unplaced.push((job.clone(), *replica, incarnation.clone()));
                }
            }
        }
        unplaced
    }

    fn has_room(&self) -> bool {
        let is_placed = |pod: &Pod| matches!(pod.state, PodState::Running(_) | PodState::Leaving { .. });
        let placed: usize =
            self.lock().values().map(|pods| pods.table.borrow().values().filter(|pod| is_placed(pod)).count()).sum();
        self.0.room.borrow().is_none_or(|room| placed < room)
    }

    async fn place(&self, (job, replica, incarnation): Unplaced) {
        let (state, agent) = self.arrive().await;
        let mut jobs = self.lock();
        let Some(pods) = jobs.get_mut(&job).filter(|pods| pods.has(replica, &incarnation)) else { return };
        if let Some(agent) = &agent {
            self.begin(agent, &job, replica);
            pods.agents.insert(replica, agent.clone());
        }
        pods.set(replica, state);
        self.note(&job, replica, PodChange::Created(agent));
    }

    fn refuse(&self, (job, replica, incarnation): &Unplaced) {
        let (lacking, reason) =
            (Resources::from([RESOURCE.to_owned()]), "0/1 nodes are available: 1 Insufficient cpu.".to_owned());
        let state = PodState::Pending { has_node: false, wait: Some(Wait::NoRoom { lacking, reason }) };
        if let Some(pods) = self.lock().get_mut(job).filter(|pods| pods.has(*replica, incarnation)) {
            pods.set(*replica, state);
        }
    }
}
