//! The sender of a job's view. A change of the view is also a change of the list of all jobs.

use protocol::view::JobView;
use tokio::sync::watch;

/// The number of the present list of all jobs. It grows with each change of a job.
#[derive(Debug, Clone)]
pub struct ListSeq(watch::Sender<u64>);

impl ListSeq {
    /// The number begins with the time, so that the numbers of two masters differ.
    pub fn from_millis(now: u64) -> Self {
        Self(watch::Sender::new(now))
    }

    /// Notes that the list has changed.
    pub fn advance(&self) {
        self.0.send_modify(|seq| *seq += 1);
    }

    /// The number, with a notification of each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The sender of one job's view.
#[derive(Debug, Clone)]
pub struct ViewSender {
    view: watch::Sender<JobView>,
    list: ListSeq,
}

impl ViewSender {
    /// A sender, and the receiver of what it sends.
    pub fn new(view: JobView, list: ListSeq) -> (Self, watch::Receiver<JobView>) {
        let (view, receiver) = watch::channel(view);
        (Self { view, list }, receiver)
    }

    pub(super) fn borrow(&self) -> watch::Ref<'_, JobView> {
        self.view.borrow()
    }

    /// Lets `change` change the view. If `change` returns true, sends the view.
    pub(super) fn send_if_modified(&self, change: impl FnOnce(&mut JobView) -> bool) {
        if self.view.send_if_modified(change) {
            self.list.advance();
        }
    }
}
