//! The events of one open tab: parts that have changed, and new lines of output, in one stream.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::{Stream, stream};
use protocol::ids::ReplicaId;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;

use super::feed::{NewLines, Watching};
use super::log_lines::Line;
use super::parts::Part;

/// How long a tab collects lines before it sends them.
const COLLECT: Duration = Duration::from_millis(50);

/// Which output a tab shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TabOutput {
    None,
    Of(ReplicaId),
    All,
}

/// An open tab.
pub(super) struct Tab {
    watching: Watching,
    written: watch::Receiver<u64>,
    parts: Vec<Part>,
    output: TabOutput,
    /// The number of the next line to send.
    next_line: u64,
    /// Only for a tab of one replica that has all lines so far: the job's number in the feed, and the offset of the last
    /// line that `begin_with` sent. Lines of that job up to this offset are not sent again.
    sent_until: Option<(u64, u64)>,
    /// Whether the stream ends, so that the browser opens a new one.
    has_ended: bool,
    /// The HTML that the tab shows.
    sent: HashMap<Part, Arc<str>>,
    queue: VecDeque<Event>,
}

/// The id of an event, as text: the feed, and the number of the line with which a tab continues.
pub(super) fn place(feed: u64, next_line: u64) -> String {
    format!("{feed}.{next_line}")
}

impl Tab {
    /// A tab that shows these parts, and the output that follows `last`, the id of the newest event that the browser
    /// has.
    pub(super) fn new(mut watching: Watching, parts: Vec<Part>, output: TabOutput, last: &str) -> Self {
        let number = last.split_once('.').filter(|(feed, _)| *feed == watching.feed.id.to_string());
        // The lines of another feed are unknown here. A number above all others makes the tab start again with the
        // newest lines.
        let next_line = number.and_then(|(_, line)| line.parse().ok()).unwrap_or(u64::MAX);
        let mut written = watching.feed.written.subscribe();
        // The tab first gets everything that it does not show yet.
        watching.known.mark_changed();
        written.mark_changed();
        Self {
            watching,
            written,
            parts,
            output,
            next_line,
            sent_until: None,
            has_ended: false,
            sent: HashMap::new(),
            queue: VecDeque::new(),
        }
    }

    /// The feed's lines, if the tab cannot continue at `next_line` and must begin with the newest lines.
    pub(super) fn begins_at(&self) -> Option<NewLines> {
        Some(self.watching.feed.lines_from(self.next_line)).filter(|lines| lines.is_gap)
    }

    /// Begins with these lines of one replica. The feed keeps the newest lines of all replicas together, so it may have
    /// few lines of this replica. `lines` must be read after `known` was taken from the feed, so that no line between
    /// them is missed.
    pub(super) fn begin_with(&mut self, lines: &[Line], known: &NewLines) {
        self.sent_until = Some((known.job, lines.last().map_or(0, |line| line.offset)));
        self.next_line = known.end;
        self.send("anew", lines);
    }

    /// Goes on with the next line: the browser has all earlier lines of the replica.
    pub(super) fn go_on(&mut self) {
        self.sent_until = Some((self.watching.feed.lines_from(self.next_line).job, 0));
    }

    /// The events, as long as the tab is open.
    pub(super) fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut tab| async {
            let event = tab.next().await?;
            Some((Ok(event), tab))
        })
    }

    /// The next event. `None` ends the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            tokio::select! {
                changed = self.watching.known.changed() => {
                    changed.ok()?;
                    self.take_parts();
                }
                changed = self.written.changed(), if self.output != TabOutput::None => {
                    changed.ok()?;
                    sleep(COLLECT).await;
                    self.take_lines();
                }
            }
        }
    }

    fn take_parts(&mut self) {
        let Some(snapshot) = self.watching.known.borrow_and_update().clone() else { return };
        for part in &self.parts {
            let html = snapshot.html(part);
            let is_new = self.sent.get(part) != Some(&html);
            if is_new {
                self.queue.push_back(Event::default().event("part").data(format!("{}\n{html}", part.id())));
                self.sent.insert(part.clone(), html);
            }
        }
    }

    fn take_lines(&mut self) {
        self.written.mark_unchanged();
        let NewLines { mut lines, is_gap, end, job } = self.watching.feed.lines_from(self.next_line);
        if let (TabOutput::Of(replica), begun) = (self.output, self.sent_until) {
            let sent_until = begun.filter(|(of, _)| *of == job).map_or(0, |(_, offset)| offset);
            lines.retain(|line| line.replica == replica && line.offset > sent_until);
            if is_gap && begun.is_some() {
                // The browser then opens a new stream, which begins with the newest lines.
                self.has_ended = true;
                return;
            }
        }
        self.next_line = end;
        if !lines.is_empty() || is_gap {
            self.send(if is_gap { "anew" } else { "lines" }, &lines);
        }
    }

    fn send<L: Serialize>(&mut self, name: &str, lines: &[L]) {
        let json = serde_json::to_string(lines).unwrap_or_default();
        let place = place(self.watching.feed.id, self.next_line);
        self.queue.push_back(Event::default().event(name).id(place).data(json));
    }
}
