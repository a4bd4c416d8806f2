//! `make bench-elastic`: measures how fast a gang restarts or changes its size. Compares this with a shell that
//! starts the same scripts, with torchrun, and with simple loops.

mod crash;
mod fakes;
pub(crate) mod first_step;
mod members;
mod silent;
pub(crate) mod site;
mod torchrun;

use crate::push;
use crate::sample::{Row, note};

/// Workers of a gang of hello scripts.
pub(crate) const WORKERS: usize = 8;
/// Maximum number of crashes of each peer, which is a launcher that Muster is compared with. A peer can take seconds
/// to restart after each crash.
const PEER_CRASHES: usize = 20;
/// Maximum number of agents of each peer that are killed. A peer can take a minute after each kill.
const PEER_LOSSES: usize = 3;

/// Returns all rows. `pairs` sets the number of measurements of hello scripts, and `tensorflow_pairs` the number of
/// measurements of TensorFlow.
pub(crate) async fn compare(pairs: usize, tensorflow_pairs: usize) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![];
    for measure in [crash::compare, members::lost, members::scaled, silent::stopped] {
        note(&mut rows, measure(pairs)?)?;
    }
    note(&mut rows, first_step::compare(tensorflow_pairs)?)?;
    note(&mut rows, push::tensorflow(tensorflow_pairs)?)?;
    note(&mut rows, fakes::writes().await?)?;
    note(&mut rows, fakes::changes().await?)?;
    Ok(rows)
}
