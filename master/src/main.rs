//! The `master` program: reads its configuration, runs, and reports why it ended.

use std::process::ExitCode;

use clap::Parser;
use master::config::Config;

#[tokio::main]
async fn main() -> ExitCode {
    master::exit_code(master::run(Config::parse()).await)
}
