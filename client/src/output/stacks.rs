//! The text of `stacks`: where the scripts of a job are, with equal stacks together.

use std::collections::BTreeSet;

use protocol::processes::ProcessName;
use protocol::stacks::{
    Frame, JobStacks, MainStacks, ProcessStacks, ReplicaStacks, grouped, main_thread, other_threads,
};

use super::table::{plain_table, shown};

/// Maximum number of replicas that a line names. For more replicas, the line gives their number.
const NAMES_MAX: usize = 3;

/// A call that replicas have in common, and the calls below it.
struct Node {
    frame: Frame,
    replicas: BTreeSet<ProcessName>,
    /// The call with the most replicas comes first.
    below: Vec<Node>,
}

/// The summary, the calls of main threads, other threads and child processes, and what the processes do.
pub(crate) fn stacks_text(stacks: &JobStacks) -> String {
    let JobStacks { summary, replicas } = stacks;
    let mains: Vec<MainStacks<'_>> = replicas.iter().flat_map(ReplicaStacks::mains).collect();
    let all = mains.len();
    let main = mains.iter().filter_map(|stacks| Some((stacks.name, main_thread(stacks)?)));
    let of_others = |stacks: &MainStacks<'_>| {
        let name = stacks.name;
        other_threads(stacks).into_iter().map(move |frames| (name, frames)).collect::<Vec<_>>()
    };
    let sections = [
        ("main threads", tree(main, all)),
        ("other threads", tree(mains.iter().flat_map(of_others), all)),
        ("child processes", tree(mains.iter().flat_map(of_children), all)),
    ];
    let sections = sections.into_iter().filter(|(_, lines)| !lines.is_empty());
    let mut paragraphs = vec![summary.clone()];
    paragraphs.extend(sections.map(|(title, lines)| format!("{title}:\n{}", lines.join("\n"))));
    paragraphs.extend(processes(&mains));
    paragraphs.join("\n\n")
}

/// The main threads of the child processes.
fn of_children(stacks: &MainStacks<'_>) -> Vec<(ProcessName, Vec<Frame>)> {
    stacks.children().filter_map(|child| Some((child.name, main_thread(&child)?))).collect()
}

/// A line for each call: the replicas that have made it, and the call, indented by its depth. The outermost call comes
/// first.
fn tree(stacks: impl Iterator<Item = (ProcessName, Vec<Frame>)>, all: usize) -> Vec<String> {
    let mut roots = vec![];
    for group in grouped(stacks) {
        insert(&mut roots, &group.frames, &group.processes);
    }
    let mut lines = vec![];
    flatten(&roots, (None, 0), all, &mut lines);
    let width = lines.iter().map(|(who, _)| who.chars().count()).max().unwrap_or(0);
    lines.iter().map(|(who, call)| format!("  {who:width$}  {call}")).collect()
}

fn insert(nodes: &mut Vec<Node>, frames: &[Frame], replicas: &[ProcessName]) {
    let Some((frame, inner)) = frames.split_first() else { return };
    let known = nodes.iter().position(|node| node.frame.is_same_call(frame));
    let place = known.unwrap_or_else(|| {
        nodes.push(Node { frame: frame.clone(), replicas: BTreeSet::new(), below: vec![] });
        nodes.len() - 1
    });
    nodes[place].replicas.extend(replicas);
    insert(&mut nodes[place].below, inner, replicas);
    nodes.sort_by_key(|node| std::cmp::Reverse(node.replicas.len()));
}

/// Adds the lines of these calls. `above` are the replicas of the call above, and `depth` is the depth of that call. If
/// a call has the same replicas as the call above, its line does not repeat them.
fn flatten(
    nodes: &[Node],
    (above, depth): (Option<&BTreeSet<ProcessName>>, usize),
    all: usize,
    lines: &mut Vec<(String, String)>,
) {
    for node in nodes {
        let is_repeated = above == Some(&node.replicas) && nodes.len() == 1;
        let who = if is_repeated { String::new() } else { named(&node.replicas, all) };
        // Long stacks stay readable: only a branch is indented.
        let depth = if nodes.len() > 1 { depth + 1 } else { depth };
        lines.push((who, format!("{}{}", "  ".repeat(depth), call(&node.frame))));
        flatten(&node.below, (Some(&node.replicas), depth), all, lines);
    }
}

fn named(replicas: &BTreeSet<ProcessName>, all: usize) -> String {
    match replicas.len() {
        1..=NAMES_MAX => replicas.iter().map(ProcessName::to_string).collect::<Vec<_>>().join(", "),
        many if many == all => format!("all {all}"),
        many => format!("{many} of {all}"),
    }
}

