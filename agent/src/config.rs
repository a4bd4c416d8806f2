//! The agent's configuration. Flags override environment variables, and variables override defaults. Only this file
//! reads the environment.

pub mod join;
mod settings;

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};
use protocol::env::{KUBERNETES_SERVICE_HOST, MUSTER_PREFIX, MUSTER_SCRIPT_PREFIX};
use protocol::routes::AGENT_PORT;

use crate::process::environment::Environment;
use crate::process::shim::{self, Shim};
use crate::token::TokenHash;
use join::{Join, canonical};
pub use settings::HELP;
use settings::{Given, SUPERVISED, Settings};

/// The file of a container's termination message, if the pod has no `terminationMessagePath`.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Who starts and ends the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervision {
    /// A pod, in which the agent is process 1, or a user on a bare machine. The agent copies the run's output to its
    /// own stdout and stderr.
    Pod,
    /// A master. The agent is its child, and the agent's stdin and stdout are pipes to the master.
    Parent,
}

/// The agent's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The address to listen on. If it is `None`, see [`Config::addresses`].
    pub listen: Option<SocketAddr>,
    /// Where the command runs, and where its code arrives.
    pub folders: Folders,
    /// Number of newest bytes to keep of each stream.
    pub log_bytes: NonZeroU64,
    /// How long the agent waits for a request after a run has ended, before it exits. An agent that joins a job waits
    /// for an answer of the master instead.
    pub linger: Duration,
    /// The agent's supervisor sends SIGTERM, and after this time SIGKILL. Within this time, the agent stops its run.
    pub termination_grace: Duration,
    /// The file that receives the report of a run's end.
    pub termination_log: Option<PathBuf>,
    /// The hash of the token that requests must carry, if any.
    pub token: Option<TokenHash>,
    /// Who starts and ends the agent.
    pub supervision: Supervision,
    /// The job to join from a bare machine, if any.
    pub join: Option<Join>,
    /// Words to put in front of the command.
    pub entrypoint: Vec<OsString>,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The environment that the command inherits.
    pub environment: Environment,
}

/// The folders of the command and its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// The working directory of the command.
    pub work_dir: PathBuf,
    /// The folder for arriving code. Agents that share a working directory need different folders.
    pub code_dir: Option<PathBuf>,
}

/// What the command line asks the program to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Runs the agent.
    Agent(Box<Config>),
    /// Becomes the command of a run.
    Shim(Shim),
    /// Copies this program to another place.
    Install(PathBuf),
    /// Prints the help.
    Help,
    /// Prints the version.
    Version,
}

/// An invalid command line or environment.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// An unknown flag, or a flag with a missing or unexpected value.
    #[error(transparent)]
    Flags(#[from] lexopt::Error),
    /// A value that does not parse.
    #[error("{origin}: {text:?} is invalid: use {expected}")]
    Value {
        /// The flag or variable.
        origin: String,
        /// The value.
        text: OsString,
        /// The kind of value that is expected.
        expected: &'static str,
    },
    /// Flags that cannot be combined.
    #[error("{0}")]
    Combination(String),
    /// `--` without a command.
    #[error("no command after --")]
    NoCommand,
}

/// Reads the process's own command line and environment.
pub fn from_process() -> Result<Invocation, UsageError> {
    #[expect(clippy::disallowed_methods, reason = "this is the place where the environment is read")]
    let environment = std::env::vars_os().collect();
    parse(std::env::args_os().skip(1).collect(), environment)
}

