//! Reads the file of `--env-file`, with the grammar of `docker run --env-file`. As for `--env`, a line is `NAME=VALUE`
//! or `NAME`. Skips empty lines, comments (`#`), and blanks before a name. The value is everything after the first `=`.
//! Docker reads quotes and `${` as parts of the value. This parser refuses them, because a file that contains them was
//! usually written for a shell.

use std::path::Path;

use protocol::env::EnvError;

use crate::args::EnvArg;
use crate::ending::error::Error;

/// A line without the form `NAME=VALUE` or `NAME`.
const FORM: &str = "not of the form NAME=VALUE";
/// A line that begins with `export`, as in a shell script.
const EXPORT: &str = "\"export\" is not needed: write NAME=VALUE";
/// A value that begins with a quote.
const QUOTE: &str = "quotes would become a part of the value: write NAME=VALUE without them, or use --env";
/// A value that refers to another variable.
const REFERENCE: &str = "${NAME} is not replaced in this file: write the value, or use --env";

/// The variables of a file, in its order.
pub(crate) fn read(path: &Path) -> Result<Vec<EnvArg>, Error> {
    let unreadable = |error| Error::input(format!("--env-file: read {}", path.display())).because(error);
    parse(&std::fs::read_to_string(path).map_err(unreadable)?, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<EnvArg>, Error> {
    // Editors on Windows write a byte order mark first.
    let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(|line| line.trim_start_matches([' ', '\t']));
    let is_skipped = |line: &str| line.is_empty() || line.starts_with('#');
    let numbered = lines.zip(1..).filter(|(line, _)| !is_skipped(line));
    let named = |(text, line)| {
        let wrong = |wrong| Error::input(format!("--env-file: {}, line {line}: {wrong}", path.display()));
        variable(text).map_err(wrong)
    };
    numbered.map(named).collect()
}

/// Parses a line. The error shows at most the name, because the rest of the line may be a secret.
fn variable(line: &str) -> Result<EnvArg, String> {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    if name.starts_with("export ") {
        return Err(EXPORT.to_owned());
    }
    if name.is_empty() || name.contains([' ', '\t']) {
        return Err(FORM.to_owned());
    }
    if value.starts_with(['"', '\'']) {
        return Err(QUOTE.to_owned());
    }
    if value.contains("${") {
        return Err(REFERENCE.to_owned());
    }
    line.parse().map_err(|error: EnvError| if line.contains('=') { error.to_string() } else { FORM.to_owned() })
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
    fn a_name_alone_passes_the_clients_variable_on_and_a_byte_order_mark_and_windows_line_ends_are_ignored() {
        assert_eq!(parsed("HOME\nA=1"), Ok(vec![EnvArg::PassOn("HOME".parse().unwrap()), set("A", "1")]));
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
            ("export A=1", EXPORT),
            ("export A", EXPORT),
            ("A='1'", QUOTE),
            ("A=\"one", QUOTE),
            ("A=${B}", REFERENCE),
            ("A=one-${B:-x}", REFERENCE),
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
