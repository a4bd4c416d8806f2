//! The configuration from flags and variables: the master, its token, Docker, and folders for the files by which
//! commands find local masters. No other file of the client reads the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use master_client::{BadMasterUrl, BadToken, KubePlace, MasterUrl, Token};
use protocol::env::{EnvName, MUSTER_PREFIX};

use crate::address::connection::ConnectionArgs;
use crate::ending::error::Error;

/// The variable with the master's address. `--master` takes precedence.
const MASTER_VARIABLE: &str = "MUSTER_MASTER";
/// The variable with the master's token. No flag takes the token itself, only `--token-file` its file, because all
/// users of a machine can read the arguments of a process.
const TOKEN_VARIABLE: &str = "MUSTER_TOKEN";
/// The variable with the address that `wait` posts to. `--notify` and `--notify-file` take precedence.
pub(crate) const NOTIFY_VARIABLE: &str = "MUSTER_NOTIFY";

/// The master that a command uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MasterChoice {
    /// A local master. A submit starts a local master for its job. Other verbs ask the running local master.
    Local(LocalBecause),
    /// The master at this address.
    At(MasterUrl),
    /// The master in this namespace, through the Kubernetes API.
    Kube(KubePlace),
}

/// Why the master is local.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalBecause {
    /// `--master` or `MUSTER_MASTER` is `local`.
    Asked,
    /// Neither a flag nor a variable names a master.
    Default,
}

/// The configuration of a command, besides its own arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientConfig {
    /// The master to use.
    pub(crate) master: MasterChoice,
    /// The token, if one is set.
    pub(crate) token: Option<Token>,
    /// Folders for the files by which commands find local masters. The client writes to the first usable folder, and
    /// reads the files in all folders.
    pub(crate) run_folders: Vec<PathBuf>,
    /// The folder for the files of local jobs that have ended. `None` if neither `XDG_STATE_HOME` nor the home folder
    /// gives an absolute path.
    pub(crate) history: Option<PathBuf>,
    /// The address of [`NOTIFY_VARIABLE`], which may contain a secret.
    pub(crate) notify: Option<String>,
    /// How to build and load images, for a master in Kubernetes.
    pub(crate) image: ImageConfig,
}

/// How to reach Docker, and the defaults for loading images into a local cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    /// The variables of the docker command.
    pub(crate) docker: DockerVariables,
    /// The tool that loads images. Not checked here, because most commands do not need it.
    pub(crate) load: Option<String>,
    /// The cluster to load into.
    pub(crate) load_cluster: Option<String>,
    /// Registries that use plain HTTP, besides those on the loopback interface.
    pub(crate) plain_registries: Vec<String>,
}

/// The variables with which the docker command finds its engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DockerVariables {
    /// The address of the engine. If `None`, the context contains the address.
    pub(crate) host: Option<String>,
    /// The context. If `None`, the context that `docker context use` chose.
    pub(crate) context: Option<String>,
    /// The folder of the docker command's files.
    pub(crate) folder: Option<PathBuf>,
    /// The folder of the certificates.
    pub(crate) cert_path: Option<PathBuf>,
    /// Whether a TCP address uses TLS: `DOCKER_TLS_VERIFY` has any value that is not empty.
    pub(crate) tls: bool,
}

impl ClientConfig {
    /// The cluster and namespace for commands that need a cluster. If the master was chosen as `kube…`, these are its
    /// cluster and namespace. Otherwise they are the kubeconfig's defaults.
    pub(crate) fn place(&self) -> KubePlace {
        match &self.master {
            MasterChoice::Kube(place) => place.clone(),
            MasterChoice::At(_) | MasterChoice::Local(_) => KubePlace::default(),
        }
    }

    /// Reads the flags. Reads the environment for omitted flags, and for settings that have no flag.
    pub(crate) fn read(args: ConnectionArgs) -> Result<Self, Error> {
        Self::from_parts(args, own_variable)
    }

