//! The replicas of a job: how many there are, and what each of them runs.

use std::collections::BTreeMap;

use crate::agent::PYTHONS;
use crate::elastic::Workers;
use crate::group::Group;
use crate::ids::{ReplicaId, Role};
use crate::job::{JobSpec, SpecError};
use crate::origin::{Origin, TFJOB_NAME, TFJOB_REPLICA_INDEX, TFJOB_REPLICA_TYPE, TFJOB_ROLE};
use crate::patch::JobPatch;
use crate::pod::PodOptions;

impl JobSpec {
    /// How many workers an elastic job may have at first; `None` for other jobs.
    pub fn workers(&self) -> Option<Workers> {
        self.worker_min.map(|min| Workers { min, max: self.worker_num })
    }

    /// How many workers an elastic job may have after this change.
    ///
    /// # Errors
    /// [`SpecError::NotElastic`], or an error about the numbers of replicas.
    pub fn patched(&self, now: Option<Workers>, patch: JobPatch) -> Result<Workers, SpecError> {
        let workers = patch.applied_to(now.or(self.workers()).ok_or(SpecError::NotElastic)?);
        self.check_workers(workers)?;
        Ok(workers)
    }

    /// Checks whether the job may have these numbers of workers.
    ///
    /// # Errors
    /// An error about the numbers of replicas.
    pub fn check_workers(&self, workers: Workers) -> Result<(), SpecError> {
        let scaled = self.scaled(workers);
        scaled.check_counts()?;
        scaled.check_batching()
    }

    /// This spec with other numbers of workers.
    pub fn scaled(&self, workers: Workers) -> Self {
        Self { worker_num: workers.max, worker_min: Some(workers.min), ..self.clone() }
    }

    /// The group of a replica. `None` if the replica's role has no groups. If an elastic job gets more workers than its
    /// groups contain, the additional workers belong to the last group.
    pub fn group_of(&self, replica: ReplicaId) -> Option<&Group> {
        let mut of_role = self.groups.iter().filter(|group| group.role == replica.role);
        let mut end = 0;
        let last = of_role.clone().next_back();
        of_role
            .find(|group| {
                end += group.count;
                replica.index < end
            })
            .or(last)
    }

    /// The program that a replica runs, and its arguments.
    pub fn command_of(&self, replica: ReplicaId) -> Vec<String> {
        match self.group_of(replica) {
            Some(group) if !group.runs_script() => group.command.clone(),
            Some(_) | None => {
                let script = [PYTHONS[0], self.script.as_str()].map(str::to_owned);
                script.into_iter().chain(self.args.iter().cloned()).collect()
            }
        }
    }

    /// The replicas that train, with the highest number of workers.
    pub fn trainers(&self) -> impl Iterator<Item = ReplicaId> {
        let roles = Role::ALL.into_iter().filter(|role| role.trains());
        roles.flat_map(|role| (0..self.count(role)).map(move |index| ReplicaId { role, index }))
    }

    /// The number of GPUs of a replica: that of its group or of its group's template, or else that of the job.
    pub fn gpus_of(&self, replica: ReplicaId) -> Option<u32> {
        let group = self.group_of(replica);
        let of_template = |group: &Group| group.template.as_ref()?.gpus();
        group.and_then(|group| group.gpus.or_else(|| of_template(group))).or(self.pod.gpus)
    }

    /// The pod options of a replica: the job's, with the resources of its group.
    pub fn pod_of(&self, replica: ReplicaId) -> PodOptions {
        let group = self.group_of(replica);
        let PodOptions { cpu, memory, .. } = &self.pod;
        let options = PodOptions {
            cpu: group.and_then(|group| group.cpu.clone()).or_else(|| cpu.clone()),
            memory: group.and_then(|group| group.memory.clone()).or_else(|| memory.clone()),
            gpus: group.and_then(|group| group.gpus).or(self.pod.gpus),
            ..self.pod.clone()
        };
        options.with_shm_of_gpus()
    }

    /// The labels that another launcher would give this replica's pod, so that its users find the pod. Empty if the job
    /// came from no other launcher.
    pub fn labels_of(&self, replica: ReplicaId) -> BTreeMap<String, String> {
        let labels = match &self.origin {
            None => vec![],
            Some(Origin::Spawner { attempt }) => {
                vec![("app", format!("{}{}", replica.role, replica.index)), ("training_attempt", attempt.clone())]
            }
            Some(Origin::TfJob(tfjob)) => {
                let kind = tfjob.replica_type(replica.role).unwrap_or(replica.role.as_str());
                let leads = replica.index == 0
                    && match replica.role {
                        Role::Chief => true,
                        Role::Worker => self.chief_num == 0,
                        Role::Ps | Role::Evaluator => false,
                    };
                let role = leads.then(|| (TFJOB_ROLE, "master".to_owned()));
                let labels = [
                    (TFJOB_NAME, self.name.to_string()),
                    (TFJOB_REPLICA_TYPE, kind.to_ascii_lowercase()),
                    (TFJOB_REPLICA_INDEX, replica.index.to_string()),
                ];
                labels.into_iter().chain(role).collect()
            }
        };
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
