//! Whether a run failed before any line of its script ran. Another start would then fail too. The exit code does not
//! show whether a line ran, but stderr does. If no line ran, stderr contains only an error of Python or of the shim,
//! perhaps after warnings of Python.

use std::ffi::OsString;
use std::time::Duration;

use protocol::agent::{ExitOutcome, STDERR_TAIL_BYTES};

use crate::process::script::place_of_python;
use crate::process::shim;

/// Maximum time that Python takes to read its library and the script from a slow network disk.
const PARSE_LIMIT: Duration = Duration::from_secs(120);

/// A stderr tail of at most this length is complete. A longer tail may lack the beginning of stderr.
const WHOLE_TAIL_BYTES: usize = STDERR_TAIL_BYTES - 4;

/// Python's errors for a file that it cannot parse (Python's library reference, "Exception hierarchy").
const SYNTAX_ERRORS: [&str; 3] = ["SyntaxError: ", "IndentationError: ", "TabError: "];

/// A run that ended by itself.
#[derive(Debug, Clone, Copy)]
pub struct EndedRun<'a> {
    /// Program and arguments.
    pub command: &'a [OsString],
    /// How its main process ended.
    pub outcome: &'a ExitOutcome,
    /// The end of its stderr.
    pub stderr: &'a str,
    /// The time from its start to its end.
    pub lasted: Duration,
}

impl EndedRun<'_> {
    /// Why no line of the script ran. `None` if a line may have run: then the run is an ordinary failure.
    pub fn why_nothing_ran(&self) -> Option<String> {
        let ExitOutcome::Code(code) = *self.outcome else { return None };
        if self.stderr.len() > WHOLE_TAIL_BYTES || self.lasted > PARSE_LIMIT {
            return None;
        }
        match u8::try_from(code).ok()? {
            shim::CANNOT_EXECUTE | shim::NOT_FOUND => self.no_program(),
            1 => syntax_error(self.script()?, self.stderr),
            2 => no_script(self.script()?, self.stderr),
            _ => None,
        }
    }

    /// The shim's error for a command that cannot be started.
    fn no_program(&self) -> Option<String> {
        let program = self.command.first()?;
        let sentence = only_line(self.stderr)?;
        sentence.starts_with(&shim::cannot_start(program)).then(|| sentence.to_owned())
    }

    /// The script that Python runs. `None` for other commands, because their errors are unknown.
    fn script(&self) -> Option<&str> {
        self.command[place_of_python(self.command)? + 1].to_str()
    }
}

fn only_line(text: &str) -> Option<&str> {
    let line = text.strip_suffix('\n')?;
    (!line.contains('\n')).then_some(line)
}

/// Parses the error `python: can't open file '/srv/exec.py': [Errno 2] No such file or directory`.
fn no_script(script: &str, stderr: &str) -> Option<String> {
    let (_python, failure) = only_line(stderr)?.split_once(": ")?;
    let (file, _) = failure.strip_prefix("can't open file '")?.split_once('\'')?;
    is_script(script, file).then(|| format!("python {failure}"))
}

/// Parses `  File "/srv/exec.py", line 3`, the line, a caret, and the error. If the script was already running, for
/// example when an import raised the error, `Traceback (most recent call last):` comes first.
fn syntax_error(script: &str, stderr: &str) -> Option<String> {
    let error = stderr.lines().next_back().filter(|line| SYNTAX_ERRORS.iter().any(|kind| line.starts_with(kind)))?;
    // For a file that is not text, Python shows no line.
    if only_line(stderr).is_some() && error.contains(script) {
        return Some(format!("{script} has a syntax error: {error}"));
    }
    let place = stderr.lines().find(|line| !is_part_of_warning(script, line))?;
    let (file, line) = place.strip_prefix("  File \"")?.split_once("\", line ")?;
    let (line, (_, what)) = (line.parse::<u32>().ok()?, error.split_once(": ")?);
    is_script(script, file).then(|| format!("{script} has a syntax error: {script}, line {line}: {what}"))
}

/// Python may warn about earlier lines of the script before it reports the line that it cannot parse:
/// `/srv/exec.py:1: SyntaxWarning: invalid escape sequence '\d'`, and then that earlier line.
fn is_part_of_warning(script: &str, line: &str) -> bool {
    let is_first =
        line.split_once(':').is_some_and(|(file, what)| is_script(script, file) && what.contains("Warning: "));
    is_first || (line.starts_with("  ") && !line.starts_with("  File \""))
}

/// Whether `file` is the script. Python may show an absolute path.
fn is_script(script: &str, file: &str) -> bool {
    file.strip_suffix(script).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}
