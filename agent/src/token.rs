//! The bearer token of requests. The agent stores only the token's SHA-256. Some agents have no token, for example an
//! agent that a user has started by hand. They answer every program that reaches them, but no browser.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Uri};
use protocol::callers::{Callers, ForeignRequest};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a master's first request waits for the token's hash. The hash is in the master's answer to this agent's
/// message. This answer may arrive after the request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

/// Who may send requests.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// Callers without a token.
    Tokenless(Callers),
    /// Callers with this token.
    Token(TokenHash),
    /// Callers with the token of the job that this agent has joined. Before the agent has joined a job, no caller.
    OfJob(watch::Receiver<Option<TokenHash>>),
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("the token is missing or wrong: send Authorization: Bearer TOKEN")]
    Token,
    #[error(transparent)]
    Foreign(#[from] ForeignRequest),
}

impl Access {
    /// The access to an agent that listens at this address.
    pub(crate) fn of(token: Option<TokenHash>, address: SocketAddr) -> Self {
        match token {
            Some(token) => Self::Token(token),
            None if address.ip().to_canonical().is_loopback() => Self::Tokenless(Callers::ThisMachine),
            None => Self::Tokenless(Callers::Anyone),
        }
    }

    /// If this agent is about to join a job, waits for the hash of the job's token, which arrives with the master's
    /// answer. The master may send its first request before this answer has arrived.
    pub(crate) async fn settled(&self, headers: &HeaderMap) {
        if let Self::OfJob(token) = self
            && headers.contains_key(AUTHORIZATION)
        {
            // After the timeout, the request is refused.
            let _ = timeout(ANSWER_LIMIT, token.clone().wait_for(Option::is_some)).await;
        }
    }

    /// Checks a request with this target and these headers.
    pub(crate) fn check(&self, target: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        let has_token = match self {
            Self::Tokenless(callers) => {
                let target = target.authority().map(|authority| authority.as_str());
                let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
                return Ok(callers.check(target, &headers)?);
            }
            Self::Token(token) => token.admits(headers),
            Self::OfJob(token) => token.borrow().is_some_and(|token| token.admits(headers)),
        };
        if has_token { Ok(()) } else { Err(Denied::Token) }
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
    /// The hash of this token.
    pub(crate) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Whether a request carries the token, as `Authorization: Bearer TOKEN` (RFC 6750).
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let token = given.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        Sha256::digest(token).as_slice().ct_eq(&self.0).into()
    }
}
