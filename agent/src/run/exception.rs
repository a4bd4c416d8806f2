//! Finds the exception that ended a Python script, in the script's stderr.

use protocol::headline::TRACEBACK;

/// The beginning of the line before the traceback of an ignored exception, for example in `__del__`. Such a traceback
/// is often the last traceback on stderr.
const IGNORED: &str = "Exception ignored ";

/// The first line of the last exception that has a traceback and was not ignored. The exception's text may have many
/// more lines.
pub fn first_line(stderr: &str) -> Option<String> {
    let mut found = None;
    let (mut is_ignored, mut in_stack) = (false, false);
    for line in stderr.lines() {
        if line == TRACEBACK {
            in_stack = !is_ignored;
        } else if in_stack && is_exception(line) {
            (found, in_stack) = (Some(line), false);
        }
        is_ignored = line.starts_with(IGNORED);
    }
    found.map(str::to_owned)
}

/// Whether a line looks like `ValueError: no`, `tensorflow.python.framework.errors_impl.AbortedError: …` or
/// `KeyboardInterrupt`. Lines of the stack begin with spaces. Log lines after the stack begin with a number, or have a
/// space before the first colon.
fn is_exception(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    name.starts_with(|c: char| c.is_alphabetic() || c == '_') && name.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::first_line;

    const STACK: &str =
        "Traceback (most recent call last):\n  File \"exec.py\", line 3, in <module>\n    fit()\n    ~~~^^\n";

    #[test]
    fn the_line_after_the_last_stack_is_the_exception_however_many_lines_follow() {
        let values = "[[1. 2. 3.]\n [4. 5. 6.]]\n".repeat(1000);
        let stderr = format!(
            "W0000 loading\n{STACK}ValueError: Attempt to convert a value (PerReplica:{{\n  0: tf.Tensor(\n{values}"
        );
        assert_eq!(first_line(&stderr).as_deref(), Some("ValueError: Attempt to convert a value (PerReplica:{"));
        let chained = format!(
            "{STACK}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n{STACK}my.own_Error\n"
        );
        assert_eq!(first_line(&chained).as_deref(), Some("my.own_Error"));
    }

    #[test]
    fn log_lines_between_a_stack_and_its_exception_are_skipped() {
        let logs = "2026-11-21 12:00:00.1: W tensorflow/core/x.cc:1\nW0000 00:00:1.2  1 x.cc:2] gone: away\n\n";
        assert_eq!(first_line(&format!("{STACK}{logs}OSError: full\n")).as_deref(), Some("OSError: full"));
    }

    #[test]
    fn an_exception_that_was_ignored_or_has_no_stack_is_not_reported() {
        let ignored = format!("Exception ignored in: <function A.__del__>\n{STACK}TypeError: late\n");
        assert_eq!(first_line(&format!("{STACK}ValueError: first\n{ignored}")).as_deref(), Some("ValueError: first"));
        assert_eq!(first_line(&ignored), None);
        assert_eq!(first_line("ValueError: only said\n"), None);
        assert_eq!(first_line(STACK), None);
    }
}
