//! Reopens a broken log stream at the position that was reached. [`Resumable`] types store the position.

use master_client::MasterError;
use protocol::view::JobView;

use crate::ending::error::{Cause, Error};
use crate::master::patience::Patience;

/// A stream that stores how far it has been read.
pub(crate) trait Resumable {
    /// The open stream.
    type Opened: Send;

    /// Asks the master for the rest of the stream, and returns when the response headers have arrived.
    fn open(&self) -> impl Future<Output = Result<Self::Opened, MasterError>> + Send;

    /// Reads until the job has ended, and returns the job.
    fn read(&mut self, opened: Self::Opened) -> impl Future<Output = Result<JobView, Error>> + Send;
}

/// Reads a stream until its job has ended. Reopens the stream when it breaks. Gives up if the master stays unreachable.
pub(crate) async fn to_the_end<S: Resumable + Send + Sync>(stream: &mut S) -> Result<JobView, Error> {
    let mut patience = Patience::of_observer();
    loop {
        match attempt(stream, &mut patience).await {
            Err(Error { cause: Cause::Master(error), .. }) => patience.wait_after(*error).await?,
            outcome => return outcome,
        }
    }
}

async fn attempt<S: Resumable + Send + Sync>(stream: &mut S, patience: &mut Patience) -> Result<JobView, Error> {
    let opened = stream.open().await?;
    // The headers show that the master is reachable. Do not wait for a line: the job may print nothing for hours.
    patience.restore();
    stream.read(opened).await
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
