//! Finds Docker's engine as the docker command does: from `DOCKER_HOST`, else from the context that `DOCKER_CONTEXT` or
//! `docker context use` names, else at the usual socket.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::address::config::DockerVariables;
use crate::ending::error::Error;
use crate::request::unreadable;

/// How to choose another engine.
pub(super) const DOCKER_HINT: &str = "with minikube: eval $(minikube docker-env); else: unset DOCKER_HOST and \
    DOCKER_CONTEXT, then docker context use NAME; docker context ls lists the names";

const USUAL_SOCKET: &str = "unix:///var/run/docker.sock";
/// The docker command's name for the context that has no files.
const DEFAULT_CONTEXT: &str = "default";

/// The address of an engine, and how to connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineEndpoint {
    /// The address, as in `DOCKER_HOST`.
    pub(super) address: String,
    /// The folder of ca.pem, cert.pem and key.pem; `None` without TLS.
    pub(super) certificates: Option<PathBuf>,
    /// The context with this address. `None` if the address is not from a context.
    pub(super) context: Option<String>,
}

impl fmt::Display for EngineEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.context.as_ref().map_or(Ok(()), |context| write!(f, " (context {context})"))
    }
}

impl EngineEndpoint {
    /// The variable or context with the address, for messages.
    pub(super) fn named_by(&self) -> String {
        self.context.as_ref().map_or("DOCKER_HOST".to_owned(), |context| format!("the Docker context {context}"))
    }

    /// Finds the engine that the variables choose.
    ///
    /// # Errors
    /// The context does not exist, or a file of the docker command cannot be read or parsed.
    pub(super) fn of(variables: &DockerVariables) -> Result<Self, Error> {
        match context(variables)? {
            Some((context, folder)) => Self::of_context(context, &folder),
            None => Ok(Self::of_host(variables)),
        }
    }

    fn of_host(variables: &DockerVariables) -> Self {
        let address = variables.host.clone().unwrap_or_else(|| USUAL_SOCKET.to_owned());
        let is_secure = variables.tls || address.starts_with("https://");
        let certificates = is_secure.then(|| variables.cert_path.clone().unwrap_or_default());
        Self { address, certificates, context: None }
    }

    /// Reads a context. The docker command names the folders of a context by the SHA-256 of the context's name.
    /// Certificates have a separate folder (docker/cli, `cli/context/store`).
    fn of_context(context: String, folder: &Path) -> Result<Self, Error> {
        let store = folder.join("contexts");
        let id = hex::encode(Sha256::digest(&context));
        let path = store.join("meta").join(&id).join("meta.json");
        let kept: DockerContext = match fs::read(&path) {
            Ok(text) => parsed(&text, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let sentence = format!("there is no Docker context \"{context}\" in {}", store.display());
                return Err(Error::input(sentence).hint(DOCKER_HINT));
            }
            Err(error) => return Err(unreadable(&path)(error)),
        };
        let certificates = store.join("tls").join(&id).join("docker");
        let certificates = certificates.is_dir().then_some(certificates);
        Ok(Self { address: kept.endpoints.docker.host, certificates, context: Some(context) })
    }
}

/// The chosen context, and the folder of the docker command's files. `None` if no context with files is chosen.
fn context(variables: &DockerVariables) -> Result<Option<(String, PathBuf)>, Error> {
    let (None, Some(folder)) = (&variables.host, &variables.folder) else { return Ok(None) };
    let chosen = match &variables.context {
        Some(context) => Some(context.clone()),
        None => in_use(folder)?,
    };
    let chosen = chosen.filter(|context| !context.is_empty() && context != DEFAULT_CONTEXT);
    Ok(chosen.map(|context| (context, folder.clone())))
}

/// The context chosen by `docker context use`. Ignores an unreadable config.json, as docker does. Invalid JSON is an
/// error.
fn in_use(folder: &Path) -> Result<Option<String>, Error> {
    let path = folder.join("config.json");
    let Ok(text) = fs::read(&path) else { return Ok(None) };
    parsed::<DockerSettings>(&text, &path).map(|settings| settings.current_context)
}

