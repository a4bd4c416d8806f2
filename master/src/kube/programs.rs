//! Looks up the programs of images for TFJobs of the cluster: without a login, or with a pull secret that the TFJob
//! names and the master may read.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use image_program::{Login, LookUpError, Registries};
use protocol::image::{Entrypoint, ImageRef};

use super::api::call;
use super::pull_secret::{Found, KEY, login};
use super::{ApiFailure, Cluster};
use crate::error_chain::error_chain;
use crate::tfjob::Unknown;

/// Looks up programs of images.
pub struct ProgramSource {
    cluster: Cluster,
    registries: Registries,
    /// The pull secrets that the master may read.
    readable: BTreeSet<String>,
}

impl ProgramSource {
    /// Looks up programs with these pull secrets of the cluster's namespace.
    pub fn new(cluster: Cluster, registries: Registries, readable: &[String]) -> Self {
        Self { cluster, registries, readable: readable.iter().cloned().collect() }
    }

    /// Looks up the programs of these images at the same time. Each image has the pull secrets that its templates name.
    pub(super) async fn look_up_all(
        &self,
        images: BTreeMap<String, BTreeSet<String>>,
    ) -> Vec<(String, Result<Entrypoint, Unknown>)> {
        let look_ups = images.into_iter().map(|(image, secrets)| async move {
            let found = self.look_up(&image, &secrets).await;
            (image, found)
        });
        join_all(look_ups).await
    }

    async fn look_up(&self, image: &str, secrets: &BTreeSet<String>) -> Result<Entrypoint, Unknown> {
        let image: ImageRef = image.parse().map_err(|error| Unknown::Final(format!("{error}")))?;
        let login = self.login(&image, secrets).await?;
        self.registries.program(&image, login.as_ref()).await.map_err(|error| match error {
            LookUpError::Passing { .. } => Unknown::Passing(error.to_string()),
            LookUpError::Unusable(_) => Unknown::Final(error.to_string()),
            LookUpError::Refused { status: 404, .. } => Unknown::Final(format!("{error}: it has no such image")),
            LookUpError::Refused { .. } => Unknown::Final(format!("{error}{}", self.advice(login.is_some(), secrets))),
        })
    }

    /// The login in the first of these pull secrets that has one for the image's registry.
    async fn login(&self, image: &ImageRef, secrets: &BTreeSet<String>) -> Result<Option<Login>, Unknown> {
        for name in secrets.intersection(&self.readable) {
            let secret = match call(self.cluster.secrets().get(name)).await {
                Ok(secret) => secret,
                Err(ApiFailure::Refused { status: 404, .. }) => continue,
                Err(error) => return Err(Unknown::Passing(format!("read secret {name}: {}", error_chain(&error)))),
            };
            let config = secret.data.unwrap_or_default().remove(KEY);
            match config.map_or(Found::Nothing, |config| login(&config.0, image)) {
                Found::Login(login) => return Ok(Some(login)),
                Found::IdentityToken => {
                    return Err(Unknown::Final(format!("secret {name} has an identity token, which is not supported")));
                }
                Found::Nothing => {}
            }
        }
        Ok(None)
    }

    /// What to do if a registry wants another login.
    fn advice(&self, has_login: bool, secrets: &BTreeSet<String>) -> String {
        let unread: Vec<&str> = secrets.difference(&self.readable).map(String::as_str).collect();
        match (has_login, &unread[..]) {
            (true, _) => " to the login of the pull secret".to_owned(),
            (false, []) if secrets.is_empty() => ": the template names no secret in imagePullSecrets".to_owned(),
            (false, []) => ": the pull secrets have no login for this registry".to_owned(),
            (false, [first, ..]) => {
                format!(": to let the master read the pull secret, run client install --tfjobs --pull-secret {first}")
            }
        }
    }
}
