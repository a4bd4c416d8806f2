//! Records the messages, the records and the files of Muster's programs into a folder such as `tests/wire/2`: `cargo run
//! -p e2e --bin wire tests/wire/2`. Each scenario runs the real client, master and agents, with a proxy between them.

mod exchanges;
mod proxy;
mod scenarios;
mod setting;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--agent", log, agent, ..] => proxy::run_agent(Path::new(log), agent, &args[3..]),
        [folder] => {
            scenarios::record(Path::new(folder))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("usage: wire FOLDER"),
    }
}
