//! Looks up in a registry which program an image runs: its ENTRYPOINT, CMD and USER. Pulls no layer. The protocol is
//! that of the OCI Distribution Specification and of Docker's token servers.

mod address;
mod challenge;
mod digest;
mod fetch;
pub mod logins;
mod manifest;

use std::collections::BTreeMap;
use std::fmt;

use protocol::image::{Entrypoint, ImageRef};
use tokio::sync::{Mutex, Semaphore};

pub use self::address::PlainHosts;
use self::address::{Address, TagOrDigest};
use self::digest::Digest;
use self::fetch::{Http, Session};
use self::manifest::ImageManifest;

/// Maximum number of look-ups at a time.
const LOOK_UPS_MAX: usize = 8;
/// Maximum number of programs to remember. Each has 64 KiB at most.
const PROGRAMS_MAX: usize = 256;

/// A user and a password for the registry of an image.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password, or a token that replaces it.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

/// Why the program of an image is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookUpError {
    /// The registry did not answer, or its answer was unexpected. A later attempt may succeed.
    #[error("{host} {reason}")]
    Passing {
        /// The host that was asked.
        host: String,
        /// What happened, without a subject.
        reason: String,
    },
    /// The registry wants another login, or has no such image. Status 401, 403 or 404.
    #[error("{host} answered {status}")]
    Refused {
        /// The host that was asked.
        host: String,
        /// The status of the answer.
        status: u16,
    },
    /// The registry has the image, but its program cannot be used.
    #[error("{0}")]
    Unusable(String),
}

/// This machine cannot send requests to registries.
#[derive(Debug, thiserror::Error)]
#[error("prepare requests to registries of images")]
pub struct SetupError(#[source] reqwest::Error);

/// Looks up programs, and remembers them by the digest of the image's configuration.
pub struct Registries {
    http: Http,
    turns: Semaphore,
    known: Mutex<BTreeMap<Digest, Entrypoint>>,
}

impl Registries {
    /// Prepares requests. Uses plain HTTP for the registries in `plain`, and HTTPS for all others.
    pub fn new(plain: PlainHosts) -> Result<Self, SetupError> {
        let http = Http::new(plain).map_err(SetupError)?;
        Ok(Self { http, turns: Semaphore::new(LOOK_UPS_MAX), known: Mutex::default() })
    }

    /// Returns ENTRYPOINT, CMD and USER of an image. Sends the login only to the image's registry, and to the token
    /// server that this registry names.
    pub async fn program(&self, image: &ImageRef, login: Option<&Login>) -> Result<Entrypoint, LookUpError> {
        let _turn = self.turns.acquire().await.expect("the semaphore is never closed");
        let address = Address::of(image)?;
        let mut session = Session::new(&self.http, &address, login);
        let config = configuration(&mut session, image, &address.place).await?;
        if let Some(program) = self.known.lock().await.get(&config) {
            return Ok(program.clone());
        }
        let program = manifest::program(&session.blob(config).await?)
            .map_err(|reason| LookUpError::Unusable(format!("{image} {reason}")))?;
        let mut known = self.known.lock().await;
        if known.len() >= PROGRAMS_MAX {
            known.clear();
        }
        known.insert(config, program.clone());
        Ok(program)
    }
}

/// The digest of the image's configuration.
async fn configuration(
    session: &mut Session<'_>,
    image: &ImageRef,
    place: &TagOrDigest,
) -> Result<Digest, LookUpError> {
    let chosen = match session.manifest(place).await? {
        ImageManifest::Image { config } => return Digest::read(&config),
        ImageManifest::Index(entries) => manifest::choose(entries, manifest::architecture())
            .map_err(|others| LookUpError::Unusable(format!("{image} {others}")))?,
    };
    match session.manifest(&TagOrDigest::Digest(Digest::read(&chosen)?)).await? {
        ImageManifest::Image { config } => Digest::read(&config),
        ImageManifest::Index(_) => Err(LookUpError::Unusable(format!("{image} is an index of indexes"))),
    }
}
