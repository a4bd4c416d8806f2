//! How the agent is set up: flags first, then environment variables, then defaults. The only reader of the environment.

mod settings;

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};
use protocol::env::MUSTER_PREFIX;
use protocol::routes::AGENT_PORT;

use crate::http::TokenHash;
use crate::run::environment::Environment;
use crate::shim::{self, Shim};
use settings::{Default, Flag, Given, SETTINGS, Setting};

/// What `--help` prints before the settings.
const HELP_HEAD: &str = "\
Takes an environment by HTTP, starts a command with it, keeps its output and reports how it ended.

Usage: agent [OPTIONS] [-- COMMAND...]

";

/// What `--help` prints after them.
const HELP_TAIL: &str = "  -h, --help                         Print this help
  -V, --version                      Print the version

Examples:
  agent --work-dir examples/hello
  agent --listen 0.0.0.0:7896 -- python train.py --epochs 3

Exit status: that of the last run; 128 plus the signal's number if a signal ended it; 126 if it could not be started; 143
if it was stopped before it was started; 0 if there was no run; 2 if the agent could not start, because of a bad
command line or a port that is taken.
";

/// Where Kubernetes looks for a container's last words unless its pod says otherwise (`terminationMessagePath`).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Who starts and ends the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervision {
    /// A pod, whose process 1 it is: its stdout and stderr are the pod's log.
    Pod,
    /// A master, whose child it is: its stdin and stdout are pipes to the master.
    Parent,
}

/// How the agent is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, if that is set: see [`Config::addresses`].
    pub listen: Option<SocketAddr>,
    /// The working directory of the command.
    pub work_dir: PathBuf,
    /// Newest bytes to keep of each stream.
    pub log_bytes: NonZeroU64,
    /// How long to stay after a run without any request.
    pub linger: Duration,
    /// Time from SIGTERM to SIGKILL for the agent itself.
    pub termination_grace: Duration,
    /// The file to write how the run ended to.
    pub termination_log: Option<PathBuf>,
    /// The token that requests must carry, if any.
    pub token: Option<TokenHash>,
    /// Who starts and ends the agent.
    pub supervision: Supervision,
    /// Words to put in front of the command. They must end by becoming it, as a script with `exec "$@"` does.
    pub entrypoint: Vec<OsString>,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The environment that the command inherits.
    pub environment: Environment,
}

/// The `--help` text.
pub fn help() -> String {
    [HELP_HEAD, &settings::help(), HELP_TAIL].concat()
}

/// What the program is started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// To be an agent.
    Agent(Box<Config>),
    /// To become the command of a run.
    Shim(Shim),
    /// To print its help.
    Help,
    /// To print its version.
    Version,
}

/// Why the command line or the environment cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A flag that does not exist, lacks its value, or has one that it should not have.
    #[error(transparent)]
    Flags(#[from] lexopt::Error),
    /// A value that does not parse.
    #[error("{origin}: {text:?} is not {expected}")]
    Value {
        /// The flag or variable.
        origin: &'static str,
        /// What stood there.
        text: OsString,
        /// What should.
        expected: &'static str,
    },
    /// `--` without a command.
    #[error("no command after --")]
    NoCommand,
}

/// Reads the process's own command line and environment.
///
/// # Errors
/// All of [`UsageError`].
pub fn from_process() -> Result<Invocation, UsageError> {
    #[expect(clippy::disallowed_methods, reason = "this is the place where the environment is read")]
    let environment = std::env::vars_os().collect();
    parse(std::env::args_os().skip(1).collect(), environment)
}

/// Understands a command line, without the program's name, and an environment.
///
/// # Errors
/// All of [`UsageError`].
pub fn parse(arguments: Vec<OsString>, environment: Environment) -> Result<Invocation, UsageError> {
    if arguments.first().is_some_and(|first| first == shim::FLAG) {
        return parse_shim(arguments);
    }
    let mut config = Config::preset()?;
    config.read_variables(&environment)?;
    let (flags, command) = split_at_dashes(arguments);
    if let Some(command) = command {
        config.command = command;
    }
    let mut parser = Parser::from_args(flags);
    while let Some(argument) = parser.next()? {
        let setting = match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Long(name) => SETTINGS.iter().find(|setting| setting.flag.is(name)),
            Arg::Short(_) | Arg::Value(_) => None,
        };
        match setting {
            Some(setting) => config.read_flag(setting, &mut parser)?,
            None => return Err(argument.unexpected().into()),
        }
    }
    if config.command.is_empty() {
        return Err(UsageError::NoCommand);
    }
    // A local agent may be inside somebody else's container, whose last words are not its own.
    if config.supervision == Supervision::Pod {
        config.termination_log.get_or_insert_with(|| PathBuf::from(TERMINATION_LOG));
    }
    config.environment = without_muster(environment);
    Ok(Invocation::Agent(Box::new(config)))
}

/// What exec.py inherits of an environment. Muster's variables go, also those of a master that has started this agent:
/// what exec.py is told of its job comes by `/config`.
fn without_muster(mut environment: Environment) -> Environment {
    environment.retain(|name, _| !name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes()));
    environment
}

/// Flags, and what stands behind the first `--`, if there is one.
fn split_at_dashes(mut arguments: Vec<OsString>) -> (Vec<OsString>, Option<Vec<OsString>>) {
    let dashes = arguments.iter().position(|argument| argument == "--");
    let command = dashes.map(|dashes| {
        let command = arguments.split_off(dashes + 1);
        arguments.truncate(dashes);
        command
    });
    (arguments, command)
}

/// Understands what [`crate::run::child`] calls this program with.
fn parse_shim(arguments: Vec<OsString>) -> Result<Invocation, UsageError> {
    let (flags, command) = split_at_dashes(arguments);
    let text = flags.get(1).cloned().unwrap_or_default();
    let agent = Given { origin: shim::FLAG, text: &text }.parsed("a process id")?;
    let command = command.filter(|command| !command.is_empty()).ok_or(UsageError::NoCommand)?;
    Ok(Invocation::Shim(Shim { agent, command }))
}

impl Config {
    /// The addresses to listen on: the first that this machine supports is used. Who can reach an agent can run programs
    /// by it. So without a token it takes connections from this machine alone, unless it is process 1 of a container,
    /// which has a network of its own.
    pub fn addresses(&self, is_first_process: bool) -> Vec<SocketAddr> {
        match self.listen {
            Some(address) => vec![address],
            None if self.token.is_some() || is_first_process => {
                vec![(Ipv6Addr::UNSPECIFIED, AGENT_PORT).into(), (Ipv4Addr::UNSPECIFIED, AGENT_PORT).into()]
            }
            None => vec![(Ipv4Addr::LOCALHOST, AGENT_PORT).into(), (Ipv6Addr::LOCALHOST, AGENT_PORT).into()],
        }
    }

    /// A configuration in which nothing is set but the defaults.
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

    /// Reads a flag whose name `parser` has just passed.
    fn read_flag(&mut self, setting: &Setting, parser: &mut Parser) -> Result<(), UsageError> {
        let Setting { flag, set, .. } = setting;
        match flag {
            Flag::Valued(flag, _) => set(self, Given { origin: flag, text: &parser.value()? }),
            Flag::Switch(flag) => set(self, Given { origin: flag, text: OsStr::new("1") }),
            Flag::Command => Ok(()),
        }
    }
}
