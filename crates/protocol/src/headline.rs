//! The headline of a failed run: the exception and the line of the script that raised it, else how the process ended.

use crate::agent::{ExitOutcome, ExitReport};
use crate::text;

/// The line before the stack of an uncaught exception (Python's `traceback` module).
pub const TRACEBACK: &str = "Traceback (most recent call last):";

/// Maximum bytes of the exception in a headline, as JSON, so that the headline fits into a table.
const EXCEPTION_JSON_BYTES: usize = 200;

/// The headline, which follows the replica's name: `: ValueError: no (train.py:7)`, or ` exited with code 3`. Of several
/// processes, first names the one that failed: `/3 (rank 11) exited with code 1`. After a signal, the process did not end
/// because of its last exception.
pub(crate) fn of(exit: &ExitReport) -> String {
    let (ExitOutcome::Code(_), Some(exception)) = (&exit.outcome, exit.exception.as_deref()) else {
        return exit.how();
    };
    let process = exit.process.map(|process| process.to_string()).unwrap_or_default();
    let place = place(&exit.stderr_tail, exception).map(|place| format!(" ({place})")).unwrap_or_default();
    let said = text::beginning(exception, EXCEPTION_JSON_BYTES);
    let cut = if said.len() < exception.len() { "…" } else { "" };
    format!("{process}: {said}{cut}{place}")
}

/// The file and the line that raised this exception: the last line of the stack that belongs to the user's own files, else
/// the last line of the stack. `None` if `stderr` does not contain the stack.
fn place(stderr: &str, exception: &str) -> Option<String> {
    let lines: Vec<&str> = stderr.lines().collect();
    let end = lines.iter().rposition(|line| line.starts_with(exception))?;
    let begin = lines[..end].iter().rposition(|line| *line == TRACEBACK).unwrap_or(0);
    let frames: Vec<(&str, &str)> = lines[begin..end].iter().filter_map(|line| frame(line)).collect();
    let own = frames.iter().rfind(|(path, _)| !is_library(path));
    let (path, line) = own.or(frames.last())?;
    Some(format!("{}:{line}", path.rsplit('/').next().unwrap_or(path)))
}

/// Path and line number of a line such as `  File "/w/train.py", line 7, in fit`.
fn frame(line: &str) -> Option<(&str, &str)> {
    let (path, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let number = rest.split(',').next()?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some((path, number))
}

/// Whether the file belongs to Python or to an installed package.
fn is_library(path: &str) -> bool {
    path.starts_with('<')
        || ["/site-packages/", "/dist-packages/", "/lib/python"].iter().any(|part| path.contains(part))
}
