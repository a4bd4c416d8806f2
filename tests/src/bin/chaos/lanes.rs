//! Runs jobs in a few lanes. The lanes run concurrently, and the jobs of a lane one after another.

use std::sync::Mutex;
use std::thread;

use anyhow::bail;

use crate::say;

/// Maximum complaints that are printed. With this number of complaints, a campaign stops.
const SHOWN: usize = 5;

/// Runs `lane` in `lanes` threads, each with its own random numbers. Fails if there are complaints.
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

/// The violations that a campaign has found.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<Vec<String>>);

impl Complaints {
    /// Returns the value, or adds the error to the complaints.
    pub(crate) fn take<T>(&self, result: anyhow::Result<T>) -> Option<T> {
        let complaint =
            |error: anyhow::Error| self.0.lock().expect("another thread has panicked").push(format!("{error:#}"));
        result.map_err(complaint).ok()
    }

    /// Whether the campaign should stop because of too many complaints.
    pub(crate) fn are_too_many(&self) -> bool {
        self.0.lock().expect("another thread has panicked").len() >= SHOWN
    }

    fn judged(self) -> anyhow::Result<()> {
        let complaints = self.0.into_inner().expect("another thread has panicked");
        complaints.iter().take(SHOWN).for_each(|complaint| say(&format!("VIOLATION {complaint}")));
        if !complaints.is_empty() {
            bail!("{} violations", complaints.len());
        }
        say("0 violations");
        Ok(())
    }
}
