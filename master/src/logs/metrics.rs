//! Reads numbers from the output of a script, by the patterns of its job.
//!
//! The output is read only when somebody asks for the job's series, each time from where the last reading ended.

use std::collections::BTreeMap;
use std::io;

use protocol::ids::{ReplicaId, UnixMillis};
use protocol::metric::Pattern;
use protocol::processes::rank_of;
use protocol::progress::Values;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::file::LogFile;
use super::{Chunk, ReplicaLog};

/// Maximum bytes of output in one reading: the newest. A search of all kept output with many patterns takes minutes.
const READ_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How far the output of each replica has been read.
#[derive(Debug, Default)]
pub(super) struct ReadOutput(Mutex<BTreeMap<ReplicaId, u64>>);

impl ReadOutput {
    /// Passes the numbers in the new lines of this replica's output to `found`, each with the time of its printing if
    /// this time is known. A line ends with a line feed or a carriage return. When no more output can follow, the last
    /// line needs no such end. If a line does not fit into one chunk, each piece of it counts as a line.
    pub(super) async fn numbers(
        &self,
        (replica, log): (ReplicaId, &ReplicaLog),
        patterns: &Patterns,
        mut found: impl FnMut(Vec<(Option<UnixMillis>, Values)>),
    ) -> io::Result<()> {
        let first = log.on_file(LogFile::end).await?.saturating_sub(READ_BYTES_MAX);
        loop {
            // Locked anew for each chunk, so that no request waits for a whole reading of another request.
            let mut offsets = self.0.lock().await;
            let offset = offsets.entry(replica).or_default();
            if *offset < first {
                let skipped = log.read(first).await?;
                *offset = skipped.offset + rest_of_line(&skipped.bytes, patterns.ends()) as u64;
                continue;
            }
            let known = log.progress();
            let chunk = log.read_with_times(*offset).await?;
            let end = chunk.offset + chunk.bytes.len() as u64;
            // While more output may follow, the last line may be unfinished.
            let may_grow = !known.is_complete && end >= known.end;
            let Some(length) = complete(&chunk.bytes, may_grow, patterns.ends()) else { return Ok(()) };
            let (next, patterns) = (chunk.offset + length as u64, patterns.clone());
            let numbers = spawn_blocking(move || patterns.numbers(&chunk, length)).await.map_err(io::Error::other)?;
            // There is no await between the new offset and `found`. So a request that is given up loses no number.
            *offset = next;
            if !numbers.is_empty() {
                found(numbers);
            }
        }
    }
}

/// How many of these bytes to read now: up to the end of the last complete line. Without a complete line: all bytes, or
/// `None` if the line may grow or there are no bytes.
fn complete(bytes: &[u8], may_grow: bool, ends: &[u8]) -> Option<usize> {
    let lines = bytes.iter().rposition(|byte| ends.contains(byte)).map(|last| last + 1);
    lines.or((!may_grow && !bytes.is_empty()).then_some(bytes.len()))
}

/// The number of bytes up to the end of the first line.
fn rest_of_line(bytes: &[u8], ends: &[u8]) -> usize {
    bytes.iter().position(|byte| ends.contains(byte)).map_or(bytes.len(), |end| end + 1)
}

/// What ends a line.
const ENDS: &[u8] = b"\n\r";

/// What to look for in the output of a replica.
#[derive(Debug, Clone)]
pub(super) struct Patterns {
    /// The pattern of each number.
    pub(super) numbers: BTreeMap<String, Pattern>,
    /// The number of processes of the replica. If there are several, each line has a label with its rank.
    pub(super) processes: u32,
}

