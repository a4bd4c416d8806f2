//! The bearer token of requests. The agent knows only the token's SHA-256. An agent without a token, for example one
//! that was started by hand, answers every request.

use std::str::FromStr;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

/// An invalid hash.
#[derive(Debug, thiserror::Error)]
#[error("not 64 hexadecimal digits")]
pub struct BadTokenHash;

impl FromStr for TokenHash {
    type Err = BadTokenHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = hex::decode(text).map_err(|_| BadTokenHash)?;
        bytes.try_into().map(Self).map_err(|_| BadTokenHash)
    }
}

impl TokenHash {
    /// Whether a request carries the token, as `Authorization: Bearer TOKEN` (RFC 6750).
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let token = given.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        Sha256::digest(token).as_slice().ct_eq(&self.0).into()
    }
}
