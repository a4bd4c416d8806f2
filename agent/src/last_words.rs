//! What the agent leaves behind when it ends after a run, where Kubernetes finds it: for a master that comes too late to
//! ask.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use protocol::agent::{ExitOutcome, LAST_WORDS_BYTES, LastWords, RunStatus};
use tracing::warn;

/// Writes how the run ended, if it has, into a file that is there already.
pub fn leave(status: &RunStatus, file: &Path) {
    let Some(exit) = status.exit.clone() else { return };
    let message = message(LastWords { generation: status.generation, exit });
    match OpenOptions::new().write(true).truncate(true).open(file).and_then(|mut file| file.write_all(&message)) {
        Ok(()) => {}
        // Not everything that runs an agent is Kubernetes.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn!(%error, file = %file.display(), "how the run ended cannot be left behind"),
    }
}

/// The words as JSON of at most [`LAST_WORDS_BYTES`]: of stderr what is newest, then of a reason what stands first.
pub fn message(mut words: LastWords) -> Vec<u8> {
    let json = |words: &LastWords| serde_json::to_vec(words).expect("messages have text keys and no failing parts");
    let surplus = |message: &[u8]| message.len().saturating_sub(LAST_WORDS_BYTES);
    let message = json(&words);
    // Each byte of a text is at least one of its JSON.
    let tail = &mut words.exit.stderr_tail;
    tail.drain(..boundary(tail, surplus(&message)));
    let message = json(&words);
    let ExitOutcome::NotStarted(reason) = &mut words.exit.outcome else { return message };
    let kept = reason.len().saturating_sub(surplus(&message));
    *reason = reason
        .chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= kept).then_some(c)
        })
        .collect();
    json(&words)
}

/// The first boundary between characters from `index` on.
fn boundary(text: &str, index: usize) -> usize {
    (index..text.len()).find(|index| text.is_char_boundary(*index)).unwrap_or(text.len())
}
