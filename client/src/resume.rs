//! A log stream that breaks off is opened again behind what was read of it. What is read, and what becomes of it, is
//! the stream's own business.

use protocol::view::JobView;

use crate::error::Error;
use crate::master_client::MasterError;
use crate::patience::Patience;

/// A stream that knows how far it has been read.
pub(crate) trait Resumable {
    /// What has been opened.
    type Opened: Send;

    /// Asks the master for the rest, and returns when the head of its answer is there.
    fn open(&self) -> impl Future<Output = Result<Self::Opened, MasterError>> + Send;

    /// Reads until the job has finished, and gives it back.
    fn read(&mut self, opened: Self::Opened) -> impl Future<Output = Result<JobView, Error>> + Send;
}

/// Reads a stream until its job has finished, and opens it again as long as the master may come back.
pub(crate) async fn to_the_end<S: Resumable + Send + Sync>(stream: &mut S) -> Result<JobView, Error> {
    let mut patience = Patience::new();
    loop {
        match attempt(stream, &mut patience).await {
            Err(Error::Master(error)) => patience.wait_after(error).await?,
            outcome => return outcome,
        }
    }
}

async fn attempt<S: Resumable + Send + Sync>(stream: &mut S, patience: &mut Patience) -> Result<JobView, Error> {
    let opened = stream.open().await?;
    // A job may print nothing for hours, so the answer alone, and not what follows it, shows that the master is there.
    patience.restore();
    stream.read(opened).await
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
