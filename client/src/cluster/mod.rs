//! Everything about the Kubernetes API: the connection to a namespace, the way to its master, and the installation. No
//! other module of the client uses kube.

mod access;
mod checks;
mod doctor;
mod forward;
mod install;
pub(crate) mod installation;
mod manifests;
mod pods;
mod rights;
mod rollout;
pub(crate) mod shell_env;
mod tfjobs;
mod uninstall;

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Resource};
use master_client::{KubePlace, Token, root_cause};

pub(crate) use self::checks::docker as check_docker;
pub(crate) use self::doctor::examine;
pub(crate) use self::forward::Forward;
pub(crate) use self::install::{exported, install};
use self::rights::Right;
pub(crate) use self::uninstall::{Removable, find, remove};
use crate::ending::error::{Cause, Error};
use crate::output::spelled;

/// The name of the Secret and of the manifests' objects, except those for TFJobs and for pull secrets. Also the value
/// of [`PART_OF`].
const MUSTER: &str = "muster";
/// The label of all objects of the manifests.
const PART_OF: &str = "app.kubernetes.io/part-of";
/// Selects the master's pods.
const MASTER_PODS: &str = "app.kubernetes.io/name=muster,app.kubernetes.io/component=master";
/// The keys of the Secret: the token that users send, and the key from which the master derives the agents' tokens.
const SECRET_KEYS: [&str; 2] = ["token", "agent-key"];
/// The hint for a cluster that does not answer, or that refuses the login.
const CHECK_ACCESS: &str = "to check your access: kubectl get pods";
/// Maximum time of one call, including kube's own retries after 429, 503 and 504.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The connection to one namespace of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    /// The master's place. Its namespace is always set.
    place: KubePlace,
    /// The name of the context in use. If the place names no context, this is the current one.
    context: String,
    /// The URL of the API.
    server: String,
}

impl Cluster {
    /// Reads the kubeconfig, or the service account of the pod in which this program runs. Sends no request yet.
    ///
    /// # Errors
    /// Fails if neither exists, if the kubeconfig lacks the context, or if the configuration has no usable login or
    /// certificate.
    pub(crate) async fn connect(place: &KubePlace) -> Result<Self, Error> {
        // An error means that a provider of cryptography is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (context, config) = configured(place).await?;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let place = place.clone().or_namespace(Some(namespace));
        let client = Client::try_from(config).map_err(|error| {
            if let kube::Error::Auth(error) = error {
                return no_login(&context, &root_cause(&error));
            }
            unreachable(&server, &error)
        })?;
        Ok(Self { client, place, context, server })
    }

    fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the namespace.
    pub(crate) fn namespace(&self) -> &str {
        self.place.namespace()
    }

    /// The name of the context.
    pub(crate) fn context(&self) -> &str {
        &self.context
    }

