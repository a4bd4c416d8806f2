//! Stderr: what a command says to people.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstyle::AnsiColor;
use protocol::ids::{JobName, ReplicaId};
use protocol::output::LogLine;
use protocol::view::JobView;

use super::progress::ProgressLines;
use super::text::{Colours, colours_of, for_terminal};
use crate::ending::error::Error;

/// Stderr: sentences for people, and the progress. A clone writes to the same stderr.
#[derive(Clone)]
pub(crate) struct Notes {
    terminal: bool,
    /// Whether the progress is shown.
    redraws: bool,
    colours: Colours,
    pub(super) progress: ProgressLines,
}

impl Notes {
    /// The process's stderr.
    pub(crate) fn new() -> Self {
        let stderr = io::stderr();
        let progress = ProgressLines::new();
        // Not every terminal can redraw lines: for example, one with TERM=dumb cannot.
        let redraws = stderr.is_terminal() && !progress.is_hidden();
        Self { terminal: stderr.is_terminal(), redraws, colours: colours_of(&stderr), progress }
    }

    /// Prints lines of text. Ignores a failure to write to stderr: it cannot be reported anywhere.
    pub(crate) fn say(&self, text: &str) {
        self.progress.suspend(|| {
            let mut stderr = io::stderr().lock();
            for line in text.lines() {
                let line = if self.terminal { for_terminal(line, self.colours) } else { Cow::Borrowed(line) };
                let _ = writeln!(stderr, "{line}");
            }
        });
    }

    /// Prints an error and its hint. If the error is about one of several jobs, `job` is the name of this job.
    pub(crate) fn error(&self, error: &Error, job: Option<&JobName>) {
        let about = job.map(|job| format!("{job}: ")).unwrap_or_default();
        self.labelled(AnsiColor::Red, "error:", &format!("{about}{}", Chain(error)));
        error.hint.iter().for_each(|hint| self.hint(hint));
    }

    /// Prints a hint: what to do next.
    pub(crate) fn hint(&self, text: &str) {
        self.labelled(AnsiColor::Cyan, "hint:", text);
    }

    fn labelled(&self, colour: AnsiColor, label: &str, text: &str) {
        match self.colours {
            Colours::Kept => {
                let style = colour.on_default().bold();
                self.say(&format!("{style}{label}{style:#} {text}"));
            }
            Colours::Removed => self.say(&format!("{label} {text}")),
        }
    }

    /// On a terminal, shows how many replicas have joined. If no start is under way, shows nothing.
    pub(crate) fn show_progress(&self, view: &JobView) {
        if self.terminal {
            self.progress.show(view);
        }
    }

    /// Whether stderr is a terminal that can redraw lines.
    pub(crate) fn shows_progress(&self) -> bool {
        self.redraws
    }

    /// On a terminal, shows the unfinished line that a replica is writing.
    pub(crate) fn show_unfinished(&self, line: &LogLine) {
        let text = for_terminal(&line.line, self.colours);
        if self.terminal && !text.trim().is_empty() {
            self.progress.show_unfinished(line.replica, &text);
        }
    }

    /// Removes the line that [`Notes::show_unfinished`] shows.
    pub(crate) fn end_unfinished(&self, replica: ReplicaId) {
        if self.terminal {
            self.progress.end_unfinished(replica);
        }
    }

    /// On a terminal, shows a step of the present work, such as the build of an image.
    pub(crate) fn show_step(&self, step: &str) {
        if self.terminal {
            self.progress.show_step(&for_terminal(step, self.colours));
        }
    }

    /// On a terminal, shows a table in place of the table before.
    pub(crate) fn show_table(&self, table: &str) {
        let lines = table.lines().map(|line| for_terminal(line, self.colours).into_owned()).collect();
        self.progress.show_table(lines);
    }

    /// Removes the progress.
    pub(crate) fn end_progress(&self) {
        self.progress.clear();
    }
}

/// Displays an error and its causes on one line.
struct Chain<'a>(&'a Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
