//! The only code that prints: data to stdout ([`Data`]), everything else to stderr ([`Notes`]).

mod batches;
mod checks;
pub(crate) mod command_line;
mod differences;
mod duration;
mod format;
mod frames;
pub(crate) mod hints;
mod last_lines;
pub(crate) mod narrate;
mod notes;
mod pace;
mod progress;
mod ranks;
mod reports;
mod size;
mod stacks;
mod stdout;
mod table;
mod text;
mod timeline;
mod top;
mod trace;
mod why;

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::Instant;

use anstyle::{AnsiColor, Style};
use launchers::timestamp;
use protocol::ids::{ReplicaId, Role, UnixMillis};
use protocol::job::JobSpec;
use protocol::output::LogLine;
use serde::Serialize;
use serde_json::Value;

pub(crate) use checks::{Check, CheckVerdict, checks_text};
pub(crate) use differences::differences;
pub(crate) use duration::spelled;
pub(crate) use format::Format;
pub(crate) use last_lines::last_lines;
pub(crate) use notes::Notes;
pub(crate) use pace::ratio;
pub(crate) use ranks::ShownRanks;
pub(crate) use reports::{Done, ShownReport, newest_report};
pub(crate) use size::size;
pub(crate) use stacks::stacks_text;
pub(crate) use table::{
    exit_or_reason, jobs_table, result_or_queued, shortened, status_facts, status_text, tfjobs_table, time,
    time_per_step,
};
pub(crate) use text::{Colours, for_terminal, is_plain};
pub(crate) use timeline::timeline_text;
pub(crate) use top::{number, top_of_jobs, top_of_replicas};
pub(crate) use trace::trace_requests;
pub(crate) use why::why_text;

use crate::ending::error::{Cause, Error};
use frames::{Frames, last_frame};
use stdout::{Stdout, WriteLoss};
use text::colours_of;

/// The colours of replicas, in turn. Red is only for errors.
const PREFIX_COLOURS: [AnsiColor; 10] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
    AnsiColor::BrightYellow,
    AnsiColor::BrightGreen,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
];

/// Maximum bytes of an unfinished line that [`Data::bytes`] holds back from a terminal.
const PARTIAL_LINE_MAX: usize = 16 * 1024;

/// An object as YAML.
pub(crate) fn yaml(object: &Value) -> String {
    serde_saphyr::to_string(object).expect("objects with names as keys always serialize")
}

/// The error if data could not be written, for example because the disk is full.
fn unwritten(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Error::unsuccessful("stdout is closed").cause(Cause::ClosedStdout);
    }
    Error::unsuccessful("write to stdout").because(error)
}

/// Stdout. Output is buffered until [`Data::flush`] or until the buffer is full.
pub(crate) struct Data {
    out: BufWriter<Stdout>,
    terminal: bool,
    colours: Colours,
    log_lines: LogLines,
    /// Whether log lines are printed with their times.
    shows_times: bool,
    partial_line: Vec<u8>,
    frames: Frames,
    ranks: ShownRanks,
}

/// How log lines are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLines {
    /// With the name of the replica as a prefix, padded to this width.
    Prefixed(usize),
    /// Without the name of the replica.
    Bare,
    /// As the JSON objects that the master sent.
    Json,
}

impl LogLines {
    /// With a prefix as wide as the longest replica name of the job.
    pub(crate) fn prefixed(spec: &JobSpec) -> Self {
        let names = Role::ALL.into_iter().filter_map(|role| {
            let index = spec.count(role).checked_sub(1)?;
            Some(ReplicaId { role, index }.to_string().len())
        });
        Self::Prefixed(names.max().unwrap_or(0))
    }
}

/// Where a command prints, and the format of its data.
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) data: Data,
    pub(crate) notes: Notes,
}

impl Data {
    /// The process's stdout. On a terminal, data is written above the progress that `notes` shows.
    pub(crate) fn above(notes: &Notes) -> Self {
        let stdout = io::stdout();
        let (terminal, colours) = (stdout.is_terminal(), colours_of(&stdout));
        let progress = terminal.then(|| notes.progress.clone());
        Self {
            out: BufWriter::new(Stdout { progress, loss: WriteLoss::Fails }),
            terminal,
            colours,
            log_lines: LogLines::Prefixed(0),
            shows_times: false,
            partial_line: Vec::new(),
            frames: Frames::default(),
            ranks: ShownRanks::All,
        }
    }

    /// From now on, a full disk is no error: `notes` gets one sentence, and later data is not written.
    pub(crate) fn go_on_if_unwritten(&mut self, notes: &Notes) {
        self.out.get_mut().loss = WriteLoss::IsReported(notes.clone());
    }