impl Patterns {
    /// What ends the lines of one reading. A label stands only before the first of the parts that carriage returns separate,
    /// so all parts are read together.
    fn ends(&self) -> &'static [u8] {
        if self.processes > 1 { b"\n" } else { ENDS }
    }

    /// The numbers in the lines of the first `length` bytes. Of several processes, only the lines of the first one count.
    fn numbers(&self, chunk: &Chunk, length: usize) -> Vec<(Option<UnixMillis>, Values)> {
        let mut end = chunk.offset;
        let (mut begins, mut counts) = (true, true);
        let mut of_line = |bytes: &[u8]| {
            end += bytes.len() as u64;
            let text = String::from_utf8_lossy(bytes);
            let ranked = if self.processes > 1 && begins { rank_of(&text) } else { None };
            counts = ranked.map_or(counts, |(rank, _)| rank % self.processes == 0);
            begins = bytes.ends_with(b"\n");
            let line = ranked.map_or(&*text, |(_, line)| line);
            let number = |(name, pattern): (&String, &Pattern)| Some((name.clone(), pattern.number_in(line)?));
            let numbers: BTreeMap<String, f64> = self.numbers.iter().filter_map(number).collect();
            let at = chunk.marks.iter().rev().find(|mark| mark.offset < end).map(|mark| mark.at);
            (counts && !numbers.is_empty()).then(|| (at, Values::from(numbers)))
        };
        chunk.bytes[..length].split_inclusive(|byte| ENDS.contains(byte)).filter_map(&mut of_line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::Mark;

    fn patterns(loss: &str, processes: u32) -> Patterns {
        Patterns { numbers: BTreeMap::from([("loss".to_owned(), loss.parse().unwrap())]), processes }
    }

    #[test]
    fn each_line_with_a_number_counts_with_the_time_at_which_it_was_printed() {
        let patterns = patterns("loss: ([0-9.]+)", 1);
        let bytes = b"1/3 loss: 0.5\r2/3 loss: 0.25\rno number\n3/3 loss: 0.125".to_vec();
        let mark = |(offset, at)| Mark { offset, at: UnixMillis(at) };
        let chunk = Chunk { offset: 100, bytes, marks: [(90, 1), (114, 2), (139, 3)].map(mark).to_vec() };
        let length = complete(&chunk.bytes, true, ENDS).unwrap();
        let found: Vec<(Option<u64>, f64)> = patterns
            .numbers(&chunk, length)
            .iter()
            .map(|(at, values)| (at.map(|at| at.0), values.iter().next().unwrap().1))
            .collect();
        assert_eq!(found, [(Some(1), 0.5), (Some(2), 0.25)]);
        assert_eq!(&chunk.bytes[length..], b"3/3 loss: 0.125", "an unfinished line is read later");
    }

    #[test]
    fn only_the_whole_lines_of_the_first_of_several_processes_count() {
        let patterns = patterns("^loss: ([0-9.]+)", 4);
        let bytes = b"[rank1] loss: 9\rloss: 8\n[rank4] loss: 2\rloss: 1\n[rank10] loss: 7\n[rank4] loss: 0\r".to_vec();
        let chunk = Chunk { offset: 0, marks: vec![], bytes };
        let length = complete(&chunk.bytes, true, patterns.ends()).unwrap();
        let found = patterns.numbers(&chunk, length);
        let found: Vec<f64> = found.iter().map(|(_, values)| values.iter().next().unwrap().1).collect();
        assert_eq!(found, [2.0, 1.0]);
    }

    #[test]
    fn reading_begins_after_the_rest_of_a_line_whose_beginning_is_skipped() {
        assert_eq!(rest_of_line(b"0.5\nloss: 2\n", ENDS), 4);
        assert_eq!(rest_of_line(b"0.5", ENDS), 3);
    }

    #[test]
    fn a_line_that_is_longer_than_a_chunk_or_the_last_one_does_not_stop_the_reading() {
        assert_eq!(complete(b"half", true, ENDS), None);
        assert_eq!(complete(b"half", false, ENDS), Some(4));
        assert_eq!(complete(b"", false, ENDS), None);
        assert_eq!(complete(b"one\ntwo", false, ENDS), Some(4));
    }
}
