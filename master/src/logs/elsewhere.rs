//! What earlier masters have kept of a job's output in folders that this master does not have. A master whose pod is
//! replaced may lose its folder.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use protocol::agent::LogBase;
use protocol::output::OFFSETS_OF_A_MASTER;

/// What is not here. The default is nothing.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// The offset after all bytes that earlier masters may have kept.
    end: AtomicU64,
    /// Whether all output of the job is elsewhere.
    is_all: AtomicBool,
}

impl Elsewhere {
    /// Earlier masters may have kept output before this epoch.
    pub(super) fn note_earlier_masters(&self, epoch: u32) {
        self.end.store(u64::from(epoch.saturating_sub(1)).saturating_mul(OFFSETS_OF_A_MASTER), Ordering::Relaxed);
    }

    /// The job has ended in this epoch, and earlier masters have kept all its output.
    pub(super) fn note_all_lost(&self, epoch: u32) {
        self.note_earlier_masters(epoch.saturating_add(1));
        self.is_all.store(true, Ordering::Relaxed);
    }

    /// Where a reader continues if the file does not exist. 0, unless all output of the job is lost.
    pub(super) fn first_here(&self) -> u64 {
        if self.is_all.load(Ordering::Relaxed) { self.end.load(Ordering::Relaxed) } else { 0 }
    }

    /// Where the output of an agent begins, if this master has no earlier output of the replica. `told` is what the agent
    /// knows, and `start` is the number of the job's restarts before the agent's run.
    pub(super) fn base(&self, told: Option<LogBase>, start: u32) -> u64 {
        match told {
            Some(LogBase::At(base)) => base,
            // Earlier agents of the replica may have printed something in earlier starts.
            Some(LogBase::Unknown) if start > 0 => self.end.load(Ordering::Relaxed),
            // An agent of an earlier version keeps nothing, so it is assumed to be the first.
            Some(LogBase::Unknown) | None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_which_nothing_is_known_continues_after_all_offsets_of_earlier_masters() {
        let elsewhere = Elsewhere::default();
        assert_eq!(elsewhere.base(Some(LogBase::Unknown), 2), 0, "the first master has no earlier master");
        elsewhere.note_earlier_masters(3);
        for (told, start, base) in [
            (Some(LogBase::At(7)), 2, 7),
            (Some(LogBase::Unknown), 2, 2 * OFFSETS_OF_A_MASTER),
            (Some(LogBase::Unknown), 0, 0),
            (None, 2, 0),
        ] {
            assert_eq!(elsewhere.base(told, start), base, "{told:?} {start}");
        }
        assert_eq!(elsewhere.first_here(), 0);
        elsewhere.note_all_lost(3);
        assert_eq!(elsewhere.first_here(), 3 * OFFSETS_OF_A_MASTER);
    }
}
