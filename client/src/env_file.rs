//! Reads the file of `--env-file`. The format is dotenvy's, which is docker compose's: quotes, comments, `export`
//! and `${NAME}` of the client's own environment.

use std::path::{Path, PathBuf};

use protocol::env::{EnvError, EnvName};

/// Why a file gives no variables. The text of a line is never shown, since it may be a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvFileError {
    /// It cannot be read, or is no UTF-8.
    #[error("--env-file: read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not `NAME=VALUE`.
    #[error("--env-file: {}, line {line}: not of the form NAME=VALUE (a value with spaces needs quotes)", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A name that no variable can have.
    #[error("--env-file: {}, line {line}: {error}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        error: EnvError,
    },
}

/// The variables of a file, in its order.
pub(crate) fn read(path: &Path) -> Result<Vec<(EnvName, String)>, EnvFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| EnvFileError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<(EnvName, String)>, EnvFileError> {
    let mut variables = Vec::new();
    for pair in dotenvy::from_read_iter(text.as_bytes()) {
        let (name, value) = pair.map_err(|error| refused_line(text, path, &error))?;
        let name = name.parse().map_err(|error| EnvFileError::Name {
            path: path.to_owned(),
            line: line_number(text, |line| line.trim_start().starts_with(&name)),
            error,
        })?;
        variables.push((name, value));
    }
    Ok(variables)
}

fn refused_line(text: &str, path: &Path, error: &dotenvy::Error) -> EnvFileError {
    if let dotenvy::Error::LineParse(bad, _) = error {
        // A quoted value may span lines; the first of them is where it begins.
        let begins = bad.lines().next().unwrap_or_default();
        return EnvFileError::Line { path: path.to_owned(), line: line_number(text, |line| line.contains(begins)) };
    }
    EnvFileError::Read { path: path.to_owned(), source: std::io::Error::other(error.to_string()) }
}

/// dotenvy gives a bad line's text and not its number.
fn line_number(text: &str, is_it: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is_it).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<(String, String)>, String> {
        let pairs = parse(text, Path::new("job.env")).map_err(|error| error.to_string())?;
        Ok(pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    }

    #[test]
    fn quotes_comments_and_export_are_understood() {
        let text = "# a comment\n\nA=1\nexport B='two words'\nC=\"x\\ny\"\nD=\n";
        let pairs = [("A", "1"), ("B", "two words"), ("C", "x\ny"), ("D", "")];
        assert_eq!(parsed(text), Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()));
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_not_by_its_text() {
        let error = parsed("A=1\n# fine\nPASSWORD hunter2\n").unwrap_err();
        assert_eq!(error, "--env-file: job.env, line 3: not of the form NAME=VALUE (a value with spaces needs quotes)");
    }

    #[test]
    fn a_name_that_no_variable_can_have_is_named_with_its_line() {
        let error = parsed("A=1\nA.B=2\n").unwrap_err();
        assert!(error.starts_with("--env-file: job.env, line 2: environment name \"A.B\""), "{error}");
    }
}
