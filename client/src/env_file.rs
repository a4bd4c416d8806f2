//! Reads the file of `--env-file`. The format is dotenvy's: quotes, `#` comments, `export`, and `${NAME}` for what the
//! client's own environment, or else a line before, has. What dotenvy would read as something else than was meant, and say
//! nothing, is refused.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
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
        source: io::Error,
    },
    /// A line is not `NAME=VALUE`.
    #[error("--env-file: {0}: not of the form NAME=VALUE (a value with spaces needs quotes)")]
    Line(Place),
    /// A value that dotenvy would read without a part of it.
    #[error("--env-file: {place}: {part}")]
    Lost {
        /// Where it stands.
        place: Place,
        /// The part, and how to keep it.
        part: &'static str,
    },
    /// A name that no variable can have.
    #[error("--env-file: {place}: {error}")]
    Name {
        /// Where it stands.
        place: Place,
        /// What is wrong with it.
        error: EnvError,
    },
}

/// A line of a file, from 1. Of a quoted value that spans lines it is the first.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.path.display(), self.line)
    }
}

/// The variables of a file, in its order.
pub(crate) fn read(path: &Path) -> Result<Vec<(EnvName, String)>, EnvFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| EnvFileError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<(EnvName, String)>, EnvFileError> {
    // Editors of Windows put a mark first, and dotenvy refuses blanks behind a last line that has no end.
    let text = format!("{}\n", text.strip_prefix('\u{feff}').unwrap_or(text));
    let (mut variables, taken) = (Vec::new(), Cell::new(0));
    let mut pairs = dotenvy::from_read_iter(LineByLine { text: &text, taken: &taken });
    loop {
        let before = taken.get();
        let Some(pair) = pairs.next() else { return Ok(variables) };
        let begin = before + skipped(&text[before..taken.get()]);
        let place = || Place { path: path.to_owned(), line: text[..begin].matches('\n').count() + 1 };
        if let Some(part) = lost_part(text[begin..taken.get()].trim_end()) {
            return Err(EnvFileError::Lost { place: place(), part });
        }
        // Reading from memory does not fail, so an error is about the text.
        let (name, value) = pair.map_err(|_| EnvFileError::Line(place()))?;
        let name = name.parse().map_err(|error| EnvFileError::Name { place: place(), error })?;
        variables.push((name, value));
    }
}

/// Gives no more than a line at a time, so that `taken` is the end of what dotenvy has judged: it names no line.
struct LineByLine<'a> {
    text: &'a str,
    taken: &'a Cell<usize>,
}

impl Read for LineByLine<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.text.as_bytes()[self.taken.get()..];
        let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        let length = line.min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.taken.set(self.taken.get() + length);
        Ok(length)
    }
}

/// The length of the empty lines and comments that a text begins with.
fn skipped(text: &str) -> usize {
    let means_nothing = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    text.split_inclusive('\n').take_while(means_nothing).map(str::len).sum()
}

/// What dotenvy would leave out of a value without a word, and how to keep it.
fn lost_part(statement: &str) -> Option<&'static str> {
    let (mut quote, mut before, mut rest) = (None, ' ', statement.chars());
    while let Some(letter) = rest.next() {
        match (letter, quote) {
            ('\'', Some('\'')) | ('"', Some('"')) => quote = None,
            (_, Some('\'')) => {}
            ('\'' | '"', None) => quote = Some(letter),
            ('\\', _) => match rest.next() {
                Some(_) => {}
                None => return Some("a backslash with nothing behind it (two keep one)"),
            },
            ('$', _) => match behind_reference(rest.as_str()) {
                Some(behind) => rest = behind.chars(),
                None => return Some("a dollar that begins no ${NAME} (single quotes keep a dollar as it is)"),
            },
            ('#', None) if before == '=' => return Some("a # right behind the = (quotes keep it)"),
            ('#', None) if before.is_whitespace() => {
                return rest
                    .as_str()
                    .contains('\n')
                    .then_some("a comment with a quote in it, which hides the lines behind");
            }
            (_, _) => {}
        }
        before = letter;
    }
    None
}

