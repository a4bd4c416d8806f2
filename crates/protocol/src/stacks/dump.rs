//! Reads the text of Python's module `faulthandler` (`Python/traceback.c`, `_Py_DumpTracebackThreads`).

/// The beginning of a frame's line.
const FRAME: &str = "  File ";
/// The beginning of a source line, which the agent adds.
const SOURCE: &str = "    ";
/// What `faulthandler` writes for a text that it cannot read.
const UNKNOWN: &str = "???";

/// One call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The path of the file, as Python knows it.
    pub file: String,
    /// The number of the line. 0 if it is unknown.
    pub line: u32,
    /// The name of the function, or `<module>`.
    pub function: String,
    /// The text of the line without indentation, if the agent could read it.
    pub source: Option<String>,
}

impl Frame {
    /// The file without its folder.
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }

    /// Whether the file belongs to Python, to an installed package, or to Muster.
    pub fn is_library(&self) -> bool {
        is_library(&self.file)
    }

    /// Whether both are the same call, as [`super::grouped`] compares them.
    pub fn is_same_call(&self, other: &Self) -> bool {
        let line = |frame: &Self| if frame.is_library() { 0 } else { frame.line };
        (self.file_name(), &self.function, line(self)) == (other.file_name(), &other.function, line(other))
    }
}

/// The stack of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Whether this thread has written the text. The kernel prefers the main thread for the signal.
    pub is_current: bool,
    /// The calls, outermost first.
    pub frames: Vec<Frame>,
}

/// The threads in a dump, in its order: the newest thread first. Lines of another form are skipped.
pub fn threads(text: &str) -> Vec<Thread> {
    let mut threads: Vec<Thread> = vec![];
    for line in text.lines() {
        let is_current = line.starts_with("Current thread ") || line.starts_with("Stack (most recent call first)");
        if is_current || line.starts_with("Thread ") {
            threads.push(Thread { is_current, frames: vec![] });
            continue;
        }
        let Some(thread) = threads.last_mut() else { continue };
        if let Some(frame) = frame(line) {
            thread.frames.push(frame);
        } else if let (Some(source), Some(frame)) = (line.strip_prefix(SOURCE), thread.frames.last_mut()) {
            frame.source = Some(source.trim().to_owned());
        }
    }
    threads.iter_mut().for_each(|thread| thread.frames.reverse());
    threads
}

/// Whether a file belongs to Python, to an installed package, or to Muster.
pub fn is_library(file: &str) -> bool {
    let folders = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "/muster-helper-"];
    file.starts_with('<') || folders.iter().any(|folder| file.contains(folder))
}

/// The path and the line of a frame's line, such as `  File "/job/train.py", line 88 in step`.
pub fn place_in(line: &str) -> Option<(&str, u32)> {
    let (file, line, _) = parts(line)?;
    Some((file, line))
}

fn frame(line: &str) -> Option<Frame> {
    let (file, line, function) = parts(line)?;
    Some(Frame { file: file.to_owned(), line, function: function.to_owned(), source: None })
}

fn parts(line: &str) -> Option<(&str, u32, &str)> {
    let rest = line.strip_prefix(FRAME)?;
    // A path may contain any text, so look for the last number of a line.
    let (file, rest) = rest.rsplit_once(", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    let file = if file == UNKNOWN { file } else { file.strip_prefix('"')?.strip_suffix('"')? };
    let number = if number == UNKNOWN { 0 } else { number.parse().ok()? };
    Some((file, number, function))
}
