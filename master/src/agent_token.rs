//! The tokens by which agents know their master: one for each job, derived from the master's key and the job's uid, so
//! that nothing needs to be stored. A pod is told only the SHA-256, so who can read a pod's environment learns no secret.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The key from which a master derives its jobs' tokens.
#[derive(Clone)]
pub struct AgentKey([u8; 32]);

/// The bearer token of one job's agents.
#[derive(Clone)]
pub struct AgentToken(String);

impl AgentKey {
    /// A key that nobody has had before, for agents that do not outlive this process.
    pub fn random() -> Self {
        let mut key = [0; 32];
        let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
        for (half, random) in key.chunks_exact_mut(16).zip(halves) {
            half.copy_from_slice(random.as_bytes());
        }
        Self(key)
    }

    /// The token of the job with this uid.
    pub fn token(&self, job_uid: &str) -> AgentToken {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(job_uid.as_bytes());
        AgentToken(hex::encode(mac.finalize().into_bytes()))
    }
}

impl AgentToken {
    /// What a pod is told of it.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(self.0.as_bytes()))
    }

    /// The value of a request's Authorization header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_jobs_and_its_masters_alone() {
        let key = AgentKey([7; 32]);
        assert_eq!(key.token("one").0, key.token("one").0);
        assert_ne!(key.token("one").0, key.token("two").0);
        assert_ne!(key.token("one").0, AgentKey([8; 32]).token("one").0);
        assert_ne!(AgentKey::random().token("one").0, AgentKey::random().token("one").0);
    }

    #[test]
    fn the_token_is_the_hmac_of_rfc_4231_and_a_pod_is_told_its_hash() {
        // RFC 4231, test case 1, has a key of 20 bytes; keys are filled up with zeros.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let token = AgentKey(key).token("Hi There");
        assert_eq!(token.0, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        assert_eq!(token.sha256().len(), 64);
    }
}
