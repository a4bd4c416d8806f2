//! The flags for code that a job brings, and the check that a word is a script and not a misspelled verb.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use launchers::similar::nearest;

use super::{SUBMITTING, Verb};
use crate::ending::error::Error;

/// The script, and the folder with the job's code.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = SUBMITTING)]
pub(crate) struct CodeArgs {
    /// Script to run, such as train.py, or a folder with exec.py, such as ./project or '.'. A word that is not a verb
    /// must be '.', end in .py or contain a slash. The folder with the job's code is the current folder if the script
    /// is below it, else the folder of the script. A master that cannot see this folder as the same user gets a copy of
    /// its files. The first of the files .musterignore, .dockerignore and .gitignore that exists names the files to leave
    /// out
    /// [default: exec.py of the current folder or of the image]
    #[arg(value_name = "SCRIPT")]
    pub(crate) script: Option<OsString>,
    /// Folder with the job's code [default: see SCRIPT]
    #[arg(long, value_name = "DIR")]
    pub(crate) code: Option<PathBuf>,
    /// Run the job in one copy of the folder as it is now, so that you can edit the folder meanwhile. Without this flag, a
    /// master on this machine runs the job in the folder itself
    #[arg(long)]
    pub(crate) snapshot: bool,
    #[command(flatten)]
    pub(crate) syntax: SyntaxArgs,
}

/// Whether a job may have a script that does not parse.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct SyntaxArgs {
    /// Submit even if the script does not parse with this machine's Python. The Python of the job may be newer
    #[arg(long)]
    pub(crate) no_syntax_check: bool,
}

impl CodeArgs {
    /// Refuses a word that cannot be SCRIPT. The word may be a misspelled verb.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Some(word) = self.script.as_ref().map(|word| word.to_string_lossy()) else { return Ok(()) };
        if word == "." || word.ends_with(".py") || word.contains('/') {
            return Ok(());
        }
        let hint = match nearest_verb(&word) {
            Some(verb) => format!("did you mean \"{verb}\"?"),
            None => {
                "client --help lists flags and verbs; a script ends in .py, a folder contains a slash, as in ./train"
                    .to_owned()
            }
        };
        Err(Error::input(format!("unknown verb \"{word}\"")).hint(hint))
    }
}

fn nearest_verb(word: &str) -> Option<String> {
    let verbs = Verb::augment_subcommands(clap::Command::new("client"));
    let names: Vec<&str> = verbs.get_subcommands().map(|verb| verb.get_name()).collect();
    nearest(word, &names).map(str::to_owned)
}
