//! The text of `doctor`: a line for each check, and its hint below the line.

use crate::cluster::{Check, Verdict};

/// All checks, aligned.
pub(crate) fn checks_text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    checks.iter().map(|check| one(check, width)).collect::<Vec<_>>().join("\n")
}

fn one(check: &Check, width: usize) -> String {
    let Check { name, verdict, detail, hint } = check;
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
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
        let text =
            checks_text(&[check("Secret", Verdict::Ok, None), check("port-forward", Verdict::Fail, Some("do it"))]);
        let expected =
            ["ok    Secret        two lines", "fail  port-forward  two lines", "                    hint: do it"];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
