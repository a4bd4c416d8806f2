//! The client's program: hands its arguments to [`client::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    client::run(std::env::args_os())
}
