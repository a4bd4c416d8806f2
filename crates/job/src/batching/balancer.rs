//! The batch sizes of one start: which are in use, which are ordered, and why.
//!
//! A balancer learns the sizes in use only from the reports of the scripts. So a new master also learns the sizes that
//! an earlier master ordered.

use protocol::batching::{Held, Split};
use protocol::ids::ReplicaId;
use protocol::progress::Progress;

use super::law::{Change, Decision, decide};
use super::memory::Tried;
use super::sizes::BatchRules;
use super::windows::{Window, Windows};

/// The scripts vote by adding their versions as 32-bit floats. The sum is exact only below this number.
const EXACT: u64 = 1 << 24;
/// A version modulo this number is the master's epoch modulo this number. So a master and its successor never use the
/// same version.
const EPOCHS: u64 = 16;
/// An order is withdrawn if a rank does not use the sizes after this many windows.
const CHANGE_WINDOWS: u32 = 10;
/// A change is in vain if its gain is below this share of the expected gain, and no machine has become slower meanwhile.
const LEAST_OF_GAIN: f64 = 0.25;
/// The speeds of the machines have changed if a computation differs by this factor from what is expected.
const OTHER_SPEED: f64 = 1.2;

/// The batch sizes of one start.
#[derive(Debug, Clone)]
pub struct Balancer {
    rules: BatchRules,
    members: Vec<ReplicaId>,
    epoch: u64,
    reports: Vec<Option<Progress>>,
    phase: Phase,
    windows: Windows,
    /// Samples per second of each rank's own computation in the newest measured window. That window may have had
    /// earlier sizes.
    speeds: Option<Vec<f64>>,
    /// The highest version that a rank knows, or that this master has ordered.
    newest: u64,
    /// The newest change that all ranks use.
    changed: Option<Changed>,
    /// Why this start gets no further changes.
    ended: Option<Held>,
    /// Why there is no change at present.
    held: Option<Held>,
}

/// What happens to the sizes.
#[derive(Debug, Clone)]
enum Phase {
    /// Not all ranks have reported the same sizes yet.
    Unknown,
    /// All ranks use these sizes.
    Used { sizes: Vec<u32> },
    /// All ranks use `sizes`, and the scripts vote on other sizes.
    Ordered { sizes: Vec<u32>, split: Split, change: Change, windows: u32 },
}

/// A change that all ranks use.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// The version of the new sizes.
    pub version: u64,
    /// The old sizes, by rank.
    pub from: Vec<u32>,
    /// Why the sizes changed.
    pub change: Change,
    /// The last window with the old sizes.
    before: Window,
    /// The time of a step with the new sizes, divided by the time with the old sizes. `None` until it is measured.
    pub step_time: Option<f64>,
    /// The longest computation after the change, if the change was in vain.
    in_vain: Option<f64>,
}

impl Changed {
    /// Whether each rank's computation is at most as long as the new sizes explain. Otherwise a machine has become slower,
    /// and the times show nothing about the change.
    fn explains(&self, after: &Window) -> bool {
        let sizes = self.from.iter().zip(&self.change.sizes);
        // More samples take more time, at most in proportion. Fewer samples take no more time.
        let growth = sizes.map(|(&old, &new)| (f64::from(new) / f64::from(old)).max(1.0));
        let explained = self.before.compute.iter().zip(growth).map(|(compute, growth)| compute * growth);
        after.compute.iter().zip(explained).all(|(compute, explained)| *compute <= explained * OTHER_SPEED)
    }
}

/// What to tell the scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Use these sizes as soon as all ranks have them.
    Use(Split),
    /// Forget the sizes of the last order.
    Withdraw,
}

impl Balancer {
    /// The balancer of one start. `members` are in the order of their ranks. `epoch` is the epoch of this master, which may
    /// have taken the start over.
    pub fn new(members: Vec<ReplicaId>, rules: BatchRules, epoch: u32) -> Self {
        let (ranks, windows) = (members.len(), Windows::new(members.len(), 0));
        Self {
            rules,
            members,
            epoch: u64::from(epoch),
            reports: vec![None; ranks],
            phase: Phase::Unknown,
            windows,
            speeds: None,
            newest: 0,
            changed: None,
            ended: None,
            held: None,
        }
    }

    /// The sizes in use, by rank, if they are known.
    pub fn sizes(&self) -> Option<&[u32]> {
        match &self.phase {
            Phase::Unknown => None,
            Phase::Used { sizes } | Phase::Ordered { sizes, .. } => Some(sizes),
        }
    }

