//! Decides whether other sizes are worth a change, and chooses them.
//!
//! A rank's speed is its size, divided by the time of its computation. The target sizes are in proportion to the
//! speeds. Noise moves the target too. So a small gain needs more windows as evidence than a large gain. The newer and
//! the older half of these windows must both show the gain. Reports are frequent and a change is cheap, so no model of
//! a machine is fitted: the next change corrects wrong sizes.

use super::sizes::BatchRules;
use super::windows::{Window, longest};

/// How many of the newest windows must show which [`Change::gain`]. One of these pairs is enough.
const EVIDENCE: [(usize, f64); 3] = [(2, 1.10), (4, 1.07), (8, 1.05)];
/// Minimum share of a step that the longest computation takes. If the share is smaller, the ranks wait for something
/// else, and the sizes stay.
const COMPUTE_SHARE: f64 = 2.0 / 3.0;

/// What to do with the sizes.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// No other sizes are worth a change, or too little is known.
    Keep,
    /// The scripts do not measure their own computation, so nothing is known about speeds.
    NotMeasured,
    /// The ranks do not wait mainly for the longest computation.
    NotComputeBound,
    /// Use other sizes.
    Change(Change),
}

/// Other sizes, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The new sizes, by rank.
    pub sizes: Vec<u32>,
    /// By which factor the longest computation becomes shorter, if all times are in proportion to the sizes.
    pub gain: f64,
    /// The rank that needs the longest time for a sample.
    pub slowest: usize,
    /// The rank that needs the shortest time for a sample.
    pub fastest: usize,
    /// The slowest rank's time for a sample, divided by the fastest rank's time.
    pub ratio: f64,
}

/// Decides from the windows that were measured with `sizes`, newest first.
pub fn decide(windows: &[Window], sizes: &[u32], rules: &BatchRules) -> Decision {
    let Some(newest) = windows.first() else { return Decision::Keep };
    if !newest.is_measured() {
        return Decision::NotMeasured;
    }
    if newest.longest() < COMPUTE_SHARE * newest.wall {
        return Decision::NotComputeBound;
    }
    let shows_gain =
        |windows: &[Window], least: f64| change(windows, sizes, rules).filter(|change| change.gain >= least);
    let found = EVIDENCE.into_iter().find_map(|(count, least)| {
        let (newer, older) = windows.get(..count)?.split_at(count / 2);
        shows_gain(newer, least)?;
        shows_gain(older, least)?;
        shows_gain(&windows[..count], least)
    });
    found.map_or(Decision::Keep, Decision::Change)
}

/// The best sizes by these windows alone. `None` if they lack a measurement, or if the rules allow no sizes.
fn change(windows: &[Window], sizes: &[u32], rules: &BatchRules) -> Option<Change> {
    let mean = |rank: usize| windows.iter().map(|window| window.compute[rank]).sum::<f64>() / windows.len() as f64;
    let compute: Vec<f64> = (0..sizes.len()).map(mean).collect();
    if windows.iter().any(|window| !window.is_measured()) {
        return None;
    }
    let speeds: Vec<f64> = sizes.iter().zip(&compute).map(|(&size, compute)| f64::from(size) / compute).collect();
    let target = rules.divide(&speeds)?;
    let predicted: Vec<f64> = target.iter().zip(&speeds).map(|(&size, speed)| f64::from(size) / speed).collect();
    let by_speed = |a: &usize, b: &usize| speeds[*a].total_cmp(&speeds[*b]);
    let slowest = (0..sizes.len()).min_by(by_speed)?;
    let fastest = (0..sizes.len()).max_by(by_speed)?;
    let gain = longest(&compute) / longest(&predicted);
    Some(Change { sizes: target, gain, slowest, fastest, ratio: speeds[fastest] / speeds[slowest] })
}
