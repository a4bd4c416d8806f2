//! Whatever is appended, skipped and read, a log agrees with a plain vector of all bytes.

use std::num::NonZeroU64;

use bounded_log::BoundedLog;
use proptest::prelude::*;

/// What is done to a log.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<u8>),
    Skip(u64),
    Reopen,
}

/// The whole stream, where a byte that was never there is `None`.
#[derive(Default)]
struct Model {
    bytes: Vec<Option<u8>>,
    start: usize,
}

impl Model {
    fn apply(&mut self, step: &Step, capacity: usize) {
        match step {
            Step::Append(bytes) => self.bytes.extend(bytes.iter().copied().map(Some)),
            Step::Skip(0) | Step::Reopen => {}
            Step::Skip(n) => {
                self.bytes.extend(std::iter::repeat_n(None, *n as usize));
                self.start = self.bytes.len();
            }
        }
        self.start = self.start.max(self.bytes.len().saturating_sub(capacity));
    }

    fn read(&self, offset: usize, length: usize) -> (usize, Vec<u8>) {
        let from = offset.clamp(self.start, self.bytes.len());
        let to = (from + length).min(self.bytes.len());
        (from, self.bytes[from..to].iter().map(|b| b.expect("kept bytes were appended")).collect())
    }

    fn tail_offset(&self, lines: usize) -> usize {
        let begins = |o: &usize| *o == self.start || self.bytes[o - 1] == Some(b'\n');
        let starts: Vec<usize> = (self.start..self.bytes.len()).filter(begins).collect();
        if lines == 0 { self.bytes.len() } else { starts.iter().rev().nth(lines - 1).copied().unwrap_or(self.start) }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let byte = prop_oneof![Just(b'\n'), any::<u8>()];
    let step = prop_oneof![
        8 => prop::collection::vec(byte, 0..60).prop_map(Step::Append),
        1 => (0u64..80).prop_map(Step::Skip),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..40)
}

fn check(log: &BoundedLog, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!((log.start(), log.end()), (model.start as u64, model.bytes.len() as u64));
    for offset in [0, model.start, model.start + 7, model.bytes.len(), model.bytes.len() + 5] {
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

proptest! {
    #[test]
    fn a_named_log_agrees_with_a_vector_also_after_reopening(steps in steps(), capacity in 1u64..100) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let capacity = NonZeroU64::new(capacity).unwrap();
        let mut log = BoundedLog::open(&path, capacity).unwrap();
        let mut model = Model::default();
        for step in &steps {
            match step {
                Step::Append(bytes) => log.append(bytes).unwrap(),
                Step::Skip(n) => log.skip_to(log.end() + n).unwrap(),
                Step::Reopen => {
                    drop(log);
                    log = BoundedLog::open(&path, NonZeroU64::new(7).unwrap()).unwrap();
                }
            }
            model.apply(step, capacity.get() as usize);
            check(&log, &model)?;
        }
        prop_assert!(std::fs::metadata(&path).unwrap().len() <= 32 + capacity.get());
    }

    #[test]
    fn an_anonymous_log_agrees_with_a_vector(steps in steps(), capacity in 1u64..100) {
        let dir = std::env::temp_dir();
        let mut log = BoundedLog::create_anonymous(&dir, NonZeroU64::new(capacity).unwrap()).unwrap();
        let mut model = Model::default();
        for step in steps.iter().filter(|s| !matches!(s, Step::Reopen)) {
            match step {
                Step::Append(bytes) => log.append(bytes).unwrap(),
                Step::Skip(n) => log.skip_to(log.end() + n).unwrap(),
                Step::Reopen => unreachable!("filtered"),
            }
            model.apply(step, capacity as usize);
            check(&log, &model)?;
        }
    }
}