    fn rank_of(&self, member: ReplicaId) -> Option<usize> {
        self.members.iter().position(|known| *known == member)
    }

    /// The size of this member, if it is known. While the scripts vote on a larger size, the member may use it already.
    pub fn tried(&self, member: ReplicaId) -> Option<Tried> {
        let rank = self.rank_of(member)?;
        let (size, ordered) = match &self.phase {
            Phase::Unknown => return None,
            Phase::Used { sizes } => (sizes[rank], None),
            Phase::Ordered { sizes, split, .. } => (sizes[rank], Some(split.sizes[rank])),
        };
        if let Some(larger) = ordered.filter(|ordered| *ordered > size) {
            return Some(Tried { size: larger, lasted: Some(size) });
        }
        let before = self.changed.as_ref().map(|changed| changed.from[rank]);
        Some(Tried { size, lasted: before.filter(|before| *before < size) })
    }

    /// Whether this member must be told the newest order. False if the script has reported that it knows the ordered
    /// sizes.
    pub fn is_to_be_told(&self, member: ReplicaId) -> bool {
        let Phase::Ordered { split, .. } = &self.phase else { return true };
        lacks(self.rank_of(member).and_then(|rank| self.reports[rank].as_ref()), split)
    }

    /// Samples of all ranks together in one step.
    pub fn global_batch(&self) -> u32 {
        self.rules.global_batch
    }

    /// Whether the ranks have trained for long enough with the newest ordered sizes. True if no sizes were ordered.
    pub fn is_proven(&self) -> bool {
        let is_ordered = matches!(self.phase, Phase::Ordered { .. });
        !is_ordered && self.changed.as_ref().is_none_or(|changed| changed.step_time.is_some())
    }

    /// The newest change that all ranks use.
    pub fn changed(&self) -> Option<&Changed> {
        self.changed.as_ref()
    }

    /// Why the sizes stay as they are, if something prevents a change.
    pub fn held(&self) -> Option<&Held> {
        self.ended.as_ref().or(self.held.as_ref())
    }

    /// The samples per second of each rank's own computation in the newest measured window, if there is one.
    pub fn speeds(&self) -> Option<&[f64]> {
        self.speeds.as_deref()
    }

    /// Applies the newest report of a member of this start. Returns what to tell the scripts.
    pub fn hear(&mut self, replica: ReplicaId, report: &Progress) -> Option<Order> {
        let rank = self.rank_of(replica)?;
        if report.batch == 0 {
            // The helper has sent its first message, but no size yet.
            return None;
        }
        self.newest = self.newest.max(report.split).max(report.noticed);
        self.reports[rank] = Some(report.clone());
        self.note_used_sizes(report);
        let is_closed = self.windows.hear(rank, report);
        if is_closed {
            return self.step();
        }
        self.note_silence();
        None
    }

    /// Notes the sizes that all ranks use, if a report shows other sizes than those known to be in use.
    fn note_used_sizes(&mut self, newest: &Progress) {
        if newest.split == self.windows.split() && !matches!(self.phase, Phase::Unknown) {
            return;
        }
        let is_equal = |report: &&Progress| report.split == newest.split;
        let reports: Option<Vec<&Progress>> = self.reports.iter().map(|one| one.as_ref().filter(is_equal)).collect();
        let Some(reports) = reports else { return };
        let sizes: Vec<u32> = reports.iter().map(|report| report.batch).collect();
        let before = self.windows.closed().first().cloned();
        let mut windows = Windows::new(sizes.len(), newest.split);
        for (rank, report) in reports.into_iter().enumerate() {
            windows.hear(rank, report);
        }
        self.windows = windows;
        let phase = std::mem::replace(&mut self.phase, Phase::Used { sizes: sizes.clone() });
        if let (Phase::Ordered { sizes: from, split, change, .. }, Some(before)) = (phase, before)
            && split.sizes == sizes
        {
            self.ended = None;
            self.changed =
                Some(Changed { version: split.version, from, change, before, step_time: None, in_vain: None });
        }
        let sum = sizes.iter().map(|&size| u64::from(size)).sum::<u64>();
        let is_ours = sum == u64::from(self.rules.global_batch);
        self.ended = self.ended.take().or((!is_ours).then_some(Held::OtherGlobalBatch { script: sum }));
    }

