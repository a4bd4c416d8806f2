//! `env`: prints the statements that prepare a shell for the cluster of kubectl's context.

use crate::address::config;
use crate::cluster::shell_env::{remember, restored, set_up, statements};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Data, Notes};

pub(super) async fn run(unset: bool, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    if data.is_for_terminal() {
        return Err(on_terminal(unset));
    }
    let now = config::environment();
    let before = restored(&now);
    if unset {
        data.bytes(statements(&now, &before).as_bytes())?;
        return Ok(Exit::Done);
    }
    let mut after = before.clone();
    let outcome = set_up(&mut after, notes).await;
    let folder = own_folder();
    // Even without a cluster, the statements add the folder of this program to PATH.
    data.bytes(statements(&now, &remember(&before, after, folder.as_deref())).as_bytes())?;
    outcome?;
    Ok(Exit::Done)
}

/// The statements contain the token, so they must not be shown. On a terminal they would have no effect either.
fn on_terminal(unset: bool) -> Error {
    let flag = if unset { " --unset" } else { "" };
    Error::input("the statements of client env contain the master's token, so they are not printed on a terminal")
        .hint(format!("eval \"$(client env{flag})\""))
}

fn own_folder() -> Option<String> {
    let own = std::env::current_exe().ok()?;
    own.parent()?.to_str().map(str::to_owned)
}
