//! All settings: their help, defaults, variables and flags.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use protocol::duration::WholeSeconds;
use protocol::elastic::{WorkerNum, Workers};
use protocol::env::{MUSTER_TERMINATION_GRACE_SECONDS, MUSTER_TOKEN_SHA256};

use super::join::JoinFlags;
use super::{Config, Folders, Supervision, UsageError};
use crate::process::environment::Environment;

/// The `--help` text.
pub const HELP: &str = "\
Starts a command with an environment that it gets by HTTP, keeps the output and reports how the command ended.

Usage: agent [OPTIONS] [-- COMMAND...]

  COMMAND...                         Command that each run executes; the value of the variable is split at spaces [default: python exec.py] [env: MUSTER_COMMAND]
      --listen ADDR                  Address and port for HTTP; port 0 means any free port, and [::] includes IPv4 [default: 127.0.0.1:7896; [::]:7896 with a token; the value of --address with --join] [env: MUSTER_LISTEN]
      --work-dir DIR                 Working directory of the command [default: .] [env: MUSTER_WORK_DIR]
      --code-dir DIR                 Folder for the job's code while it arrives, on the file system of --work-dir. Agents that share a --work-dir need different ones [default: .muster in --work-dir]
      --entrypoint WORD              Word to put in front of the command, such as an image's own ENTRYPOINT; repeatable
      --log-bytes N                  Newest bytes to keep in each of three logs: stdout, stderr, and both together [default: 16777216] [env: MUSTER_LOG_BYTES]
      --linger SECONDS               How long the agent waits for a request after a run has ended, before it exits; with --join, how long it waits for an answer of the master while nothing runs [default: 600] [env: MUSTER_LINGER]
      --termination-grace SECONDS    Time between the SIGTERM and the SIGKILL that the agent gets; the run gets most of this time [default: 30] [env: MUSTER_TERMINATION_GRACE_SECONDS]
      --termination-log FILE         Existing file that receives the report of a run's end [default: /dev/termination-log unless supervised] [env: MUSTER_TERMINATION_LOG]
      --token-sha256 HEX             SHA-256 of the bearer token that requests must carry [default: no token needed] [env: MUSTER_TOKEN_SHA256]
      --supervised                   Print only the agent's address on stdout, and not the run's output; exit when stdin is closed [env: MUSTER_SUPERVISED]
      --install FILE                 Copy this program to FILE and exit
  -h, --help                         Print this help
  -V, --version                      Print the version

On a bare machine, without a cluster:
      --join URL                     Join a job of this master, such as http://10.0.0.1:7897
      --task NAME                    The job's name. The first agent that joins also submits the job
      --worker-num MIN:MAX           Minimum and maximum number of machines of the job; one number means both
      --nproc-per-node N|gpu         Number of processes of the command on each machine, 1 to 64, or one for each GPU of this machine (/dev/nvidia0 and so on). Each process has a rank of its own [default: 1]
      --address HOST:PORT            Address at which the master and the other machines reach this machine [default: the address from which this machine connects to the master, port 7896]
      --lease DURATION               How long a machine may be silent before the master treats it as lost. If the master sends no request for three times as long, the machine's agent kills the script [default: 5s]
      --max-restarts N               Maximum restarts after failures of scripts; lost machines do not count [default: 3]
      --monitor-interval SECONDS     Has no effect: the agent waits for events. Accepted because torchrun's launch commands use it

MUSTER_TOKEN is the master's token, if the master needs one. torchrun's names of these flags, such as
--rdzv_endpoint, --rdzv_id, --nnodes and --nproc_per_node, are also accepted.

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
  If the job and this agent's last run did not succeed, or if the agent ended before the job: that of this run, as above
";

/// The variable of the command. Its value is split at spaces.
const COMMAND: &str = "MUSTER_COMMAND";

/// The other variables, and the names of the flags that override them.
const VARIABLES: [(&str, &str); 8] = [
    ("MUSTER_LISTEN", "listen"),
    ("MUSTER_WORK_DIR", "work-dir"),
    ("MUSTER_LOG_BYTES", "log-bytes"),
    ("MUSTER_LINGER", "linger"),
    (MUSTER_TERMINATION_GRACE_SECONDS, "termination-grace"),
    ("MUSTER_TERMINATION_LOG", "termination-log"),
    (MUSTER_TOKEN_SHA256, "token-sha256"),
    ("MUSTER_SUPERVISED", SUPERVISED),
];

/// The name of the only flag without a value. As a flag, it means the value `1`.
pub(super) const SUPERVISED: &str = "supervised";

/// Longest time that can be set: a year.
const SECONDS_MAX: u64 = 366 * 86_400;

/// The settings that flags and variables have changed so far.
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) join: JoinFlags,
}

