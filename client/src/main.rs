//! The client's program: passes its arguments to [`client::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    client::run(std::env::args_os().collect())
}
