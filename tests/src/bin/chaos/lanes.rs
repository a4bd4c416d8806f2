//! Jobs at the same time, one after another in each of a few lanes.

use std::sync::Mutex;
use std::thread;

use anyhow::bail;

use crate::say;

/// Most complaints that are shown in full.
const SHOWN: usize = 5;

/// Runs `lane` so many times at once, each with random numbers of its own, and fails with what they return.
pub(crate) fn run<Lane>(lanes: usize, seed: u64, lane: Lane) -> anyhow::Result<()>
where
    Lane: Fn(&mut fastrand::Rng, &Complaints) + Sync,
{
    let complaints = Complaints::default();
    let mut random = fastrand::Rng::with_seed(seed);
    thread::scope(|scope| {
        for _ in 0..lanes {
            let mut own = random.fork();
            let (lane, complaints) = (&lane, &complaints);
            scope.spawn(move || lane(&mut own, complaints));
        }
    });
    complaints.judged()
}

/// What was not as it should be.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<Vec<String>>);

impl Complaints {
    /// The value, or its error among the complaints.
    pub(crate) fn take<T>(&self, result: anyhow::Result<T>) -> Option<T> {
        let complaint = |error: anyhow::Error| self.0.lock().expect("nobody panics").push(format!("{error:#}"));
        result.map_err(complaint).ok()
    }

    /// Whether there are so many that it makes no sense to go on.
    pub(crate) fn are_too_many(&self) -> bool {
        self.0.lock().expect("nobody panics").len() >= SHOWN
    }

    fn judged(self) -> anyhow::Result<()> {
        let complaints = self.0.into_inner().expect("nobody panics");
        complaints.iter().take(SHOWN).for_each(|complaint| say(&format!("VIOLATION {complaint}")));
        if !complaints.is_empty() {
            bail!("{} violations", complaints.len());
        }
        say("0 violations");
        Ok(())
    }
}
