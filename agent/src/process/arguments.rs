//! Expands `$(NAME)` in a command, as Kubernetes does in the command of a container.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use protocol::expansion::{self, TOTAL_LIMIT};

use super::environment::Environment;

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
    let value_of = |name: &[u8]| environment.get(OsStr::from_bytes(name)).map(|value| value.as_bytes());
    expansion::expanded(word, value_of).ok_or(io::ErrorKind::ArgumentListTooLong.into())
}