    /// The objects of one kind in the namespace.
    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// Makes one call with a deadline. If the API refuses the call, the error names the missing `right`.
    async fn call<T>(&self, right: Right, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        match tokio::time::timeout(CALL_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| self.error(right, &error)),
            Err(_) => {
                let (server, limit) = (&self.server, spelled(CALL_TIMEOUT));
                let sentence = format!("the Kubernetes API at {server} did not answer within {limit}");
                Err(Error::master(sentence).hint(CHECK_ACCESS).cause(Cause::Passing))
            }
        }
    }

    fn error(&self, right: Right, error: &kube::Error) -> Error {
        if let kube::Error::Auth(error) = error {
            return no_login(&self.context, &root_cause(error));
        }
        let kube::Error::Api(status) = error else { return unreachable(&self.server, error) };
        match status.code {
            401 => refused_login(&self.context, &status.message),
            // Other refusals with status 403 are about a quota, or about a Role with more rights than the user has.
            403 if status.message.contains(" cannot ") => self.forbidden(&[right]),
            code => refused(right, code, &status.message),
        }
    }

    /// The error for missing rights.
    fn forbidden(&self, rights: &[Right]) -> Error {
        let (context, namespace) = (&self.context, self.namespace());
        let listed: Vec<String> = rights.iter().map(Right::to_string).collect();
        let first = listed.first().map(String::as_str).unwrap_or_default();
        let check = format!("kubectl auth can-i {first} -n {namespace}");
        let sentence = format!("you may not {} in namespace {namespace} of context {context}", listed.join(", "));
        let hint = format!("ask the cluster's administrator for the right; to check: {check}");
        Error::master(sentence).hint(hint).cause(Cause::Forbidden)
    }

    /// The pods of the master.
    async fn master_pods(&self) -> Result<Vec<Pod>, Error> {
        let selected = ListParams::default().labels(MASTER_PODS);
        Ok(self.call(rights::LIST_PODS, self.api::<Pod>().list(&selected)).await?.items)
    }

    /// The Secret `muster`, if it exists.
    async fn secret(&self) -> Result<Option<Secret>, Error> {
        self.call(rights::GET_SECRET, self.api::<Secret>().get_opt(MUSTER)).await
    }

    /// The master's token, from the Secret.
    pub(crate) async fn token(&self) -> Result<Token, Error> {
        let secret = self.secret().await?.ok_or_else(|| self.no_secret())?;
        self.key_of(&secret, "token")
    }

    fn no_secret(&self) -> Error {
        let namespace = self.namespace();
        let sentence =
            format!("there is no Secret muster in namespace {namespace}, so the master's token is not known");
        Error::master(sentence).hint(to_install(&self.place))
    }

    /// Checks that the Secret has all keys, and that their values are valid tokens.
    fn check_keys(&self, secret: &Secret) -> Result<(), Error> {
        SECRET_KEYS.into_iter().try_for_each(|key| self.key_of(secret, key).map(drop))
    }

    /// The value of this key of the Secret. Fails if the value is not a valid token.
    fn key_of(&self, secret: &Secret, key: &'static str) -> Result<Token, Error> {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let text = value.and_then(|value| std::str::from_utf8(&value.0).ok());
        let bad = || {
            let (place, namespace) = (&self.place, self.namespace());
            let create = format!("kubectl delete secret muster -n {namespace}; client install --master {place}");
            Error::master(format!("the Secret muster in namespace {namespace} has no valid {key}"))
                .hint(format!("to create the Secret again: {create}"))
        };
        text.and_then(|text| text.parse().ok()).ok_or_else(bad)
    }
}

/// This machine cannot log in, for example because the kubeconfig's program for the login fails.
fn no_login(context: &str, reason: &str) -> Error {
    Error::master(format!("cannot log in to the cluster of context {context}: {reason}")).hint(CHECK_ACCESS)
}

fn refused_login(context: &str, reason: &str) -> Error {
    Error::master(format!("the cluster of context {context} refuses your login: {reason}")).hint(CHECK_ACCESS)
}

fn unreachable(server: &str, error: &kube::Error) -> Error {
    let sentence = format!("the Kubernetes API at {server} cannot be reached: {}", root_cause(error));
    Error::master(sentence).hint(CHECK_ACCESS).cause(Cause::Passing)
}

/// The error for a call that the API refused with this HTTP status.
fn refused(right: Right, status: u16, message: &str) -> Error {
    let cause = if status == 429 || status >= 500 { Cause::Passing } else { Cause::Other };
    let error = Error::master(format!("the cluster refused to {right}: {message}")).cause(cause);
    if !message.contains("provided port is already allocated") {
        return error;
    }
    error.hint("another master of the cluster uses this port: leave out --service nodeport and use --master kube")
}

fn no_master(place: &KubePlace) -> Error {
    let sentence = format!("there is no master in namespace {}", place.namespace());
    Error::master(sentence).hint(to_install(place)).cause(Cause::Passing)
}

fn to_install(place: &KubePlace) -> String {
    format!("to install a master there: client install --master {place}")
}

/// The name and the configuration of the context.
async fn configured(place: &KubePlace) -> Result<(String, Config), Error> {
    let refused = |error| {
        let KubeconfigError::LoadContext(context) = error else {
            let hint = "set KUBECONFIG to your cluster's file, and try: kubectl config view";
            return Error::input("there is no usable kubeconfig").hint(hint).because(error);
        };
        let hint = "kubectl config get-contexts lists the contexts";
        Error::input(format!("the kubeconfig has no context \"{context}\"")).hint(hint)
    };
    let options = KubeConfigOptions { context: place.context.clone(), ..KubeConfigOptions::default() };
    let loaded = match Kubeconfig::read() {
        Ok(kubeconfig) => {
            let context = place.context.clone().or_else(|| kubeconfig.current_context.clone()).unwrap_or_default();
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map(|config| (context, config))
        }
        Err(error) => Err(error),
    };
    match loaded {
        Ok(loaded) => Ok(loaded),
        Err(error) if place.context.is_some() => Err(refused(error)),
        Err(error) => {
            let in_pod = Config::incluster().map_err(|_| refused(error))?;
            Ok(("in-cluster".to_owned(), in_pod))
        }
    }
}
