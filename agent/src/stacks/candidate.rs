//! Decides whether a process may be asked for its stacks. The agent asks with the signal SIGSTKFLT, which ends a
//! process that has no handler for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::proc::status_line;

/// The number of SIGSTKFLT. No library uses this signal, and it has this number on x86 and ARM (signal(7)).
pub(super) const NUMBER: u32 = 16;

/// A younger process may be about to start another program. Until then, it has a handler, which it inherited or added.
/// The start of the program removes the handler, and a signal that then arrives ends the process.
const AGE_MIN: Duration = Duration::from_secs(1);

/// What the decision depends on.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) program: Option<PathBuf>,
    /// The kernel's letter for its state.
    pub(super) state: char,
    /// How the process treats the signal; `None` if that is unknown.
    pub(super) handling: Option<Handling>,
    /// The time since its fork.
    pub(super) age: Duration,
    pub(super) place: ProcessPlace,
}

/// The place of a process in its run.
#[derive(Debug, Clone)]
pub(super) enum ProcessPlace {
    Main,
    /// A descendant of the main process.
    Child {
        /// The main process's program, if it is known.
        of: Option<PathBuf>,
    },
}

/// How a process treats the signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handling {
    pub(super) has_handler: bool,
    pub(super) is_blocked: bool,
}

impl Handling {
    /// Reads `/proc/PID/status`.
    pub(super) fn in_status(status: &str) -> Option<Self> {
        let has = |name: &str| {
            let mask = u64::from_str_radix(status_line(status, name)?, 16).ok()?;
            Some(mask & (1 << (NUMBER - 1)) != 0)
        };
        Some(Self { has_handler: has("SigCgt")?, is_blocked: has("SigBlk")? })
    }
}

impl Candidate {
    /// Why the process must not get the signal.
    pub(super) fn why_not(&self) -> Option<String> {
        if matches!(self.state, 'Z' | 'X') {
            return Some("it has ended".to_owned());
        }
        let Some(name) = file_name(self.program.as_deref()) else {
            return Some("its program is unknown".to_owned());
        };
        if let ProcessPlace::Child { of } = &self.place {
            let is_same = self.program == *of;
            // If the main process is not Python, for example a shell, its children inherit no handler. So a handler in
            // a child that is Python is Python's own.
            let is_started = is_python(&name) && !file_name(of.as_deref()).is_some_and(|of| is_python(&of));
            if !is_same && !is_started {
                return Some(format!("{name} is another program than the script's Python"));
            }
        }
        match self.handling {
            // A handler is not enough: programs in Go have a handler for every signal, and this signal still ends them.
            _ if !is_python(&name) => Some(format!("{name} is not Python")),
            None => Some("the kernel does not show how the process handles signals".to_owned()),
            Some(Handling { has_handler: false, .. }) => Some(
                "its Python has no handler for stacks: it has just started, or runs with -I or -E, or has another \
                 sitecustomize.py (then `import muster` in the script adds the handler)"
                    .to_owned(),
            ),
            Some(_) if self.age < AGE_MIN => Some("it was started less than a second ago".to_owned()),
            Some(Handling { is_blocked: true, .. }) => Some("it blocks signals at present".to_owned()),
            Some(Handling { has_handler: true, is_blocked: false }) => None,
        }
    }
}

/// The name of a program's file, if the program is known.
pub(super) fn file_name(program: Option<&Path>) -> Option<String> {
    program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned())
}

fn is_python(name: &str) -> bool {
    name.starts_with("python") || name.starts_with("pypy")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLED: Handling = Handling { has_handler: true, is_blocked: false };

    fn main_process(program: &str) -> Candidate {
        let age = Duration::from_secs(1);
        Candidate { program: Some(program.into()), state: 'S', handling: Some(HANDLED), age, place: ProcessPlace::Main }
    }

    fn child(program: &str, of: &str, millis: u64) -> Candidate {
        let place = ProcessPlace::Child { of: Some(of.into()) };
        Candidate { age: Duration::from_millis(millis), place, ..main_process(program) }
    }

    #[test]
    fn only_a_process_with_a_handler_that_cannot_be_about_to_start_a_program_gets_the_signal() {
        let (python, shell) = ("/usr/bin/python3.11", "/bin/dash");
        let unhandled = Some(Handling { has_handler: false, is_blocked: false });
        let blocked = Some(Handling { is_blocked: true, ..HANDLED });
        for (candidate, reason) in [
            (main_process(python), None),
            (main_process("/opt/written-in-go"), Some("written-in-go is not Python")),
            (Candidate { program: None, ..main_process("") }, Some("its program is unknown")),
            (Candidate { handling: unhandled, ..main_process(python) }, Some("no handler for stacks")),
            (Candidate { handling: unhandled, ..main_process(shell) }, Some("dash is not Python")),
            (Candidate { handling: blocked, ..main_process(python) }, Some("blocks signals")),
            (Candidate { handling: None, ..main_process(python) }, Some("does not show")),
            (Candidate { state: 'Z', ..main_process(python) }, Some("has ended")),
            (Candidate { age: Duration::from_millis(999), ..main_process(python) }, Some("less than a second")),
            (child(python, python, 1000), None),
            (child(python, python, 999), Some("less than a second")),
            (child(shell, python, 5000), Some("dash is another program")),
            (child(python, shell, 5000), None),
            (child("/other/python3", python, 5000), Some("python3 is another program")),
            (child("/opt/app", "/opt/app", 5000), Some("app is not Python")),
        ] {
            let given = candidate.why_not();
            let is_expected = match (&given, reason) {
                (None, None) => true,
                (Some(given), Some(reason)) => given.contains(reason),
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(is_expected, "{candidate:?}: {given:?}");
        }
    }

    #[test]
    fn the_handling_is_read_from_bit_15() {
        let status = |caught: &str, blocked: &str| format!("SigBlk:\t{blocked}\nSigCgt:\t{caught}\n");
        let (none, sixteen, others) = ("0000000000000000", "0000000000008000", "ffffffffffff7fff");
        let read = |caught, blocked| Handling::in_status(&status(caught, blocked));
        assert_eq!(read(sixteen, none), Some(HANDLED));
        assert_eq!(read(others, sixteen), Some(Handling { has_handler: false, is_blocked: true }));
        assert_eq!(Handling::in_status("Name:\tx\n"), None);
    }
}
