//! The batch sizes of one start: which are in use, which are ordered, and why.
//!
//! All that a balancer knows comes from the reports of the scripts. So a new master begins with the sizes in use,
//! whichever master ordered them.

use protocol::batching::{Held, Split};
use protocol::ids::ReplicaId;
use protocol::progress::Progress;

use super::law::{Change, Decision, decide};
use super::sizes::Rules;
use super::windows::{Window, Windows};

/// A sum of versions of this size and more is not exact in the vote of the scripts, which adds 32-bit floats.
const EXACT: u64 = 1 << 24;
/// Each version is a multiple of this number, plus the master's epoch modulo this number. So two masters never give one
/// version to different sizes.
const EPOCHS: u64 = 16;
/// After so many windows, sizes that not all ranks use are withdrawn.
const CHANGE_WINDOWS: u32 = 10;
/// A change that has achieved less than this share of its expected gain has achieved nothing.
const LEAST_OF_GAIN: f64 = 0.25;
/// If the longest computation differs by this factor from what it was, the machines have changed.
const OTHER_SPEED: f64 = 1.2;

/// The batch sizes of one start.
#[derive(Debug, Clone)]
pub struct Balancer {
    rules: Rules,
    members: Vec<ReplicaId>,
    epoch: u64,
    reports: Vec<Option<Progress>>,
    phase: Phase,
    windows: Windows,
    /// The highest version that a rank knows, or that this master has ordered.
    newest: u64,
    /// The newest change that all ranks use.
    changed: Option<Changed>,
    /// Why there is no change, until the start ends.
    ended: Option<Held>,
    held: Option<Held>,
}

/// What happens to the sizes.
#[derive(Debug, Clone)]
enum Phase {
    /// Not all ranks have reported the same sizes yet.
    Unknown,
    /// All ranks use these sizes.
    Used { sizes: Vec<u32> },
    /// All ranks use `sizes`, and the scripts vote on others.
    Ordered { sizes: Vec<u32>, split: Split, change: Change, windows: u32 },
}

/// A change that all ranks use.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// The sizes before, by rank.
    pub from: Vec<u32>,
    /// Why the sizes changed.
    pub change: Change,
    /// The last window with the sizes before.
    before: Window,
    /// The time of a step, divided by the time before. `None` until it has been measured.
    pub step_time: Option<f64>,
    /// The longest computation of a change without a gain.
    in_vain: Option<f64>,
}

/// What the scripts are to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Use these sizes as soon as all ranks have them.
    Use(Split),
    /// Forget the sizes of the last order.
    Withdraw,
}

