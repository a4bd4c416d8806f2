//! The program `client`: submits jobs to a master, follows them, and has a verb for every other request of a user.
//!
//! Wiring only: arguments → the command → one error line and an exit code.

mod address;
mod args;
mod cluster;
mod code;
mod commands;
mod ending;
mod follow;
mod image;
mod interrupt;
mod master;
mod masters;
mod output;
mod programs;
mod request;
mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::output::{Data, Notes};

/// The modules whose requests `--verbose` prints, and the names of their servers.
const TRACED: &[(&str, &str)] = &[(master_client::LOG_TARGET, "master"), (image::LOG_TARGET, "docker")];

/// Prints the error that ended a command, and its hint.
fn report(error: &Error, notes: &Notes) {
    notes.end_progress();
    if matches!(error.cause, Cause::ClosedStdout) {
        return;
    }
    notes.error(error, None);
}

/// Runs a command line and returns the exit code. The first of the `arguments` is the program's name. After an
/// interrupt, ends the process by the same signal instead of returning.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let notes = Notes::new();
    let exit = match obey(arguments, &notes) {
        Ok(exit) => exit,
        Err(error) => {
            report(&error, &notes);
            error.exit
        }
    };
    interrupt::end_if_interrupted();
    exit.into()
}

fn obey(arguments: Vec<OsString>, notes: &Notes) -> Result<Exit, Error> {
    let mut data = Data::above(notes);
    if let [_, program, rest @ ..] = &arguments[..]
        && programs::is_one(program)
    {
        return Err(programs::become_program(program, rest));
    }
    let cli = match args::parse(arguments)? {
        args::Parsed::Help(text) => {
            data.styled(&text)?;
            return Ok(Exit::Done);
        }
        args::Parsed::Command(cli) => *cli,
    };
    output::command_line::remember(&cli.connection);
    if cli.verbose {
        output::trace_requests(notes, TRACED);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Error::no_runtime)?;
    let outcome = runtime.block_on(commands::run(cli.verb, cli.submit, cli.connection, data, notes));
    // A task may wait for a reader of stdout that no longer reads. So no task is awaited: all end with the process.
    runtime.shutdown_background();
    outcome
}
