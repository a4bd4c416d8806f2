//! After random appends, gaps and reopenings, a log agrees with a plain vector of all bytes.

use std::num::NonZeroU64;

use bounded_log::{BoundedLog, Gap};
use proptest::prelude::*;

/// One operation on a log.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<u8>),
    Skip(u64),
    Reopen,
}

/// The whole stream. A dropped or lost byte is `None`.
#[derive(Default)]
struct Model {
    bytes: Vec<Option<u8>>,
}

impl Model {
    fn apply(&mut self, step: &Step, capacity: usize) {
        match step {
            Step::Append(bytes) => self.bytes.extend(bytes.iter().copied().map(Some)),
            Step::Reopen => {}
            Step::Skip(n) => self.bytes.extend(std::iter::repeat_n(None, *n as usize)),
        }
        let kept: Vec<usize> = (0..self.bytes.len()).filter(|offset| self.bytes[*offset].is_some()).collect();
        for dropped in &kept[..kept.len().saturating_sub(capacity)] {
            self.bytes[*dropped] = None;
        }
    }

    /// The first kept byte from `offset` on.
    fn next_kept(&self, offset: usize) -> usize {
        (offset.min(self.bytes.len())..self.bytes.len())
            .find(|offset| self.bytes[*offset].is_some())
            .unwrap_or(self.bytes.len())
    }

    fn read(&self, offset: usize, length: usize) -> (usize, Vec<u8>) {
        let from = self.next_kept(offset);
        (from, self.bytes[from..].iter().take(length).map_while(|byte| *byte).collect())
    }

    fn gaps(&self) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = vec![];
        for offset in self.next_kept(0)..self.bytes.len() {
            match gaps.last_mut() {
                _ if self.bytes[offset].is_some() => {}
                Some(gap) if gap.end() == offset as u64 => gap.length += 1,
                _ => gaps.push(Gap { offset: offset as u64, length: 1 }),
            }
        }
        gaps
    }

    fn tail_offset(&self, lines: usize) -> usize {
        let begins =
            |o: &usize| self.bytes[*o].is_some() && (*o == 0 || matches!(self.bytes[o - 1], None | Some(b'\n')));
        let starts: Vec<usize> = (0..self.bytes.len()).filter(begins).collect();
        let last = |lines: usize| starts.iter().rev().nth(lines - 1).copied().unwrap_or(self.next_kept(0));
        if lines == 0 { self.bytes.len() } else { last(lines) }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let byte = prop_oneof![Just(b'\n'), any::<u8>()];
    let step = prop_oneof![
        8 => prop::collection::vec(byte, 0..60).prop_map(Step::Append),
        2 => (0u64..80).prop_map(Step::Skip),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..40)
}

fn check(log: &BoundedLog, model: &Model) -> Result<(), TestCaseError> {
    let (start, end) = (model.next_kept(0), model.bytes.len());
    prop_assert_eq!((log.start(), log.end()), (start as u64, end as u64));
    prop_assert_eq!(log.gaps().collect::<Vec<_>>(), model.gaps());
    let around_gaps = model.gaps().into_iter().flat_map(|gap| [gap.offset as usize - 1, gap.offset as usize + 1]);
    for offset in [0, start, start + 7, end, end + 5].into_iter().chain(around_gaps) {
        prop_assert_eq!(log.next_kept(offset as u64), model.next_kept(offset) as u64);
        for length in [0, 1, 13, 200] {
            let mut buffer = vec![0; length];
            let (from, n) = log.read(offset as u64, &mut buffer).unwrap();
            buffer.truncate(n);
            prop_assert_eq!((from as usize, buffer), model.read(offset, length));
        }
    }
    for lines in 0..6 {
        prop_assert_eq!(log.tail_offset(lines).unwrap() as usize, model.tail_offset(lines as usize), "{} lines", lines);
    }
    Ok(())
}

/// Applies the steps to a log and to a model, and compares both after each step.
fn agrees(
    mut log: BoundedLog,
    steps: &[Step],
    capacity: u64,
    reopen: impl Fn(BoundedLog) -> BoundedLog,
) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Append(bytes) => log.append(bytes).unwrap(),
            Step::Skip(n) => log.skip_to(log.end() + n).unwrap(),
            Step::Reopen => log = reopen(log),
        }
        model.apply(step, capacity as usize);
        check(&log, &model)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_named_log_agrees_with_a_vector_even_after_reopening(steps in steps(), capacity in 1u64..100) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let open = |capacity: u64| BoundedLog::open(&path, NonZeroU64::new(capacity).unwrap()).unwrap();
        // An existing log ignores the capacity 7.
        let reopen = |log| {
            drop(log);
            open(7)
        };
        agrees(open(capacity), &steps, capacity, reopen)?;
        prop_assert!(std::fs::metadata(&path).unwrap().len() <= 4096 + capacity);
    }

    #[test]
    fn an_anonymous_log_agrees_with_a_vector(steps in steps(), capacity in 1u64..100) {
        let log = BoundedLog::create_anonymous(&std::env::temp_dir(), NonZeroU64::new(capacity).unwrap()).unwrap();
        agrees(log, &steps, capacity, |log| log)?;
    }
}
