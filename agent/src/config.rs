//! What the agent is told when it is started: flags, then the environment, then defaults. The only reader of the
//! environment.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::{Arg, Parser};
use protocol::env::{MUSTER_PREFIX, MUSTER_TERMINATION_GRACE_SECONDS, MUSTER_TOKEN_SHA256};
use protocol::routes::AGENT_PORT;

use crate::http::TokenHash;
use crate::run::environment::Environment;
use crate::shim::{self, Shim};

/// What `--help` prints.
pub const HELP: &str = "\
Takes an environment by HTTP, starts a command with it, keeps its output and says how it ended.

Usage: agent [OPTIONS] [-- COMMAND...]

COMMAND is what a run is; python exec.py unless given [env: MUSTER_COMMAND, split at spaces]

Options:
      --listen ADDR                Address and port for HTTP; port 0 takes a free one [default: 0.0.0.0:7896] [env: MUSTER_LISTEN]
      --work-dir DIR               Working directory of the command [default: the current one] [env: MUSTER_WORK_DIR]
      --entrypoint WORD            Word to put in front of the command, such as an image's own ENTRYPOINT; repeatable
      --log-bytes N                How much output is kept of each stream, in bytes [default: 16777216] [env: MUSTER_LOG_BYTES]
      --linger SECONDS             How long to stay after a run when nobody asks anything [default: 600] [env: MUSTER_LINGER]
      --termination-grace SECONDS  From SIGTERM to SIGKILL for the agent itself; its run gets most of it [default: 30] [env: MUSTER_TERMINATION_GRACE_SECONDS]
      --termination-log FILE       Where to leave how the run ended; never created [default: /dev/termination-log unless supervised] [env: MUSTER_TERMINATION_LOG]
      --token-sha256 HEX           SHA-256 of the bearer token that requests must carry [default: none needed] [env: MUSTER_TOKEN_SHA256]
      --supervised                 Print the address on stdout, no output, and end when stdin does [env: MUSTER_SUPERVISED]
  -h, --help                       Print this
  -V, --version                    Print the version

It exits as its last run did, with 128 plus the signal's number if a signal ended that run, with 126 if not a line of it
ran, with 143 if it was stopped before it was started, with 0 if there was no run, and with 2 if the agent itself could
not start: a bad command line, a port that is taken.
";

/// Where Kubernetes looks for a container's last words unless its pod says otherwise (`terminationMessagePath`).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Longest time that can be set: a year.
const SECONDS_MAX: u64 = 366 * 86_400;

/// Where the agent gets its orders from and to whom it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervision {
    /// It is a pod's process 1: its stdout and stderr are the pod's log.
    Pod,
    /// It is a child of a master, to which its stdin and stdout are pipes.
    Parent,
}

