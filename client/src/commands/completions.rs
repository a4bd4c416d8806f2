//! `completions`: prints a script with which a shell completes flags and verbs.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::Data;

/// The values that a shell offers for these flags. clap cannot list them, because these flags have their own parsers.
const VALUES: [(&str, &[&str]); 4] = [
    ("strategy", &["AllReduce", "ParameterServer"]),
    ("clean_pods", &["running", "all", "none"]),
    ("success_policy", &["all", "chief", "worker-0"]),
    ("image_pull_policy", &["IfNotPresent", "Always", "Never"]),
];

pub(super) fn run(shell: Shell, data: &mut Data) -> Result<Exit, Error> {
    data.bytes(script(shell).as_bytes())?;
    Ok(Exit::Done)
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut completed(), "client", &mut script);
    String::from_utf8(script).expect("flags, verbs and their help are UTF-8")
}

/// The flags and verbs to complete. Omits positional arguments, because zsh would treat a verb as SCRIPT.
fn completed() -> Command {
    let cli = Cli::command();
    let flags = cli.get_arguments().filter(|arg| !arg.is_positional()).cloned().map(with_values);
    let verbs = cli.get_subcommands().cloned();
    Command::new("client").version(env!("CARGO_PKG_VERSION")).args(flags).subcommands(verbs)
}

fn with_values(flag: Arg) -> Arg {
    match VALUES.iter().find(|(id, _)| flag.get_id() == id) {
        Some((_, values)) => flag.value_parser(PossibleValuesParser::new(*values)),
        None => flag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zsh_completes_the_first_word_as_a_verb() {
        let script = script(Shell::Zsh);
        assert!(script.contains("\n\":: :_client_commands\" \\\n"), "{script}");
        assert!(script.contains("case $line[1] in"), "{script}");
        let (of_the_client, _) = script.split_once(":_client_commands").expect("the script does not list the verbs");
        assert!(!of_the_client.contains("\n':"), "an argument comes before the verb in\n{of_the_client}");
    }

    #[test]
    fn every_offered_value_is_valid() {
        for (id, values) in VALUES {
            let flag = format!("--{}", id.replace('_', "-"));
            for value in values {
                let line = ["client", &flag, value].map(Into::into);
                assert!(crate::args::parse(line).is_ok(), "{flag} refuses {value}");
            }
        }
    }

    #[test]
    fn bash_zsh_and_fish_offer_the_values_of_a_flag() {
        for (shell, offer) in [
            (Shell::Bash, "--clean-pods)\n                    COMPREPLY=($(compgen -W \"running all none\" "),
            (Shell::Zsh, ":WHICH:(running all none)' \\\n"),
            (Shell::Fish, " -a \"running\\t''\nall\\t''\nnone\\t''\""),
        ] {
            let script = script(shell);
            assert!(script.contains(offer), "no {offer:?} in\n{script}");
        }
    }
}
