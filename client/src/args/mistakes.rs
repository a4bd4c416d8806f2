//! Mistakes in a command line that clap does not report well.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};

use super::{Cli, SubmitArgs};
use crate::ending::error::Error;

/// The verb of a command line that does not parse. clap's report does not name the verb.
pub(super) fn verb_of(arguments: &[OsString]) -> Option<String> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(arguments).ok()?;
    matches.subcommand_name().map(str::to_owned)
}

/// Suggests `--worker-num` for `-worker-num`, which clap reads as the flag `-w` with a value.
pub(super) fn typed_with_one_dash(arguments: &[OsString], verb: Option<&str>) -> Option<String> {
    let cli = Cli::command();
    let command = verb.and_then(|verb| cli.find_subcommand(verb)).unwrap_or(&cli);
    let is_flag = |name: &str| {
        let mut flags = command.get_arguments().chain(cli.get_arguments().filter(|arg| arg.is_global_set()));
        flags.any(|arg| arg.get_long() == Some(name))
    };
    let ours = arguments.iter().filter_map(|argument| argument.to_str()).take_while(|argument| *argument != "--");
    let mut names = ours.filter_map(|argument| argument.strip_prefix('-')?.split('=').next());
    names.find(|name| is_flag(name)).map(|name| format!("--{name}"))
}

/// Flags of other launchers for the number of processes.
const COUNTS: [&str; 8] =
    ["-np", "-n", "--np", "--nnodes", "--nproc-per-node", "--nproc_per_node", "--num-workers", "--num_processes"];

/// Suggests `--worker-num` for the flag of another launcher. `unknown` is the flag that clap does not know.
pub(super) fn of_another_launcher(unknown: Option<&str>, verb: Option<&str>) -> Option<String> {
    (verb.is_none() && COUNTS.contains(&unknown?)).then(|| "--worker-num".to_owned())
}

/// Refuses flags of a submit before a verb. clap's own `args_conflicts_with_subcommands` would refuse global
/// flags too.
pub(super) fn refuse_submit_flags_beside_a_verb(matches: &ArgMatches) -> Result<(), Error> {
    let Some(verb) = matches.subcommand_name() else { return Ok(()) };
    let submit = SubmitArgs::augment_args(clap::Command::new("submit"));
    let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    match submit.get_arguments().find(|arg| typed(arg.get_id().as_str())) {
        None => Ok(()),
        Some(arg) => {
            let flag = match (arg.get_long(), arg.get_short()) {
                (Some(long), _) => format!("--{long}"),
                (None, Some(short)) => format!("-{short}"),
                (None, None) if arg.is_last_set() => "-- ARGS".to_owned(),
                (None, None) => "SCRIPT".to_owned(),
            };
            Err(Error::input(format!("{flag} before \"{verb}\" is an argument for submitting a job"))
                .hint(format!("leave out {flag}; client {verb} --help lists the flags of \"{verb}\"")))
        }
    }
}
