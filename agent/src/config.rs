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

use crate::run::environment::Environment;
use crate::shim::{self, Shim};
use crate::token::TokenHash;
use join::{Join, JoinFlags, canonical};
use settings::{Default, Flag, Given, Known, SETTINGS, Setting, find};

/// What `--help` prints before the settings.
const HELP_HEAD: &str = "\
Starts a command with an environment that it gets by HTTP, keeps the output and reports how the command ended.

Usage: agent [OPTIONS] [-- COMMAND...]

";

/// What `--help` prints before the settings of an agent that joins a job.
const HELP_MIDDLE: &str = "      --install FILE                 Copy this program to FILE and exit
  -h, --help                         Print this help
  -V, --version                      Print the version

On a bare machine, without a cluster:
";

/// What `--help` prints after all settings.
const HELP_TAIL: &str = "\
MUSTER_TOKEN is the master's token, if the master needs one. torchrun's names of these flags, such as
--rdzv_endpoint, --rdzv_id and --nnodes, are also accepted.

Examples:
  agent --work-dir examples/hello
  agent --listen 0.0.0.0:7896 -- python train.py --epochs 3
  agent --join http://10.0.0.1:7897 --task digits --worker-num 1:2 -- python train.py

Exit status: that of the last run, or
  128 plus the number of the signal that ended the run
  143  the run was stopped before it was started
  126  the run could not be started
  0    there was no run
  2    the agent could not start, for example because of a bad command line or a port that is taken

Exit status with --join:
  0    the job succeeded
  1    the job did not succeed, and this agent's last run succeeded or this agent had no run
  2    the agent could not join
  Otherwise that of this agent's last run, as above: if the job and this run did not succeed, or if the agent ended before the job
";

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
    /// The working directory of the command.
    pub work_dir: PathBuf,
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

/// The `--help` text.
pub fn help() -> String {
    [HELP_HEAD, &settings::help(), HELP_MIDDLE, &settings::help_of_join(), HELP_TAIL].concat()
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
        origin: &'static str,
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
    let mut config = Config::preset()?;
    config.read_variables(&environment)?;
    let (flags, command) = split_at_dashes(arguments);
    if let Some(command) = command {
        config.command = command;
    }
    let mut joining = JoinFlags::default();
    let mut parser = Parser::from_args(flags);
    while let Some(argument) = parser.next()? {
        let setting = match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Long("install") => return Ok(Invocation::Install(parser.value()?.into())),
            Arg::Long(name) => find(&canonical(name)),
            Arg::Short(_) | Arg::Value(_) => None,
        };
        match setting {
            Some(Known::Own(setting)) => config.read_flag(setting, &mut parser)?,
            Some(Known::OfJoin(setting)) => {
                (setting.set)(&mut joining, Given { origin: setting.flag, text: &parser.value()? })?
            }
            None => return Err(argument.unexpected().into()),
        }
    }
    if config.command.is_empty() {
        return Err(UsageError::NoCommand);
    }
    // The agent of a local master does not have this default. It may run in another program's container, and must not
    // write that container's termination message.
    if config.supervision == Supervision::Pod {
        config.termination_log.get_or_insert_with(|| PathBuf::from(TERMINATION_LOG));
    }
    let token = environment.get(OsStr::new("MUSTER_TOKEN")).map(|token| token.to_string_lossy().into_owned());
    config.join = joining.checked(&config, token)?;
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

/// Parses the arguments with which [`crate::run::child`] starts this program.
fn parse_shim(arguments: Vec<OsString>, environment: &Environment) -> Result<Invocation, UsageError> {
    let (flags, command) = split_at_dashes(arguments);
    let text = flags.get(1).cloned().unwrap_or_default();
    let agent = Given { origin: shim::FLAG, text: &text }.parsed("a process id")?;
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

    /// A configuration with the defaults only.
    fn preset() -> Result<Self, UsageError> {
        let mut config = Self {
            listen: None,
            work_dir: PathBuf::new(),
            log_bytes: NonZeroU64::MIN,
            linger: Duration::ZERO,
            termination_grace: Duration::ZERO,
            termination_log: None,
            token: None,
            supervision: Supervision::Pod,
            join: None,
            entrypoint: vec![],
            command: vec![],
            environment: Environment::new(),
        };
        for Setting { default, set, .. } in &SETTINGS {
            if let Default::Value(text) = default {
                set(&mut config, Given { origin: "default", text: OsStr::new(text) })?;
            }
        }
        Ok(config)
    }

    fn read_variables(&mut self, environment: &Environment) -> Result<(), UsageError> {
        for Setting { variable, set, .. } in &SETTINGS {
            let Some(variable) = variable else { continue };
            if let Some(text) = environment.get(OsStr::new(variable)) {
                set(self, Given { origin: variable, text })?;
            }
        }
        Ok(())
    }

    /// Applies a flag. `parser` has just read the flag's name, and reads the flag's value next.
    fn read_flag(&mut self, setting: &Setting, parser: &mut Parser) -> Result<(), UsageError> {
        let Setting { flag, set, .. } = setting;
        match flag {
            Flag::Valued(flag, _) => set(self, Given { origin: flag, text: &parser.value()? }),
            Flag::Switch(flag) => set(self, Given { origin: flag, text: OsStr::new("1") }),
            Flag::Command => Ok(()),
        }
    }
}
