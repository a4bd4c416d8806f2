//! Looks up the programs of images for TFJobs of the cluster: without a login, or with a pull secret that the TFJob
//! names and the master may read.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use image_program::{Login, LookUpError, Registries};
use k8s_openapi::api::core::v1::Secret;
use launchers::kubeflow::Unknown;
use protocol::image::{Entrypoint, ImageRef};

use super::pull_secret::{ImageEntry, KEY, SecretEntry, find};
use crate::error_chain::error_chain;
use crate::kube::api::call;
use crate::kube::{ApiFailure, Cluster};

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

    /// The login that these pull secrets contain for an image.
    async fn login(&self, image: &ImageRef, secrets: &BTreeSet<String>) -> Result<Option<Login>, Unknown> {
        let mut best: Option<(&String, ImageEntry)> = None;
        for name in secrets.intersection(&self.readable) {
            let found = self.read(name).await?.and_then(|config| find(&config, image));
            if let Some(found) = found
                && best.as_ref().is_none_or(|(_, before)| found.rank() > before.rank())
            {
                best = Some((name, found));
            }
        }
        match best.map(|(name, found)| (name, found.kept)) {
            None => Ok(None),
            Some((_, SecretEntry::Login(login))) => Ok(Some(login)),
            Some((name, SecretEntry::IdentityToken)) => {
                Err(Unknown::Final(format!("secret {name} has an identity token, which is not supported")))
            }
        }
    }

    /// The logins in a pull secret. `None` if there is no such Secret, or it has another type.
    async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Unknown> {
        match call(self.cluster.objects::<Secret>().get(name)).await {
            Ok(secret) => Ok(secret.data.unwrap_or_default().remove(KEY).map(|config| config.0)),
            Err(ApiFailure::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(Unknown::Passing(format!("read secret {name}: {}", error_chain(&error)))),
        }
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
