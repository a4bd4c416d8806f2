//! Commands that messages show for copy and paste. They choose the same master as the command that shows them.

use std::sync::OnceLock;

use crate::args::ConnectionArgs;

/// The flags of this process that choose the master, as a shell reads them. A global, because many pure functions make
/// messages with commands, and none of them knows the command line.
static FLAGS: OnceLock<String> = OnceLock::new();

/// Remembers the flags that choose the master.
pub(crate) fn remember(args: &ConnectionArgs) {
    FLAGS.get_or_init(|| flags(args));
}

/// A command of the client, such as `client wait digits`. Adds the flags that choose the master only if this process
/// has them: variables also configure the next command of the same shell.
pub(crate) fn command(words: &str) -> String {
    format!("client {words}{}", FLAGS.get().map_or("", String::as_str))
}

fn flags(ConnectionArgs { master, token_file }: &ConnectionArgs) -> String {
    let token_file = token_file.as_ref().map(|path| path.display().to_string());
    let given = [("--master", master), ("--token-file", &token_file)];
    let given = given.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", for_shell(value.as_ref()?))));
    given.collect()
}

/// Quotes a word if a shell would change it.
fn for_shell(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,".contains(letter);
    let is_safe = !word.is_empty() && word.chars().all(is_plain);
    if is_safe { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_repeated_in_quotes_if_a_shell_needs_them() {
        let shown = |master: Option<&str>, file: Option<&str>| {
            flags(&ConnectionArgs { master: master.map(str::to_owned), token_file: file.map(Into::into) })
        };
        assert_eq!(shown(None, None), "");
        assert_eq!(shown(Some("kube:dev/team"), None), " --master kube:dev/team");
        let quoted = " --master 'http://[::1]:1' --token-file '/home/ada/my token'";
        assert_eq!(shown(Some("http://[::1]:1"), Some("/home/ada/my token")), quoted);
    }
}
