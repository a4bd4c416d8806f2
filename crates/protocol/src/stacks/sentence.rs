//! The sentence that says where the main threads of all processes are, such as `7 of 8 wait in all-reduce (train.py:88),
//! worker-3 is in open() (data.py:31)`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Frame, MainStacks, ReplicaStacks, main_thread};
use crate::processes::ProcessName;
use crate::text;

/// Maximum length of the sentence in JSON, in bytes.
pub const SENTENCE_JSON_BYTES: usize = 1024;

/// Maximum number of places and of reasons that the sentence names.
const PLACES_MAX: usize = 6;
/// Maximum number of replicas at one place that the sentence names. Otherwise it gives their number.
const NAMES_MAX: usize = 3;
/// Maximum characters of the reason why there is no stack.
const REASON_CHARS: usize = 200;

/// Functions in which all ranks wait for each other, in TensorFlow, torch and JAX. A function's name, in lower case and
/// without underscores, contains the first text. The second text is the name in the sentence.
const COLLECTIVES: [(&str, &str); 7] = [
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("alltoall", "all-to-all"),
    ("barrier", "a barrier"),
    ("syncglobaldevices", "a barrier"),
    ("broadcastonetoall", "broadcast"),
];

/// The function with which TensorFlow's Python executes a `tf.function` as a whole
/// (tensorflow/python/eager/context.py). The operations inside it, such as an all-reduce, are not in Python's stacks.
const TF_FUNCTION: &str = "call_function";

/// Functions that wait for something.
const WAITS: [&str; 16] = [
    "accept",
    "acquire",
    "communicate",
    "connect",
    "get",
    "join",
    "poll",
    "recv",
    "recv_into",
    "recvfrom",
    "select",
    "sleep",
    "synchronize",
    "wait",
    "wait_for",
    "waitpid",
];
/// Functions that take long only if a device or a file does not answer.
const CALLS: [&str; 9] = ["flock", "fsync", "listdir", "open", "read", "readline", "send", "sendall", "write"];

/// Where a stack is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StackPlace {
    doing: Doing,
    /// The name of the file and the number of the line.
    at: (String, u32),
}

/// What the innermost calls do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    /// The stack waits in a collective operation or in a function.
    Waits(String),
    /// The stack is in a function.
    Is(String),
    /// Only the line is known.
    Line,
}

/// Says where the main threads of all processes are. At most [`SENTENCE_JSON_BYTES`] in JSON.
pub fn sentence(replicas: &[ReplicaStacks]) -> String {
    let mut places: BTreeMap<StackPlace, Vec<ProcessName>> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, Vec<ProcessName>> = BTreeMap::new();
    let mains: Vec<MainStacks<'_>> = replicas.iter().flat_map(ReplicaStacks::mains).collect();
    for stacks in &mains {
        match main_thread(stacks).and_then(|frames| place(&frames)) {
            Some(place) => places.entry(place).or_default().push(stacks.name),
            None => {
                let reason = stacks.why_not().unwrap_or("the main thread runs no Python");
                reasons.entry(reason).or_default().push(stacks.name);
            }
        }
    }
    let count = mains.len();
    let found = listed(places, ", ", |(place, at)| at_place(place, at, count));
    let missing = listed(reasons, "; ", |(reason, of)| {
        let reason: String = reason.chars().take(REASON_CHARS).collect();
        format!("no stack of {}: {reason}", names(of, count))
    });
    let parts: Vec<String> = [found, missing].into_iter().filter(|part| !part.is_empty()).collect();
    let whole = if parts.is_empty() { "no replica runs".to_owned() } else { parts.join("; ") };
    text::beginning(&whole, SENTENCE_JSON_BYTES).to_owned()
}

/// The texts of the parts, those with the most replicas first.
fn listed<K: Ord>(
    parts: BTreeMap<K, Vec<ProcessName>>,
    between: &str,
    part: impl Fn(&(K, Vec<ProcessName>)) -> String,
) -> String {
    let mut parts: Vec<(K, Vec<ProcessName>)> = parts.into_iter().collect();
    parts.iter_mut().for_each(|(_, replicas)| replicas.sort());
    parts.sort_by_key(|(_, replicas)| (Reverse(replicas.len()), replicas.first().copied()));
    let mut texts: Vec<String> = parts.iter().take(PLACES_MAX).map(part).collect();
    if let Some(more) = parts.len().checked_sub(PLACES_MAX).filter(|more| *more > 0) {
        texts.push(format!("and {more} more"));
    }
    texts.join(between)
}

