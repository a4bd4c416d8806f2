//! Limits how often a reader receives a line that is still being written.

use std::io;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use protocol::output::LogLine;
use tokio::time::{Instant, sleep_until};

/// Minimum time between two unfinished lines of a replica. People cannot follow more than five changes a second.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes finished lines on at once. Delays the unfinished line at the end of a batch, to keep the pause between
/// unfinished lines. If the next batch arrives during the delay, drops the delayed line: the batch has a newer version.
pub(super) fn unfinished_lines(
    batches: impl Stream<Item = io::Result<Vec<LogLine>>> + Send,
) -> impl Stream<Item = io::Result<Vec<LogLine>>> + Send {
    let waiting: Option<LogLine> = None;
    let state = (Box::pin(batches), waiting, Instant::now());
    stream::unfold(state, async |(mut batches, mut waiting, mut due)| {
        loop {
            tokio::select! {
                biased;
                batch = batches.next() => match batch? {
                    Ok(mut lines) => {
                        waiting = lines.pop_if(|line| line.unfinished);
                        if !lines.is_empty() {
                            return Some((Ok(lines), (batches, waiting, due)));
                        }
                    }
                    error => return Some((error, (batches, waiting, due))),
                },
                () = sleep_until(due), if waiting.is_some() => {
                    due = Instant::now() + PAUSE;
                    return Some((Ok(waiting.take().into_iter().collect()), (batches, waiting, due)));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    fn line(line: &str, unfinished: bool) -> LogLine {
        LogLine { replica: "worker-0".parse().unwrap(), time: None, offset: 0, line: line.to_owned(), unfinished }
    }

    /// A sender of batches, and the stream of their lines with pauses.
    fn paced() -> (mpsc::UnboundedSender<Vec<LogLine>>, impl Stream<Item = Vec<LogLine>> + Unpin) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let batches = stream::unfold(receiver, async |mut receiver| Some((Ok(receiver.recv().await?), receiver)));
        (sender, Box::pin(unfinished_lines(batches).map(Result::unwrap)))
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_pause_only_the_newest_unfinished_line_is_sent() {
        let (sender, mut lines) = paced();
        for percent in ["10%", "20%"] {
            sender.send(vec![line(percent, true)]).unwrap();
        }
        assert_eq!(lines.next().await, Some(vec![line("20%", true)]));
        let first = Instant::now();
        for percent in ["30%", "40%", "50%"] {
            sender.send(vec![line(percent, true)]).unwrap();
        }
        assert_eq!(lines.next().now_or_never(), None);
        assert_eq!(lines.next().await, Some(vec![line("50%", true)]));
        assert_eq!(first.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn finished_lines_are_sent_at_once_and_replace_the_unfinished_line() {
        let (sender, mut lines) = paced();
        sender.send(vec![line("10%", true)]).unwrap();
        sender.send(vec![line("100%", false)]).unwrap();
        sender.send(vec![line("next", false), line("1%", true)]).unwrap();
        assert_eq!(lines.next().await, Some(vec![line("100%", false)]));
        assert_eq!(lines.next().await, Some(vec![line("next", false)]));
        assert_eq!(lines.next().await, Some(vec![line("1%", true)]));
        drop(sender);
        assert_eq!(lines.next().await, None);
    }
}
