//! Runs the jobs of a campaign in a few lanes. The lanes run concurrently, and the jobs of a lane one after another.

use std::sync::{Mutex, MutexGuard};
use std::thread;

use anyhow::bail;

use crate::say;

/// Number of lanes.
const LANES: usize = 4;
/// Maximum complaints that are printed. With this number of complaints, a campaign stops.
const SHOWN: usize = 5;

/// Calls `turn` in each lane, with the lane's own random numbers, until `turn` returns `None`. Each error that `turn`
/// returns is a violation. Fails if there are violations.
pub(crate) fn run<Turn>(seed: u64, turn: Turn) -> anyhow::Result<()>
where
    Turn: Fn(&mut fastrand::Rng) -> Option<anyhow::Result<()>> + Sync,
{
    let complaints = Mutex::new(Vec::<String>::new());
    let mut random = fastrand::Rng::with_seed(seed);
    let lane = |mut own: fastrand::Rng| {
        while locked(&complaints).len() < SHOWN {
            match turn(&mut own) {
                Some(Ok(())) => {}
                Some(Err(error)) => locked(&complaints).push(format!("{error:#}")),
                None => return,
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..LANES {
            let own = random.fork();
            scope.spawn(|| lane(own));
        }
    });
    let complaints = complaints.into_inner().expect("another thread has panicked");
    complaints.iter().take(SHOWN).for_each(|complaint| say(&format!("VIOLATION {complaint}")));
    if !complaints.is_empty() {
        bail!("{} violations", complaints.len());
    }
    say("0 violations");
    Ok(())
}

/// Locks what the lanes share.
pub(crate) fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("another thread has panicked")
}
