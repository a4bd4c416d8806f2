//! Groups the processes whose main threads have equal stacks.

use super::{Frame, MainStacks, Thread, threads};
use crate::processes::ProcessName;

/// Processes with equal stacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGroup {
    /// The processes, ordered by role and indexes. A process appears as often as it has such a stack.
    pub processes: Vec<ProcessName>,
    /// The stack of the first process, outermost call first. Never empty.
    pub frames: Vec<Frame>,
}

/// The file name in a stack of `python -c`. The warm interpreter is such a program, and starts the script.
const PROGRAM_OF_WARM: &str = "<string>";

/// Groups equal stacks. The largest group comes first, and groups of one size are ordered by their first process. Stacks
/// without calls are left out.
///
/// Stacks are equal if the names of their files and functions are equal. Outside libraries, their lines must be equal
/// too. In a library, a wait may be a loop. Folders do not count, because processes may have the same code in different
/// folders.
pub fn grouped(stacks: impl IntoIterator<Item = (ProcessName, Vec<Frame>)>) -> Vec<StackGroup> {
    let mut stacks: Vec<_> = stacks.into_iter().filter(|(_, frames)| !frames.is_empty()).collect();
    stacks.sort_by_key(|(process, _)| *process);
    let mut groups: Vec<StackGroup> = vec![];
    for (process, frames) in stacks {
        match groups.iter_mut().find(|group| are_equal(&group.frames, &frames)) {
            Some(group) => group.processes.push(process),
            None => groups.push(StackGroup { processes: vec![process], frames }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.processes.len()));
    groups
}

/// The stack of a process's main thread, outermost call first.
pub fn main_thread(stacks: &MainStacks<'_>) -> Option<Vec<Frame>> {
    let (_, text) = stacks.shown()?;
    let threads = threads(text);
    let frames = main_of(&threads, text)?.frames.clone();
    Some(without_warm(frames)).filter(|frames| !frames.is_empty())
}

/// The stacks of a process's other threads. The thread of the helper `muster.py`, which waits for the agent, is left out.
pub fn other_threads(stacks: &MainStacks<'_>) -> Vec<Vec<Frame>> {
    let Some((_, text)) = stacks.shown() else { return vec![] };
    let threads = threads(text);
    let main = main_of(&threads, text);
    let is_helper = |frame: &Frame| frame.is_library() && frame.file_name() == "muster.py";
    let others = threads.iter().filter(|thread| main.is_none_or(|main| !std::ptr::eq(*thread, main)));
    others.filter(|thread| !thread.frames.iter().any(is_helper)).map(|thread| thread.frames.clone()).collect()
}

/// The main thread is the oldest, so it is the last one, unless the text ends after 100 threads with `...`.
fn main_of<'a>(threads: &'a [Thread], text: &str) -> Option<&'a Thread> {
    let is_cut = text.lines().any(|line| line == "...");
    let current = threads.iter().find(|thread| thread.is_current);
    if is_cut { current.or(threads.last()) } else { threads.last() }
}

/// The stack without the warm interpreter below the script.
fn without_warm(mut frames: Vec<Frame>) -> Vec<Frame> {
    if frames.len() > 1 && frames[0].file == PROGRAM_OF_WARM {
        frames.remove(0);
    }
    frames
}

fn are_equal(one: &[Frame], other: &[Frame]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same_call(other))
}