    /// Moves the phase after a closed window.
    fn step(&mut self) -> Option<Order> {
        self.note_speeds();
        self.note_gain();
        match &mut self.phase {
            Phase::Unknown => None,
            Phase::Used { sizes } => {
                let decision = decide(self.windows.closed(), sizes, &self.rules);
                self.obey(decision)
            }
            Phase::Ordered { sizes, split, windows, .. } => {
                *windows += 1;
                let late = self.reports.iter().position(|report| lacks(report.as_ref(), split));
                if *windows < CHANGE_WINDOWS {
                    // A rank that lacks the sizes was perhaps unreachable, so repeat the order.
                    return late.map(|_| Order::Use(split.clone()));
                }
                self.ended = Some(late.map_or(Held::NotAgreed, |rank| Held::NotUsed { replica: self.members[rank] }));
                self.phase = Phase::Used { sizes: std::mem::take(sizes) };
                Some(Order::Withdraw)
            }
        }
    }

    fn obey(&mut self, decision: Decision) -> Option<Order> {
        self.held = match &decision {
            Decision::Keep => None,
            Decision::NotMeasured => Some(Held::NotMeasured),
            Decision::NotComputeBound => Some(Held::NotComputeBound),
            Decision::Change(_) => self.is_in_vain().then_some(Held::NoGain),
        };
        let Decision::Change(change) = decision else { return None };
        let sizes = self.sizes().filter(|_| self.held().is_none())?.to_vec();
        let next = |newest: u64| (newest / EPOCHS + 1) * EPOCHS + self.epoch % EPOCHS;
        let is_exact = |version: &u64| version * (self.members.len() as u64) < EXACT;
        // A script may report any number.
        let Some(version) = Some(self.newest).filter(|newest| *newest < EXACT).map(next).filter(is_exact) else {
            self.ended = Some(Held::OutOfVersions);
            return None;
        };
        self.newest = version;
        let split = Split { version, sizes: change.sizes.clone() };
        self.phase = Phase::Ordered { sizes, split: split.clone(), change, windows: 0 };
        Some(Order::Use(split))
    }

    fn note_speeds(&mut self) {
        let newest = self.windows.closed().first().filter(|window| window.is_measured());
        if let (Some(newest), Some(sizes)) = (newest, self.sizes()) {
            let speed = |(&size, compute): (&u32, &f64)| f64::from(size) * 1e6 / compute;
            self.speeds = Some(sizes.iter().zip(&newest.compute).map(speed).collect());
        }
    }

    /// Notes what the newest change has achieved, once two windows with the new sizes are closed.
    fn note_gain(&mut self) {
        let (Some(changed), [newest, second, ..]) = (&mut self.changed, self.windows.closed()) else {
            return;
        };
        if changed.step_time.is_none() {
            let after = f64::midpoint(newest.wall, second.wall);
            changed.step_time = Some(after / changed.before.wall);
            let gained = changed.before.longest() / f64::midpoint(newest.longest(), second.longest()) - 1.0;
            let is_in_vain = gained < LEAST_OF_GAIN * (changed.change.gain - 1.0) && changed.explains(newest);
            changed.in_vain = is_in_vain.then(|| newest.longest());
        }
    }

    /// Whether the newest change has achieved nothing, and the machines are as they were.
    fn is_in_vain(&self) -> bool {
        let longest = self.windows.closed().first().map(Window::longest);
        let in_vain = self.changed.as_ref().and_then(|changed| changed.in_vain);
        let is_as_before = |(now, then): (f64, f64)| (now / then).max(then / now) < OTHER_SPEED;
        longest.zip(in_vain).is_some_and(is_as_before)
    }

    /// Notes that a rank has made no step, although another rank has trained for long.
    fn note_silence(&mut self) {
        let silent = self.windows.silent().map(|rank| (self.members[rank], self.reports[rank].is_some()));
        match silent {
            Some((replica, true)) => self.held = Some(Held::Stalled { replica }),
            Some((replica, false)) => self.held = Some(Held::NoHelper { replica }),
            None if matches!(self.held, Some(Held::Stalled { .. } | Held::NoHelper { .. })) => self.held = None,
            None => {}
        }
    }
}

/// Whether the script with this newest report has perhaps not received these sizes.
fn lacks(report: Option<&Progress>, split: &Split) -> bool {
    report.is_none_or(|known| known.noticed != split.version)
}
