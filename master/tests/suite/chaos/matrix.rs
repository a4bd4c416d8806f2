//! The runs of the crash matrix, how many of them are played at the same time, and the report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use testkit::chaos::{Deed, Fault, Point, Strike};

use crate::chaos::place::Scenario;
use crate::chaos::play::{Play, Played, Thaw};

/// How many runs other than long stalls are played at the same time. A run mostly waits.
const AT_ONCE: usize = 24;
/// How many long stalls are played at the same time. Each stall waits for half a minute.
const STALLS_AT_ONCE: usize = 96;
/// The faults that can strike a master inside this process.
const FAULTS: [Fault; 6] = [Fault::Crash, Fault::Panic, Fault::Error, Fault::AnswerLost, Fault::Freeze, Fault::Delay];

/// Crashes the first master right after it accepts the job, so that its successor has a job to take over, and not its
/// code.
const LOSES_ITS_JOB: Strike = Strike { point: Point::After(Deed::Accept), fault: Fault::Crash, passing: 1 };

/// What a run tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Single(Fault),
    LongStall,
    Overlap,
    CrashPair,
    MixedPair,
}

/// A run for every scenario, every point in it, and every fault that can strike there. The fault strikes when a master
/// passes the point for the `passing`-th time.
pub(crate) fn single_faults(passing: u32) -> Vec<(Kind, Play)> {
    faults().flat_map(|at| single_fault(at, passing).map(move |play| (Kind::Single(at.1), play))).collect()
}

/// A freeze at every point, in every scenario with this point. The master thaws when its successor holds the job, so
/// that two masters drive the job.
pub(crate) fn overlaps(passing: u32) -> Vec<(Kind, Play)> {
    let freezes = faults().filter(|(_, fault)| *fault == Fault::Freeze);
    let at_once = |play| (Kind::Overlap, Play { thaw: Thaw::AtOnce, ..play });
    freezes.flat_map(|at| single_fault(at, passing).map(at_once)).collect()
}

/// Two runs for every scenario and every point in it. The first run freezes the whole master at the point, and the
/// second run delays only the action. The freeze and the delay last longer than every timeout.
pub(crate) fn long_stalls(passing: u32) -> Vec<(Kind, Play)> {
    let stalls = faults().filter(|(_, fault)| matches!(fault, Fault::Freeze | Fault::Delay));
    let late = |play| (Kind::LongStall, Play { thaw: Thaw::Late, ..play });
    stalls.flat_map(|at| single_fault(at, passing).map(late)).collect()
}

fn single_fault((point, fault): (Point, Fault), passing: u32) -> impl Iterator<Item = Play> {
    let strike = Strike { point, fault, passing };
    let strikes_the_successor = matches!(point.deed(), Deed::Adopt | Deed::ReadCode);
    let strikes = if strikes_the_successor { vec![LOSES_ITS_JOB, strike] } else { vec![strike] };
    let play = move |scenario| Play { scenario, strikes: strikes.clone(), thaw: Thaw::AtTheEnd };
    Scenario::ALL.into_iter().filter(move |scenario| scenario.passes(point)).map(play)
}

/// Every ordered pair of points. The first master crashes when it passes the first point for the `passing`-th time. Its
/// successor crashes in the same way at the second point.
pub(crate) fn crashed_pairs(passing: u32) -> Vec<(Kind, Play)> {
    let crash = move |point| Strike { point, fault: Fault::Crash, passing };
    let pairs = Point::all().flat_map(|first| Point::all().map(move |second| vec![crash(first), crash(second)]));
    let play = |strikes: Vec<Strike>| {
        let is_at = |test: fn(Deed) -> bool| strikes.iter().any(|strike| test(strike.point.deed()));
        // `Evicted` and `Elastic` pass every other point.
        let scenarios = if is_at(Deed::is_about_code) {
            vec![Scenario::Pushed]
        } else if is_at(|deed| deed == Deed::Notify) {
            vec![Scenario::Balanced]
        } else {
            vec![Scenario::Evicted, Scenario::Elastic]
        };
        let play = move |scenario| Play { scenario, strikes: strikes.clone(), thaw: Thaw::AtTheEnd };
        scenarios.into_iter().map(play).map(|play| (Kind::CrashPair, play))
    };
    pairs.flat_map(play).collect()
}