impl Balancer {
    /// The balancer of a start whose members, by rank, have these rules. `epoch` is the number of this master.
    pub fn new(members: Vec<ReplicaId>, rules: Rules, epoch: u32) -> Self {
        let (ranks, windows) = (members.len(), Windows::new(members.len(), 0));
        Self {
            rules,
            members,
            epoch: u64::from(epoch),
            reports: vec![None; ranks],
            phase: Phase::Unknown,
            windows,
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

    /// The newest change that all ranks use.
    pub fn changed(&self) -> Option<&Changed> {
        self.changed.as_ref()
    }

    /// Why the sizes stay as they are, if something prevents a change.
    pub fn held(&self) -> Option<&Held> {
        self.ended.as_ref().or(self.held.as_ref())
    }

    /// The samples per second of each rank's own computation in the newest window, if they are known.
    pub fn speeds(&self) -> Option<Vec<f64>> {
        let newest = self.windows.closed().front().filter(|window| window.is_measured())?;
        let speed = |(&size, compute): (&u32, &f64)| f64::from(size) * 1e6 / compute;
        Some(self.sizes()?.iter().zip(&newest.compute).map(speed).collect())
    }

    /// Hears the newest report of a member of this start. Returns what the scripts are to be told.
    pub fn hear(&mut self, replica: ReplicaId, report: &Progress) -> Option<Order> {
        let rank = self.members.iter().position(|member| *member == replica)?;
        if report.batch == 0 {
            // The helper has only greeted.
            return None;
        }
        self.newest = self.newest.max(report.split).max(report.noticed);
        self.reports[rank] = Some(report.clone());
        self.note_used_sizes();
        let is_closed = self.windows.hear(rank, report);
        if is_closed { self.step() } else { self.note_silence() }
    }

    /// Notes which sizes all ranks use.
    fn note_used_sizes(&mut self) {
        let reports: Option<Vec<&Progress>> = self.reports.iter().map(Option::as_ref).collect();
        let Some([first, others @ ..]) = reports.as_deref() else { return };
        let is_new = first.split != self.windows.split() || matches!(self.phase, Phase::Unknown);
        if !is_new || others.iter().any(|other| other.split != first.split) {
            return;
        }
        let sizes: Vec<u32> = reports.iter().flatten().map(|report| report.batch).collect();
        let before = self.windows.closed().front().cloned();
        let mut windows = Windows::new(sizes.len(), first.split);
        for (rank, report) in reports.iter().flatten().enumerate() {
            windows.hear(rank, report);
        }
        self.windows = windows;
        let phase = std::mem::replace(&mut self.phase, Phase::Used { sizes: sizes.clone() });
        if let (Phase::Ordered { sizes: from, split, change, .. }, Some(before)) = (phase, before)
            && split.sizes == sizes
        {
            self.changed = Some(Changed { from, change, before, step_time: None, in_vain: None });
        }
        let sum = sizes.iter().map(|&size| u64::from(size)).sum::<u64>();
        let is_ours = sum == u64::from(self.rules.global_batch);
        self.ended = self.ended.take().or((!is_ours).then_some(Held::OtherGlobalBatch { script: sum }));
    }

    /// Moves the phase after a closed window.
    fn step(&mut self) -> Option<Order> {
        self.note_gain();
        match &mut self.phase {
            Phase::Unknown => None,
            Phase::Used { sizes } => {
                let decision = decide(self.windows.closed(), sizes, &self.rules);
                self.obey(decision)
            }
            Phase::Ordered { sizes, split, windows, .. } => {
                *windows += 1;
                if *windows < CHANGE_WINDOWS {
                    return None;
                }
                let late =
                    |report: &Option<Progress>| report.as_ref().is_none_or(|known| known.noticed != split.version);
                let rank = self.reports.iter().position(late).unwrap_or_default();
                self.ended = Some(Held::NotUsed { replica: self.members[rank] });
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
        let version = (self.newest / EPOCHS + 1) * EPOCHS + self.epoch % EPOCHS;
        if version * self.members.len() as u64 >= EXACT {
            self.ended = Some(Held::OutOfVersions);
            return None;
        }
        self.newest = version;
        let split = Split { version, sizes: change.sizes.clone() };
        self.phase = Phase::Ordered { sizes, split: split.clone(), change, windows: 0 };
        Some(Order::Use(split))
    }

    /// Notes what the newest change has achieved, once there are as many windows as a change needs.
    fn note_gain(&mut self) {
        let (Some(changed), [newest, second, ..]) = (&mut self.changed, self.windows.closed().as_slices().0) else {
            return;
        };
        if changed.step_time.is_none() {
            let after = f64::midpoint(newest.wall, second.wall);
            changed.step_time = Some(after / changed.before.wall);
            let gained = changed.before.longest() / f64::midpoint(newest.longest(), second.longest()) - 1.0;
            let is_in_vain = gained < LEAST_OF_GAIN * (changed.change.gain - 1.0);
            changed.in_vain = is_in_vain.then(|| newest.longest());
        }
    }

    /// Whether the newest change has achieved nothing, and the machines are as they were.
    fn is_in_vain(&self) -> bool {
        let longest = self.windows.closed().front().map(Window::longest);
        let in_vain = self.changed.as_ref().and_then(|changed| changed.in_vain);
        let is_as_before = |(now, then): (f64, f64)| (now / then).max(then / now) < OTHER_SPEED;
        longest.zip(in_vain).is_some_and(is_as_before)
    }

    /// Notes that a rank does not report, while the other ranks have trained for long.
    fn note_silence(&mut self) -> Option<Order> {
        let silent = self.windows.silent().map(|rank| (self.members[rank], self.reports[rank].is_some()));
        match silent {
            Some((replica, true)) => self.held = Some(Held::Stalled { replica }),
            Some((replica, false)) => self.held = Some(Held::NoHelper { replica }),
            None => {}
        }
        None
    }
}
