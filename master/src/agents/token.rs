//! The tokens that agents require of their master, one for each job. A token is derived from the master's key and the
//! job's uid, so it is not stored. A pod only gets the token's SHA-256, so the pod's environment contains no secret.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::host::files::put;

/// Minimum characters of a key in a file.
const KEY_LENGTH_MIN: usize = 32;

/// Bytes of a key's fingerprint: enough to distinguish a few masters' keys, far too few to reveal a key.
const FINGERPRINT_BYTES: usize = 4;

/// The key from which a master derives its jobs' tokens.
#[derive(Clone)]
pub struct AgentKey {
    secret: [u8; 32],
    fingerprint: Option<String>,
}

/// The bearer token of one job's agents.
#[derive(Clone)]
pub struct AgentToken(String);

impl AgentKey {
    /// A new random key, for agents that do not outlive this process.
    pub fn random() -> Self {
        let mut secret = [0; 32];
        let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
        for (half, random) in secret.chunks_exact_mut(16).zip(halves) {
            half.copy_from_slice(random.as_bytes());
        }
        Self { secret, fingerprint: None }
    }

    /// A key that is stored, so that later masters use it too.
    fn kept(secret: [u8; 32]) -> Self {
        let mut fingerprint = Sha256::new_with_prefix("muster: fingerprint of an agent key\n");
        fingerprint.update(secret);
        let fingerprint = hex::encode(&fingerprint.finalize()[..FINGERPRINT_BYTES]);
        Self { secret, fingerprint: Some(fingerprint) }
    }

    /// Identifies this key without revealing it. `None` for a random key: its agents end with this process, so a master
    /// with another key can take over their jobs.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Reads the key from a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is too short for a key.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("read the agents' key {shown}"))?;
        match text.trim() {
            short if short.len() < KEY_LENGTH_MIN => {
                bail!("the agents' key in {shown} is too short: it needs at least {KEY_LENGTH_MIN} characters")
            }
            key => Ok(Self::kept(Sha256::digest(key.as_bytes()).into())),
        }
    }

    /// Reads the key from a file. If the file does not exist, creates it with a new key that no other user can read.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or is too short for a key.
    pub fn read_or_make(file: &Path) -> anyhow::Result<Self> {
        if !file.exists() {
            let key = hex::encode(Self::random().secret);
            let unfinished = file.with_extension("new");
            let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
            let written = opened.and_then(|opened| put(key.as_bytes(), (opened, &unfinished), file));
            written.with_context(|| format!("write the agents' key {}", file.display()))?;
        }
        Self::read(file)
    }

    /// The token of the job with this uid.
    pub fn token(&self, job_uid: &str) -> AgentToken {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC accepts a key of any length");
        mac.update(job_uid.as_bytes());
        AgentToken(hex::encode(mac.finalize().into_bytes()))
    }
}

impl AgentToken {
    /// The SHA-256 of the token, in hex, for the pod.
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
    fn a_token_depends_on_the_key_and_the_job() {
        let key = AgentKey::kept([7; 32]);
        assert_eq!(key.token("one").0, key.token("one").0);
        assert_ne!(key.token("one").0, key.token("two").0);
        assert_ne!(key.token("one").0, AgentKey::kept([8; 32]).token("one").0);
        assert_ne!(AgentKey::random().token("one").0, AgentKey::random().token("one").0);
    }

    #[test]
    fn a_stored_key_has_a_short_fingerprint_of_its_own_and_a_random_key_has_none() {
        let key = AgentKey::kept([7; 32]);
        assert_eq!(key.fingerprint().map(str::len), Some(8));
        assert_ne!(key.fingerprint(), AgentKey::kept([8; 32]).fingerprint());
        assert_ne!(key.fingerprint(), Some(hex::encode(&Sha256::digest([7; 32])[..FINGERPRINT_BYTES]).as_str()));
        assert_eq!(AgentKey::random().fingerprint(), None);
    }

    #[test]
    fn a_created_key_is_read_again_and_a_short_key_is_refused() {
        let dir = tempfile::tempdir().expect("could not create a temporary folder");
        let file = dir.path().join("agent-key");
        let made = AgentKey::read_or_make(&file).expect("could not create the key");
        let found = AgentKey::read_or_make(&file).expect("could not read the created key");
        assert_eq!(made.token("one").0, found.token("one").0);
        assert!(made.fingerprint().is_some() && made.fingerprint() == found.fingerprint());
        std::fs::write(&file, "too short\n").expect("could not replace the key");
        let error = AgentKey::read(&file).map(drop).expect_err("a short key was accepted");
        assert!(error.to_string().contains("too short"), "{error}");
    }

    #[test]
    fn the_token_matches_a_test_case_of_rfc_4231() {
        // The key of test case 1 has 20 bytes. HMAC itself pads keys with zeros, so the zeros here change nothing.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let token = AgentKey::kept(key).token("Hi There");
        assert_eq!(token.0, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        assert_eq!(token.sha256().len(), 64);
    }
}
