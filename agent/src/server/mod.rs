//! What the agent's HTTP servers share: answers with their bodies, and how the body of a request is read.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod incoming;

/// Maximum bytes of a request's head, and of a connection's buffers.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;
