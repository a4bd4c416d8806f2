//! Reads the body of a request.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use super::answer::RequestFailure;

/// How long a whole body, or the next piece of a stream of blobs, may take to arrive.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);

/// Reads the whole body. Fails if the body has more than `limit` bytes.
pub(crate) async fn read_body(body: Incoming, limit: usize) -> Result<Bytes, RequestFailure> {
    let too_large = || RequestFailure::TooLarge { limit };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let reading = timeout(BODY_TIME, Limited::new(body, limit).collect()).await;
    match reading.map_err(|_| RequestFailure::BodyLost(format!("it took longer than {} s", BODY_TIME.as_secs())))? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(RequestFailure::BodyLost(error.to_string())),
    }
}