/// How the agent is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The working directory of the command.
    pub work_dir: PathBuf,
    /// How much output is kept of each stream.
    pub log_bytes: NonZeroU64,
    /// How long to stay after a run when nobody asks anything.
    pub linger: Duration,
    /// From SIGTERM to SIGKILL for the agent itself.
    pub termination_grace: Duration,
    /// Where to leave how the run ended.
    pub termination_log: Option<PathBuf>,
    /// Who may ask; everyone when absent.
    pub token: Option<TokenHash>,
    /// To whom it belongs.
    pub supervision: Supervision,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// What the command inherits.
    pub environment: Environment,
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
    /// Nothing to run.
    #[error("no command stands behind --")]
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
    let mut config = Config::default();
    config.read_variables(&environment)?;
    let (flags, command) = split_at_dashes(arguments);
    if let Some(command) = command {
        config.command = command;
    }
    let mut entrypoint = Vec::new();
    let mut parser = Parser::from_args(flags);
    while let Some(argument) = parser.next()? {
        let setting = match argument {
            Arg::Long("entrypoint") => {
                entrypoint.push(parser.value()?);
                continue;
            }
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
    config.command.splice(..0, entrypoint);
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

/// One thing that can be set.
struct Setting {
    /// How the command line says it.
    flag: Flag,
    /// How the environment says it.
    variable: &'static str,
    /// Makes a configuration be as was said.
    set: fn(&mut Config, Given<'_>) -> Result<(), UsageError>,
}

/// A flag, with its dashes.
enum Flag {
    /// Its value stands behind it.
    Valued(&'static str),
    /// It is there or not; being there, it says `1`.
    Switch(&'static str),
    /// None: the command stands behind `--`.
    Dashes,
}

/// Everything that can be set.
const SETTINGS: [Setting; 9] = [
    Setting {
        flag: Flag::Valued("--listen"),
        variable: "MUSTER_LISTEN",
        set: |config, given| {
            given.parsed("an address and port, such as 0.0.0.0:7896").map(|listen| config.listen = listen)
        },
    },
    Setting {
        flag: Flag::Valued("--work-dir"),
        variable: "MUSTER_WORK_DIR",
        set: |config, given| {
            config.work_dir = PathBuf::from(given.text);
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--log-bytes"),
        variable: "MUSTER_LOG_BYTES",
        set: |config, given| given.log_bytes().map(|bytes| config.log_bytes = bytes),
    },
    Setting {
        flag: Flag::Valued("--linger"),
        variable: "MUSTER_LINGER",
        set: |config, given| given.seconds().map(|linger| config.linger = linger),
    },
    Setting {
        flag: Flag::Valued("--termination-grace"),
        variable: MUSTER_TERMINATION_GRACE_SECONDS,
        set: |config, given| given.seconds().map(|grace| config.termination_grace = grace),
    },
    Setting {
        flag: Flag::Valued("--termination-log"),
        variable: "MUSTER_TERMINATION_LOG",
        set: |config, given| {
            config.termination_log = Some(PathBuf::from(given.text));
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--token-sha256"),
        variable: MUSTER_TOKEN_SHA256,
        set: |config, given| given.parsed("64 hexadecimal digits").map(|token| config.token = Some(token)),
    },
    Setting {
        flag: Flag::Switch("--supervised"),
        variable: "MUSTER_SUPERVISED",
        set: |config, given| given.supervision().map(|supervision| config.supervision = supervision),
    },
    Setting {
        flag: Flag::Dashes,
        variable: "MUSTER_COMMAND",
        set: |config, given| {
            config.command = given.text.to_string_lossy().split_whitespace().map(OsString::from).collect();
            Ok(())
        },
    },
];

impl Flag {
    /// Whether it has this name, which comes without dashes.
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Valued(flag) | Self::Switch(flag) => flag.strip_prefix("--") == Some(name),
            Self::Dashes => false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, AGENT_PORT).into(),
            work_dir: PathBuf::from("."),
            log_bytes: NonZeroU64::new(16 * 1024 * 1024).expect("it is not zero"),
            linger: Duration::from_secs(600),
            termination_grace: Duration::from_secs(30),
            termination_log: None,
            token: None,
            supervision: Supervision::Pod,
            command: ["python", "exec.py"].map(OsString::from).to_vec(),
            environment: Environment::new(),
        }
    }
}

impl Config {
    fn read_variables(&mut self, environment: &Environment) -> Result<(), UsageError> {
        for Setting { flag: _, variable, set } in &SETTINGS {
            if let Some(text) = environment.get(OsStr::new(variable)) {
                set(self, Given { origin: variable, text })?;
            }
        }
        Ok(())
    }

    /// Reads a flag whose name `parser` has just passed.
    fn read_flag(&mut self, setting: &Setting, parser: &mut Parser) -> Result<(), UsageError> {
        let Setting { flag, variable: _, set } = setting;
        match flag {
            Flag::Valued(flag) => set(self, Given { origin: flag, text: &parser.value()? }),
            Flag::Switch(flag) => set(self, Given { origin: flag, text: OsStr::new("1") }),
            Flag::Dashes => Ok(()),
        }
    }
}

/// What was said of one setting.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// The flag or variable.
    origin: &'static str,
    /// What stands there.
    text: &'a OsStr,
}

impl Given<'_> {
    fn parsed<T: FromStr>(self, expected: &'static str) -> Result<T, UsageError> {
        let parsed = self.text.to_str().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| self.is_not(expected))
    }

    fn is_not(self, expected: &'static str) -> UsageError {
        UsageError::Value { origin: self.origin, text: self.text.to_owned(), expected }
    }

    fn log_bytes(self) -> Result<NonZeroU64, UsageError> {
        let expected = "a number of bytes, at least 1";
        let bytes: NonZeroU64 = self.parsed(expected)?;
        // A file cannot be longer than this, and offsets must not overflow.
        let fits = i64::try_from(bytes.get()).is_ok();
        if fits { Ok(bytes) } else { Err(self.is_not(expected)) }
    }

    fn seconds(self) -> Result<Duration, UsageError> {
        let expected = "a number of seconds, a year at most";
        let seconds = Duration::try_from_secs_f64(self.parsed(expected)?).map_err(|_| self.is_not(expected))?;
        if seconds.as_secs() <= SECONDS_MAX { Ok(seconds) } else { Err(self.is_not(expected)) }
    }

    fn supervision(self) -> Result<Supervision, UsageError> {
        match self.text.to_str() {
            Some("1" | "true") => Ok(Supervision::Parent),
            Some("" | "0" | "false") => Ok(Supervision::Pod),
            Some(_) | None => Err(self.is_not("1, true, 0 or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Flag, HELP, SETTINGS};

    #[test]
    fn the_help_names_every_flag_and_every_variable() {
        for setting in &SETTINGS {
            let variable = setting.variable;
            let line = HELP.lines().find(|line| line.contains(&format!("[env: {variable}")));
            let line = line.unwrap_or_else(|| panic!("{variable} is not in the help"));
            match setting.flag {
                Flag::Valued(flag) | Flag::Switch(flag) => {
                    assert!(line.trim_start().starts_with(&format!("{flag} ")), "{line}");
                }
                Flag::Dashes => assert!(line.starts_with("COMMAND "), "{line}"),
            }
        }
    }
}
