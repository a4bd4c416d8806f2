//! What the agent leaves behind when it ends after a run, where Kubernetes finds it: for a master that comes too late to
//! ask.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use protocol::agent::{ExitOutcome, LAST_WORDS_BYTES, LastWords, RunStatus};
use protocol::text;
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

/// The words as JSON of at most [`LAST_WORDS_BYTES`]: of stderr the end, of a reason the beginning.
pub fn message(mut words: LastWords) -> Vec<u8> {
    let tail = &words.exit.stderr_tail;
    words.exit.stderr_tail = text::end(tail, room(&words, tail)).to_owned();
    if let ExitOutcome::NotStarted(reason) = &words.exit.outcome {
        let kept = text::beginning(reason, room(&words, reason)).to_owned();
        words.exit.outcome = ExitOutcome::NotStarted(kept);
    }
    json(&words)
}

/// How many bytes of JSON there are for `text`, which is one of these words, beside the others.
fn room(words: &LastWords, text: &str) -> usize {
    let surplus = json(words).len().saturating_sub(LAST_WORDS_BYTES);
    text::json_length(text).saturating_sub(surplus)
}

fn json(words: &LastWords) -> Vec<u8> {
    serde_json::to_vec(words).expect("messages have text keys and no failing parts")
}