    /// Whether stdout is a terminal.
    pub(crate) fn is_for_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes the buffer to stdout.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(unwritten)
    }

    /// Prints text with styles, such as clap's help.
    pub(crate) fn styled(&mut self, text: &str) -> Result<(), Error> {
        let written = match self.colours {
            Colours::Kept => write!(self.out, "{text}"),
            Colours::Removed => write!(self.out, "{}", anstream::adapter::strip_str(text)),
        };
        written.map_err(unwritten)?;
        self.flush()
    }

    /// Prints one or more lines.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Error> {
        for line in text.lines() {
            self.whole_line(&self.safe(line))?;
        }
        self.flush()
    }

    /// Prints a value as JSON.
    pub(crate) fn json<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(value).map_err(|error| unwritten(error.into()))?;
        self.text(&json)
    }

    /// Prints a value as one line of JSON.
    pub(crate) fn json_line<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let json = serde_json::to_string(value).map_err(|error| unwritten(error.into()))?;
        self.text(&json)
    }

    /// Prints a value as JSON, or as this text.
    pub(crate) fn show<T: Serialize>(
        &mut self,
        format: Format,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        match format {
            Format::Json => self.json(value),
            Format::Text => self.text(&text()),
        }
    }

    /// Prints log lines in this form from now on.
    pub(crate) fn log_lines_as(&mut self, form: LogLines) {
        self.log_lines = form;
    }

    /// Prints only the log lines of these ranks from now on.
    pub(crate) fn show_ranks(&mut self, ranks: ShownRanks) {
        self.ranks = ranks;
    }

    /// Whether a line is of a rank that is shown.
    pub(crate) fn shows(&self, line: &LogLine) -> bool {
        self.ranks.shown(&line.line).is_some()
    }

    /// Prints the times of log lines from now on.
    pub(crate) fn show_times(&mut self) {
        self.shows_times = true;
    }

    /// Whether a pipe or a file gets frames of progress bars.
    pub(crate) fn shows_frames(&self) -> bool {
        !self.terminal && self.log_lines != LogLines::Json
    }

    /// Prints the newest frame of a progress bar into a pipe or a file, if this is due. So a reader sees that the script
    /// goes on.
    pub(crate) fn frame(&mut self, line: &LogLine) -> Result<(), Error> {
        let is_due = self.shows_frames() && self.frames.is_due(line, Instant::now());
        if is_due { self.log_line(line) } else { Ok(()) }
    }

    /// Prints one line of a replica's output, unless its rank is not shown. A pipe or a file gets the text unchanged, but
    /// only the last frame of a progress bar.
    pub(crate) fn log_line(&mut self, line: &LogLine) -> Result<(), Error> {
        let Some(text) = self.ranks.shown(&line.line) else { return Ok(()) };
        let shown = match self.log_lines {
            // JSON does not escape C1 control characters and characters that change the direction of text.
            LogLines::Json => {
                let json = serde_json::to_string(line).map_err(|error| unwritten(error.into()))?;
                self.safe(&json).into_owned()
            }
            LogLines::Bare => self.text_at(text, line.time).into_owned(),
            LogLines::Prefixed(width) => {
                let (name, text) = (line.replica.to_string(), self.text_at(text, line.time));
                match self.colours {
                    Colours::Kept => {
                        let style = prefix_style(line.replica);
                        format!("{style}{name:width$} │{style:#} {text}")
                    }
                    Colours::Removed => format!("{name:width$} │ {text}"),
                }
            }
        };
        self.whole_line(&shown)
    }

    /// The text of a line. If times are shown, the line's time is in front of the text.
    fn text_at<'a>(&self, (label, text): (&'a str, &'a str), time: Option<UnixMillis>) -> Cow<'a, str> {
        let text = self.safe(last_frame(text));
        let text = if label.is_empty() { text } else { Cow::Owned(format!("{label}{text}")) };
        if !self.shows_times {
            return text;
        }
        let time = time.and_then(timestamp::written).unwrap_or_else(|| "-".to_owned());
        Cow::Owned(format!("{time:WIDTH$} {text}", WIDTH = timestamp::WIDTH))
    }

    /// The line, made safe if stdout is a terminal.
    fn safe<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.terminal { for_terminal(line, self.colours) } else { Cow::Borrowed(line) }
    }

    /// Writes the line in one piece, because the progress may be redrawn between two writes.
    fn whole_line(&mut self, line: &str) -> Result<(), Error> {
        self.out.write_all(format!("{line}\n").as_bytes()).map_err(unwritten)
    }

    /// Prints the output of one replica. A pipe or a file gets the bytes unchanged and at once. A terminal gets whole
    /// lines of safe text.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if !self.terminal {
            self.out.write_all(bytes).map_err(unwritten)?;
            return self.flush();
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial_line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial_line.len() > PARTIAL_LINE_MAX {
                self.end_partial_line()?;
            }
        }
        self.flush()
    }

    /// Prints the unfinished last line that [`Data::bytes`] holds back.
    pub(crate) fn end_partial_line(&mut self) -> Result<(), Error> {
        let bytes = std::mem::take(&mut self.partial_line);
        if bytes.is_empty() { Ok(()) } else { self.text(String::from_utf8_lossy(&bytes).trim_end_matches('\n')) }
    }
}

fn prefix_style(replica: ReplicaId) -> Style {
    let role = Role::ALL.iter().position(|role| *role == replica.role).unwrap_or(0);
    let place = (role + replica.index as usize) % PREFIX_COLOURS.len();
    PREFIX_COLOURS[place].on_default()
}
