//! `completions`: a script by which a shell completes this command's flags and verbs.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Data;

pub(super) fn run(shell: Shell, data: &mut Data) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "client", &mut script);
    data.bytes(&script)?;
    Ok(Exit::Done)
}