impl Settings {
    /// The defaults, overridden by variables.
    pub(super) fn from_variables(environment: &Environment) -> Result<Self, UsageError> {
        let config = Config {
            listen: None,
            folders: Folders { work_dir: PathBuf::from("."), code_dir: None },
            log_bytes: NonZeroU64::new(16 * 1024 * 1024).expect("16 MiB is not zero"),
            linger: Duration::from_secs(600),
            termination_grace: Duration::from_secs(30),
            termination_log: None,
            token: None,
            supervision: Supervision::Pod,
            join: None,
            entrypoint: vec![],
            command: vec!["python".into(), "exec.py".into()],
            environment: Environment::new(),
        };
        let mut settings = Self { config, join: JoinFlags::default() };
        if let Some(command) = environment.get(OsStr::new(COMMAND)) {
            settings.config.command = command.to_string_lossy().split_whitespace().map(OsString::from).collect();
        }
        for (variable, flag) in VARIABLES {
            if let Some(text) = environment.get(OsStr::new(variable)) {
                settings.set(flag, || Ok(Given { origin: variable.to_owned(), text: text.clone() }))?;
            }
        }
        Ok(settings)
    }

    /// Changes the setting of this flag to a value. Returns false, without calling `value`, if there is no such flag.
    pub(super) fn set(
        &mut self,
        flag: &str,
        value: impl FnOnce() -> Result<Given, UsageError>,
    ) -> Result<bool, UsageError> {
        let Self { config, join } = self;
        match flag {
            "listen" => config.listen = Some(value()?.parsed("an address and port, such as 0.0.0.0:7896")?),
            "work-dir" => config.folders.work_dir = value()?.text.into(),
            "code-dir" => config.folders.code_dir = Some(value()?.text.into()),
            "entrypoint" => config.entrypoint.push(value()?.text),
            "log-bytes" => config.log_bytes = value()?.log_bytes()?,
            "linger" => config.linger = value()?.seconds()?,
            "termination-grace" => config.termination_grace = value()?.seconds()?,
            "termination-log" => config.termination_log = Some(value()?.text.into()),
            "token-sha256" => config.token = Some(value()?.parsed("64 hexadecimal digits")?),
            SUPERVISED => config.supervision = value()?.supervision()?,
            "join" => join.master = Some(value()?.parsed("http://HOST:PORT")?),
            "task" => join.task = Some(join.note(value()?).parsed("a job's name of a-z, 0-9 and -, such as train-1")?),
            "worker-num" => {
                let given = join.note(value()?);
                let WorkerNum { min, max } = given.parsed("a number such as 2, or MIN:MAX such as 1:2")?;
                join.options.workers = Some(Workers { min: min.unwrap_or(max), max });
            }
            "nproc-per-node" => {
                join.options.nproc_per_node = Some(join.note(value()?).parsed("a number from 1 to 64, or gpu")?);
            }
            "address" => join.options.address = Some(join.note(value()?).parsed("HOST:PORT")?),
            "lease" => join.options.lease_seconds = Some(join.note(value()?).whole_seconds()?),
            "max-restarts" => join.options.max_restarts = Some(join.note(value()?).parsed("a whole number")?),
            "monitor-interval" => {
                let _: f64 = join.note(value()?).parsed("a number of seconds")?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl JoinFlags {
    /// Notes a value of a flag that has no meaning without --join.
    fn note(&mut self, given: Given) -> Given {
        self.other.get_or_insert_with(|| given.origin.clone());
        given
    }
}

/// A value for one setting, and its origin.
pub(super) struct Given {
    /// The flag or variable.
    pub(super) origin: String,
    /// Its value.
    pub(super) text: OsString,
}

impl Given {
    pub(super) fn parsed<T: FromStr>(&self, expected: &'static str) -> Result<T, UsageError> {
        let parsed = self.text.to_str().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| self.invalid(expected))
    }

    fn invalid(&self, expected: &'static str) -> UsageError {
        UsageError::Value { origin: self.origin.clone(), text: self.text.clone(), expected }
    }

    fn log_bytes(&self) -> Result<NonZeroU64, UsageError> {
        let expected = "a number of bytes from 1 to 9223372036854775807";
        let bytes: NonZeroU64 = self.parsed(expected)?;
        // No file is longer than `i64::MAX`, and offsets must not overflow.
        let fits = i64::try_from(bytes.get()).is_ok();
        if fits { Ok(bytes) } else { Err(self.invalid(expected)) }
    }

    fn seconds(&self) -> Result<Duration, UsageError> {
        let expected = "a number of seconds from 0 to one year";
        let seconds = Duration::try_from_secs_f64(self.parsed(expected)?).map_err(|_| self.invalid(expected))?;
        if seconds.as_secs() <= SECONDS_MAX { Ok(seconds) } else { Err(self.invalid(expected)) }
    }

    /// A number alone means seconds, as in the other flags of the agent.
    fn whole_seconds(&self) -> Result<u32, UsageError> {
        let expected = "a duration of whole seconds, such as 5s";
        self.parsed(expected).or_else(|_| self.parsed::<WholeSeconds>(expected).map(|WholeSeconds(seconds)| seconds))
    }

    fn supervision(&self) -> Result<Supervision, UsageError> {
        match self.text.to_str() {
            Some("1" | "true") => Ok(Supervision::Parent),
            Some("" | "0" | "false") => Ok(Supervision::Pod),
            Some(_) | None => Err(self.invalid("1, true, 0 or false")),
        }
    }
}
