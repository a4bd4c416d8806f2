//! Expands `$(NAME)` in a command, by Kubernetes' rules for the command of a container
//! (`kubernetes/third_party/forked/golang/expansion/expand.go`). Values are not expanded again.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use protocol::env::ENTRY_LIMIT;

use super::environment::Environment;

/// Linux's maximum bytes of all arguments and variables together: three quarters of 8 MiB (`bprm_stack_limits`,
/// fs/exec.c).
const TOTAL_LIMIT: usize = 6 * 1024 * 1024;

/// Replaces `$(NAME)` by the variable's value, and `$$` by `$`. A reference to an unknown variable stays as it is.
///
/// # Errors
/// `ArgumentListTooLong`, before the words take more memory than Linux passes to a program.
pub fn expanded(words: &[OsString], environment: &Environment) -> io::Result<Vec<OsString>> {
    let mut total = 0;
    let expand = |word: &OsString| {
        let word = expanded_word(word.as_bytes(), environment)?;
        total += word.len();
        if total > TOTAL_LIMIT { Err(io::ErrorKind::ArgumentListTooLong.into()) } else { Ok(OsString::from_vec(word)) }
    };
    words.iter().map(expand).collect()
}

fn expanded_word(word: &[u8], environment: &Environment) -> io::Result<Vec<u8>> {
    let (mut text, mut rest) = (vec![], word);
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        text.extend_from_slice(&rest[..dollar]);
        let (replacement, after) = expanded_dollar(&rest[dollar..], environment);
        text.extend_from_slice(replacement);
        rest = after;
        if text.len() >= ENTRY_LIMIT {
            return Err(io::ErrorKind::ArgumentListTooLong.into());
        }
    }
    text.extend_from_slice(rest);
    Ok(text)
}

/// Expands the `$` or the reference at the beginning of `text`. Returns its replacement, and the rest of `text`.
fn expanded_dollar<'a>(text: &'a [u8], environment: &'a Environment) -> (&'a [u8], &'a [u8]) {
    if let Some(after) = text.strip_prefix(b"$$") {
        return (b"$", after);
    }
    let end = text.starts_with(b"$(").then(|| text.iter().position(|byte| *byte == b')')).flatten();
    let Some(end) = end else { return text.split_at(1) };
    let (reference, after) = text.split_at(end + 1);
    let value = environment.get(OsStr::from_bytes(&reference[2..end]));
    (value.map_or(reference, |value| value.as_bytes()), after)
}
