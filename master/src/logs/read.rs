//! Reads kept output as streams: the bytes of one replica, or its lines.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use protocol::ids::ReplicaId;
use protocol::view::{LOG_LINE_BYTES, LogLine, UNFINISHED_BYTES};

use super::{Chunk, JobLogs, ReplicaLog, pace};

/// The logs of all replicas except the `known` ones, as they are added. Ends when the job's output is complete.
pub fn added_after(
    logs: Arc<JobLogs>,
    known: BTreeSet<ReplicaId>,
) -> impl Stream<Item = (ReplicaId, ReplicaLog)> + Send {
    stream::unfold((logs, known), async |(logs, mut known)| {
        loop {
            let mut changed = pin!(logs.changed.notified());
            changed.as_mut().enable();
            let added = logs.all().into_iter().find(|(id, _)| !known.contains(id));
            if let Some((id, log)) = added {
                known.insert(id);
                return Some(((id, log), (Arc::clone(&logs), known)));
            }
            if logs.is_complete() {
                return None;
            }
            changed.await;
        }
    })
}

/// The output from `offset` on: the kept bytes, and with `follow` also new bytes until the output is complete.
/// If a chunk begins after the end of the previous chunk, the bytes in between are not kept. The chunk is empty if no
/// kept bytes follow this gap yet.
pub fn reader(log: ReplicaLog, offset: u64, follow: bool) -> impl Stream<Item = io::Result<Chunk>> + Send {
    stream::unfold(Some((log, offset)), move |state| async move {
        let (log, offset) = state?;
        loop {
            // Read the progress before the file. Then a write between the two reads leads to another turn of the loop.
            let seen = log.progress();
            match log.read(offset).await {
                Err(error) => return Some((Err(error), None)),
                Ok(chunk) if chunk.offset > offset || !chunk.bytes.is_empty() => {
                    let next = chunk.offset + chunk.bytes.len() as u64;
                    return Some((Ok(chunk), Some((log, next))));
                }
                Ok(_) if seen.is_complete || !follow => return None,
                Ok(_) => log.progressed_from(seen).await,
            }
        }
    })
}

/// The output's lines from `offset` on, in batches. Extra lines report bytes that are not kept because there were too
/// many. If an error prevented the master from storing output, the last line contains the error.
pub fn lines(
    replica: ReplicaId,
    log: ReplicaLog,
    offset: u64,
    follow: bool,
) -> impl Stream<Item = io::Result<Vec<LogLine>>> + Send {
    let mut splitter = Splitter::new(replica, offset);
    chunks_and_end(&log, offset, follow).map(move |chunk| match chunk {
        Some(chunk) => Ok(splitter.split(&chunk?)),
        None => Ok(splitter.end(log.missing().as_deref())),
    })
}

/// The output's lines from `offset` on as they arrive, and from time to time the line that is still being written.
pub fn growing_lines(
    replica: ReplicaId,
    log: ReplicaLog,
    offset: u64,
) -> impl Stream<Item = io::Result<Vec<LogLine>>> + Send {
    let mut splitter = Splitter::new(replica, offset);
    let lines = chunks_and_end(&log, offset, true).map(move |chunk| match chunk {
        Some(chunk) => {
            let mut lines = splitter.split(&chunk?);
            lines.extend(splitter.unfinished());
            Ok(lines)
        }
        None => Ok(splitter.end(log.missing().as_deref())),
    });
    pace::unfinished_lines(lines)
}

/// The chunks of [`reader`], and `None` after the last one.
fn chunks_and_end(
    log: &ReplicaLog,
    offset: u64,
    follow: bool,
) -> impl Stream<Item = Option<io::Result<Chunk>>> + Send + use<> {
    reader(log.clone(), offset, follow).map(Some).chain(stream::iter([None]))
}

#[derive(Debug)]
struct Splitter {
    replica: ReplicaId,
    /// The offset of the first byte of `pending`.
    offset: u64,
    /// The beginning of a line whose end has not arrived.
    pending: Vec<u8>,
    /// Whether any chunk has arrived.
    has_begun: bool,
}

impl Splitter {
    fn new(replica: ReplicaId, offset: u64) -> Self {
        Self { replica, offset, pending: Vec::new(), has_begun: false }
    }

    fn split(&mut self, chunk: &Chunk) -> Vec<LogLine> {
        let mut lines = self.gap_before(chunk);
        self.has_begun = true;
        self.pending.extend_from_slice(&chunk.bytes);
        let pending = mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while let Some(length) = next_cut(rest) {
            let (line, after) = rest.split_at(length);
            lines.push(self.line(line));
            rest = after;
        }
        self.pending = rest.to_vec();
        lines
    }

    /// The lines for a gap before this chunk: the unfinished line before the gap, and a remark on the gap. Empty if
    /// there is no gap.
    fn gap_before(&mut self, chunk: &Chunk) -> Vec<LogLine> {
        let dropped = chunk.offset.saturating_sub(self.offset + self.pending.len() as u64);
        if dropped == 0 {
            return vec![];
        }
        let mut lines = self.rest();
        self.offset = chunk.offset;
        let why = if self.has_begun {
            "are missing here: they came faster than they could be kept"
        } else {
            "before this are no longer kept"
        };
        lines.push(self.remark(format!("[{dropped} bytes of output {why}]")));
        lines
    }

