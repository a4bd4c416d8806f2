//! Expands `$(NAME)` by Kubernetes' rules for the command and the variables of a container
//! (`kubernetes/third_party/forked/golang/expansion/expand.go`). Values are not expanded again.

use crate::env::ENTRY_LIMIT;

/// Linux's maximum bytes of all arguments and variables together: three quarters of 8 MiB (`bprm_stack_limits`,
/// fs/exec.c).
pub const TOTAL_LIMIT: usize = 6 * 1024 * 1024;

/// Replaces `$(NAME)` by the variable's value, and `$$` by `$`. A reference to an unknown variable stays as it is.
/// `None` if the text becomes longer than Linux passes to a program.
pub fn expanded<'a>(text: &'a [u8], value_of: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Option<Vec<u8>> {
    let (mut written, mut rest) = (vec![], text);
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        written.extend_from_slice(&rest[..dollar]);
        let (replacement, after) = expanded_dollar(&rest[dollar..], &value_of);
        written.extend_from_slice(replacement);
        rest = after;
        if written.len() >= ENTRY_LIMIT {
            return None;
        }
    }
    written.extend_from_slice(rest);
    Some(written)
}

/// Expands the `$` or the reference at the beginning of `text`. Returns its replacement, and the rest of `text`.
fn expanded_dollar<'a>(text: &'a [u8], value_of: impl Fn(&[u8]) -> Option<&'a [u8]>) -> (&'a [u8], &'a [u8]) {
    if let Some(after) = text.strip_prefix(b"$$") {
        return (b"$", after);
    }
    let end = text.starts_with(b"$(").then(|| text.iter().position(|byte| *byte == b')')).flatten();
    let Some(end) = end else { return text.split_at(1) };
    let (reference, after) = text.split_at(end + 1);
    (value_of(&reference[2..end]).unwrap_or(reference), after)
}
