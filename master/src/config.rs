//! The master's configuration, from its command line and environment. No other file reads the environment.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::BoolishValueParser;
use clap::{Args, Parser, ValueEnum};
use image_program::PlainHosts;
use protocol::agent::first_python;
use protocol::env::MUSTER_PREFIX;
use protocol::image::ImageRef;
use protocol::master::BackendKind;
use protocol::routes::MASTER_PORT;

use crate::agents::token::AgentKey;
use crate::registry::KEPT_FINISHED;

/// Minimum length of the bearer token, in characters.
const TOKEN_LENGTH_MIN: usize = 32;

/// Runs training jobs: creates their pods, starts their gangs and serves their state over HTTP.
#[derive(Debug, Parser)]
#[command(name = "master", version, about)]
pub struct Config {
    /// Where pods run [default: kubernetes inside a pod of a cluster, else process]
    #[arg(long, env = "MUSTER_BACKEND", value_enum)]
    pub backend: Option<Backend>,

    /// Address and port to serve on. Port 0 picks a free port; the first line on stdout shows it
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDRESS", default_value_t = SocketAddr::from(([127, 0, 0, 1], MASTER_PORT)))]
    pub listen: SocketAddr,

    /// Folder for records, logs and the pods' own files [default: muster in $XDG_STATE_HOME, else in ~/.local/state]
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Maximum disk space for the output of all jobs, such as 500MiB or 10GiB. Above this size, the output of
    /// finished jobs is dropped, the oldest first. Unfinished jobs may exceed it, with up to 64MiB for each replica
    #[arg(long, env = "MUSTER_LOG_BUDGET", value_name = "SIZE", default_value = "10GiB", value_parser = bytes)]
    pub log_budget: u64,

    /// Number of finished jobs to keep. Older ones are deleted with their output and the copies of their folders, except
    /// jobs of TFJobs in the cluster
    #[arg(long, env = "MUSTER_KEEP_FINISHED", value_name = "N", default_value_t = KEPT_FINISHED)]
    pub keep_finished: usize,

    /// Namespace for jobs and pods, with --backend kubernetes [default: the namespace of this pod, or of the
    /// kubeconfig]
    #[arg(long, env = "MUSTER_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// Agent program for pods with --backend process, and for clients to fetch [default: `agent` beside this program]
    #[arg(long, env = "MUSTER_AGENT_BINARY", value_name = "PATH")]
    pub agent_binary: Option<PathBuf>,

    /// The flags of clusters.
    #[command(flatten)]
    pub cluster: ClusterConfig,

    /// File with the bearer token for every request except health checks, /metrics and /openapi.json
    #[arg(long, env = "MUSTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Serve beyond this machine without a token: anyone who reaches the port can then run code here
    #[arg(long)]
    pub serve_without_auth_anyone_can_run_code: bool,

    /// When stdin ends, stop all pods, clear the state directory and exit; for a client that runs a master for one job
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// What only some back ends use: mainly Kubernetes.
#[derive(Debug, Args)]
pub struct ClusterConfig {
    /// Image with the agent, for jobs that bring their code or have pod templates, with --backend kubernetes [default:
    /// the image of this pod]
    #[arg(long, env = "MUSTER_AGENT_IMAGE", value_name = "REF")]
    pub agent_image: Option<ImageRef>,

    /// File with the key for the agents' tokens, a text of at least 32 characters. Only with --backend kubernetes or
    /// joined, where agents outlive this master [default: a file in the state directory]
    #[arg(long, env = "MUSTER_AGENT_KEY_FILE", value_name = "FILE")]
    pub agent_key_file: Option<PathBuf>,

    /// Accept jobs that mount folders of the nodes, with --backend kubernetes; any submitter can then use these folders
    #[arg(long, env = "MUSTER_ALLOW_HOST_VOLUMES", value_parser = BoolishValueParser::new())]
    pub allow_host_volumes: bool,

    /// Run each TFJob of the namespace as a job, with --backend kubernetes; client install --tfjobs prepares the
    /// cluster. With =allow-root, TFJobs with the annotation muster/allow-root: "true" may run as root
    #[arg(long, env = "MUSTER_WATCH_TFJOBS", value_name = "RULE", value_enum, ignore_case = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true")]
    #[arg(hide_default_value = true, hide_possible_values = true)]
    pub watch_tfjobs: WatchTfJobs,

    /// Pull secrets that --watch-tfjobs may read, separated by commas. If a TFJob has no command and names such a
    /// secret, the master uses the secret to look up what the image runs
    #[arg(long = "pull-secret", env = "MUSTER_PULL_SECRETS", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = pull_secret)]
    pub pull_secrets: Vec<String>,

