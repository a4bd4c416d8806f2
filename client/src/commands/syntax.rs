//! Lets Python on this machine check that code parses, before the client sends it. If the job's Python has another
//! version, the result may be wrong. So only the job's own script is refused, and a flag turns the check off.

use std::process::{Output, Stdio};
use std::time::Duration;

use protocol::code::{CHECK_SYNTAX, DOES_NOT_PARSE, ScriptPath, syntax_input};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::args::SyntaxArgs;
use crate::code::pack::{Packed, wrong_files};
use crate::ending::error::Error;

/// Maximum time for Python to parse files. After this time, the client sends the code unchecked.
const PARSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Refuses code whose script does not parse, unless the user has turned the check off.
pub(super) async fn check_submit(
    code: &Packed,
    script: &str,
    SyntaxArgs { no_syntax_check }: SyntaxArgs,
) -> Result<(), Error> {
    if no_syntax_check { Ok(()) } else { check_script(code, script).await }
}

/// Refuses code whose script does not parse. Checks only a script whose name ends in .py.
async fn check_script(code: &Packed, script: &str) -> Result<(), Error> {
    let checked = check(code.sources().filter(|(path, _)| *path == script)).await;
    let Some(wrong) = checked.mistake() else { return Ok(()) };
    let skip = "skip this check: push with --force, or submit with --no-syntax-check";
    Err(wrong_files(format!("the script does not parse: {wrong}"))
        .hint(format!("if the job's Python is newer than this machine's, {skip}")))
}

/// Checks all files of a push. Refuses code whose script does not parse, and returns a sentence about the first other file
/// that does not parse.
pub(super) async fn check_push(code: &Packed, script: &ScriptPath) -> Result<Option<String>, Error> {
    let (first, others): (Vec<_>, Vec<_>) = code.sources().partition(|(path, _)| *path == script.as_str());
    // Usually every file parses. Then one start of Python is enough.
    let checked = check(first.into_iter().chain(others)).await;
    if checked == SyntaxCheck::Fine {
        return Ok(None);
    }
    check_script(code, script.as_str()).await?;
    // The job may never import the other file.
    Ok(checked.mistake().map(|wrong| {
        format!(
            "a file besides the script does not parse with this machine's Python: {wrong}; if the job does not need \
             the file, exclude it in .musterignore"
        )
    }))
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
enum SyntaxCheck {
    /// All files parse.
    Fine,
    /// The first file that does not parse, and why.
    Mistake(String),
    /// There is no Python, or it has not finished.
    Unfinished,
}

impl SyntaxCheck {
    fn mistake(self) -> Option<String> {
        if let Self::Mistake(wrong) = self { Some(wrong) } else { None }
    }
}

/// Lets Python parse the files until one does not parse.
async fn check<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> SyntaxCheck {
    let input = syntax_input(files);
    let parsed = async {
        match parse("python3", &input).await {
            Some(output) => Some(output),
            None => parse("python", &input).await,
        }
    };
    match timeout(PARSE_TIMEOUT, parsed).await.ok().flatten() {
        Some(output) if output.status.success() => SyntaxCheck::Fine,
        Some(output) if output.status.code() == Some(DOES_NOT_PARSE) => {
            SyntaxCheck::Mistake(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Some(_) | None => SyntaxCheck::Unfinished,
    }
}

/// Runs the check with this Python. `None` if this Python cannot be started.
async fn parse(python: &str, input: &[u8]) -> Option<Output> {
    let mut command = Command::new(python);
    command.args(CHECK_SYNTAX).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let write = async move {
        // Python ends at the first file that does not parse. The write may then fail.
        let _ = stdin.write_all(input).await;
    };
    tokio::join!(write, child.wait_with_output()).1.ok()
}