    /// The last lines. `missing` is the reason why some output could not be kept.
    fn end(&mut self, missing: Option<&str>) -> Vec<LogLine> {
        let mut lines = self.rest();
        lines.extend(missing.map(|why| self.remark(format!("[not all of the output could be kept: {why}]"))));
        lines
    }

    /// A line that the master adds to the output.
    fn remark(&self, line: String) -> LogLine {
        LogLine { replica: self.replica, offset: self.offset, line, unfinished: false }
    }

    /// The newest bytes of the line that is being written, if there is one.
    fn unfinished(&self) -> Option<LogLine> {
        let shown = &self.pending[self.pending.len().saturating_sub(UNFINISHED_BYTES)..];
        let line = String::from_utf8_lossy(shown).into_owned();
        (!line.is_empty()).then_some(LogLine { replica: self.replica, offset: self.offset, line, unfinished: true })
    }

    fn rest(&mut self) -> Vec<LogLine> {
        let pending = mem::take(&mut self.pending);
        if pending.is_empty() { vec![] } else { vec![self.line(&pending)] }
    }

    fn line(&mut self, bytes: &[u8]) -> LogLine {
        self.offset += bytes.len() as u64;
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let line = String::from_utf8_lossy(text).into_owned();
        LogLine { replica: self.replica, offset: self.offset, line, unfinished: false }
    }
}

/// The length of the first line with its newline, or of a piece of a line that is too long.
fn next_cut(bytes: &[u8]) -> Option<usize> {
    let newline = bytes.iter().take(LOG_LINE_BYTES).position(|byte| *byte == b'\n');
    newline.map(|place| place + 1).or((bytes.len() >= LOG_LINE_BYTES).then_some(LOG_LINE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splitter() -> Splitter {
        Splitter::new("worker-1".parse().unwrap(), 10)
    }

    fn texts(lines: &[LogLine]) -> Vec<(u64, &str)> {
        lines.iter().map(|line| (line.offset, line.line.as_str())).collect()
    }

    /// Splits bytes that follow the earlier bytes without a gap.
    fn split(splitter: &mut Splitter, bytes: &[u8]) -> Vec<LogLine> {
        let offset = splitter.offset + splitter.pending.len() as u64;
        splitter.split(&Chunk { offset, bytes: bytes.to_vec() })
    }

    #[test]
    fn a_line_is_joined_from_several_chunks() {
        let mut splitter = splitter();
        assert_eq!(texts(&split(&mut splitter, b"one\ntw")), [(14, "one")]);
        assert_eq!(texts(&split(&mut splitter, b"o\r\n\nthree")), [(19, "two"), (20, "")]);
        assert_eq!(texts(&splitter.rest()), [(25, "three")]);
        assert_eq!(splitter.rest(), []);
    }

    #[test]
    fn the_unfinished_line_is_shown_whole_or_cut_to_its_newest_bytes() {
        let mut splitter = splitter();
        assert_eq!(splitter.unfinished(), None);
        split(&mut splitter, b"one\n10%\r20%");
        let unfinished = splitter.unfinished().unwrap();
        assert_eq!((unfinished.offset, unfinished.line.as_str(), unfinished.unfinished), (14, "10%\r20%", true));
        assert_eq!(texts(&split(&mut splitter, b"\r30%\n")), [(26, "10%\r20%\r30%")]);
        assert_eq!(splitter.unfinished(), None);
        split(&mut splitter, &vec![b'x'; UNFINISHED_BYTES + 7]);
        assert_eq!(splitter.unfinished().unwrap().line.len(), UNFINISHED_BYTES);
    }

    #[test]
    fn a_line_that_is_too_long_is_split_into_pieces() {
        let mut splitter = splitter();
        let lines = split(&mut splitter, &vec![b'x'; 2 * LOG_LINE_BYTES + 5]);
        assert_eq!(lines.iter().map(|line| line.line.len()).collect::<Vec<_>>(), [LOG_LINE_BYTES; 2]);
        assert_eq!(splitter.rest()[0].line, "xxxxx");
    }

    #[test]
    fn invalid_utf8_is_replaced_and_offsets_count_its_bytes() {
        assert_eq!(texts(&split(&mut splitter(), b"a\xff\xfeb\n")), [(15, "a\u{fffd}\u{fffd}b")]);
    }

    #[test]
    fn a_gap_ends_the_line_before_the_gap_and_is_reported() {
        let mut splitter = splitter();
        assert_eq!(split(&mut splitter, b"half"), []);
        let lines = splitter.split(&Chunk { offset: 100, bytes: b"whole\n".to_vec() });
        let gap = "[86 bytes of output are missing here: they came faster than they could be kept]";
        assert_eq!(texts(&lines), [(14, "half"), (100, gap), (106, "whole")]);
    }

    #[test]
    fn dropped_bytes_are_reported_first_and_missing_output_last() {
        let mut splitter = splitter();
        let lines = splitter.split(&Chunk { offset: 100, bytes: b"late\nend".to_vec() });
        assert_eq!(texts(&lines), [(100, "[90 bytes of output before this are no longer kept]"), (105, "late")]);
        let remark = "[not all of the output could be kept: No space left on device]";
        assert_eq!(texts(&splitter.end(Some("No space left on device"))), [(108, "end"), (108, remark)]);
        assert_eq!(splitter.end(None), []);
    }
}
