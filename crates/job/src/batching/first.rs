//! The sizes with which a start begins.

use std::collections::BTreeMap;

use protocol::failure::Restarts;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;

use super::sizes::BatchRules;

/// Without a minimum in the job, a worker gets at least an equal part divided by this number. This least batch is at
/// most [`LEAST_BATCH`].
const LEAST_SHARE: u32 = 4;
const LEAST_BATCH: u32 = 16;

/// The rules for the sizes of these places, which all have a batch. If the memory of a replica was too small in an
/// earlier start, it limits the replica's size. `None` if the job divides no batch.
pub fn rules(spec: &JobSpec, restarts: &Restarts, places: &[ReplicaId]) -> Option<BatchRules> {
    let global_batch = spec.global_batch()?;
    let of = |least: u32, limit: &dyn Fn(ReplicaId) -> Option<u32>| {
        let bounds = |place: &ReplicaId| spec.batch_bounds(*place, global_batch, least).at_most(limit(*place));
        BatchRules { global_batch, bounds: places.iter().map(bounds).collect(), multiple: spec.batching.unit() }
    };
    let members = u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
    let usual = global_batch.div_ceil(members.saturating_mul(LEAST_SHARE)).min(LEAST_BATCH);
    let limit = |place| restarts.batch_limit(place);
    let is_possible = |rules: &BatchRules| rules.divide(&vec![1.0; places.len()]).is_some();
    // A default or a limit must not prevent a start. `JobSpec::workers_for_batch` decides how many workers a start
    // needs.
    let possible = [of(usual, &limit), of(1, &limit)].into_iter().find(is_possible);
    Some(possible.unwrap_or_else(|| of(1, &|_| None)))
}

/// The sizes of all ranks of a start, from the place of each seat. A rank without a batch has 0. `None` if the job divides
/// no batch.
pub fn sizes_by_rank(
    (spec, restarts): (&JobSpec, &Restarts),
    seats: &BTreeMap<ReplicaId, ReplicaId>,
    measured: impl Fn(ReplicaId) -> Option<f64>,
) -> Option<Vec<u32>> {
    let ranks: Vec<ReplicaId> = seats.iter().filter(|(seat, _)| seat.role.trains()).map(|(_, place)| *place).collect();
    let places: Vec<ReplicaId> = ranks.iter().copied().filter(|place| spec.has_batch(place.role)).collect();
    let rules = rules(spec, restarts, &places)?;
    let sizes = rules.divide(&speeds(spec, &places, measured))?;
    Some([vec![0; ranks.len() - places.len()], sizes].concat())
}

/// The speeds of these places. If the speed of a place has not been measured, it follows from the resources that the place
/// asks for.
fn speeds(spec: &JobSpec, places: &[ReplicaId], measured: impl Fn(ReplicaId) -> Option<f64>) -> Vec<f64> {
    let weights = spec.batch_weights(places);
    let scaled = |(place, weight): (&ReplicaId, &f64)| Some(measured(*place)? / weight);
    let mut known: Vec<f64> = places.iter().zip(&weights).filter_map(scaled).collect();
    known.sort_by(f64::total_cmp);
    let usual = known.get(known.len() / 2).copied().unwrap_or(1.0);
    let speed = |(place, weight): (&ReplicaId, &f64)| measured(*place).unwrap_or(usual * weight);
    places.iter().zip(&weights).map(speed).collect()
}