    fn from_parts(
        args: ConnectionArgs,
        variable: impl Fn(&str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let ConnectionArgs { master, token_file } = args;
        // In shells and manifests, an empty variable often means "unset".
        let set = |name| variable(name).map(|value| value.filter(|text| !text.is_empty()));
        let master = match master {
            Some(text) => choice("--master", &text)?,
            None => match set(MASTER_VARIABLE)? {
                Some(text) => choice(MASTER_VARIABLE, &text)?,
                None => MasterChoice::Local(LocalBecause::Default),
            },
        };
        let token = match token_file {
            Some(path) => Some(read_token(&path)?),
            None => set(TOKEN_VARIABLE)?.map(|text| token(TOKEN_VARIABLE, &text)).transpose()?,
        };
        let (run_folders, history) = (run_folders(set), state_folder(&set).map(|folder| folder.join("muster/history")));
        Ok(Self { master, token, run_folders, history, notify: set(NOTIFY_VARIABLE)?, image: image_config(set)? })
    }
}

/// The folders for [`ClientConfig::run_folders`], from the XDG Base Directory Specification. Ignores relative paths, and
/// variables that are not UTF-8, because a job also runs without these folders.
fn run_folders(set: impl Fn(&'static str) -> Result<Option<String>, Error>) -> Vec<PathBuf> {
    let runtime = set("XDG_RUNTIME_DIR").ok().flatten().map(|folder| PathBuf::from(folder).join("muster"));
    let state = state_folder(&set).map(|folder| folder.join("muster/run"));
    runtime.into_iter().filter(|folder| folder.is_absolute()).chain(state).collect()
}

/// The user's folder for state, from the XDG Base Directory Specification.
fn state_folder(set: &impl Fn(&'static str) -> Result<Option<String>, Error>) -> Option<PathBuf> {
    let given = set("XDG_STATE_HOME").ok().flatten().map(PathBuf::from);
    let folder = given.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    folder.filter(|folder| folder.is_absolute())
}

fn image_config(set: impl Fn(&'static str) -> Result<Option<String>, Error>) -> Result<ImageConfig, Error> {
    let folder = set("DOCKER_CONFIG")?.map(PathBuf::from);
    let folder = folder.or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
    let docker = DockerVariables {
        host: set("DOCKER_HOST")?,
        context: set("DOCKER_CONTEXT")?,
        cert_path: set("DOCKER_CERT_PATH")?.map(PathBuf::from).or_else(|| folder.clone()),
        folder,
        tls: set("DOCKER_TLS_VERIFY")?.is_some(),
    };
    let plain = set("MUSTER_PLAIN_REGISTRIES")?.unwrap_or_default();
    Ok(ImageConfig {
        docker,
        load: set("MUSTER_LOAD")?,
        load_cluster: set("MUSTER_LOAD_CLUSTER")?,
        plain_registries: plain.split(',').map(str::trim).filter(|host| !host.is_empty()).map(str::to_owned).collect(),
    })
}

fn choice(origin: &'static str, text: &str) -> Result<MasterChoice, Error> {
    if text == "local" {
        return Ok(MasterChoice::Local(LocalBecause::Asked));
    }
    let wrong = |wrong| {
        let shown: String = text.chars().take(120).collect();
        Error::input(format!("\"{shown}\" is not the place of a master: {wrong}"))
            .hint("write kube, kube:NAMESPACE or kube:CONTEXT/NAMESPACE")
    };
    let bad = |BadMasterUrl { sentence, hint }| Error::input(sentence).hint(hint);
    let choice = match KubePlace::of_master(text) {
        Some(place) => place.map(MasterChoice::Kube).map_err(wrong),
        None => text.parse().map(MasterChoice::At).map_err(bad),
    };
    choice.map_err(|error| error.at(origin))
}

fn read_token(path: &Path) -> Result<Token, Error> {
    let shown = path.display().to_string();
    let unreadable = |error| Error::input(format!("read the token file {shown}")).because(error);
    token(&shown, &std::fs::read_to_string(path).map_err(unreadable)?)
}

fn token(origin: &str, text: &str) -> Result<Token, Error> {
    let sentence = || format!("the token in {origin} is invalid: use visible ASCII characters without spaces");
    text.parse().map_err(|BadToken| Error::input(sentence()))
}

/// A variable of the client's own environment, for `--env NAME`.
pub(crate) fn variable_to_pass_on(name: &EnvName) -> Result<Option<String>, Error> {
    own_variable(name.as_str())
}

/// The names of the variables that configure Muster's programs. A local master does not get these variables.
#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
pub(crate) fn muster_variables() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes())).collect()
}

/// The variable PATH.
#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
pub(crate) fn own_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// Whether this process can open windows on a desktop.
#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
pub(crate) fn has_desktop() -> bool {
    ["WAYLAND_DISPLAY", "DISPLAY"].into_iter().any(|name| std::env::var_os(name).is_some_and(|text| !text.is_empty()))
}

/// All variables of the client's environment that are valid UTF-8, for `client env`.
#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
fn own_variable(name: &str) -> Result<Option<String>, Error> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) => {
            value.into_string().map(Some).map_err(|_| Error::input(format!("the variable {name} is not valid UTF-8")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks up variables in a list.
    fn among(variables: &[(&str, &str)]) -> impl Fn(&str) -> Result<Option<String>, Error> {
        move |name| Ok(variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn read(flag: Option<&str>, variable: Option<&str>) -> Result<MasterChoice, String> {
        let args = ConnectionArgs { master: flag.map(str::to_owned), token_file: None };
        let variables: Vec<_> = variable.map(|value| (MASTER_VARIABLE, value)).into_iter().collect();
        ClientConfig::from_parts(args, among(&variables)).map(|config| config.master).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flag_wins_over_the_variable_and_the_variable_over_local() {
        let at = |text: &str| Ok(MasterChoice::At(text.parse().unwrap()));
        assert_eq!(read(Some("http://a:1"), Some("http://b:2")), at("http://a:1"));
        assert_eq!(read(None, Some("http://b:2")), at("http://b:2"));
        assert_eq!(read(Some("local"), Some("http://b:2")), Ok(MasterChoice::Local(LocalBecause::Asked)));
        assert_eq!(read(None, None), Ok(MasterChoice::Local(LocalBecause::Default)));
        assert_eq!(read(None, Some("")), Ok(MasterChoice::Local(LocalBecause::Default)));
        let team = KubePlace { context: None, namespace: Some("team".to_owned()) };
        assert_eq!(read(Some("kube:team"), Some("http://b:2")), Ok(MasterChoice::Kube(team)));
        assert_eq!(read(None, Some("kube")), Ok(MasterChoice::Kube(KubePlace::default())));
        assert!(read(Some("kube:/"), None).unwrap_err().contains("the context is empty"));
        assert!(read(None, Some("nonsense")).unwrap_err().starts_with("MUSTER_MASTER: "));
    }

    #[test]
    fn settings_for_docker_and_for_loading_images_are_read_from_variables() {
        let read = |of: &[(&str, &str)]| {
            let config = ClientConfig::from_parts(ConnectionArgs::default(), among(of));
            config.map(|config| config.image).map_err(|error| error.to_string())
        };
        let minikube = [
            ("DOCKER_HOST", "tcp://192.168.49.2:2376"),
            ("DOCKER_CERT_PATH", "/certs"),
            ("DOCKER_CONTEXT", "rootless"),
            ("DOCKER_CONFIG", "/docker"),
            ("DOCKER_TLS_VERIFY", "1"),
            ("MUSTER_LOAD", "Kind"),
            ("MUSTER_LOAD_CLUSTER", "dev"),
            ("MUSTER_PLAIN_REGISTRIES", "a.example:5000, b.example,"),
        ];
        let docker = DockerVariables {
            host: Some("tcp://192.168.49.2:2376".to_owned()),
            context: Some("rootless".to_owned()),
            folder: Some("/docker".into()),
            cert_path: Some("/certs".into()),
            tls: true,
        };
        let image = ImageConfig {
            docker,
            load: Some("Kind".to_owned()),
            load_cluster: Some("dev".to_owned()),
            plain_registries: vec!["a.example:5000".to_owned(), "b.example".to_owned()],
        };
        assert_eq!(read(&minikube), Ok(image));
        let empty = read(&[("MUSTER_LOAD", ""), ("DOCKER_TLS_VERIFY", "")]).unwrap();
        assert_eq!((empty.docker.tls, empty.load), (false, None));
    }

    #[test]
    fn the_folders_for_local_masters_are_in_the_runtime_folder_and_in_the_state_folder() {
        let folders = |of: &[(&str, &str)]| run_folders(among(of));
        let both = folders(&[("XDG_RUNTIME_DIR", "/run/user/7"), ("XDG_STATE_HOME", "/s")]);
        assert_eq!(both, ["/run/user/7/muster", "/s/muster/run"].map(PathBuf::from));
        let relative = folders(&[("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "/s")]);
        assert_eq!(relative, [PathBuf::from("/s/muster/run")]);
        assert!(folders(&[]).iter().all(|folder| folder.ends_with(".local/state/muster/run")));
    }

    #[test]
    fn any_visible_ascii_is_a_token() {
        let all: String = ('!'..='~').collect();
        for text in ["x", "YWJj/+==", &all] {
            assert_eq!(token("f", text).unwrap().text(), text);
        }
    }

    #[test]
    fn a_token_that_is_empty_or_not_visible_ascii_is_refused() {
        for bad in ["", "  \n", "two words", "two\nlines", "bell\u{7}", "smörgås"] {
            let error = token("f", bad).unwrap_err().to_string();
            assert_eq!(error, "the token in f is invalid: use visible ASCII characters without spaces", "{bad:?}");
        }
    }
}
