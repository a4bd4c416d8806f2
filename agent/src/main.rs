//! The agent's program: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::main()
}
