//! Commands that messages show for copy and paste. They choose the same master as the command that shows them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::address::config::MasterChoice;
use crate::address::connection::ConnectionArgs;

/// The flags that lead a later command to the same master. A global, because many pure functions make messages with
/// commands, and none of them knows the command line.
static FLAGS: Mutex<ConnectionArgs> = Mutex::new(ConnectionArgs { master: None, token_file: None });

fn remembered() -> MutexGuard<'static, ConnectionArgs> {
    FLAGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers the flags of this process that choose the master.
pub(crate) fn remember(args: &ConnectionArgs) {
    *remembered() = args.clone();
}

/// Remembers the master that a verb chose itself, for example by its flag `-n`. `given` is the choice without the verb.
pub(crate) fn remember_choice(given: &MasterChoice, chosen: &MasterChoice) {
    let mut remembered = remembered();
    *remembered = leading_to(remembered.clone(), given, chosen);
}

/// The flags that lead to the chosen master.
fn leading_to(flags: ConnectionArgs, given: &MasterChoice, chosen: &MasterChoice) -> ConnectionArgs {
    match chosen {
        MasterChoice::Kube(place) if given != chosen => ConnectionArgs { master: Some(place.to_string()), ..flags },
        MasterChoice::Kube(_) | MasterChoice::Local(_) | MasterChoice::At(_) => flags,
    }
}

/// A command of the client, such as `client wait digits`. Adds the flags with which this process chose its master. Adds
/// no variables, because they also configure the next command of the same shell.
pub(crate) fn command(words: &str) -> String {
    format!("client {words}{}", flags(&remembered()))
}

fn flags(ConnectionArgs { master, token_file }: &ConnectionArgs) -> String {
    let token_file = token_file.as_ref().map(|path| path.display().to_string());
    let given = [("--master", master), ("--token-file", &token_file)];
    let given = given.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", for_shell(value.as_ref()?))));
    given.collect()
}

/// Quotes a word if a shell would change it.
pub(crate) fn for_shell(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,".contains(letter);
    let is_safe = !word.is_empty() && word.chars().all(is_plain);
    if is_safe { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use master_client::KubePlace;

    use super::*;
    use crate::address::config::LocalBecause;

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
    #[test]
    fn a_namespace_that_a_verb_chose_leads_later_commands_there() {
        let team = MasterChoice::Kube(KubePlace { context: None, namespace: Some("team".to_owned()) });
        let local = MasterChoice::Local(LocalBecause::Default);
        let other = MasterChoice::Kube(KubePlace::default());
        let shown = |given, chosen| flags(&leading_to(ConnectionArgs::default(), given, chosen));
        assert_eq!(shown(&local, &team), " --master kube:team");
        assert_eq!(shown(&other, &team), " --master kube:team");
        assert_eq!(shown(&team, &team), "", "MUSTER_MASTER leads to this master");
        assert_eq!(shown(&local, &local), "");
    }
}
