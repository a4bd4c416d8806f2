//! Checks that a folder contains a script that this host's Python can parse. The check runs before anything is
//! created, so a script with a syntax error is never started.

use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use protocol::agent::PYTHONS;
use protocol::code::{CHECK_SYNTAX, CODE_BYTES_MAX, DOES_NOT_PARSE, ScriptPath, syntax_input};
use protocol::error::ErrorCode;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::orphans::Orphans;
use crate::backend::Refusal;

/// The fix for a Python that is missing or broken.
const PYTHON_HINT: &str = "put a Python 3 first on the master's PATH, as an activated virtual environment does";

/// Maximum time for Python to parse one file.
const PARSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Checks the script in this folder.
///
/// # Errors
/// A [`Refusal`] that says why the script cannot run.
pub(super) async fn check(work_dir: &Path, script: &ScriptPath, orphans: &Orphans) -> Result<(), Refusal> {
    let refused = |sentence| Refusal { code: ErrorCode::BadWorkDir, sentence };
    let path = work_dir.join(script.as_str());
    if !path.is_file() {
        return Err(refused(format!("there is no {script} in {}", work_dir.display())));
    }
    let content = read(&path).await.map_err(|error| refused(format!("{script} cannot be read: {error}")))?;
    if content.len() as u64 > CODE_BYTES_MAX {
        return Err(refused(format!("{script} has more than {CODE_BYTES_MAX} bytes")));
    }
    parse(work_dir, Some((script.as_str(), &content)), orphans).await
}

/// Reads a file, but at most one byte more than [`CODE_BYTES_MAX`].
async fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = vec![];
    File::open(path).await?.take(CODE_BYTES_MAX + 1).read_to_end(&mut content).await?;
    Ok(content)
}

/// Checks that Python works, before the job's script has arrived.
pub(super) async fn check_python(orphans: &Orphans) -> Result<(), Refusal> {
    parse(Path::new("/"), None, orphans).await
}

/// Parses the script with the Python that the agent will use. The choice of this Python may depend on the folder.
/// Without a script, only checks that Python works.
async fn parse(work_dir: &Path, script: Option<(&str, &[u8])>, orphans: &Orphans) -> Result<(), Refusal> {
    let input = syntax_input(script);
    let [python, python3] = PYTHONS;
    let parsed = async {
        match run(python, work_dir, &input, orphans).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => run(python3, work_dir, &input, orphans).await,
            parsed => parsed,
        }
    };
    match timeout(PARSE_TIMEOUT, parsed).await {
        Err(_) => {
            let work = script.map_or_else(|| "start".to_owned(), |(name, _)| format!("parse {name}"));
            let sentence = format!("python took longer than {} s to {work}", PARSE_TIMEOUT.as_secs());
            Err(Refusal { code: ErrorCode::BadWorkDir, sentence })
        }
        Ok(Err(error)) => {
            let sentence = format!("cannot start {} ({error}): {PYTHON_HINT}", PYTHONS.join(" or "));
            Err(Refusal { code: ErrorCode::NoPython, sentence })
        }
        Ok(Ok(output)) => verdict(&output),
    }
}

async fn run(python: &str, work_dir: &Path, input: &[u8], orphans: &Orphans) -> io::Result<Output> {
    let mut command = Command::new(python);
    command.args(CHECK_SYNTAX).current_dir(work_dir).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = orphans.start(&mut command)?;
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let write = async move {
        // This fails if Python ends early. The exit status then shows why.
        let _ = stdin.write_all(input).await;
    };
    tokio::join!(write, child.wait_with_output()).1
}

/// Interprets the exit status and the messages of Python.
fn verdict(output: &Output) -> Result<(), Refusal> {
    let (code, sentence) = match output.status.code() {
        Some(0) => return Ok(()),
        Some(DOES_NOT_PARSE) => {
            let wrong = String::from_utf8_lossy(&output.stdout);
            (ErrorCode::BadWorkDir, format!("the script does not parse: {wrong}"))
        }
        _ => {
            let reason = summary(&String::from_utf8_lossy(&output.stderr));
            (ErrorCode::NoPython, format!("python does not work ({}: {reason}): {PYTHON_HINT}", output.status))
        }
    };
    Err(Refusal { code, sentence })
}

/// The line of `stderr` that names the error. In a traceback of Python, this is the last line. Other programs, such as
/// pyenv, name the error in their first line.
fn summary(stderr: &str) -> String {
    let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = if stderr.contains("File \"") { lines.next_back() } else { lines.next() };
    line.unwrap_or("python gave no reason").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_broken_python_is_not_reported_as_a_bad_script() {
        let said = |code: i32, stderr: &str| {
            let status = ExitStatus::from_raw(code << 8);
            let refusal = verdict(&Output { status, stdout: vec![], stderr: stderr.into() }).unwrap_err();
            (refusal.code, refusal.sentence)
        };
        let (code, sentence) = said(127, "\npyenv: python: command not found\n\nNote: see its help\n");
        assert_eq!(code, ErrorCode::NoPython);
        assert!(sentence.starts_with("python does not work (exit status: 127: pyenv: python: command"), "{sentence}");
        let old = said(1, "  File \"<string>\", line 4\n    except OSError\nSyntaxError: invalid syntax\n").1;
        assert!(old.contains("(exit status: 1: SyntaxError: invalid syntax)"), "{old}");
        assert!(said(1, "").1.contains("(exit status: 1: python gave no reason)"));
    }
}
