//! The block of lines at the bottom of a terminal. While the client builds an image or waits for a cluster, the block
//! shows the step. While a gang gathers, the block shows how many replicas have joined, and the states of the replicas
//! if there are few. The block also shows unfinished lines of scripts, such as progress bars.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use protocol::ids::ReplicaId;
use protocol::view::{JobState, JobView, ReplicaState};
use rustix::termios::tcgetwinsize;

/// Maximum number of replicas whose states are shown. Also the maximum number of unfinished lines. With more lines, the
/// block would not fit on a screen.
const LINES_MAX: usize = 16;
/// Maximum redraws per second, to save processor time.
const REDRAWS_PER_SECOND: u8 = 5;
const TICK: Duration = Duration::from_millis(200);

/// The block of lines at the bottom of a terminal. A clone shows the same block.
#[derive(Clone)]
pub(super) struct ProgressLines {
    screen: MultiProgress,
    block: Arc<Mutex<Block>>,
}

#[derive(Default)]
struct Block {
    /// How many replicas have joined, with their states, or the current step.
    status: Vec<String>,
    /// The lines of a table.
    table: Vec<String>,
    /// The unfinished line of each replica.
    unfinished: BTreeMap<ReplicaId, String>,
    /// The lines on the terminal.
    lines: Vec<ProgressBar>,
}

impl ProgressLines {
    /// Creates an empty block.
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        Self { screen: MultiProgress::with_draw_target(target), block: Arc::default() }
    }

    /// Whether the terminal cannot show the block.
    pub(super) fn is_hidden(&self) -> bool {
        self.screen.is_hidden()
    }

    /// Writes above the block.
    pub(super) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.screen.suspend(write)
    }

    /// Removes all lines of the block.
    pub(super) fn clear(&self) {
        let mut block = self.block();
        (block.status, block.table, block.unfinished) = Default::default();
        self.draw(&mut block);
        // The library may have skipped the last draw. If stderr is closed, there is nothing to clear.
        let _ = self.screen.clear();
    }

    /// Shows one step.
    pub(super) fn show_step(&self, step: &str) {
        self.set_status(vec![step.to_owned()]);
    }

    /// Shows how many replicas have joined, until all replicas have started.
    pub(super) fn show(&self, view: &JobView) {
        self.set_status(match view.state {
            JobState::Pending | JobState::Starting | JobState::Restarting => messages(view),
            JobState::Running
            | JobState::Stopping
            | JobState::Halted
            | JobState::Suspended
            | JobState::Succeeded
            | JobState::Failed
            | JobState::Cancelled => vec![],
        });
    }

    /// Shows the lines of a table. Lines for which the terminal has no room are counted.
    pub(super) fn show_table(&self, table: Vec<String>) {
        let size = tcgetwinsize(io::stderr());
        let mut block = self.block();
        block.table = fitting(table, size.map_or(0, |size| size.ws_row.into()));
        self.draw(&mut block);
    }

    /// Shows the unfinished line of a replica.
    pub(super) fn show_unfinished(&self, replica: ReplicaId, text: &str) {
        let mut block = self.block();
        block.unfinished.insert(replica, format!("{replica} │ {text}"));
        self.draw(&mut block);
    }

    /// Removes the unfinished line of a replica, because it is complete.
    pub(super) fn end_unfinished(&self, replica: ReplicaId) {
        let mut block = self.block();
        if block.unfinished.remove(&replica).is_some() {
            self.draw(&mut block);
        }
    }

    fn set_status(&self, status: Vec<String>) {
        let mut block = self.block();
        block.status = status;
        self.draw(&mut block);
    }

    fn draw(&self, block: &mut Block) {
        let Block { status, table, unfinished, lines } = block;
        let table_lines = table.len();
        let unfinished = unfinished.values().take(LINES_MAX).map(|line| ("{wide_msg}", line));
        let table = table.iter().map(|line| ("{wide_msg}", line));
        let status = status.iter().map(|line| ("{spinner} {wide_msg}", line));
        let shown: Vec<_> = status.chain(table).chain(unfinished).collect();
        let known = lines.len();
        while lines.len() < shown.len() {
            lines.push(self.screen.add(ProgressBar::new_spinner()));
        }
        for line in lines.drain(shown.len()..) {
            line.finish_and_clear();
            self.screen.remove(&line);
        }
        for (line, (template, text)) in lines.iter().zip(shown) {
            line.set_style(ProgressStyle::with_template(template).expect("the templates are constants that parse"));
            line.set_message(text.clone());
        }
        // The library skips a draw that comes too soon after the previous draw. The next tick repeats the skipped draw.
        // Each line that ticks has a thread, and one tick draws all lines.
        let ticking = if table_lines > 0 { 1 } else { usize::MAX };
        lines.iter().take(ticking).skip(known).for_each(|line| line.enable_steady_tick(TICK));
    }

    fn block(&self) -> MutexGuard<'_, Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first lines of a table, and the number of the others, for a terminal with this many rows. If `rows` is 0, the
/// number of rows is unknown.
fn fitting(mut table: Vec<String>, rows: usize) -> Vec<String> {
    // The cursor stands below the table.
    let room = rows.saturating_sub(1);
    if room > 1 && table.len() > room {
        let hidden = table.split_off(room - 1).len();
        table.push(format!("… and {hidden} more; --once prints all"));
    }
    table
}

fn messages(view: &JobView) -> Vec<String> {
    let joined = view.replicas.iter().filter(|replica| has_joined(replica.state)).count();
    let mut messages = vec![format!("{} of {} replicas have joined", joined, view.replicas.len())];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_long_for_the_terminal_ends_with_the_number_of_hidden_lines() {
        let table = |lines: usize| (1..=lines).map(|line| line.to_string()).collect::<Vec<_>>();
        assert_eq!(fitting(table(4), 5), table(4));
        assert_eq!(fitting(table(6), 5), ["1", "2", "3", "… and 3 more; --once prints all"]);
        for rows in [0, 1, 2] {
            assert_eq!(fitting(table(6), rows), table(6), "{rows} rows");
        }
    }
}
