//! Labels on the lines of a log to which several processes write (pure).

use super::Stream;

/// One output of one process, by its index in the replica.
type Writer = (usize, Stream);

/// Puts a label before each line, and keeps lines of different writers apart.
#[derive(Debug, Default)]
pub(crate) struct LabelledLog {
    /// The writer of the unfinished last line.
    open: Option<Writer>,
}

impl LabelledLog {
    /// The bytes that this log gets for `bytes` of this writer. If another writer has left its line unfinished, begins
    /// with a newline.
    pub(crate) fn labelled(&mut self, writer: Writer, label: &str, bytes: &[u8]) -> Vec<u8> {
        let mut labelled = Vec::with_capacity(bytes.len() + 16 * label.len());
        let mut continues = self.open == Some(writer);
        if self.open.is_some() && !continues {
            labelled.push(b'\n');
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !continues {
                labelled.extend_from_slice(label.as_bytes());
            }
            labelled.extend_from_slice(line);
            continues = false;
        }
        self.open = (bytes.last() != Some(&b'\n')).then_some(writer);
        labelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_label_of_its_process_and_no_two_processes_share_a_line() {
        let mut log = LabelledLog::default();
        let mut text = String::new();
        for (process, stream, bytes) in [
            (0, Stream::Stdout, "one\ntwo\n"),
            (1, Stream::Stdout, "step 1"),
            (1, Stream::Stdout, "\rstep 2"),
            (0, Stream::Stdout, "three\n"),
            (1, Stream::Stdout, " of 3\n"),
            (1, Stream::Stdout, "open"),
            (1, Stream::Stderr, "\n\n"),
        ] {
            let label = format!("[rank{process}] ");
            text += str::from_utf8(&log.labelled((process, stream), &label, bytes.as_bytes())).unwrap();
        }
        let expected = "[rank0] one\n[rank0] two\n[rank1] step 1\rstep 2\n[rank0] three\n[rank1]  of 3\n[rank1] open\n[rank1] \n[rank1] \n";
        assert_eq!(text, expected);
    }
}
