//! The helpers of a run's processes, and what they report together.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

use protocol::progress::Progress;

use super::helper::Helper;

/// The helpers by the index of their process; empty before the first run.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    each: Vec<Helper>,
    /// A notice that came before the start of the run.
    early: Option<Vec<u8>>,
}

impl Helpers {
    /// The helpers of a run, which get the notice that came before its start.
    pub(super) fn of_run(each: Vec<Helper>, earlier: &mut Self) -> Self {
        let mut helpers = Self { each, early: None };
        earlier.early.take().into_iter().for_each(|line| helpers.notify(&line));
        helpers
    }

    /// What each helper has reported; `None` before its first message.
    pub(super) fn reports(&self) -> Vec<Option<Progress>> {
        self.each.iter().map(Helper::status).collect()
    }

    /// Whether every process uses the helper.
    pub(super) fn are_known(&self) -> bool {
        together(&self.reports()).is_some()
    }

    /// Waits for messages of one helper, and reads them. Dropping the future loses no message.
    pub(super) async fn exchange(&mut self) {
        match &mut self.each[..] {
            [] => pending().await,
            [one] => one.exchange().await,
            several => {
                let mut exchanges: Vec<_> = several.iter_mut().map(|helper| Box::pin(helper.exchange())).collect();
                let mut any = pin!(poll_fn(|context| {
                    let is_ready = exchanges.iter_mut().any(|exchange| exchange.as_mut().poll(context).is_ready());
                    if is_ready { Poll::Ready(()) } else { Poll::Pending }
                }));
                any.as_mut().await;
            }
        }
    }

    /// Asks each script to leave, once.
    pub(super) fn ask_to_leave(&mut self) {
        self.each.iter_mut().for_each(Helper::ask_to_leave);
    }

    /// Passes a notice to each script.
    pub(super) fn notify(&mut self, line: &[u8]) {
        if self.each.is_empty() {
            self.early = Some(line.to_vec());
        }
        self.each.iter_mut().for_each(|helper| helper.notify(line.to_vec()));
    }

    /// Reads the messages that have arrived, and closes the sockets.
    pub(super) fn finish(&mut self) {
        self.each.iter_mut().for_each(Helper::finish);
    }
}

/// What the processes of a replica report together: the numbers of the process with the lowest rank, because only it
/// saves. But samples count for all processes; a version of the batch sizes counts when all processes have it; and there
/// is no step until all processes have one. `None` until all processes have reported.
pub(super) fn together(reports: &[Option<Progress>]) -> Option<Progress> {
    let all: Vec<&Progress> = reports.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let first = *all.first()?;
    let has_stepped = all.iter().all(|report| report.has_stepped());
    Some(Progress {
        step: if has_stepped { first.step } else { None },
        split: all.iter().map(|report| report.split).min()?,
        noticed: all.iter().map(|report| report.noticed).min()?,
        batch: all.iter().fold(0, |sum, report| sum.saturating_add(report.batch)),
        samples: all.iter().fold(0, |sum, report| sum.saturating_add(report.samples)),
        ..first.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64, split: u64, samples: u64) -> Option<Progress> {
        Some(Progress { step: Some(step), split, samples, batch: 8, noticed: split, ..Progress::default() })
    }

    #[test]
    fn the_lowest_rank_reports_the_step_and_all_report_the_samples() {
        assert_eq!(together(&[report(5, 2, 40)]), report(5, 2, 40));
        let both = together(&[report(5, 2, 40), report(7, 1, 56)]);
        assert_eq!(both, report(5, 1, 96).map(|both| Progress { batch: 16, ..both }));
    }

    #[test]
    fn a_first_message_and_a_first_step_count_when_all_processes_have_them() {
        assert_eq!(together(&[]), None);
        assert_eq!(together(&[report(5, 0, 0), None]), None);
        let begun = together(&[report(5, 0, 0), Some(Progress::default())]).unwrap();
        assert_eq!(begun.step, None);
    }
}
