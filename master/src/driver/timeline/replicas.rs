//! Notes when the replicas of a job reach each step, from what their driver observes.

use std::collections::BTreeMap;
use std::mem;

use job::observation::Observation;
use job::replica::ReplicaPhase;
use job::tracked::Tracked;
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::progress::Progress;
use protocol::timeline::ReplicaFacts;
use protocol::warm::WarmState;

/// The number of steps whose time [`ReplicaFacts`] has. The next constants are positions of steps in [`slots`]. The
/// steps from `CONFIGURED` on belong to a start. The earlier steps belong to the pod.
const STEPS: usize = 9;
const JOINED: usize = 3;
const CONFIGURED: usize = 5;
const STARTED: usize = 6;
const ENDED: usize = 8;

/// Maximum number of earlier runs of evaluators. Older runs are forgotten.
const EARLIER_MAX: usize = 16;

/// The replicas of a job.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    noted: BTreeMap<ReplicaId, Noted>,
    /// The earlier runs of evaluators that have started again alone, oldest first.
    earlier: Vec<ReplicaFacts>,
}

#[derive(Debug)]
struct Noted {
    facts: ReplicaFacts,
    /// Which steps the replica has reached. The time of such a step may still be unknown.
    reached: [bool; STEPS],
}

impl Replicas {
    /// Notes what is observed of a replica now. Runs before `horizon` belong to earlier starts.
    pub(super) fn see(&mut self, id: ReplicaId, tracked: &Tracked, horizon: Option<Generation>, now: UnixMillis) {
        let pod = tracked.pod_number();
        let noted = self.noted.entry(id).or_insert_with(|| Noted::new(id, pod));
        let is_over = noted.is_of_earlier_start(horizon);
        if noted.facts.pod != pod && (is_over || id.role == Role::Evaluator) {
            let before = mem::replace(noted, Noted::new(id, pod));
            self.earlier.extend((!is_over).then_some(before.facts));
            self.earlier.drain(..self.earlier.len().saturating_sub(EARLIER_MAX));
        }
        noted.see(tracked, horizon, now);
    }

    /// The replicas that are members of this start, and the earlier runs of its evaluators. Without a start, all replicas.
    pub(super) fn of(&self, start: Option<Generation>) -> Vec<ReplicaFacts> {
        let noted = self.noted.values().map(|noted| &noted.facts);
        let noted = noted.filter(|facts| start.is_none() || facts.generation == start);
        let mut all: Vec<_> =
            noted.chain(self.earlier.iter().filter(|facts| facts.generation == start)).cloned().collect();
        all.sort_by_key(|facts| (facts.replica, facts.pod));
        all
    }
}

impl Noted {
    fn new(id: ReplicaId, pod: u32) -> Self {
        Self { facts: ReplicaFacts::new(id, pod), reached: [false; STEPS] }
    }

    /// Whether the facts can be replaced: the replica's newest start is over, or there was none.
    fn is_of_earlier_start(&self, horizon: Option<Generation>) -> bool {
        self.facts.generation.is_none_or(|start| horizon.is_some_and(|horizon| start < horizon))
    }

    fn see(&mut self, tracked: &Tracked, horizon: Option<Generation>, now: UnixMillis) {
        let seen = &tracked.seen;
        let start = seen.enrolment().map(|enrolled| enrolled.generation);
        if let Some(start) = start.filter(|start| self.facts.generation.is_none_or(|known| known < *start)) {
            self.begin(start);
        }
        let phase = ReplicaPhase::of(seen, horizon);
        let reaches = reached(tracked, &phase, self.facts.generation);
        // If the agent's pod is from an earlier master, the agent's first answer shows what happened before, but not
        // when.
        let is_unseen = seen.is_found && !self.reached[JOINED];
        let time = |step: usize| match (is_unseen, step) {
            (false, _) => Some(now),
            (true, STARTED) => seen.agent.status().and_then(|status| status.started_at),
            (true, ENDED) => phase.exit().map(|exit| exit.ended_at),
            (true, _) => None,
        };
        for (step, slot) in slots(&mut self.facts).into_iter().enumerate() {
            if reaches[step] && !self.reached[step] {
                self.reached[step] = true;
                *slot = time(step);
            }
        }
        if reaches[ENDED] && self.facts.reason.is_none() {
            self.facts.reason = why_ended(&phase);
        }
    }

    /// Forgets what belongs to the replica's earlier start.
    fn begin(&mut self, start: Generation) {
        for (step, slot) in slots(&mut self.facts).into_iter().enumerate().skip(CONFIGURED) {
            (*slot, self.reached[step]) = (None, false);
        }
        (self.facts.generation, self.facts.reason) = (Some(start), None);
    }
}

/// The times of a replica, in the order of [`reached`].
fn slots(facts: &mut ReplicaFacts) -> [&mut Option<UnixMillis>; STEPS] {
    let ReplicaFacts {
        replica: _,
        pod: _,
        generation: _,
        requested,
        scheduled,
        addressed,
        joined,
        warm,
        configured,
        started,
        first_step,
        ended,
        reason: _,
    } = facts;
    [requested, scheduled, addressed, joined, warm, configured, started, first_step, ended]
}

/// Which steps a replica has reached by now, as a member of this start.
fn reached(tracked: &Tracked, phase: &ReplicaPhase, start: Option<Generation>) -> [bool; STEPS] {
    let seen: &Observation = &tracked.seen;
    let status = seen.agent.status();
    let is_of_start = phase.generation() == start;
    let helper = status.filter(|status| status.generation == start).and_then(|status| status.helper.as_ref());
    [
        tracked.is_requested(),
        seen.has_node(),
        seen.addresses().is_some(),
        seen.agent.has_answered(),
        status.is_some_and(|status| status.warm == Some(WarmState::Ready)),
        is_of_start && phase.was_configured(),
        is_of_start && phase.was_launched(),
        start.is_some() && helper.is_some_and(Progress::has_stepped),
        phase.is_dead(),
    ]
}

fn why_ended(phase: &ReplicaPhase) -> Option<String> {
    let exited = phase.exit().map(|exit| {
        let when = if exit.stopped { ", when stopped" } else { "" };
        format!("{}{when}", exit.outcome)
    });
    exited.or_else(|| phase.lost().map(|lost| lost.reason.clone()))
}
