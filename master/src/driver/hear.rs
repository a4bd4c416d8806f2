//! The driver's inputs: its record, its pods, and the reports of its tasks.

use std::sync::Arc;

use job::observation::{AgentState, LostRun, Pod, Presence};
use job::phase::{JobEvent, JobPhase, StartStage};
use job::warm;
use protocol::agent::{RunState, RunStatus};
use tracing::info;

use super::follower::{Followed, Follower};
use super::prototype::Launched;
use super::subject::Subject;
use super::tracked::PodNews;
use super::{Driver, Next, Report};
use crate::store::Wish;

impl Driver {
    pub(super) async fn take_record(&mut self) -> Next {
        let newest = self.channels.record.borrow_and_update().clone();
        let Some(newest) = newest else { return self.abandon().await };
        let (known, epoch) = (&self.stored.record, newest.record.epoch);
        if epoch > known.epoch {
            info!(job = %newest.name(), epoch, "another master has taken the job over");
            return Next::Yield;
        }
        // The watch may report a change late, even a change from before a takeover.
        if (epoch, newest.record.revision) < (known.epoch, known.revision) {
            return Next::GoOn;
        }
        self.stored = newest;
        self.follow_record();
        self.advance().await
    }

    /// The next event for `step`. A wish to cancel takes precedence over observations, so that the end of a cancelled
    /// run does not count as a failure.
    pub(super) fn wished(&self) -> JobEvent {
        if self.stored.record.wish >= Wish::Cancel { JobEvent::CancelWished } else { JobEvent::Observed }
    }

    pub(super) fn take_pods(&mut self) {
        let table = self.pods.borrow_and_update().clone();
        let is_coming_up = matches!(self.phase, JobPhase::Pending { .. } | JobPhase::Starting { .. });
        let launched = Launched::of(&self.stored.record);
        let has_run = self.stored.record.newest_ended().is_some() || !self.starts.roster().is_empty();
        let horizon = self.phase.horizon();
        self.add_listed(&table);
        for (id, replica) in &mut self.replicas {
            let pod = table.get(id).cloned().map(|Pod { incarnation, state }| {
                let state = if has_run { state.after_a_start() } else { state };
                Pod { incarnation, state }
            });
            let news = replica.see(pod);
            match news {
                PodNews::Same => {}
                // No start depends on the pod of a replica that is not a member.
                _ if !replica.may_be_member(horizon) => replica.lose_pod(),
                PodNews::Replaced => replica.lose_run(horizon),
                PodNews::Deleted if is_coming_up => replica.lose_run(horizon),
                PodNews::Deleted => {}
            }
            replica.count_as_launched(launched, *id);
            if replica.seen.presence() != Presence::Live {
                replica.follower.iter().for_each(Follower::pod_has_ended);
                self.code.note_held(*id, None);
            }
        }
        if !matches!(self.phase, JobPhase::Finished { .. }) {
            self.follow_pods();
        }
    }

    /// Begins to follow the pods that have an address and are not followed yet.
    pub(super) fn follow_pods(&mut self) {
        for (id, replica) in &mut self.replicas {
            if let (Some(address), Some(log)) = (replica.to_follow(), self.channels.logs.of(*id)) {
                let (agents, reporter) = (self.agents.clone(), self.reporter.clone());
                let subject = replica.subject(*id);
                let warm = warm::request(&self.stored.record.spec, id.role);
                let (delivery, series) = (self.code.delivery(), Arc::clone(&self.channels.series));
                let lease = self.policy.lease;
                let is_found = replica.seen.is_found;
                let followed =
                    Followed { agents, subject, address, log, series, reporter, warm, delivery, lease, is_found };
                replica.follower = Some(Follower::begin(followed));
            }
        }
    }

    /// Handles reports. Returns what the driver does next; `None` if the driver must call `step`.
    pub(super) fn take_reports(&mut self, batch: Vec<Report>) -> Option<Next> {
        let are_awaited = batch.iter().all(|report| self.is_awaited(report));
        for report in batch {
            match report {
                Report::Agent(subject, agent) => self.take_agent(subject, agent),
                Report::Waits(subject, wait) => {
                    self.replicas.entry(subject.id).and_modify(|replica| replica.wait(subject, wait));
                }
                Report::NotStopped { replica, generation, reason } if generation == self.phase.generation() => {
                    self.delete_unstopped(replica, &reason);
                }
                // The report is about an earlier start, whose runs are dead.
                Report::NotStopped { .. } => {}
                Report::Broken => return Some(Next::Broken),
            }
        }
        if !are_awaited || !self.waits_for_others() {
            return None;
        }
        self.publish_in_time(false);
        Some(Next::GoOn)
    }

    fn take_agent(&mut self, subject: Subject, agent: AgentState) {
        if self.is_being_configured_anew(&agent) {
            return;
        }
        // An agent of the first prototype cannot tell in which start of an elastic job it takes part.
        let needs_seat = !self.policy.is_fixed() || self.policy.lease.is_some();
        let is_unfit = needs_seat && agent == AgentState::SeedOnly;
        let agent = if is_unfit { AgentState::Failed(LostRun::of_prototype()) } else { agent };
        let launched = Launched::of(&self.stored.record);
        let Some(replica) = self.replicas.get_mut(&subject.id) else { return };
        replica.hear(subject, agent, launched);
        if let Some(held) = replica.held_code() {
            self.code.note_held(subject.id, Some(held));
        }
    }

    /// Whether an agent reports an earlier start while the driver configures the next start. The task that configures
    /// the agent stops the earlier run, so only the report of that task counts.
    fn is_being_configured_anew(&self, agent: &AgentState) -> bool {
        let JobPhase::Starting { generation, stage: StartStage::Configuring, .. } = &self.phase else { return false };
        let runs_earlier = |status: &RunStatus| {
            matches!(status.state, RunState::Running | RunState::Stopping) && status.generation < Some(*generation)
        };
        agent.status().is_some_and(runs_earlier)
    }
}
