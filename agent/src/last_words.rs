//! Writes how the run ended to the container's termination message, for a master that comes when the agent is gone.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use protocol::agent::{ExitOutcome, LAST_WORDS_BYTES, LastWords, RunStatus};
use protocol::text;
use tracing::warn;

/// Writes how the run ended, if it has, to an existing file.
pub fn leave(status: &RunStatus, file: &Path) {
    let Some(exit) = status.exit.clone() else { return };
    let message = message(LastWords { generation: status.generation, exit });
    match OpenOptions::new().write(true).truncate(true).open(file).and_then(|mut file| file.write_all(&message)) {
        Ok(()) => {}
        // Only Kubernetes creates this file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn!(%error, file = %file.display(), "cannot write how the run ended"),
    }
}

/// The message as JSON of at most [`LAST_WORDS_BYTES`]: of stderr the end, of a reason the beginning.
pub fn message(mut words: LastWords) -> Vec<u8> {
    let tail = &words.exit.stderr_tail;
    words.exit.stderr_tail = text::end(tail, room(&words, tail)).to_owned();
    if let ExitOutcome::NotStarted(reason) = &words.exit.outcome {
        let kept = text::beginning(reason, room(&words, reason)).to_owned();
        words.exit.outcome = ExitOutcome::NotStarted(kept);
    }
    json(&words)
}

/// Bytes of JSON that `text`, one of the texts in `words`, may take beside the rest.
fn room(words: &LastWords, text: &str) -> usize {
    let surplus = json(words).len().saturating_sub(LAST_WORDS_BYTES);
    text::json_length(text).saturating_sub(surplus)
}

fn json(words: &LastWords) -> Vec<u8> {
    serde_json::to_vec(words).expect("messages have text keys and no failing parts")
}