fn at_place(StackPlace { doing, at: (file, line) }: &StackPlace, replicas: &[ProcessName], count: usize) -> String {
    let (is, waits) = if replicas.len() == 1 { ("is", "waits") } else { ("are", "wait") };
    let who = names(replicas, count);
    match doing {
        Doing::Waits(what) => format!("{who} {waits} in {what} ({file}:{line})"),
        Doing::Is(what) => format!("{who} {is} in {what} ({file}:{line})"),
        Doing::Line => format!("{who} {is} at {file}:{line}"),
    }
}

/// The names of these replicas if they are few, otherwise their number among all `count` replicas.
fn names(replicas: &[ProcessName], count: usize) -> String {
    let names: Vec<String> = replicas.iter().map(ProcessName::to_string).collect();
    match names.as_slice() {
        [one] => one.clone(),
        all if all.len() == count => format!("all {count}"),
        few if few.len() <= NAMES_MAX && few.len() * 2 < count => few.join(" and "),
        many => format!("{} of {count}", many.len()),
    }
}

/// Where a stack is: at the innermost line outside libraries, and in what this line calls.
fn place(frames: &[Frame]) -> Option<StackPlace> {
    let own = frames.iter().rposition(|frame| !frame.is_library());
    // A comprehension or a lambda is a part of the function around it.
    let is_part = |frame: &Frame| frame.function.starts_with('<') && frame.function != "<module>";
    let function = frames.iter().rposition(|frame| !frame.is_library() && !is_part(frame)).or(own);
    let (before, inner) = frames.split_at(function.unwrap_or(0));
    if let Some(name) = inner.iter().rev().find_map(|frame| collective(&frame.function)) {
        // If the script itself has such a function, the line that calls it says more than a line of the function.
        let is_own = own.is_some() && collective(&inner[0].function).is_some();
        let caller = before.iter().rev().find(|frame| is_own && !frame.is_library());
        return Some(StackPlace { doing: Doing::Waits(name.to_owned()), at: at_line(caller.unwrap_or(&inner[0])) });
    }
    let (line, called) = frames[own.unwrap_or(0)..].split_first()?;
    let doing = match (own, called) {
        (None, _) => doing(&frames.last()?.function),
        (Some(_), []) => line.source.as_deref().and_then(call_in).map_or(Doing::Line, |name| doing(&name)),
        (Some(_), called) if called.iter().any(|frame| frame.function == TF_FUNCTION) => {
            Doing::Is("a tf.function".to_owned())
        }
        (Some(_), [.., last]) => doing(&called.iter().find(|frame| is_telling(frame)).unwrap_or(last).function),
    };
    Some(StackPlace { doing, at: at_line(line) })
}

/// Whether the name of a library's function says what it does. Decorators wrap most functions of TensorFlow and torch.
fn is_telling(frame: &Frame) -> bool {
    let name = frame.function.as_str();
    !name.starts_with(['_', '<']) && !["error_handler", "inner", "wrapped", "wrapper"].contains(&name)
}

fn at_line(frame: &Frame) -> (String, u32) {
    (frame.file_name().to_owned(), frame.line)
}

fn collective(function: &str) -> Option<&'static str> {
    let plain = function.to_lowercase().replace('_', "");
    COLLECTIVES.iter().find(|(part, _)| plain.contains(part)).map(|(_, name)| *name)
}

fn doing(function: &str) -> Doing {
    match function {
        name if WAITS.contains(&name) => Doing::Waits(format!("{name}()")),
        name if name.starts_with('<') => Doing::Line,
        name => Doing::Is(format!("{name}()")),
    }
}

/// The function in which a line of source most likely waits. Python's stacks do not show its built-in functions. So
/// this is the only function that the line calls, or the only one of them that is known to take long.
fn call_in(source: &str) -> Option<String> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let before = source.match_indices('(').map(|(at, _)| &source[..at]);
    let names: Vec<&str> = before
        .filter_map(|text| text.rsplit(|letter: char| !is_part(letter)).next().filter(|name| !name.is_empty()))
        .filter(|name| !["if", "while", "for", "in", "and", "or", "not", "return", "with", "def"].contains(name))
        .collect();
    let slow = names.iter().filter(|name| WAITS.contains(name) || CALLS.contains(name)).collect::<Vec<_>>();
    match (names.as_slice(), slow.as_slice()) {
        (_, [name]) => Some((**name).to_owned()),
        ([name], []) => Some((*name).to_owned()),
        _ => None,
    }
}
