//! Questions to the user at the terminal.

use std::io::{self, BufRead, IsTerminal};

use crate::output::Notes;

/// Asks the user. Returns the answer without surrounding blanks, or `None` if stdin is not a terminal.
pub(super) async fn ask(question: &str, notes: &Notes) -> Option<String> {
    if !io::stdin().is_terminal() {
        return None;
    }
    notes.say(question);
    let line = tokio::task::spawn_blocking(|| io::stdin().lock().lines().next());
    let answer = line.await.ok().flatten().and_then(Result::ok).unwrap_or_default();
    Some(answer.trim().to_owned())
}