    /// Registries that use plain HTTP, separated by commas, each with its port; for look-ups of what an image runs
    #[arg(long = "plain-registry", env = "MUSTER_PLAIN_REGISTRIES", value_name = "HOST", value_delimiter = ',')]
    pub plain_registries: Vec<String>,
}

/// Whether the TFJobs of the namespace become jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WatchTfJobs {
    /// TFJobs are ignored
    #[value(name = "false", aliases = ["f", "no", "n", "off", "0"])]
    No,
    /// Each TFJob becomes a job
    #[value(name = "true", aliases = ["t", "yes", "y", "on", "1"])]
    Yes,
    /// Each TFJob becomes a job, and may ask for root
    AllowRoot,
}

/// Where pods run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// As processes of this host
    Process,
    /// As pods of the cluster that KUBECONFIG names, or of the cluster in which this program runs
    Kubernetes,
    /// On machines whose agents join by themselves, with agent --join
    Joined,
}

impl From<Backend> for BackendKind {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Process => Self::Process,
            Backend::Kubernetes => Self::Kubernetes,
            Backend::Joined => Self::Joined,
        }
    }
}

/// Who may send requests.
#[derive(Debug)]
pub enum Guard {
    /// Callers with this token.
    Token(String),
    /// Programs of this machine, except browsers.
    ThisMachine,
    /// All programs that reach the port, except browsers.
    Anyone,
}

/// Whether the master runs in a pod of a cluster.
fn in_cluster() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some()
}

impl Config {
    /// The back end that the flag names. The default is Kubernetes inside a pod of a cluster, else processes.
    pub fn backend(&self) -> Backend {
        self.backend.unwrap_or_else(|| if in_cluster() { Backend::Kubernetes } else { Backend::Process })
    }

    /// The registries that are asked by plain HTTP. Whoever may create TFJobs chooses the registry, so a master in a pod does
    /// not ask its own loopback interface.
    pub fn plain_hosts(&self) -> PlainHosts {
        let of = if in_cluster() { PlainHosts::only } else { PlainHosts::with_loopback };
        of(self.cluster.plain_registries.clone())
    }

    /// Refuses flags that have no meaning with this back end.
    ///
    /// # Errors
    /// The error names the flag.
    pub fn check(&self) -> anyhow::Result<()> {
        let of_kubernetes = [
            ("--namespace", self.namespace.is_some()),
            ("--agent-image", self.cluster.agent_image.is_some()),
            ("--allow-host-volumes", self.cluster.allow_host_volumes),
            ("--watch-tfjobs", self.cluster.watch_tfjobs != WatchTfJobs::No),
            ("--pull-secret", !self.cluster.pull_secrets.is_empty()),
        ];
        let of_lasting_agents = ("--agent-key-file", self.cluster.agent_key_file.is_some());
        let (name, unused) = match self.backend() {
            Backend::Process => ("process", [&of_kubernetes[..], &[of_lasting_agents]].concat()),
            Backend::Joined => ("joined", of_kubernetes.to_vec()),
            Backend::Kubernetes => return Ok(()),
        };
        match unused.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!("{flag} has no meaning with --backend {name}"),
            None => Ok(()),
        }
    }

    /// The value of HOSTNAME. In a pod, this is the pod's name, or with `hostNetwork` the node's name.
    pub fn pod_name() -> Option<String> {
        variable("HOSTNAME")
    }

    /// Reads the key for the agents' tokens, if a file is named.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is too short for a key.
    pub fn agent_key(&self) -> anyhow::Result<Option<AgentKey>> {
        self.cluster.agent_key_file.as_deref().map(AgentKey::read).transpose()
    }

    /// The state directory.
    ///
    /// # Errors
    /// Fails if no directory is named, and neither XDG_STATE_HOME nor HOME is an absolute path.
    pub fn state_dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = &self.state_dir {
            return Ok(dir.clone());
        }
        let from = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state_home = from("XDG_STATE_HOME").or_else(|| from("HOME").map(|home| home.join(".local/state")));
        let state_home = state_home
            .context("no folder for the state, because HOME is not an absolute path: name one with --state-dir")?;
        Ok(state_home.join("muster"))
    }

    /// The path of the agent's program.
    pub fn agent_binary(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.agent_binary {
            Some(path) => path.clone(),
            None => beside_this_program().context("find this program's own folder")?.join("agent"),
        };
        if !path.is_file() {
            bail!("no agent program at {}: give its path with --agent-binary", path.display());
        }
        Ok(path)
    }

    /// The agent's program for clients. `None` if no path is named and this program's folder contains no agent.
    ///
    /// # Errors
    /// Fails if a path is named and no program exists there.
    pub fn agent_to_give(&self) -> anyhow::Result<Option<PathBuf>> {
        match (&self.agent_binary, self.agent_binary()) {
            (Some(_), found) => found.map(Some),
            (None, found) => Ok(found.ok()),
        }
    }

    /// Who may send requests. An address beyond loopback requires a token, or the flag that allows requests without
    /// one.
    ///
    /// # Errors
    /// Fails if the token file cannot be read or has no valid token, or if a required token is missing.
    pub fn guard(&self) -> anyhow::Result<Guard> {
        match &self.token_file {
            Some(file) => read_token(file).map(Guard::Token),
            None if self.serve_without_auth_anyone_can_run_code => Ok(Guard::Anyone),
            None if self.listen.ip().is_loopback() => Ok(Guard::ThisMachine),
            None => bail!(
                "{} can be reached from other machines, so a token is needed: give --token-file, or listen on 127.0.0.1",
                self.listen
            ),
        }
    }

    /// The names of this master's `MUSTER_` variables. Agents must not inherit these variables, which have another
    /// meaning for an agent.
    pub fn own_variables() -> Vec<OsString> {
        #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
        let names = std::env::vars_os().map(|(name, _)| name);
        names.filter(|name| name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes())).collect()
    }

    /// The Python of scripts that run on this host.
    pub fn python() -> Option<PathBuf> {
        first_python(variable("PATH")?.as_ref(), Path::is_file)
    }

    /// The log filter, in the syntax of tracing's `EnvFilter`.
    pub fn log_filter() -> String {
        variable("RUST_LOG").unwrap_or_else(|| "info".to_owned())
    }
}

