//! Reads the file of `--env-file`, with the grammar of `docker run --env-file`. As for `--env`, a line is `NAME=VALUE`
//! or `NAME`. Skips empty lines, comments (`#`), and blanks before a name. The value is everything after the first `=`.
//! Refuses some values that Docker accepts (see [`BadLine`]).

use std::io;
use std::path::{Path, PathBuf};

use protocol::env::EnvError;

use crate::args::EnvArg;

/// Why a file is invalid. An error shows at most the name on a line, because the rest may be a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvFileError {
    /// The file cannot be read, or is not UTF-8.
    #[error("--env-file: read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A line is invalid.
    #[error("--env-file: {}, line {line}: {problem}", path.display())]
    Line {
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with the line.
        problem: BadLine,
    },
}

/// What is wrong with a line. Docker reads quotes and `${` as parts of the value. This parser refuses them, because a file
/// that contains them was usually written for a shell.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadLine {
    /// The line has neither the form `NAME=VALUE` nor the form `NAME`.
    #[error("not of the form NAME=VALUE")]
    Form,
    /// The name is not valid.
    #[error(transparent)]
    Name(EnvError),
    /// The line begins with `export`, as in a shell script.
    #[error("\"export\" is not needed: write NAME=VALUE")]
    Export,
    /// The value begins with a quote.
    #[error("quotes would become a part of the value: write NAME=VALUE without them, or use --env")]
    Quote,
    /// The value refers to another variable.
    #[error("${{NAME}} is not replaced in this file: write the value, or use --env")]
    Reference,
}

/// The variables of a file, in its order.
pub(crate) fn read(path: &Path) -> Result<Vec<EnvArg>, EnvFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| EnvFileError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<EnvArg>, EnvFileError> {
    // Editors on Windows write a byte order mark first.
    let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(|line| line.trim_start_matches([' ', '\t']));
    let is_skipped = |line: &str| line.is_empty() || line.starts_with('#');
    let numbered = lines.zip(1..).filter(|(line, _)| !is_skipped(line));
    let named =
        |(text, line)| variable(text).map_err(|problem| EnvFileError::Line { path: path.to_owned(), line, problem });
    numbered.map(named).collect()
}

fn variable(line: &str) -> Result<EnvArg, BadLine> {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    if name.starts_with("export ") {
        return Err(BadLine::Export);
    }
    if name.is_empty() || name.contains([' ', '\t']) {
        return Err(BadLine::Form);
    }
    if value.starts_with(['"', '\'']) {
        return Err(BadLine::Quote);
    }
    if value.contains("${") {
        return Err(BadLine::Reference);
    }
    line.parse().map_err(|error| if line.contains('=') { BadLine::Name(error) } else { BadLine::Form })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<EnvArg>, String> {
        parse(text, Path::new("job.env")).map_err(|error| error.to_string())
    }

    fn set(name: &str, value: &str) -> EnvArg {
        EnvArg::Set(name.parse().unwrap(), value.to_owned())
    }

    #[test]
    fn comments_are_skipped_and_everything_after_the_first_equals_sign_is_the_value() {
        let text = "# a comment\n\n \t# another\n  A=1\nB=two words \nC=a=b # c\nD=\nE=it's $5 \\n {\"k\": 1}\nF=C:\\\nG=#ff0000\n";
        let all = [
            set("A", "1"),
            set("B", "two words "),
            set("C", "a=b # c"),
            set("D", ""),
            set("E", "it's $5 \\n {\"k\": 1}"),
            set("F", "C:\\"),
            set("G", "#ff0000"),
        ];
        assert_eq!(parsed(text), Ok(all.to_vec()));
    }

    #[test]
    fn a_line_with_only_a_name_passes_the_clients_variable_on() {
        assert_eq!(parsed("HOME\nA=1"), Ok(vec![EnvArg::PassOn("HOME".parse().unwrap()), set("A", "1")]));
    }

    #[test]
    fn a_byte_order_mark_and_windows_line_ends_are_ignored() {
        assert_eq!(parsed("\u{feff}A=1\r\nB=2\r\n"), Ok(vec![set("A", "1"), set("B", "2")]));
    }

    #[test]
    fn an_error_has_the_line_number_and_at_most_the_name_on_that_line() {
        for bad in ["PASSWORD hunter2", "PASSWORD hunter2=x", "hunter2!", "=hunter2", "A =hunter2"] {
            let error = parsed(&format!("A=1\n# fine\n{bad}\n")).unwrap_err();
            assert_eq!(error, "--env-file: job.env, line 3: not of the form NAME=VALUE", "{bad}");
        }
        let error = parsed("A=1\nA.B=2\n").unwrap_err();
        assert!(error.starts_with("--env-file: job.env, line 2: environment name \"A.B\""), "{error}");
    }

    #[test]
    fn a_line_that_version_0_1_read_differently_is_refused() {
        for (bad, problem) in [
            ("export A=1", BadLine::Export),
            ("export A", BadLine::Export),
            ("A='1'", BadLine::Quote),
            ("A=\"one", BadLine::Quote),
            ("A=${B}", BadLine::Reference),
            ("A=one-${B:-x}", BadLine::Reference),
        ] {
            assert_eq!(
                parsed(&format!("B=1\n{bad}\n")),
                Err(format!("--env-file: job.env, line 2: {problem}")),
                "{bad}"
            );
        }
        let hint = "--env-file: job.env, line 1: ${NAME} is not replaced in this file: write the value, or use --env";
        assert_eq!(parsed("A=${B}").unwrap_err(), hint);
    }

    proptest! {
        #[test]
        fn a_value_without_a_dollar_sign_and_without_a_leading_quote_is_read_unchanged(
            pairs in vec(("[A-Za-z_][A-Za-z0-9_]{0,8}", "([^'\"\r\n\0$][^\r\n\0$]{0,20})?"), 0..4),
        ) {
            let text: String = pairs.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            let expected: Vec<EnvArg> = pairs.iter().map(|(name, value)| set(name, value)).collect();
            prop_assert_eq!(parsed(&text), Ok(expected));
        }

        #[test]
        fn any_text_gives_variables_or_an_error_with_a_line_number(text in any::<String>()) {
            if let Err(error) = parsed(&text) {
                prop_assert!(error.starts_with("--env-file: job.env, line "), "{}", error);
            }
        }
    }
}