fn call(frame: &Frame) -> String {
    let source = frame.source.as_ref().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{}:{} in {}{source}", frame.file_name(), frame.line, frame.function)
}

/// What the process of each replica does according to the kernel, and why it has no stacks.
fn processes(mains: &[MainStacks<'_>]) -> Option<String> {
    let mut table = plain_table(&["REPLICA", "PROCESS", "STATE", "CPU", "WAITS IN", "NO STACK"]);
    for stacks in mains {
        let process = stacks.shown().map(|(process, _)| process).or(stacks.processes.first());
        let of = |text: fn(&ProcessStacks) -> String| process.map(text).unwrap_or_default();
        table.add_row([
            stacks.name.to_string(),
            of(|process| format!("{} {}", process.program, process.pid).trim_start().to_owned()),
            of(|process| state(process.state).to_owned()),
            of(|process| format!("{} %", process.cpu_percent)),
            of(|process| process.waits_in.clone().unwrap_or_default()),
            stacks.why_not().unwrap_or_default().to_owned(),
        ]);
    }
    (!mains.is_empty()).then(|| shown(&table))
}

/// The states of proc_pid_stat(5) in words.
fn state(letter: char) -> &'static str {
    match letter {
        'R' => "runs",
        'S' | 'I' => "sleeps",
        'D' => "waits for a device",
        'T' | 't' => "is stopped",
        'Z' | 'X' => "has ended",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use protocol::stacks::{Answer, Dump};

    use super::*;

    fn process(pid: u32, dump: Dump) -> ProcessStacks {
        let waits_in = Some("ep_poll".to_owned());
        ProcessStacks { pid, process: None, program: "python3".to_owned(), state: 'S', cpu_percent: 2, waits_in, dump }
    }

    fn replica(index: u32, processes: Vec<ProcessStacks>) -> ReplicaStacks {
        ReplicaStacks { replica: format!("worker-{index}").parse().unwrap(), answer: Answer::Processes(processes) }
    }

    fn text(frames: &str) -> Dump {
        Dump::Text(format!("Current thread 0x01 (most recent call first):\n{frames}"))
    }

    const MAIN: &str = "  File \"/job/train.py\", line 120 in <module>\n    step()\n";

    #[test]
    fn equal_stacks_are_shown_once_and_each_line_tells_who_has_reached_it() {
        let wait = format!(
            "  File \"/lib/python3.11/site-packages/torch/c10d.py\", line 7 in all_reduce\n  File \"/job/train.py\", line 88 in step\n{MAIN}"
        );
        let open = format!(
            "  File \"/job/data.py\", line 31 in load\n    with open(path) as file:\n  File \"/job/train.py\", line 85 in step\n{MAIN}"
        );
        let feeder = "Thread 0x02 (most recent call first):\n  File \"/job/data.py\", line 9 in feed\n\n";
        let with_feeder = Dump::Text(format!("{feeder}Current thread 0x01 (most recent call first):\n{wait}"));
        let mut replicas: Vec<ReplicaStacks> =
            (0..5).map(|index| replica(index, vec![process(40 + index, with_feeder.clone())])).collect();
        replicas[3] = replica(3, vec![process(43, text(&open)), process(99, text(MAIN))]);
        let unknown = process(44, Dump::WhyNot("its program is not Python".to_owned()));
        replicas[4] = replica(4, vec![ProcessStacks { program: String::new(), ..unknown }]);
        let expected = "\
3 of 5 wait in all-reduce (train.py:88), worker-3 is in open() (data.py:31); no stack of worker-4: its program is not Python

main threads:
  4 of 5                        train.py:120 in <module>: step()
  worker-0, worker-1, worker-2    train.py:88 in step
                                  c10d.py:7 in all_reduce
  worker-3                        train.py:85 in step
                                  data.py:31 in load: with open(path) as file:

other threads:
  worker-0, worker-1, worker-2  data.py:9 in feed

child processes:
  worker-3  train.py:120 in <module>: step()

REPLICA   PROCESS     STATE   CPU  WAITS IN  NO STACK
worker-0  python3 40  sleeps  2 %  ep_poll
worker-1  python3 41  sleeps  2 %  ep_poll
worker-2  python3 42  sleeps  2 %  ep_poll
worker-3  python3 43  sleeps  2 %  ep_poll
worker-4  44          sleeps  2 %  ep_poll   its program is not Python";
        assert_eq!(stacks_text(&JobStacks::new(replicas)), expected);
    }

    #[test]
    fn a_job_without_replicas_has_only_the_sentence() {
        assert_eq!(stacks_text(&JobStacks::new(vec![])), "no replica runs");
    }
}
