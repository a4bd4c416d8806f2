//! How long a request's body is must be said in one way alone, or a proxy and this agent could disagree about where the
//! next request begins (RFC 9112, 11.2).

use hyper::HeaderMap;
use hyper::header::TRANSFER_ENCODING;

use super::answer::Failure;

/// Refuses Transfer-Encoding. hyper takes it, and then drops a Content-Length beside it without a word, so that here the
/// two cannot be told from a plain chunked body. Two lengths that differ, and what is no length, hyper refuses itself.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(TRANSFER_ENCODING) { Err(Failure::Framing) } else { Ok(()) }
}
