//! A limited room for the pods of the fake back end, a scheduler that places one pod after another in random order, and
//! a quota.

use job::observation::{Incarnation, Pod, PodState, Wait};
use job::wait::Resources;
use protocol::ids::{JobName, PodName, ReplicaId};
use tokio::sync::MutexGuard;

use master::backend::BackendError;

use super::backend::{FakeBackend, JobPods, PodChange};

/// The limited resource. Each pod uses a part of it.
pub(super) const RESOURCE: &str = "cpu";

fn resources() -> Resources {
    Resources::from([RESOURCE.to_owned()])
}

/// A pod that the scheduler has not placed.
type Unplaced = (JobName, ReplicaId, Incarnation);

impl FakeBackend {
    /// From now on, at most this number of pods runs at the same time. Other pods wait until a pod ends.
    pub fn limit_room(&self, pods: usize) {
        self.0.room.send_replace(Some(pods));
        self.schedule();
    }

    /// From now on, at most this number of pods exists at the same time. Requests for more pods fail.
    pub fn limit_quota(&self, pods: usize) {
        self.0.quota.send_replace(Some(pods));
    }

    /// Fails if a quota has no room for this pod. Until the guard is dropped, no other pod uses the quota.
    pub(super) async fn within_quota(&self, pod: &PodName) -> Result<Option<MutexGuard<'_, ()>>, BackendError> {
        let Some(quota) = *self.0.quota.borrow() else { return Ok(None) };
        let guard = self.0.scheduler.lock().await;
        // Ended pods use no quota.
        let lives = |pods: &JobPods| pods.table.borrow().values().filter(|pod| !pod.has_ended()).count();
        let living: usize = self.lock().values().map(lives).sum();
        if living < quota {
            return Ok(Some(guard));
        }
        let source = Box::new(BackendError::Create { pod: pod.clone(), source: "exceeded quota".into() });
        Err(BackendError::OverQuota { lacking: resources(), source })
    }

    /// The resources that pods ask for, if the room or a quota is limited.
    pub(super) fn asked(&self) -> Option<Resources> {
        let is_limited = self.0.room.borrow().is_some() || self.0.quota.borrow().is_some();
        is_limited.then(resources)
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
        let reason = "0/1 nodes are available: 1 Insufficient cpu.".to_owned();
        let wait = Some(Wait::NoRoom { lacking: resources(), reason });
        let state = PodState::Pending { has_node: false, wait };
        if let Some(pods) = self.lock().get_mut(job).filter(|pods| pods.has(*replica, incarnation)) {
            pods.set(*replica, state);
        }
    }
}
