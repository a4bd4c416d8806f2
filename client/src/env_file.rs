//! Reads the file of `--env-file`. The format is dotenvy's, which is docker compose's: quotes, comments, `export`
//! and `${NAME}` of the client's own environment.

use std::fmt;
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
    #[error("--env-file: {0}: not of the form NAME=VALUE (a value with spaces needs quotes)")]
    Line(Place),
    /// A name that no variable can have.
    #[error("--env-file: {place}: {error}")]
    Name {
        /// Where it stands.
        place: Place,
        /// What is wrong with it.
        error: EnvError,
    },
}

/// A line of a file.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// From 1. It is searched for, and what begins within a quoted value that spans lines may not be found.
    line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.line.map_or(Ok(()), |line| write!(f, ", line {line}"))
    }
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
            place: place(path, text, |statement| sets(statement, &name)),
            error,
        })?;
        variables.push((name, value));
    }
    Ok(variables)
}

fn refused_line(text: &str, path: &Path, error: &dotenvy::Error) -> EnvFileError {
    if let dotenvy::Error::LineParse(bad, _) = error {
        // A quoted value may span lines; the first of them is where it begins.
        let begins = without_export(bad.lines().next().unwrap_or_default());
        return EnvFileError::Line(place(path, text, |statement| is_statement(statement, begins)));
    }
    EnvFileError::Read { path: path.to_owned(), source: std::io::Error::other(error.to_string()) }
}

/// dotenvy gives a bad line's text and not its number.
fn place(path: &Path, text: &str, is_it: impl Fn(&str) -> bool) -> Place {
    let found = text.lines().position(|line| !line.trim_start().starts_with('#') && is_it(without_export(line)));
    Place { path: path.to_owned(), line: found.map(|index| index + 1) }
}

fn without_export(line: &str) -> &str {
    let line = line.trim();
    let behind = line.strip_prefix("export").filter(|rest| rest.starts_with(char::is_whitespace));
    behind.map_or(line, str::trim_start)
}

/// Whether a line is this one, from which dotenvy may have cut a comment.
fn is_statement(line: &str, wanted: &str) -> bool {
    line.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.trim_start().starts_with('#'))
}

fn sets(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

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
    fn comments_and_parts_of_other_lines_are_not_taken_for_the_bad_line() {
        for (text, line) in [
            ("# FOO bar explains\nA=1\nFOO bar", "line 3"),
            ("A=1 # FOO bar\nB=\"FOO bar\"\n  export FOO bar\n", "line 3"),
            ("FOO=1\nFOO bar # and why\n", "line 2"),
            ("# c\nA=1\nexport A.B=2", "line 3"),
            ("A=A.B\n# A.B=1\n\n A.B = 2", "line 4"),
            ("A=1\nB=\"no end\nC=1\n", "line 2"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(&format!("--env-file: job.env, {line}: ")), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_line_that_is_not_found_has_no_number() {
        let place = place(Path::new("job.env"), "A=1\n", |_| false);
        assert_eq!(EnvFileError::Line(place).to_string().split(": ").nth(1), Some("job.env"));
    }

    #[test]
    fn a_name_that_no_variable_can_have_is_named_with_its_line() {
        let error = parsed("A=1\nA.B=2\n").unwrap_err();
        assert!(error.starts_with("--env-file: job.env, line 2: environment name \"A.B\""), "{error}");
    }

    proptest! {
        #[test]
        fn every_variable_in_single_quotes_is_read_as_it_is(
            pairs in vec(("[A-Za-z_][A-Za-z0-9_]{0,8}", "[^'\\\\\0]{0,20}"), 0..4),
        ) {
            let text: String = pairs.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
            prop_assert_eq!(parsed(&text), Ok(pairs));
        }

        #[test]
        fn any_text_is_variables_or_an_error(
            text in any::<String>().boxed().prop_union("(export )?[A-Z]{0,3}[ =]{0,2}['\"$\\{}#A-Z\n\\\\ ]{0,12}".boxed()),
        ) {
            match parse(&text, Path::new("job.env")) {
                Ok(pairs) => prop_assert!(pairs.iter().all(|(name, _)| text.contains(name.as_str()))),
                Err(error) => prop_assert!(error.to_string().starts_with("--env-file: ")),
            }
        }
    }
}
