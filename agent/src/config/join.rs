//! The settings of an agent that joins a job from a bare machine, and the rules for their combinations. Also accepts
//! the spellings of flags in launch commands of torchrun and tensorflow_elastic.

use std::str::FromStr;

use hyper::Uri;
use protocol::elastic::Workers;
use protocol::ids::JobName;
use protocol::processes::NprocPerNode;

use super::{Config, Supervision, UsageError};

/// How to join a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The master.
    pub master: Endpoint,
    /// The master's token, if it needs one.
    pub token: Option<String>,
    /// The job.
    pub task: JobName,
    /// The settings that have defaults.
    pub options: JoinOptions,
}

/// The optional settings of an agent that joins a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinOptions {
    /// The address of this machine for the master and the other members.
    pub address: Option<Endpoint>,
    /// How many workers the job may have.
    pub workers: Option<Workers>,
    /// How many processes of the script each machine runs.
    pub nproc_per_node: Option<NprocPerNode>,
    /// The job's lease.
    pub lease_seconds: Option<u32>,
    /// The job's budget of restarts.
    pub max_restarts: Option<u32>,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// `None`: the default port of the program that listens there.
    pub port: Option<u16>,
}

/// The text has no host, or contains more than host and port.
#[derive(Debug, thiserror::Error)]
#[error("not HOST:PORT")]
pub struct BadEndpoint;

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    /// Also parses a URL, `http://HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url: Uri = url.parse().map_err(|_| BadEndpoint)?;
        let is_plain = url.scheme_str() == Some("http") && url.path() == "/" && url.query().is_none();
        let authority = url.authority().filter(|authority| is_plain && !authority.as_str().contains('@'));
        let authority = authority.ok_or(BadEndpoint)?;
        let port = authority.port_u16();
        if authority.host().is_empty() || port.is_none() && authority.host() != authority.as_str() {
            return Err(BadEndpoint);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port })
    }
}

/// The flags that concern joining.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JoinFlags {
    pub(super) master: Option<Endpoint>,
    pub(super) task: Option<JobName>,
    pub(super) options: JoinOptions,
    /// The first given flag that has no meaning without --join.
    pub(super) other: Option<String>,
}

impl JoinFlags {
    /// Returns how to join a job, or `None` without --join. `token` is the master's token.
    pub(super) fn checked(self, config: &Config, token: Option<String>) -> Result<Option<Join>, UsageError> {
        let refuse = |sentence: String| Err(UsageError::Combination(sentence));
        let Self { master, task, options, other } = self;
        let Some(master) = master else {
            return other.map_or(Ok(None), |flag| refuse(format!("{flag} has no meaning without --join")));
        };
        let Some(task) = task else { return refuse("--join needs --task NAME, the name of the job".to_owned()) };
        if config.supervision == Supervision::Parent {
            return refuse("--supervised has no meaning with --join".to_owned());
        }
        if config.token.is_some() {
            return refuse(
                "--token-sha256 has no meaning with --join: the master chooses the agent's token".to_owned(),
            );
        }
        if token.as_ref().is_some_and(|token| token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return refuse("MUSTER_TOKEN is empty, or contains characters other than visible ASCII".to_owned());
        }
        Ok(Some(Join { master, token, task, options }))
    }
}

/// The name of a flag in the spelling of the help. Accepts underscores, and some of torchrun's names.
pub(super) fn canonical(name: &str) -> String {
    let name = name.replace('_', "-");
    let known = match name.as_str() {
        "rdzv-endpoint" => "join",
        "rdzv-id" => "task",
        "nnodes" => "worker-num",
        _ => return name,
    };
    known.to_owned()
}
