//! What a terminal shows below everything else: while an image is made, the step; while a gang gathers, the job and,
//! when there are few, each replica; and the lines that scripts are still writing, such as progress bars.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use protocol::ids::ReplicaId;
use protocol::view::{JobState, JobView, ReplicaState};

/// More replicas than this are only counted, and no more lines of scripts are shown, so that all fits on a screen.
const LINES_MAX: usize = 16;
/// Redrawing more often costs processor time, and nobody reads so fast.
const REDRAWS_PER_SECOND: u8 = 5;
const TICK: Duration = Duration::from_millis(200);

/// The block of lines at the bottom of a terminal. A clone is the same block.
#[derive(Clone)]
pub(super) struct Progress {
    screen: MultiProgress,
    block: Arc<Mutex<Block>>,
}

#[derive(Default)]
struct Block {
    /// Where the job and its replicas stand.
    standing: Vec<String>,
    /// The line that each replica is writing.
    unfinished: BTreeMap<ReplicaId, String>,
    /// What the terminal shows, a line each.
    lines: Vec<ProgressBar>,
}

impl Progress {
    /// Nothing, at first.
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        Self { screen: MultiProgress::with_draw_target(target), block: Arc::default() }
    }

    /// Writes something above the block.
    pub(super) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.screen.suspend(write)
    }

    /// Takes the block away.
    pub(super) fn clear(&self) {
        let mut block = self.block();
        (block.standing, block.unfinished) = Default::default();
        self.draw(&mut block);
    }

    /// Shows one step.
    pub(super) fn show_step(&self, step: &str) {
        self.stand(vec![step.to_owned()]);
    }

    /// Shows where the job and its replicas stand, until all have been started.
    pub(super) fn show(&self, view: &JobView) {
        self.stand(match view.state {
            JobState::Pending | JobState::Starting | JobState::Restarting => messages(view),
            JobState::Running | JobState::Stopping | JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
                vec![]
            }
        });
    }

    /// Shows the line that a replica is writing.
    pub(super) fn show_unfinished(&self, replica: ReplicaId, text: &str) {
        let mut block = self.block();
        block.unfinished.insert(replica, format!("{replica} │ {text}"));
        self.draw(&mut block);
    }

    /// Takes the line of a replica away: it has come to its end.
    pub(super) fn end_unfinished(&self, replica: ReplicaId) {
        let mut block = self.block();
        if block.unfinished.remove(&replica).is_some() {
            self.draw(&mut block);
        }
    }

    fn stand(&self, standing: Vec<String>) {
        let mut block = self.block();
        block.standing = standing;
        self.draw(&mut block);
    }

    fn draw(&self, block: &mut Block) {
        let Block { standing, unfinished, lines } = block;
        let unfinished = unfinished.values().take(LINES_MAX).map(|line| ("{wide_msg}", line));
        let shown: Vec<_> = standing.iter().map(|line| ("{spinner} {wide_msg}", line)).chain(unfinished).collect();
        let known = lines.len();
        while lines.len() < shown.len() {
            lines.push(self.screen.add(ProgressBar::new_spinner()));
        }
        for line in lines.drain(shown.len()..) {
            line.finish_and_clear();
            self.screen.remove(&line);
        }
        for (line, (template, text)) in lines.iter().zip(shown) {
            line.set_style(ProgressStyle::with_template(template).expect("a constant template that parses"));
            line.set_message(text.clone());
        }
        // A draw that came too soon after another is skipped; the next tick repeats it.
        lines.iter().skip(known).for_each(|line| line.enable_steady_tick(TICK));
    }

    fn block(&self) -> MutexGuard<'_, Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stdout. On a terminal it is written above the block, because a redraw erases text inside the block.
pub(super) struct AboveProgress(pub(super) Option<Progress>);

impl Write for AboveProgress {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        };
        self.0.as_ref().map_or_else(write, |progress| progress.suspend(write))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
