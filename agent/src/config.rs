//! What the agent is told when it is started: flags, then the environment, then defaults. The only reader of the
//! environment.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::{Arg, Parser};
use protocol::env::{MUSTER_PREFIX, MUSTER_TOKEN_SHA256 as TOKEN_SHA256};
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
      --listen ADDR      Address and port for HTTP; port 0 takes a free one [default: 0.0.0.0:7896] [env: MUSTER_LISTEN]
      --work-dir DIR     Working directory of the command [default: the current one] [env: MUSTER_WORK_DIR]
      --log-bytes N      How much output is kept of each stream, in bytes [default: 16777216] [env: MUSTER_LOG_BYTES]
      --linger SECONDS   How long to stay after a run when nobody asks anything [default: 600] [env: MUSTER_LINGER]
      --grace SECONDS    From SIGTERM to SIGKILL when the agent itself is told to end [default: 10] [env: MUSTER_GRACE]
      --token-sha256 HEX SHA-256 of the bearer token that requests must carry [default: none needed] [env: MUSTER_TOKEN_SHA256]
      --supervised       Print the address on stdout, no output, and end when stdin does [env: MUSTER_SUPERVISED]
  -h, --help             Print this
  -V, --version          Print the version
";

const LISTEN: &str = "MUSTER_LISTEN";
const WORK_DIR: &str = "MUSTER_WORK_DIR";
const LOG_BYTES: &str = "MUSTER_LOG_BYTES";
const LINGER: &str = "MUSTER_LINGER";
const GRACE: &str = "MUSTER_GRACE";
const SUPERVISED: &str = "MUSTER_SUPERVISED";
const COMMAND: &str = "MUSTER_COMMAND";

/// The agent's own variables.
const OWN: [&str; 8] = [LISTEN, WORK_DIR, LOG_BYTES, LINGER, GRACE, TOKEN_SHA256, SUPERVISED, COMMAND];

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
    /// From SIGTERM to SIGKILL when the agent is told to end.
    pub grace: Duration,
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
    let mut settings = Settings::default();
    settings.read_environment(&environment)?;
    let (flags, command) = split_at_dashes(arguments);
    if let Some(command) = command {
        settings.command = command;
    }
    let mut parser = Parser::from_args(flags);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("listen") => settings.set(LISTEN, "--listen", &parser.value()?)?,
            Arg::Long("work-dir") => settings.set(WORK_DIR, "--work-dir", &parser.value()?)?,
            Arg::Long("log-bytes") => settings.set(LOG_BYTES, "--log-bytes", &parser.value()?)?,
            Arg::Long("linger") => settings.set(LINGER, "--linger", &parser.value()?)?,
            Arg::Long("grace") => settings.set(GRACE, "--grace", &parser.value()?)?,
            Arg::Long("token-sha256") => settings.set(TOKEN_SHA256, "--token-sha256", &parser.value()?)?,
            Arg::Long("supervised") => settings.supervision = Supervision::Parent,
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Short(_) | Arg::Long(_) | Arg::Value(_) => return Err(argument.unexpected().into()),
        }
    }
    settings.into_config(environment).map(|config| Invocation::Agent(Box::new(config)))
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
    let agent = number(shim::FLAG, &text, "a process id")?;
    let command = command.filter(|command| !command.is_empty()).ok_or(UsageError::NoCommand)?;
    Ok(Invocation::Shim(Shim { agent, command }))
}

/// A [`Config`] in the making.
struct Settings {
    listen: SocketAddr,
    work_dir: PathBuf,
    log_bytes: NonZeroU64,
    linger: Duration,
    grace: Duration,
    token: Option<TokenHash>,
    supervision: Supervision,
    command: Vec<OsString>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, AGENT_PORT).into(),
            work_dir: PathBuf::from("."),
            log_bytes: NonZeroU64::new(16 * 1024 * 1024).expect("it is not zero"),
            linger: Duration::from_secs(600),
            grace: Duration::from_secs(10),
            token: None,
            supervision: Supervision::Pod,
            command: ["python", "exec.py"].map(OsString::from).to_vec(),
        }
    }
}

impl Settings {
    fn read_environment(&mut self, environment: &Environment) -> Result<(), UsageError> {
        for variable in OWN {
            if let Some(value) = environment.get(OsStr::new(variable)) {
                self.set(variable, variable, value)?;
            }
        }
        Ok(())
    }

    /// Sets what `variable` is the name of, to what `origin`, itself or a flag, says.
    fn set(&mut self, variable: &str, origin: &'static str, text: &OsStr) -> Result<(), UsageError> {
        match variable {
            LISTEN => self.listen = number(origin, text, "an address and port, such as 0.0.0.0:7896")?,
            WORK_DIR => self.work_dir = PathBuf::from(text),
            LOG_BYTES => self.log_bytes = log_bytes(origin, text)?,
            LINGER => self.linger = seconds(origin, text)?,
            GRACE => self.grace = seconds(origin, text)?,
            TOKEN_SHA256 => self.token = Some(number(origin, text, "64 hexadecimal digits")?),
            SUPERVISED => self.supervision = supervision(origin, text)?,
            COMMAND => self.command = text.to_string_lossy().split_whitespace().map(OsString::from).collect(),
            _ => unreachable!("{variable} is none of the agent's own"),
        }
        Ok(())
    }

    fn into_config(self, mut environment: Environment) -> Result<Config, UsageError> {
        let Self { listen, work_dir, log_bytes, linger, grace, token, supervision, command } = self;
        if command.is_empty() {
            return Err(UsageError::NoCommand);
        }
        // A master's too, where one has started this agent: what exec.py is told of its job comes by `/config`.
        environment.retain(|name, _| !name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes()));
        Ok(Config { listen, work_dir, log_bytes, linger, grace, token, supervision, command, environment })
    }
}

fn number<T: FromStr>(origin: &'static str, text: &OsStr, expected: &'static str) -> Result<T, UsageError> {
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| UsageError::Value { origin, text: text.to_owned(), expected })
}

fn log_bytes(origin: &'static str, text: &OsStr) -> Result<NonZeroU64, UsageError> {
    let expected = "a number of bytes, at least 1";
    let bytes: NonZeroU64 = number(origin, text, expected)?;
    // A file cannot be longer than this, and offsets must not overflow.
    let fits = i64::try_from(bytes.get()).is_ok();
    if fits { Ok(bytes) } else { Err(UsageError::Value { origin, text: text.to_owned(), expected }) }
}

fn seconds(origin: &'static str, text: &OsStr) -> Result<Duration, UsageError> {
    let expected = "a number of seconds, a year at most";
    let bad = || UsageError::Value { origin, text: text.to_owned(), expected };
    let duration = Duration::try_from_secs_f64(number(origin, text, expected)?).map_err(|_| bad())?;
    if duration.as_secs() <= SECONDS_MAX { Ok(duration) } else { Err(bad()) }
}

fn supervision(origin: &'static str, text: &OsStr) -> Result<Supervision, UsageError> {
    match text.to_str() {
        Some("1" | "true") => Ok(Supervision::Parent),
        Some("" | "0" | "false") => Ok(Supervision::Pod),
        Some(_) | None => Err(UsageError::Value { origin, text: text.to_owned(), expected: "1, true, 0 or false" }),
    }
}
