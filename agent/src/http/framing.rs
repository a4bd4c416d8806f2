//! The length of a request's body. If the length is ambiguous, a proxy and this agent may disagree about where the next
//! request begins (RFC 9112, 11.2).

use hyper::HeaderMap;
use hyper::header::TRANSFER_ENCODING;

use super::answer::Failure;

/// Refuses Transfer-Encoding. hyper accepts it and silently drops a Content-Length beside it, so a request with both
/// headers looks like a plain chunked request. hyper itself refuses an invalid or a contradictory Content-Length.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(TRANSFER_ENCODING) { Err(Failure::Framing) } else { Ok(()) }
}
