//! Limits the time in which work on an image makes no progress. The total time is not limited: a large image over a
//! slow network takes hours, and the user can press Ctrl-C.

use std::fmt;
use std::time::Duration;

use futures_util::{Stream, StreamExt};

/// The longest time without any progress.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(600);
/// Pause between two measurements of the progress.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// No progress for [`STALL_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stalled;

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {} s", STALL_LIMIT.as_secs())
    }
}

/// The next item of a stream in which every item is progress.
pub(super) async fn next<S: Stream + Unpin>(stream: &mut S) -> Result<Option<S::Item>, Stalled> {
    tokio::time::timeout(STALL_LIMIT, stream.next()).await.map_err(|_| Stalled)
}

/// Does `work`. Gives up when the value of `measure` has not changed for [`STALL_LIMIT`].
pub(super) async fn while_changing<T, M: PartialEq>(
    work: impl Future<Output = T>,
    measure: impl FnMut() -> M,
) -> Result<T, Stalled> {
    tokio::select! {
        done = work => Ok(done),
        () = unchanged(measure) => Err(Stalled),
    }
}

/// Returns when `measure` has given the same value for [`STALL_LIMIT`].
async fn unchanged<M: PartialEq>(mut measure: impl FnMut() -> M) {
    let mut last = measure();
    let mut since = tokio::time::Instant::now();
    while since.elapsed() < STALL_LIMIT {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let now = measure();
        if now != last {
            (last, since) = (now, tokio::time::Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;

    use futures_util::stream;
    use tokio::time::sleep;

    use super::*;

    /// Slightly less than the limit.
    const SLOW: Duration = Duration::from_secs(STALL_LIMIT.as_secs() - 10);

    #[tokio::test(start_paused = true)]
    async fn a_slow_stream_is_not_stalled_and_a_silent_stream_is() {
        let mut slow = pin!(stream::unfold(0, |sent| async move {
            sleep(SLOW).await;
            (sent < 20).then_some((sent, sent + 1))
        }));
        for item in (0..20).map(Some).chain([None]) {
            assert_eq!(next(&mut slow).await, Ok(item));
        }
        assert_eq!(next(&mut stream::pending::<()>()).await, Err(Stalled));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_stalled_only_when_its_measure_does_not_change() {
        let moved = Cell::new(0);
        let slow = async {
            for _ in 0..20 {
                sleep(SLOW).await;
                moved.set(moved.get() + 1);
            }
        };
        assert_eq!(while_changing(slow, || moved.get()).await, Ok(()));
        assert_eq!(while_changing(std::future::pending::<()>(), || moved.get()).await, Err(Stalled));
    }
}