/// Returns every `rounds`-th ordered pair of faults, without the pairs of two crashes. `rounds` consecutive rounds
/// return different pairs.
pub(crate) fn mixed_pairs(round: u32, rounds: usize) -> Vec<(Kind, Play)> {
    let strike = |(point, fault)| Strike { point, fault, passing: 1 };
    let pairs = faults().flat_map(|first| faults().map(move |second| vec![strike(first), strike(second)]));
    let scenario = |index: usize| Scenario::ALL[index / rounds % Scenario::ALL.len()];
    let plays = pairs
        .enumerate()
        .map(|(index, strikes)| (index, Play { scenario: scenario(index), strikes, thaw: Thaw::AtTheEnd }));
    let is_mixed = |play: &Play| play.strikes.iter().any(|strike| strike.fault != Fault::Crash);
    let chosen = plays.filter(|(index, play)| index % rounds == round as usize % rounds && is_mixed(play));
    chosen.map(|(_, play)| (Kind::MixedPair, play)).collect()
}

fn faults() -> impl Iterator<Item = (Point, Fault)> {
    Point::all()
        .flat_map(|point| FAULTS.into_iter().filter(move |fault| fault.fits(point)).map(move |fault| (point, fault)))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(fault) => write!(f, "single faults by {fault}"),
            Self::LongStall => f.write_str("long stalls"),
            Self::Overlap => f.write_str("overlaps of two masters"),
            Self::CrashPair => f.write_str("crash pairs"),
            Self::MixedPair => f.write_str("mixed pairs"),
        }
    }
}

/// How many runs there were of one kind.
#[derive(Debug, Default)]
struct Count {
    all: usize,
    /// Runs in which a strike did not happen, because no master passed the strike's point often enough.
    unreached: usize,
}

/// The results of many runs.
#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: BTreeMap<Kind, Count>,
    struck: BTreeSet<(Point, Fault)>,
    violations: usize,
    /// The runs that broke a promise, each with its whole history.
    broken: Vec<String>,
    slowest: Option<(Duration, Play)>,
}

/// Plays all runs. The long stalls are played at the same time as the other runs.
pub(crate) async fn play(plays: Vec<(Kind, Play)>) -> Report {
    let run = async |(kind, play): (Kind, Play)| (kind, play.run().await);
    let (long, short): (Vec<_>, Vec<_>) = plays.into_iter().partition(|(kind, _)| *kind == Kind::LongStall);
    let short = stream::iter(short).map(run).buffer_unordered(AT_ONCE);
    let long = stream::iter(long).map(run).buffer_unordered(STALLS_AT_ONCE);
    let take = async |mut report: Report, (kind, played)| {
        report.take(kind, played);
        report
    };
    stream::select(short, long).fold(Report::default(), take).await
}

impl Report {
    fn take(&mut self, kind: Kind, played: Played) {
        let Played { play, struck, took, violations, evidence } = played;
        let strikes = &play.strikes;
        let count = self.counts.entry(kind).or_default();
        count.all += 1;
        count.unreached += usize::from(struck < strikes.len());
        self.struck.extend(strikes[..struck].iter().map(|strike| (strike.point, strike.fault)));
        if !violations.is_empty() {
            self.violations += violations.len();
            let strikes: Vec<String> = strikes.iter().map(Strike::to_string).collect();
            let (what, history) = (violations.join("\n  "), evidence.history());
            self.broken.push(format!("{kind}: {:?} {}\n  {what}\n{history}", play.scenario, strikes.join(" ")));
        }
        if self.slowest.as_ref().is_none_or(|(longest, _)| took > *longest) {
            self.slowest = Some((took, play));
        }
    }

    /// Panics if a run broke a promise, or if a fault never struck at one of the points where it can happen.
    pub(crate) fn judge(&self) {
        let missed: Vec<String> = faults()
            .filter(|fault| !self.struck.contains(fault))
            .map(|(point, fault)| format!("{point}:{fault}"))
            .collect();
        assert_eq!(missed, Vec::<String>::new(), "faults that struck in no run");
        let shown = self.broken.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        assert_eq!(self.violations, 0, "{} runs broke promises; the first:\n{shown}", self.broken.len());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let struck: BTreeSet<Point> = self.struck.iter().map(|(point, _)| *point).collect();
        write!(f, "crash matrix: {} points, {} faults at them, ", struck.len(), self.struck.len())?;
        for (kind, Count { all, unreached }) in &self.counts {
            write!(f, "{all} {kind} ({unreached} not reached), ")?;
        }
        write!(f, "{} violations", self.violations)?;
        match &self.slowest {
            Some((took, play)) => write!(f, "\nthe slowest took {:.1} s: {play:?}", took.as_secs_f64()),
            None => Ok(()),
        }
    }
}