/// The name of a pull secret. The master's own Secret has another purpose.
fn pull_secret(text: &str) -> Result<String, String> {
    match text {
        "muster" => Err("the Secret muster contains the master's token, not the login of a registry".to_owned()),
        "" => Err("the name is empty".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Parses a number of bytes with a unit.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40)];
    let bytes = units.into_iter().find_map(|(unit, size)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(size)
    });
    bytes.ok_or_else(|| "write a whole number with KiB, MiB, GiB or TiB, such as 10GiB".to_owned())
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read the token file {}", file.display()))?;
    match text.trim() {
        "" => bail!("the token file {} is empty", file.display()),
        token if token.len() < TOKEN_LENGTH_MIN => bail!(
            "the token in {} is too short: it needs at least {TOKEN_LENGTH_MIN} characters, such as those of openssl \
             rand -hex 32",
            file.display()
        ),
        // The token is sent in a header. Other characters would be trimmed or refused there.
        token if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            bail!("the token in {} contains characters other than visible ASCII", file.display())
        }
        token => Ok(token.to_owned()),
    }
}

fn beside_this_program() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?.canonicalize()?;
    Ok(program.parent().map(Path::to_owned).unwrap_or_default())
}

fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_tfjobs_accepts_words_for_yes_and_no_and_allow_root() {
        let rule = |words: &[&str]| {
            let config = Config::try_parse_from([&["master"], words].concat());
            config.map(|config| config.cluster.watch_tfjobs).map_err(|error| error.kind())
        };
        assert_eq!(rule(&[]), Ok(WatchTfJobs::No));
        assert_eq!(rule(&["--watch-tfjobs"]), Ok(WatchTfJobs::Yes));
        // MUSTER_WATCH_TFJOBS accepts the same values.
        for (value, expected) in [
            ("True", WatchTfJobs::Yes),
            ("1", WatchTfJobs::Yes),
            ("off", WatchTfJobs::No),
            ("allow-root", WatchTfJobs::AllowRoot),
        ] {
            assert_eq!(rule(&[&format!("--watch-tfjobs={value}")]), Ok(expected), "{value}");
        }
        assert_eq!(rule(&["--watch-tfjobs=root"]), Err(clap::error::ErrorKind::InvalidValue));
    }

    #[test]
    fn a_size_is_a_number_with_a_unit() {
        assert_eq!(bytes("10GiB"), Ok(10 << 30));
        assert_eq!(bytes("500 MiB"), Ok(500 << 20));
        for bad in ["", "5", "GiB", "-1GiB", "1.5GiB", "10GB", "99999999999TiB"] {
            assert!(bytes(bad).is_err(), "{bad:?} was accepted as a size");
        }
    }
}
