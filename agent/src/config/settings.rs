//! All settings, each with its flag, variable, default and help.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use protocol::duration::WholeSeconds;
use protocol::elastic::{WorkerNum, Workers};
use protocol::env::{MUSTER_TERMINATION_GRACE_SECONDS, MUSTER_TOKEN_SHA256};

use super::join::JoinFlags;
use super::{Config, Supervision, UsageError};

/// Longest time that can be set: a year.
const SECONDS_MAX: u64 = 366 * 86_400;

/// Column of the help where a flag's description begins.
const HELP_COLUMN: usize = 37;

/// One setting.
pub(super) struct Setting {
    /// Its flag on the command line.
    pub(super) flag: Flag,
    /// Its environment variable, if it has one.
    pub(super) variable: Option<&'static str>,
    pub(super) default: Default,
    /// The help: a noun phrase or an imperative.
    pub(super) help: &'static str,
    /// Applies a value.
    pub(super) set: fn(&mut Config, Given<'_>) -> Result<(), UsageError>,
}

/// A flag, with its dashes.
pub(super) enum Flag {
    /// Takes a value. The second text is the value's name in the help.
    Valued(&'static str, &'static str),
    /// Takes no value. If the flag is given, the setting's value is `1`.
    Switch(&'static str),
    /// The command after `--`.
    Command,
}

/// The value if neither the flag nor the variable is set.
pub(super) enum Default {
    /// This value.
    Value(&'static str),
    /// A value that the help describes with these words.
    Described(&'static str),
    /// No value.
    Off,
}

/// Every setting, in the order of the help.
pub(super) static SETTINGS: [Setting; 10] = [
    Setting {
        flag: Flag::Command,
        variable: Some("MUSTER_COMMAND"),
        default: Default::Value("python exec.py"),
        help: "Command that each run executes; the value of the variable is split at spaces",
        set: |config, given| {
            config.command = given.text.to_string_lossy().split_whitespace().map(OsString::from).collect();
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--listen", "ADDR"),
        variable: Some("MUSTER_LISTEN"),
        default: Default::Described("127.0.0.1:7896; [::]:7896 with a token; the value of --address with --join"),
        help: "Address and port for HTTP; port 0 means any free port, and [::] includes IPv4",
        set: |config, given| {
            given.parsed("an address and port, such as 0.0.0.0:7896").map(|listen| config.listen = Some(listen))
        },
    },
    Setting {
        flag: Flag::Valued("--work-dir", "DIR"),
        variable: Some("MUSTER_WORK_DIR"),
        default: Default::Value("."),
        help: "Working directory of the command",
        set: |config, given| {
            config.work_dir = PathBuf::from(given.text);
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--entrypoint", "WORD"),
        variable: None,
        default: Default::Off,
        help: "Word to put in front of the command, such as an image's own ENTRYPOINT; repeatable",
        set: |config, given| {
            config.entrypoint.push(given.text.to_owned());
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--log-bytes", "N"),
        variable: Some("MUSTER_LOG_BYTES"),
        default: Default::Value("16777216"),
        help: "Newest bytes to keep in each of three logs: stdout, stderr, and both together",
        set: |config, given| given.log_bytes().map(|bytes| config.log_bytes = bytes),
    },
    Setting {
        flag: Flag::Valued("--linger", "SECONDS"),
        variable: Some("MUSTER_LINGER"),
        default: Default::Value("600"),
        help: "How long the agent waits for a request after a run has ended, before it exits; with --join, how long it waits for an answer of the master while nothing runs",
        set: |config, given| given.seconds().map(|linger| config.linger = linger),
    },
    Setting {
        flag: Flag::Valued("--termination-grace", "SECONDS"),
        variable: Some(MUSTER_TERMINATION_GRACE_SECONDS),
        default: Default::Value("30"),
        help: "Time between the SIGTERM and the SIGKILL that the agent gets; the run gets most of this time",
        set: |config, given| given.seconds().map(|grace| config.termination_grace = grace),
    },
    Setting {
        flag: Flag::Valued("--termination-log", "FILE"),
        variable: Some("MUSTER_TERMINATION_LOG"),
        default: Default::Described("/dev/termination-log unless supervised"),
        help: "Existing file that receives the report of a run's end",
        set: |config, given| {
            config.termination_log = Some(PathBuf::from(given.text));
            Ok(())
        },
    },
    Setting {
        flag: Flag::Valued("--token-sha256", "HEX"),
        variable: Some(MUSTER_TOKEN_SHA256),
        default: Default::Described("no token needed"),
        help: "SHA-256 of the bearer token that requests must carry",
        set: |config, given| given.parsed("64 hexadecimal digits").map(|token| config.token = Some(token)),
    },
    Setting {
        flag: Flag::Switch("--supervised"),
        variable: Some("MUSTER_SUPERVISED"),
        default: Default::Off,
        help: "Print only the agent's address on stdout, and not the run's output; exit when stdin is closed",
        set: |config, given| given.supervision().map(|supervision| config.supervision = supervision),
    },
];

/// One setting of an agent that joins a job. It has no variable.
pub(super) struct JoinSetting {
    /// Its flag, with its dashes.
    pub(super) flag: &'static str,
    /// The value's name in the help.
    value: &'static str,
    help: &'static str,
    /// Applies a value.
    pub(super) set: fn(&mut JoinFlags, Given<'_>) -> Result<(), UsageError>,
}

/// Every setting of an agent that joins a job, in the order of the help.
static JOIN_SETTINGS: [JoinSetting; 7] = [
    JoinSetting {
        flag: "--join",
        value: "URL",
        help: "Join a job of this master, such as http://10.0.0.1:7897",
        set: |flags, given| given.parsed("http://HOST:PORT").map(|master| flags.master = Some(master)),
    },
    JoinSetting {
        flag: "--task",
        value: "NAME",
        help: "The job's name. The first agent that joins also submits the job",
        set: |flags, given| {
            flags.note(given, "a job's name of a-z, 0-9 and -, such as train-1").map(|task| flags.task = Some(task))
        },
    },
    JoinSetting {
        flag: "--worker-num",
        value: "MIN:MAX",
        help: "Minimum and maximum number of machines of the job; one number means both",
        set: |flags, given| {
            let WorkerNum { min, max } = flags.note(given, "a number such as 2, or MIN:MAX such as 1:2")?;
            flags.options.workers = Some(Workers { min: min.unwrap_or(max), max });
            Ok(())
        },
    },
    JoinSetting {
        flag: "--address",
        value: "HOST:PORT",
        help: "Address at which the master and the other machines reach this machine [default: the address from which this machine connects to the master, port 7896]",
        set: |flags, given| flags.note(given, "HOST:PORT").map(|address| flags.options.address = Some(address)),
    },
    JoinSetting {
        flag: "--lease",
        value: "DURATION",
        help: "How long a machine may be silent before the master treats it as lost. If the master sends no request for three times as long, the machine's agent kills the script [default: 5s]",
        set: |flags, given| flags.note_seconds(given).map(|lease| flags.options.lease_seconds = Some(lease)),
    },
    JoinSetting {
        flag: "--max-restarts",
        value: "N",
        help: "Maximum restarts after failures of scripts; lost machines do not count [default: 3]",
        set: |flags, given| flags.note(given, WHOLE).map(|budget| flags.options.max_restarts = Some(budget)),
    },
    JoinSetting {
        flag: "--monitor-interval",
        value: "SECONDS",
        help: "Has no effect: the agent waits for events. Accepted because torchrun's launch commands use it",
        set: |flags, given| flags.note::<f64>(given, "a number of seconds").map(drop),
    },
];

const WHOLE: &str = "a whole number";

impl JoinFlags {
    /// Parses the value of a flag that has no meaning without --join.
    fn note<T: FromStr>(&mut self, given: Given<'_>, expected: &'static str) -> Result<T, UsageError> {
        self.other.get_or_insert(given.origin);
        given.parsed(expected)
    }

    /// Like `note`, for a duration of whole seconds.
    fn note_seconds(&mut self, given: Given<'_>) -> Result<u32, UsageError> {
        self.other.get_or_insert(given.origin);
        given.whole_seconds()
    }
}

/// A setting that the command line names.
pub(super) enum Known {
    /// A setting of every agent.
    Own(&'static Setting),
    /// A setting of an agent that joins a job.
    OfJoin(&'static JoinSetting),
}

/// The setting with this flag. `name` is the flag without its leading `--`.
pub(super) fn find(name: &str) -> Option<Known> {
    let own = SETTINGS.iter().find(|setting| setting.flag.is(name)).map(Known::Own);
    let of_join = || JOIN_SETTINGS.iter().find(|setting| setting.flag.strip_prefix("--") == Some(name));
    own.or_else(|| of_join().map(Known::OfJoin))
}

impl Flag {
    /// Whether the flag has this name. `name` is without the leading `--`.
    pub(super) fn is(&self, name: &str) -> bool {
        match self {
            Self::Valued(flag, _) | Self::Switch(flag) => flag.strip_prefix("--") == Some(name),
            Self::Command => false,
        }
    }

    /// The flag as the help shows it.
    fn usage(&self) -> String {
        match self {
            Self::Valued(flag, value) => format!("      {flag} {value}"),
            Self::Switch(flag) => format!("      {flag}"),
            Self::Command => "  COMMAND...".to_owned(),
        }
    }
}

/// The settings' part of `--help`.
pub(super) fn help() -> String {
    let mut text = String::new();
    for Setting { flag, variable, default, help, set: _ } in &SETTINGS {
        let default = match default {
            Default::Value(words) | Default::Described(words) => format!(" [default: {words}]"),
            Default::Off => String::new(),
        };
        let variable = variable.map(|variable| format!(" [env: {variable}]")).unwrap_or_default();
        let usage = flag.usage();
        writeln!(text, "{usage:HELP_COLUMN$}{help}{default}{variable}").expect("a String takes everything");
    }
    text
}

/// The part of `--help` about joining.
pub(super) fn help_of_join() -> String {
    let line = |JoinSetting { flag, value, help, set: _ }: &JoinSetting| {
        let usage = format!("      {flag} {value}");
        format!("{usage:HELP_COLUMN$}{help}\n")
    };
    JOIN_SETTINGS.iter().map(line).chain(["\n".to_owned()]).collect()
}

/// A value for one setting, and its origin.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// The flag or variable.
    pub(super) origin: &'static str,
    /// Its value.
    pub(super) text: &'a OsStr,
}

impl Given<'_> {
    pub(super) fn parsed<T: FromStr>(self, expected: &'static str) -> Result<T, UsageError> {
        let parsed = self.text.to_str().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| self.invalid(expected))
    }

    fn invalid(self, expected: &'static str) -> UsageError {
        UsageError::Value { origin: self.origin, text: self.text.to_owned(), expected }
    }

    fn log_bytes(self) -> Result<NonZeroU64, UsageError> {
        let expected = "a number of bytes from 1 to 9223372036854775807";
        let bytes: NonZeroU64 = self.parsed(expected)?;
        // No file is longer than `i64::MAX`, and offsets must not overflow.
        let fits = i64::try_from(bytes.get()).is_ok();
        if fits { Ok(bytes) } else { Err(self.invalid(expected)) }
    }

    fn seconds(self) -> Result<Duration, UsageError> {
        let expected = "a number of seconds from 0 to one year";
        let seconds = Duration::try_from_secs_f64(self.parsed(expected)?).map_err(|_| self.invalid(expected))?;
        if seconds.as_secs() <= SECONDS_MAX { Ok(seconds) } else { Err(self.invalid(expected)) }
    }

    /// A number alone means seconds, as in the other flags of the agent.
    fn whole_seconds(self) -> Result<u32, UsageError> {
        let expected = "a duration of whole seconds, such as 5s";
        self.parsed(expected).or_else(|_| self.parsed::<WholeSeconds>(expected).map(|WholeSeconds(seconds)| seconds))
    }

    fn supervision(self) -> Result<Supervision, UsageError> {
        match self.text.to_str() {
            Some("1" | "true") => Ok(Supervision::Parent),
            Some("" | "0" | "false") => Ok(Supervision::Pod),
            Some(_) | None => Err(self.invalid("1, true, 0 or false")),
        }
    }
}
