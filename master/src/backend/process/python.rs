//! Checks that a folder holds a script that this host's Python can parse. The check runs before anything is
//! created, so a script with a syntax error is never started.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use protocol::agent::PYTHONS;
use protocol::code::ScriptPath;
use protocol::error::ErrorCode;
use tokio::process::Command;
use tokio::time::timeout;

use crate::backend::Refusal;

/// The fix for a Python that is missing or broken.
const PYTHON_HINT: &str = "put a Python 3 first on the master's PATH, as an activated virtual environment does";

/// Maximum time for Python to parse one file.
const PARSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A Python program that parses the given file without running it. If the file is bad, the program exits with one of
/// the two codes below. Any other code, except 0, means that Python itself does not work.
const PARSE: &str = "
import ast, sys
try: text = open(sys.argv[1], 'rb').read()
except OSError as error: print(error.strerror, file=sys.stderr); sys.exit(66)
try: ast.parse(text, sys.argv[1])
except Exception: import traceback; traceback.print_exc(); sys.exit(65)
";
/// `EX_DATAERR` of sysexits.h.
const DOES_NOT_PARSE: i32 = 65;
/// `EX_NOINPUT` of sysexits.h.
const CANNOT_BE_READ: i32 = 66;

/// Checks the script in this folder.
///
/// # Errors
/// A [`Refusal`] that names the folder, Python, or the line that does not parse.
pub(super) async fn check(work_dir: &Path, script: &ScriptPath) -> Result<(), Refusal> {
    if !work_dir.join(script.as_str()).is_file() {
        let sentence = format!("there is no {script} in {}", work_dir.display());
        return Err(Refusal { code: ErrorCode::BadWorkDir, sentence });
    }
    parse(work_dir, script.as_str()).await
}

/// Checks that Python works. The script is not here yet.
///
/// # Errors
/// A [`Refusal`] that names Python.
pub(super) async fn check_python() -> Result<(), Refusal> {
    parse(Path::new("/"), "dev/null").await
}

async fn parse(work_dir: &Path, script: &str) -> Result<(), Refusal> {
    match timeout(PARSE_TIMEOUT, run(work_dir, script)).await {
        Err(_) => {
            let sentence = format!("python took longer than {} s to parse {script}", PARSE_TIMEOUT.as_secs());
            Err(Refusal { code: ErrorCode::BadWorkDir, sentence })
        }
        Ok(Err(error)) => {
            let sentence = format!("cannot start {} ({error}): {PYTHON_HINT}", PYTHONS.join(" or "));
            Err(Refusal { code: ErrorCode::NoPython, sentence })
        }
        Ok(Ok(output)) => verdict(script, output.status, &String::from_utf8_lossy(&output.stderr)),
    }
}

/// Parses the script with the Python that the agent will use.
async fn run(work_dir: &Path, script: &str) -> io::Result<Output> {
    let with = |python: &str| {
        let mut command = Command::new(python);
        command.args(["-I", "-S", "-c", PARSE, script]).current_dir(work_dir).stdin(Stdio::null());
        command.kill_on_drop(true).output()
    };
    let [python, python3] = PYTHONS;
    match with(python).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => with(python3).await,
        parsed => parsed,
    }
}

/// Interprets the exit status and the messages of Python.
fn verdict(script: &str, status: ExitStatus, stderr: &str) -> Result<(), Refusal> {
    // A traceback names the error in its last line. Other programs, such as pyenv, name it in their first line.
    let first_line = || stderr.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    let is_traceback = stderr.contains("File \"");
    let reason = first_line().filter(|_| !is_traceback).unwrap_or_else(|| summary(script, stderr));
    let (code, sentence) = match status.code() {
        Some(0) => return Ok(()),
        Some(DOES_NOT_PARSE) => {
            (ErrorCode::BadWorkDir, format!("{script} does not parse: {}", summary(script, stderr)))
        }
        Some(CANNOT_BE_READ) => (ErrorCode::BadWorkDir, format!("{script} cannot be read: {reason}")),
        _ => (ErrorCode::NoPython, format!("python does not work ({status}: {reason}): {PYTHON_HINT}")),
    };
    Err(Refusal { code, sentence })
}

/// The place and the kind of the error in Python's traceback.
fn summary(script: &str, traceback: &str) -> String {
    let lines = || traceback.lines().map(str::trim).filter(|line| !line.is_empty());
    let here = format!("File \"{script}\"");
    let place = lines().rfind(|line| line.starts_with(&here));
    let kind = lines().next_back().unwrap_or("python gave no reason");
    match place {
        Some(place) => format!("{kind} ({})", place.trim_start_matches("File ")),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_traceback_is_summed_up_by_its_place_and_kind() {
        let traceback = "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\n  File \"exec.py\", line 3\n    x = (\n        ^\nSyntaxError: '(' was never closed\n";
        assert_eq!(summary("exec.py", traceback), "SyntaxError: '(' was never closed (\"exec.py\", line 3)");
        assert_eq!(summary("exec.py", ""), "python gave no reason");
    }

    #[test]
    fn a_broken_python_is_not_reported_as_a_bad_script() {
        let said = |code: i32, stderr: &str| {
            let refusal = verdict("exec.py", ExitStatus::from_raw(code << 8), stderr).unwrap_err();
            (refusal.code, refusal.sentence)
        };
        let (code, sentence) = said(127, "\npyenv: python: command not found\n\nNote: see its help\n");
        assert_eq!(code, ErrorCode::NoPython);
        assert!(sentence.starts_with("python does not work (exit status: 127: pyenv: python: command"), "{sentence}");
        let old = said(1, "  File \"<string>\", line 4\n    except OSError\nSyntaxError: invalid syntax\n").1;
        assert!(old.contains("(exit status: 1: SyntaxError: invalid syntax)"), "{old}");
        let unreadable = "exec.py cannot be read: Permission denied".to_owned();
        assert_eq!(said(CANNOT_BE_READ, "Permission denied\n"), (ErrorCode::BadWorkDir, unreadable));
    }
}
