//! The checks of `doctor`, and their text: a line for each check, and its hint below the line.

use serde::Serialize;

use crate::ending::error::Error;

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What was checked.
    pub(crate) name: String,
    /// The verdict.
    pub(crate) verdict: CheckVerdict,
    /// What was found.
    pub(crate) detail: String,
    /// The next step for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckVerdict {
    /// The check passed.
    Ok,
    /// Something is not protected, not known or not available at present. Jobs may still run.
    Warn,
    /// Jobs cannot run.
    Fail,
}

impl Check {
    /// A check with this verdict, without a hint.
    pub(crate) fn new(name: &str, verdict: CheckVerdict, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict, detail: detail.into(), hint: None }
    }

    pub(crate) fn passed(name: &str, detail: impl Into<String>) -> Self {
        Self::new(name, CheckVerdict::Ok, detail)
    }

    pub(crate) fn warned(name: &str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::new(name, CheckVerdict::Warn, detail) }
    }

    /// A check that fails because of this error.
    pub(crate) fn failed(name: &str, error: &Error) -> Self {
        Self { hint: error.hint.clone(), ..Self::new(name, CheckVerdict::Fail, error.to_string()) }
    }
}

/// All checks, aligned.
pub(crate) fn checks_text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    checks.iter().map(|check| one(check, width)).collect::<Vec<_>>().join("\n")
}

fn one(check: &Check, width: usize) -> String {
    let Check { name, verdict, detail, hint } = check;
    let verdict = match verdict {
        CheckVerdict::Ok => "ok",
        CheckVerdict::Warn => "warn",
        CheckVerdict::Fail => "fail",
    };
    let detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
    let hint =
        hint.as_ref().map(|hint| format!("\n{:indent$}hint: {hint}", "", indent = width + 8)).unwrap_or_default();
    format!("{verdict:<4}  {name:<width$}  {detail}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_aligned_and_followed_by_their_hints() {
        let check = |name: &str, verdict, hint: Option<&str>| Check {
            name: name.to_owned(),
            verdict,
            detail: "two\nlines".to_owned(),
            hint: hint.map(str::to_owned),
        };
        let text = checks_text(&[
            check("Secret", CheckVerdict::Ok, None),
            check("port-forward", CheckVerdict::Fail, Some("do it")),
        ]);
        let expected =
            ["ok    Secret        two lines", "fail  port-forward  two lines", "                    hint: do it"];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