fn parsed<T: DeserializeOwned>(text: &[u8], path: &Path) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(io::Error::from).map_err(unreadable(path))
}

/// The used part of the docker command's `config.json`.
#[derive(Deserialize)]
struct DockerSettings {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
}

/// The used part of a context's `meta.json`.
#[derive(Deserialize)]
struct DockerContext {
    #[serde(rename = "Endpoints")]
    endpoints: Endpoints,
}

#[derive(Deserialize)]
struct Endpoints {
    docker: EngineHost,
}

#[derive(Deserialize)]
struct EngineHost {
    #[serde(rename = "Host")]
    host: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = r#"{"Name":"rootless","Metadata":{},
        "Endpoints":{"docker":{"Host":"unix:///run/user/1000/docker.sock","SkipTLSVerify":false}}}"#;
    /// `printf rootless | sha256sum`.
    const ID: &str = "12b961af5feb3e9d39f93b2cefb9a1a944f18d02cca0cac2f04f5a982240605f";

    /// The docker command's folder, with the context `rootless` and this config.json.
    fn folder(config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config).unwrap();
        let meta = folder.path().join("contexts/meta").join(ID);
        fs::create_dir_all(&meta).unwrap();
        fs::write(meta.join("meta.json"), META).unwrap();
        folder
    }

    fn variables(folder: &tempfile::TempDir) -> DockerVariables {
        DockerVariables { folder: Some(folder.path().to_owned()), ..DockerVariables::default() }
    }

    fn usual() -> EngineEndpoint {
        EngineEndpoint { address: USUAL_SOCKET.to_owned(), certificates: None, context: None }
    }

    #[test]
    fn the_context_in_use_gives_the_address_unless_a_variable_overrides_it() {
        let folder = folder(r#"{"auths":{},"currentContext":"rootless"}"#);
        let in_use = variables(&folder);
        let address = "unix:///run/user/1000/docker.sock".to_owned();
        let found = EngineEndpoint::of(&in_use).unwrap();
        assert_eq!(found.to_string(), format!("{address} (context rootless)"));
        assert_eq!(found, EngineEndpoint { address, certificates: None, context: Some("rootless".to_owned()) });
        let by_default = DockerVariables { context: Some("default".to_owned()), ..in_use.clone() };
        assert_eq!(EngineEndpoint::of(&by_default).unwrap(), usual());
        let by_host = DockerVariables { host: Some("tcp://there:2375".to_owned()), ..in_use };
        assert_eq!(EngineEndpoint::of(&by_host).unwrap().to_string(), "tcp://there:2375");
    }

    #[test]
    fn a_variable_chooses_another_context_with_its_certificates() {
        let folder = folder("{}");
        assert_eq!(EngineEndpoint::of(&variables(&folder)).unwrap(), usual());
        let certificates = folder.path().join("contexts/tls").join(ID).join("docker");
        fs::create_dir_all(&certificates).unwrap();
        let chosen = DockerVariables { context: Some("rootless".to_owned()), ..variables(&folder) };
        assert_eq!(EngineEndpoint::of(&chosen).unwrap().certificates, Some(certificates));
    }

    #[test]
    fn missing_docker_files_mean_the_usual_socket_and_broken_files_are_errors() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(EngineEndpoint::of(&variables(&empty)).unwrap(), usual());
        assert_eq!(EngineEndpoint::of(&DockerVariables::default()).unwrap(), usual());
        let absent = DockerVariables { context: Some("absent".to_owned()), ..variables(&empty) };
        let error = EngineEndpoint::of(&absent).unwrap_err();
        assert!(error.to_string().starts_with("there is no Docker context \"absent\" in "), "{error}");
        assert_eq!(error.hint.as_deref(), Some(DOCKER_HINT));
        let broken = folder("{");
        let error = EngineEndpoint::of(&variables(&broken)).unwrap_err().to_string();
        assert!(error.starts_with("read ") && error.ends_with("/config.json"), "{error}");
    }
}
