//! Carrying out what `step` decided. What takes time goes to tasks that report back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::adopt::persistently;
use super::{Driver, Next, Report, tasks};
use crate::backend::PodSpec;
use crate::error_chain::error_chain;
use crate::job::phase::Action;
use crate::job::replica::{AgentState, Observation, ReplicaPhase};
use crate::store::{Change, Ended, JobRecord, amend};

/// Pods that are created or deleted at the same time.
const PODS_AT_ONCE: usize = 32;

impl Driver {
    pub(super) async fn act(&mut self, action: Action) {
        match action {
            Action::CreatePods => self.create_pods(),
            Action::Configure(generation) => self.configure(generation),
            Action::Launch(generation) => self.launch(generation),
            Action::Follow(generation) => self.follow(generation),
            Action::StopRuns { grace } => self.stop_runs(grace),
            Action::Conclude(result) => self.conclude(result).await,
            Action::ReleasePods => self.release_pods(),
            Action::DeletePods => self.delete_pods(Duration::ZERO).await,
        }
    }

    fn create_pods(&mut self) {
        let record = &self.stored.record;
        let pod = |replica: ReplicaId| PodSpec {
            job: record.spec.name.clone(),
            job_uid: record.uid.clone(),
            replica,
            image: record.spec.image.clone(),
            work_dir: record.spec.work_dir.clone(),
            args: record.spec.args.clone(),
            agent_token_sha256: self.token.sha256(),
        };
        let missing = self.replicas.iter().filter(|(_, observation)| observation.pod.is_none());
        let pods: Vec<PodSpec> = missing.map(|(id, _)| pod(*id)).collect();
        let (backend, reporter) = (Arc::clone(&self.context.backend), self.reporter.clone());
        let task = self.tasks.spawn(async move {
            let create = async |pod: PodSpec| {
                let replica = pod.replica;
                if let Err(error) = backend.create(pod).await {
                    let reason = error_chain(&error);
                    // A driver that has ended needs no report.
                    let _ = reporter.send(Report::PodRefused(replica, reason)).await;
                }
            };
            stream::iter(pods).for_each_concurrent(PODS_AT_ONCE, create).await;
        });
        self.start = Some(task);
    }

    fn configure(&mut self, generation: Generation) {
        info!(job = %self.stored.name(), %generation, joined = self.replicas.len(), "gang complete");
        let tensorflow = |(id, seen): (&ReplicaId, &Observation)| Some((*id, seen.addresses()?.tensorflow));
        let members: BTreeMap<ReplicaId, SocketAddr> = self.replicas.iter().filter_map(tensorflow).collect();
        let call = tasks::Fanout { agents: self.agents.clone(), generation, reporter: self.reporter.clone() };
        let spec = self.stored.record.spec.clone();
        let task = self.tasks.spawn(tasks::configure(call, self.agents(|_| true), spec, members));
        self.start = Some(task);
    }

    fn launch(&mut self, generation: Generation) {
        let call = tasks::Fanout { agents: self.agents.clone(), generation, reporter: self.reporter.clone() };
        let waiting = self.agents(|phase| !phase.was_launched());
        self.start = Some(self.tasks.spawn(tasks::launch(call, waiting)));
    }

    fn follow(&mut self, generation: Generation) {
        if self.followed.replace(generation) == Some(generation) {
            return;
        }
        for (id, agent) in self.agents(|phase| !matches!(phase, ReplicaPhase::Lost(_))) {
            if self.seed_only.contains(&id) {
                continue;
            }
            let agents = self.agents.clone();
            self.tasks.spawn(tasks::follow(agents.clone(), id, agent, self.reporter.clone()));
            if let Some(log) = self.wires.logs.of(id) {
                let copy = tokio::spawn(tasks::copy_output(agents, agent, log.clone()));
                self.copies.insert(id, AbortOnDropHandle::new(copy));
            }
        }
    }

