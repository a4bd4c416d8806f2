//! Formats an error and its causes in one line, for messages that leave this process.

use std::error::Error;

/// The error's text, then the text of each cause after a colon.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
