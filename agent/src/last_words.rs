//! Writes the report of a run's end to the container's termination message. A master can read this message after the
//! agent has ended.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use protocol::agent::{ExitOutcome, LAST_WORDS_BYTES, LastWords, RunStatus};
use protocol::text;
use tracing::warn;

/// Writes the report of a run's end to an existing file. Does nothing if no run has ended.
pub fn leave(status: &RunStatus, file: &Path) {
    let Some(exit) = status.exit.clone() else { return };
    let message = message(LastWords { generation: status.generation, exit, membership: status.membership });
    match OpenOptions::new().write(true).truncate(true).open(file).and_then(|mut file| file.write_all(&message)) {
        Ok(()) => {}
        // Only Kubernetes creates this file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn!(%error, file = %file.display(), "cannot write how the run ended"),
    }
}

/// The message as JSON of at most [`LAST_WORDS_BYTES`]. A long message is cut: it contains only the end of stderr and
/// the beginning of the reason.
pub fn message(mut words: LastWords) -> Vec<u8> {
    let tail = &words.exit.stderr_tail;
    words.exit.stderr_tail = text::end(tail, room(&words, tail)).to_owned();
    if let ExitOutcome::NotStarted(reason) = &words.exit.outcome {
        let kept = text::beginning(reason, room(&words, reason)).to_owned();
        words.exit.outcome = ExitOutcome::NotStarted(kept);
    }
    json(&words)
}

/// How long `text` may be as JSON, so that the JSON of `words` has at most [`LAST_WORDS_BYTES`]. `text` is a part of
/// `words`.
fn room(words: &LastWords, text: &str) -> usize {
    let surplus = json(words).len().saturating_sub(LAST_WORDS_BYTES);
    text::json_length(text).saturating_sub(surplus)
}

fn json(words: &LastWords) -> Vec<u8> {
    serde_json::to_vec(words).expect("messages have text keys and no failing parts")
}
