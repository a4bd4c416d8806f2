//! Runs file work on blocking threads, a few short pieces at a time. So a slow disk blocks no thread of the runtime.

use std::io;
use std::panic::resume_unwind;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Maximum pieces of file work at a time, over all jobs. More threads would only take the CPU from the runtime.
const PIECES_AT_ONCE: usize = 4;

static TURNS: Semaphore = Semaphore::const_new(PIECES_AT_ONCE);

/// Runs one piece of file work and returns its result. Pieces run in the order of their arrival. Keep each piece
/// short: it must read or write at most a few hundred KiB.
///
/// # Errors
/// Returns the error of `work`, or an error if the runtime is shutting down.
pub(super) async fn run<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let turn = TURNS.acquire().await.map_err(io::Error::other)?;
    let piece = spawn_blocking(move || {
        // The turn ends with the work, even if the caller no longer waits for the result.
        let _turn = turn;
        work()
    });
    piece.await.unwrap_or_else(|failure| match failure.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(cancelled) => Err(io::Error::other(cancelled)),
    })
}