    /// A start that is still on its way is called back first: its agents refuse it once they were told to stop.
    fn stop_runs(&mut self, grace: Duration) {
        self.call_start_back();
        let generation = self.phase.generation();
        let mut targets = self.agents(|phase| phase.was_configured() && !phase.is_dead());
        targets.retain(|(id, _)| self.stopped.insert(*id));
        let (agents, context, job) = (self.agents.clone(), Arc::clone(&self.context), self.stored.name().clone());
        self.tasks.spawn(async move {
            let stop = async |(id, agent): (ReplicaId, SocketAddr)| {
                if let Err(error) = tasks::stop(&agents, agent, generation, grace).await {
                    warn!(%job, replica = %id, error = error_chain(&error), "its agent does not stop it, so its pod goes");
                    tasks::delete(context.backend.as_ref(), &job, id, grace).await;
                }
            };
            stream::iter(targets).for_each_concurrent(tasks::AGENTS_AT_ONCE, stop).await;
        });
    }

    /// The result must be on record before the evidence goes with the pods, so nothing else happens meanwhile.
    async fn conclude(&mut self, result: JobResult) {
        let name = self.stored.name().clone();
        let times = self.times.clone();
        let write_once = |record: &mut JobRecord| match record.ended {
            Some(_) => Change::Nothing,
            None => {
                record.ended = Some(Ended { result: result.clone(), times: times.clone() });
                Change::Write
            }
        };
        let (store, job) = (self.context.store.as_ref(), &name);
        if let Some(stored) = persistently(|| amend(store, job, &write_once)).await {
            self.stored = stored;
        }
    }

    fn release_pods(&mut self) {
        self.call_start_back();
        let live: Vec<(ReplicaId, Observation)> =
            self.replicas.iter().filter(|(_, seen)| seen.is_live()).map(|(id, seen)| (*id, seen.clone())).collect();
        for (id, seen) in live {
            if !self.released.insert(id) {
                continue;
            }
            let (agents, context, job) = (self.agents.clone(), Arc::clone(&self.context), self.stored.name().clone());
            let copy = self.copies.remove(&id);
            let agent = match (&seen.agent, seen.addresses()) {
                (AgentState::Silent | AgentState::SeedOnly | AgentState::Refused(_), _) | (_, None) => None,
                (AgentState::Status(_) | AgentState::Configured(_) | AgentState::Started(_), Some(a)) => Some(a.agent),
            };
            self.tasks.spawn(async move {
                let has_finished = match agent {
                    Some(agent) => tasks::finish(&agents, agent, copy).await,
                    None => false,
                };
                if !has_finished {
                    tasks::delete(context.backend.as_ref(), &job, id, Duration::ZERO).await;
                }
            });
        }
    }

    pub(super) async fn delete_pods(&mut self, grace: Duration) {
        self.call_start_back();
        let (backend, job) = (self.context.backend.as_ref(), self.stored.name());
        let there = self.replicas.iter().filter(|(_, seen)| seen.pod.is_some());
        let there: Vec<ReplicaId> = there.map(|(id, _)| *id).collect();
        let delete = |id: ReplicaId| tasks::delete(backend, job, id, grace);
        stream::iter(there).for_each_concurrent(PODS_AT_ONCE, delete).await;
    }

    /// Removes all that is left of a job whose user wishes it gone. The record goes last, for it is what a master that
    /// dies in here leaves to the next.
    pub(super) async fn forget(&mut self) -> Next {
        self.take_pods();
        if self.replicas.values().any(|seen| seen.pod.is_some()) {
            self.delete_pods(Duration::ZERO).await;
            return Next::GoOn;
        }
        if let Err(error) = self.wires.logs.remove() {
            warn!(job = %self.stored.name(), %error, "its kept output stays behind");
        }
        let (store, name) = (self.context.store.as_ref(), self.stored.name());
        persistently(|| store.delete(name)).await;
        info!(job = %name, "job forgotten");
        Next::End
    }

    fn call_start_back(&mut self) {
        if let Some(start) = self.start.take() {
            start.abort();
        }
    }

    /// The agents of the replicas whose phase passes `test`.
    fn agents(&self, test: impl Fn(&ReplicaPhase) -> bool) -> Vec<(ReplicaId, SocketAddr)> {
        let current = self.phase.generation();
        let chosen = self.replicas.iter().filter(|(_, seen)| test(&ReplicaPhase::of(seen, current)));
        chosen.filter_map(|(id, seen)| Some((*id, seen.addresses()?.agent))).collect()
    }
}
