//! The sizes with which a start begins.

use std::collections::BTreeMap;

use protocol::ids::ReplicaId;
use protocol::job::JobSpec;

use super::sizes::Rules;

/// Without a minimum, a worker gets at least this share of an equal part, but no more than [`LEAST_BATCH`] samples.
const LEAST_SHARE: u32 = 4;
const LEAST_BATCH: u32 = 16;

/// The rules for the sizes of these places, which all have a batch. `None` if the job divides no batch.
pub fn rules(spec: &JobSpec, places: &[ReplicaId]) -> Option<Rules> {
    let global_batch = spec.global_batch()?;
    let of = |least: u32| {
        let bounds = places.iter().map(|place| spec.batch_bounds(*place, global_batch, least)).collect();
        Rules { global_batch, bounds, multiple: spec.batching.multiple.unwrap_or(1) }
    };
    let members = u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
    let usual = of(global_batch.div_ceil(members.saturating_mul(LEAST_SHARE)).min(LEAST_BATCH));
    // A default must not make a job impossible.
    let is_possible = usual.divide(&vec![1.0; places.len()]).is_some();
    Some(if is_possible { usual } else { of(1) })
}

/// The sizes of all ranks of a start, from the place of each seat. A rank without a batch has 0. `None` if the job divides
/// no batch.
pub fn sizes_by_rank(
    spec: &JobSpec,
    seats: &BTreeMap<ReplicaId, ReplicaId>,
    measured: impl Fn(ReplicaId) -> Option<f64>,
) -> Option<Vec<u32>> {
    let ranks: Vec<ReplicaId> = seats.iter().filter(|(seat, _)| seat.role.trains()).map(|(_, place)| *place).collect();
    let places: Vec<ReplicaId> = ranks.iter().copied().filter(|place| spec.has_batch(place.role)).collect();
    let sizes = first_sizes(spec, &places, measured)?;
    Some([vec![0; ranks.len() - places.len()], sizes].concat())
}

/// The sizes of these places: in proportion to their speeds. If the speed of a place has not been measured, it follows
/// from the resources that the place asks for. `None` if the job divides no batch.
fn first_sizes(spec: &JobSpec, places: &[ReplicaId], measured: impl Fn(ReplicaId) -> Option<f64>) -> Option<Vec<u32>> {
    let weights = spec.batch_weights(places);
    let scaled = |(place, weight): (&ReplicaId, &f64)| Some(measured(*place)? / weight);
    let mut known: Vec<f64> = places.iter().zip(&weights).filter_map(scaled).collect();
    known.sort_by(f64::total_cmp);
    let usual = known.get(known.len() / 2).copied().unwrap_or(1.0);
    let speed = |(place, weight): (&ReplicaId, &f64)| measured(*place).unwrap_or(usual * weight);
    rules(spec, places)?.divide(&places.iter().zip(&weights).map(speed).collect::<Vec<f64>>())
}