/// What follows the `{NAME}` or `NAME` that a text begins with. A name without braces ends for dotenvy where its letters
/// and digits do, and it takes the next character for itself, also one that would end a quote.
fn behind_reference(text: &str) -> Option<&str> {
    let is_name = |name: &str| name.parse::<EnvName>().is_ok();
    if let Some(text) = text.strip_prefix('{') {
        return text.split_once('}').filter(|(name, _)| is_name(name)).map(|(_, behind)| behind);
    }
    let (name, behind) = text.split_at(text.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(text.len()));
    (is_name(name) && !behind.starts_with(['_', '"', '\\'])).then_some(behind)
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
    fn the_line_of_what_has_spaces_is_named_too() {
        for text in ["A=1\n# c\nB=a b c\nC=1\n", "A=1\n\nC={\"k\": 1}", "A='\n'\nexport B=a b\n", "\n\nA=\"b\" c"] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with("--env-file: job.env, line 3: not of the form NAME=VALUE"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_value_that_would_lose_a_part_is_refused_with_its_line() {
        let lost = [
            "${B:-x}", "${B-x}", "${B:+x}", "${B+x}", "${B:?x}", "${B?x}", "${B", "${}", "${B C}", "$$", "a$$b",
            "\"a$$b\"", "5$", "pa$5word", "a$.b", "$(x)", "$B_C", "\"$B\"", "$B\\ x", "$$B", "'a'$", "\"'$'\"", "C:\\",
            "#ff0000",
        ];
        let hidden = parsed("A=1\nB=64  # it's per worker\nC=0.1\nD=3  # don't raise\n").unwrap_err();
        assert!(hidden.starts_with("--env-file: job.env, line 2: a comment with a quote"), "{hidden}");
        for value in lost {
            let error = parsed(&format!("# it's $$\nB=1 # it's $$\nA={value}\nC=1\n")).unwrap_err();
            assert!(error.starts_with("--env-file: job.env, line 3: a "), "{value}: {error}");
            assert!(!error.contains(value), "{error}");
        }
        let error = parsed("A=a$$b").unwrap_err();
        let sentence = "a dollar that begins no ${NAME} (single quotes keep a dollar as it is)";
        assert_eq!(error, format!("--env-file: job.env, line 1: {sentence}"));
    }

    #[test]
    fn variables_of_lines_before_are_filled_in_and_single_quotes_and_backslashes_keep_a_dollar() {
        for (value, read) in [
            ("${NOBODYS_B}", "1"),
            ("\"a ${NOBODYS_B} b\"", "a 1 b"),
            ("$b9Nobodys/$b9Nobodys", "2/2"),
            ("\"$b9Nobodys's\"", "2's"),
            ("$b9Nobodys # $$", "2"),
            ("${NOBODYS_B}${NOBODYS_B}$b9Nobodys", "112"),
            ("$NobodyHasThis", ""),
            ("'a$$b ${B:-x}'", "a$$b ${B:-x}"),
            ("\\$\\$", "$$"),
            ("\"\\$5\"", "$5"),
            ("b#$b9Nobodys", "b#2"),
            ("'#'", "#"),
            ("C:\\\\", "C:\\"),
        ] {
            let pairs = parsed(&format!("NOBODYS_B=1\nb9Nobodys=2\nA={value}\n"));
            assert_eq!(pairs.map(|pairs| pairs[2].1.clone()), Ok(read.to_owned()), "{value}");
        }
    }

    #[test]
    fn a_mark_at_the_beginning_and_blanks_at_the_end_are_nothing() {
        assert_eq!(parsed("\u{feff}A=1 "), Ok(vec![("A".to_owned(), "1".to_owned())]));
        assert!(parsed("\u{feff}A=1\nB").unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_line_longer_than_a_buffer_is_one_line() {
        let long = "ä".repeat(20_000);
        assert_eq!(parsed(&format!("A={long}\n")), Ok(vec![("A".to_owned(), long.clone())]));
        assert!(parsed(&format!("A={long}\nB\n")).unwrap_err().contains("line 2"));
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
