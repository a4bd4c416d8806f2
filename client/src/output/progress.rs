//! Spinners on a terminal: one while an image is made; while a gang gathers, one for the job, and one a replica when
//! there are few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use protocol::view::{JobState, JobView, ReplicaState};

/// More replicas than this are only counted, so that the lines fit on a screen.
const LINES_MAX: usize = 16;
const TICK: Duration = Duration::from_millis(120);

/// What is shown at the bottom of a terminal, below everything else.
#[derive(Clone)]
pub(super) struct Progress {
    screen: MultiProgress,
    // The first line is the job's.
    lines: Arc<Mutex<Vec<ProgressBar>>>,
}

impl Progress {
    /// Nothing, at first.
    pub(super) fn new() -> Self {
        Self { screen: MultiProgress::new(), lines: Arc::default() }
    }

    /// Writes something above the spinners.
    pub(super) fn suspend(&self, write: impl FnOnce()) {
        self.screen.suspend(write);
    }

    /// Takes them away.
    pub(super) fn clear(&self) {
        for line in self.lines.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            line.finish_and_clear();
            self.screen.remove(&line);
        }
    }

    /// Shows one line.
    pub(super) fn show_step(&self, step: &str) {
        self.put(vec![step.to_owned()]);
    }

    /// Shows where the job and its replicas stand, until all have been started.
    pub(super) fn show(&self, view: &JobView) {
        let messages = match view.state {
            JobState::Pending | JobState::Starting | JobState::Restarting => messages(view),
            JobState::Running | JobState::Stopping | JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
                return self.clear();
            }
        };
        self.put(messages);
    }

    fn put(&self, messages: Vec<String>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        while lines.len() < messages.len() {
            lines.push(self.screen.add(spinner()));
        }
        for (line, message) in lines.iter().zip(messages) {
            line.set_message(message);
        }
    }
}

fn messages(view: &JobView) -> Vec<String> {
    let joined = view.replicas.iter().filter(|replica| has_joined(replica.state)).count();
    let mut messages = vec![format!("{} of {} are there", joined, view.replicas.len())];
    if view.replicas.len() <= LINES_MAX {
        let replicas = view.replicas.iter();
        messages.extend(replicas.map(|replica| format!("  {} {}", replica.replica, replica.state.as_str())));
    }
    messages
}

fn has_joined(state: ReplicaState) -> bool {
    match state {
        ReplicaState::Joined | ReplicaState::Configured | ReplicaState::Running | ReplicaState::Exited => true,
        ReplicaState::Requested | ReplicaState::Scheduled | ReplicaState::Lost => false,
    }
}

fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a constant template that parses"));
    spinner.enable_steady_tick(TICK);
    spinner
}
