//! Reads kept output as streams: the bytes of one replica, or its lines.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::output::{LOG_LINE_BYTES, LogLine, UNFINISHED_BYTES, is_of_earlier_master};

use super::{Chunk, JobLogs, Mark, ReplicaLog, Wanted, pace};

/// The output that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The offset of the first byte.
    pub offset: u64,
    /// Whether the stream continues with new bytes until the output is complete.
    pub follow: bool,
    /// Whether the lines have times.
    pub wanted: Wanted,
    /// Whether to show from time to time the line that is still being written.
    pub unfinished: bool,
}

/// The logs of all replicas except the `known` ones, each as soon as its replica is added. Ends when the job's output
/// is complete.
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

/// The kept bytes from an offset on, and with `follow` also new bytes until the output is complete. A gap between two
/// chunks means that the bytes in between are not kept. The chunk after a gap is empty if nothing follows the gap yet.
pub fn reader(log: ReplicaLog, reading: Reading) -> impl Stream<Item = io::Result<Chunk>> + Send {
    let Reading { offset, follow, wanted, unfinished: _ } = reading;
    stream::unfold(Some((log, offset)), move |state| async move {
        let (log, offset) = state?;
        loop {
            // Read the progress before the file. Then a write between the two reads leads to another turn of the loop.
            let seen = log.progress();
            match log.read_wanted(offset, wanted).await {
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

/// The output's lines from an offset on, in batches. Where old bytes were dropped to make room, an extra line says how
/// many. If the master could not store output, the last line contains the error.
pub fn lines(
    replica: ReplicaId,
    log: ReplicaLog,
    reading: Reading,
) -> impl Stream<Item = io::Result<Vec<LogLine>>> + Send {
    let mut splitter = Splitter::new(replica, reading.offset);
    let chunks_and_end = reader(log.clone(), reading).map(Some).chain(stream::iter([None]));
    pace::unfinished_lines(chunks_and_end.map(move |chunk| match chunk {
        Some(chunk) => {
            let mut lines = splitter.split(&chunk?);
            if reading.unfinished {
                lines.extend(splitter.unfinished());
            }
            Ok(lines)
        }
        None => Ok(splitter.end(log.missing().as_deref())),
    }))
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
    times: LineTimes,
}

/// When the bytes that have arrived were printed.
#[derive(Debug, Default)]
struct LineTimes(VecDeque<Mark>);

impl LineTimes {
    fn learn(&mut self, marks: &[Mark]) {
        let known = self.0.back().map(|mark| mark.offset);
        self.0.extend(marks.iter().filter(|mark| Some(mark.offset) > known));
    }

    /// When the byte at `offset` was printed. Later calls must not ask for an earlier byte.
    fn of(&mut self, offset: u64) -> Option<UnixMillis> {
        while self.0.get(1).is_some_and(|next| next.offset <= offset) {
            self.0.pop_front();
        }
        self.0.front().filter(|mark| mark.offset <= offset).map(|mark| mark.at)
    }
}

impl Splitter {
    fn new(replica: ReplicaId, offset: u64) -> Self {
        Self { replica, offset, pending: Vec::new(), has_begun: false, times: LineTimes::default() }
    }

    fn split(&mut self, chunk: &Chunk) -> Vec<LogLine> {
        let mut lines = self.gap_before(chunk);
        self.times.learn(&chunk.marks);
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
        let remark = if is_of_earlier_master(dropped) {
            "[output that an earlier master kept may be missing here]".to_owned()
        } else if self.has_begun {
            format!("[{dropped} bytes of output are missing here: they came faster than they could be kept]")
        } else {
            format!("[{dropped} bytes of output before this are no longer kept]")
        };
        lines.push(self.remark(remark));
        lines
    }

    /// The last lines. `missing` is the reason why some output could not be kept.
    fn end(&mut self, missing: Option<&str>) -> Vec<LogLine> {
        let mut lines = self.rest();
        lines.extend(missing.map(|why| self.remark(format!("[not all of the output could be kept: {why}]"))));
        lines
    }

    /// A line that the master adds to the output. Its time is the time of the output before it.
    fn remark(&mut self, line: String) -> LogLine {
        LogLine {
            replica: self.replica,
            time: self.times.of(self.offset),
            offset: self.offset,
            line,
            unfinished: false,
        }
    }

    /// The newest bytes of the line that is being written, if there is one.
    fn unfinished(&mut self) -> Option<LogLine> {
        let last = self.offset + (self.pending.len() as u64).checked_sub(1)?;
        let shown = &self.pending[self.pending.len().saturating_sub(UNFINISHED_BYTES)..];
        let line = String::from_utf8_lossy(shown).into_owned();
        let time = self.times.of(last);
        Some(LogLine { replica: self.replica, time, offset: self.offset, line, unfinished: true })
    }

    fn rest(&mut self) -> Vec<LogLine> {
        let pending = mem::take(&mut self.pending);
        if pending.is_empty() { vec![] } else { vec![self.line(&pending)] }
    }

    /// A line of at least one byte. Its time is the time of its last byte: at this time, the line was complete.
    fn line(&mut self, bytes: &[u8]) -> LogLine {
        self.offset += bytes.len() as u64;
        let time = self.times.of(self.offset - 1);
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let line = String::from_utf8_lossy(text).into_owned();
        LogLine { replica: self.replica, time, offset: self.offset, line, unfinished: false }
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
        splitter.split(&Chunk { offset, bytes: bytes.to_vec(), marks: vec![] })
    }

    fn mark((offset, at): (u64, u64)) -> Mark {
        Mark { offset, at: UnixMillis(at) }
    }

    fn chunk(offset: u64, bytes: &[u8], marks: &[(u64, u64)]) -> Chunk {
        Chunk { offset, bytes: bytes.to_vec(), marks: marks.iter().copied().map(mark).collect() }
    }

    /// The lines, each with its time in milliseconds.
    fn timed(lines: &[LogLine]) -> Vec<(&str, Option<u64>)> {
        lines.iter().map(|line| (line.line.as_str(), line.time.map(|time| time.0))).collect()
    }

    #[test]
    fn the_time_of_a_line_is_the_time_at_which_it_was_complete() {
        let mut splitter = splitter();
        let lines = splitter.split(&chunk(10, b"one\ntwo\nth", &[(4, 100), (14, 200), (18, 300)]));
        assert_eq!(timed(&lines), [("one", Some(100)), ("two", Some(200))]);
        assert_eq!(splitter.unfinished().and_then(|line| line.time), Some(UnixMillis(300)));
        let lines = splitter.split(&chunk(20, b"ree\nfour", &[(18, 300), (22, 400)]));
        assert_eq!(timed(&lines), [("three", Some(400))]);
        assert_eq!(timed(&splitter.end(Some("disk full"))).first(), Some(&("four", Some(400))));
    }

    #[test]
    fn each_piece_of_a_long_line_and_each_line_beside_a_gap_has_its_own_time() {
        let mut splitter = splitter();
        let long = vec![b'x'; LOG_LINE_BYTES + 1];
        let end = 10 + LOG_LINE_BYTES as u64;
        let lines = splitter.split(&chunk(10, &long, &[(10, 100), (end, 200)]));
        assert_eq!(lines.iter().map(|line| line.time).collect::<Vec<_>>(), [Some(UnixMillis(100))]);
        let lines = splitter.split(&chunk(end + 100, b"after\n", &[(end + 50, 300)]));
        let times: Vec<_> = lines.iter().map(|line| line.time.map(|time| time.0)).collect();
        assert_eq!(times, [Some(200), Some(200), Some(300)], "{lines:?}");
    }

    #[test]
    fn a_line_before_the_first_known_time_has_no_time() {
        let lines = splitter().split(&chunk(10, b"old\nnew\n", &[(14, 100)]));
        assert_eq!(timed(&lines), [("old", None), ("new", Some(100))]);
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
        let lines = splitter.split(&chunk(100, b"whole\n", &[]));
        let gap = "[86 bytes of output are missing here: they came faster than they could be kept]";
        assert_eq!(texts(&lines), [(14, "half"), (100, gap), (106, "whole")]);
    }

    #[test]
    fn dropped_bytes_are_reported_first_and_missing_output_last() {
        let mut splitter = splitter();
        let lines = splitter.split(&chunk(100, b"late\nend", &[]));
        assert_eq!(texts(&lines), [(100, "[90 bytes of output before this are no longer kept]"), (105, "late")]);
        let remark = "[not all of the output could be kept: No space left on device]";
        assert_eq!(texts(&splitter.end(Some("No space left on device"))), [(108, "end"), (108, remark)]);
        assert_eq!(splitter.end(None), []);
    }
}
