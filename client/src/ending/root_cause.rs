//! The cause of an error, for messages to the user.

/// The text of the innermost cause. The outer errors of libraries only repeat addresses and name parts of the library.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