/// Parses a command line, without the program's name, and an environment.
pub fn parse(arguments: Vec<OsString>, environment: Environment) -> Result<Invocation, UsageError> {
    if arguments.first().is_some_and(|first| first == shim::FLAG) {
        return parse_shim(arguments, &environment);
    }
    let mut settings = Settings::from_variables(&environment)?;
    let (flags, command) = split_at_dashes(arguments);
    let mut parser = Parser::from_args(flags);
    while let Some(argument) = parser.next()? {
        let flag = match &argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Long("install") => return Ok(Invocation::Install(parser.value()?.into())),
            Arg::Long(name) => canonical(name),
            Arg::Short(_) | Arg::Value(_) => return Err(argument.unexpected().into()),
        };
        let unexpected = argument.unexpected();
        let value = || {
            let text = if flag == SUPERVISED { "1".into() } else { parser.value()? };
            Ok(Given { origin: format!("--{flag}"), text })
        };
        if !settings.set(&flag, value)? {
            return Err(unexpected.into());
        }
    }
    let Settings { mut config, join } = settings;
    config.command = command.unwrap_or(config.command);
    if config.command.is_empty() {
        return Err(UsageError::NoCommand);
    }
    // The agent of a local master does not have this default. It may run in another program's container, and must not
    // write that container's termination message.
    if config.supervision == Supervision::Pod {
        config.termination_log.get_or_insert_with(|| PathBuf::from(TERMINATION_LOG));
    }
    let token = environment.get(OsStr::new("MUSTER_TOKEN")).map(|token| token.to_string_lossy().into_owned());
    config.join = join.checked(&config, token)?;
    config.environment = for_scripts(environment);
    Ok(Invocation::Agent(Box::new(config)))
}

/// Removes Muster's variables, because they configure the agent: exec.py gets its own `MUSTER_…` variables from the
/// body of `/config`. Also removes [`KUBERNETES_SERVICE_HOST`], because JAX would ask the cluster's API if that
/// variable were set. A variable with [`MUSTER_SCRIPT_PREFIX`] is passed on without this prefix.
fn for_scripts(mut environment: Environment) -> Environment {
    let of_script = |(name, value): (&OsString, &OsString)| {
        let name = name.as_bytes().strip_prefix(MUSTER_SCRIPT_PREFIX.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value.clone()))
    };
    let of_script: Vec<(OsString, OsString)> = environment.iter().filter_map(of_script).collect();
    environment.retain(|name, _| {
        name != KUBERNETES_SERVICE_HOST && !name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes())
    });
    environment.extend(of_script);
    environment
}

/// Splits the arguments at the first `--` into the flags and the command. Without `--`, the command is `None`.
fn split_at_dashes(mut arguments: Vec<OsString>) -> (Vec<OsString>, Option<Vec<OsString>>) {
    let dashes = arguments.iter().position(|argument| argument == "--");
    let command = dashes.map(|dashes| {
        let command = arguments.split_off(dashes + 1);
        arguments.truncate(dashes);
        command
    });
    (arguments, command)
}

/// Parses the arguments with which [`crate::process::child`] starts this program.
fn parse_shim(arguments: Vec<OsString>, environment: &Environment) -> Result<Invocation, UsageError> {
    let (flags, command) = split_at_dashes(arguments);
    let text = flags.get(1).cloned().unwrap_or_default();
    let agent = Given { origin: shim::FLAG.to_owned(), text }.parsed("a process id")?;
    let command = command.filter(|command| !command.is_empty()).ok_or(UsageError::NoCommand)?;
    let path = environment.get(OsStr::new("PATH")).cloned();
    Ok(Invocation::Shim(Shim { agent, command, path }))
}

impl Config {
    /// The addresses to listen on. The agent uses the first address that this machine supports. Without a token, the
    /// agent listens on loopback, because everyone who can connect can run any program.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self.listen {
            Some(address) => vec![address],
            None if self.token.is_some() => {
                vec![(Ipv6Addr::UNSPECIFIED, AGENT_PORT).into(), (Ipv4Addr::UNSPECIFIED, AGENT_PORT).into()]
            }
            None => vec![(Ipv4Addr::LOCALHOST, AGENT_PORT).into(), (Ipv6Addr::LOCALHOST, AGENT_PORT).into()],
        }
    }
}
