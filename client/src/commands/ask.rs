//! Questions to the user at the terminal.

use std::io::{self, BufRead, IsTerminal};

use crate::output::Notes;

/// The user's answer, without blanks around it; `None` if there is no terminal to ask at.
pub(super) async fn ask(question: &str, notes: &Notes) -> Option<String> {
    if !io::stdin().is_terminal() {
        return None;
    }
    notes.say(question);
    let line = tokio::task::spawn_blocking(|| io::stdin().lock().lines().next());
    let answer = line.await.ok().flatten().and_then(Result::ok).unwrap_or_default();
    Some(answer.trim().to_owned())
}
