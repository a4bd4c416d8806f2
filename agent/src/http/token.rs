//! The bearer token of requests. The agent stores only the token's SHA-256. Some agents have no token, for example an
//! agent that a user has started by hand. They answer every request.

use std::str::FromStr;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a master's first request waits for the token's hash. The hash is in the master's answer to this agent's
/// message, which may arrive after the request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

/// Who may send requests.
#[derive(Debug, Clone)]
pub enum Access {
    /// Every caller that reaches the port.
    Anyone,
    /// Callers with this token.
    Token(TokenHash),
    /// Callers with the token of the job that this agent has joined. Before the agent has joined a job, no caller.
    OfJob(watch::Receiver<Option<TokenHash>>),
}

impl Access {
    /// Like [`Access::admits`]. If this agent is about to join a job, first waits for the hash of the job's token,
    /// which arrives with the master's answer. The master may send its first request before this answer has arrived.
    pub async fn admits_soon(&self, headers: &HeaderMap) -> bool {
        if let Self::OfJob(token) = self
            && headers.contains_key(AUTHORIZATION)
        {
            // After the timeout, the request is refused.
            let _ = timeout(ANSWER_LIMIT, token.clone().wait_for(Option::is_some)).await;
        }
        self.admits(headers)
    }

    /// Whether a request with these headers is allowed.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Anyone => true,
            Self::Token(token) => token.admits(headers),
            Self::OfJob(token) => token.borrow().is_some_and(|token| token.admits(headers)),
        }
    }
}

impl From<Option<TokenHash>> for Access {
    fn from(token: Option<TokenHash>) -> Self {
        token.map_or(Self::Anyone, Self::Token)
    }
}

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
