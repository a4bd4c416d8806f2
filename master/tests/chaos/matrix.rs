//! Which runs make the matrix, how many go on at a time, and what is said of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use futures_util::{StreamExt, stream};
use master::chaos::{Fault, Point, Strike};

use crate::place::Scenario;
use crate::play::{Play, Played, Thaw};

/// Runs at the same time: most of each is waiting.
const AT_ONCE: usize = 24;
/// What can happen to a master of this process.
const FAULTS: [Fault; 6] = [Fault::Crash, Fault::Panic, Fault::Error, Fault::AnswerLost, Fault::Freeze, Fault::Delay];

/// Every fault at every point, when it is passed for the `passing`-th time, in every scenario.
pub(crate) fn single_faults(passing: u32) -> Vec<Play> {
    let strike = move |(point, fault)| Strike { point, fault, passing };
    let all =
        || Scenario::ALL.into_iter().flat_map(move |scenario| faults().map(move |fault| (scenario, strike(fault))));
    all().map(|(scenario, strike)| Play { scenario, strikes: vec![strike], thaw: Thaw::AtTheEnd }).collect()
}

/// A master that stands still at every point until its successor has the job, and then goes on beside it.
pub(crate) fn overlaps(passing: u32) -> Vec<Play> {
    let stands_still = |play: &Play| play.strikes[0].fault == Fault::Freeze;
    let at_once = |play| Play { thaw: Thaw::AtOnce, ..play };
    single_faults(passing).into_iter().filter(stands_still).map(at_once).collect()
}

/// A crash at every point, and one of the successor at every point, each when it is passed for the `passing`-th time.
pub(crate) fn crashed_pairs(passing: u32) -> Vec<Play> {
    let crash = move |point| Strike { point, fault: Fault::Crash, passing };
    let pairs = Point::all().flat_map(|first| Point::all().map(move |second| vec![crash(first), crash(second)]));
    // The one scenario that passes every point.
    pairs.map(|strikes| Play { scenario: Scenario::Evicted, strikes, thaw: Thaw::AtTheEnd }).collect()
}

/// One in `of` of the ordered pairs of any two faults but crashes, others for each `round`.
pub(crate) fn mixed_pairs(round: u32, of: usize) -> Vec<Play> {
    let strike = |(point, fault)| Strike { point, fault, passing: 1 };
    let pairs = faults().flat_map(|first| faults().map(move |second| vec![strike(first), strike(second)]));
    let scenario = |index: usize| Scenario::ALL[index / of % Scenario::ALL.len()];
    let plays = pairs
        .enumerate()
        .map(|(index, strikes)| (index, Play { scenario: scenario(index), strikes, thaw: Thaw::AtTheEnd }));
    let is_mixed = |play: &Play| play.strikes.iter().any(|strike| strike.fault != Fault::Crash);
    let chosen = plays.filter(|(index, play)| index % of == round as usize % of && is_mixed(play));
    chosen.map(|(_, play)| play).collect()
}

fn faults() -> impl Iterator<Item = (Point, Fault)> {
    Point::all()
        .flat_map(|point| FAULTS.into_iter().filter(move |fault| fault.fits(point)).map(move |fault| (point, fault)))
}

/// What came of many runs.
#[derive(Debug, Default)]
pub(crate) struct Report {
    single: BTreeMap<Fault, usize>,
    overlaps: usize,
    pairs: usize,
    mixed: usize,
    points: BTreeSet<Point>,
    /// Runs in which not every strike came, for the point was not passed so often.
    unstruck: usize,
    violations: usize,
    /// The first few runs that broke a promise, with their whole history.
    broken: Vec<String>,
    slowest: Option<(std::time::Duration, Play)>,
}

/// Plays them all.
pub(crate) async fn play(plays: Vec<Play>) -> Report {
    let runs = stream::iter(plays).map(Play::run).buffer_unordered(AT_ONCE);
    runs.fold(Report::default(), async |mut report, played| {
        report.take(played);
        report
    })
    .await
}

impl Report {
    fn take(&mut self, played: Played) {
        let Played { play, struck, took, violations, evidence } = played;
        let strikes = &play.strikes;
        if struck < strikes.len() {
            self.unstruck += 1;
        }
        self.points.extend(strikes[..struck].iter().map(|strike| strike.point));
        match strikes.as_slice() {
            [_] if play.thaw == Thaw::AtOnce => self.overlaps += 1,
            [strike] => *self.single.entry(strike.fault).or_default() += 1,
            strikes if strikes.iter().all(|strike| strike.fault == Fault::Crash) => self.pairs += 1,
            _ => self.mixed += 1,
        }
        if !violations.is_empty() {
            self.violations += violations.len();
            let strikes: Vec<String> = strikes.iter().map(Strike::to_string).collect();
            let (what, history) = (violations.join("\n  "), evidence.history());
            self.broken.push(format!("{:?} {}\n  {what}\n{history}", play.scenario, strikes.join(" ")));
        }
        if self.slowest.as_ref().is_none_or(|(longest, _)| took > *longest) {
            self.slowest = Some((took, play));
        }
    }

    /// Fails if a promise was broken or a point was never passed.
    pub(crate) fn judge(&self) {
        let missed: Vec<String> =
            Point::all().filter(|point| !self.points.contains(point)).map(|point| point.to_string()).collect();
        assert_eq!(missed, Vec::<String>::new(), "points that no run has struck");
        let shown = self.broken.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        assert_eq!(self.violations, 0, "{} runs broke promises; the first:\n{shown}", self.broken.len());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.single.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        let (points, single) = (self.points.len(), self.single.values().sum::<usize>());
        write!(f, "crash matrix: {points} points, {single} single faults ({}), ", kinds.join(", "))?;
        write!(
            f,
            "{} overlaps of two masters, {} crash pairs, {} mixed pairs, ",
            self.overlaps, self.pairs, self.mixed
        )?;
        write!(f, "{} of these not reached, {} violations", self.unstruck, self.violations)?;
        match &self.slowest {
            Some((took, play)) => write!(f, "\nthe slowest took {:.1} s: {play:?}", took.as_secs_f64()),
            None => Ok(()),
        }
    }
}
