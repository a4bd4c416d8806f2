//! A running `client ui`, and requests to it as a browser or an attacker sends them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::live_master::{LiveMaster, TOKEN};
use super::{client, folder_with_script, printed};

/// Deadline of an event. A stream sends a comment every 15 s.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running page. It ends when the value is dropped.
pub(crate) struct Page {
    /// The address, with the key.
    pub(crate) address: String,
    pub(crate) child: Child,
    _folder: TempDir,
}

/// An answer of the page.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers, with names in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Page {
    /// The page about a master's jobs.
    pub(crate) fn of(master: &LiveMaster) -> Self {
        let folder = folder_with_script();
        let mut command = client(folder.path());
        command.args(["ui", "--no-open", "--master", &master.url]).env("MUSTER_TOKEN", TOKEN);
        Self::started(command.spawn().unwrap(), folder)
    }

    /// The page of a client that has been started in this folder.
    pub(crate) fn started(mut child: Child, folder: TempDir) -> Self {
        let address = printed(&mut child, 1).trim().to_owned();
        Self { address, child, _folder: folder }
    }

    /// The host and port.
    pub(crate) fn host(&self) -> &str {
        self.address.split('/').nth(2).unwrap()
    }

    /// The key in the address.
    pub(crate) fn key(&self) -> &str {
        self.address.split('/').nth(3).unwrap()
    }

    /// The answer to a request of the page's user, for a path behind the key.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/{}/{path}", self.key()), &[("Host", self.host())], "")
    }

    /// The answer to a form of the page.
    #[track_caller]
    pub(crate) fn post(&self, path: &str, form: &str) -> Answer {
        let origin = format!("http://{}", self.host());
        let headers = [("Host", self.host()), ("Origin", &origin), ("Sec-Fetch-Site", "same-origin")];
        self.ask("POST", &format!("/{}/{path}", self.key()), &headers, form)
    }

    /// The answer to any request.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        let mut text = String::new();
        self.send(method, target, headers, form).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    /// Opens a stream of events.
    pub(crate) fn events(&self, query: &str) -> Events {
        self.events_after(query, "")
    }

    /// Opens a stream of events again, after the event with this id.
    pub(crate) fn events_after(&self, query: &str, last: &str) -> Events {
        let target = format!("/{}/events?{query}", self.key());
        let headers = [("Host", self.host()), ("Last-Event-ID", last)];
        let headers = if last.is_empty() { &headers[..1] } else { &headers[..] };
        let mut reader = BufReader::new(self.send("GET", &target, headers, ""));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream has no headers");
        }
        Events { reader, kept: Vec::new() }
    }

    /// Sends a request of HTTP/1.0, whose answer ends with the connection and has no chunks.
    pub(crate) fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], form: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.host()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut text = format!("{method} {target} HTTP/1.0\r\n");
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        if !form.is_empty() {
            text += &format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n", form.len());
        }
        stream.write_all(format!("{text}\r\n{form}").as_bytes()).unwrap();
        stream
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An open stream of events.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
    kept: Vec<Event>,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) data: String,
}

impl Events {
    /// The next event. Skips comments.
    pub(crate) fn next(&mut self) -> Event {
        let (mut event, mut data) = (Event::default(), Vec::new());
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < DEADLINE, "there is no event");
            let mut line = String::new();
            assert_ne!(self.reader.read_line(&mut line).unwrap(), 0, "the stream has ended");
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", name)) => name.clone_into(&mut event.name),
                Some(("id", id)) => id.clone_into(&mut event.id),
                Some(("data", text)) => data.push(text.to_owned()),
                _ if line == "data:\n" => data.push(String::new()),
                _ if line == "\n" && !event.name.is_empty() => return Event { data: data.join("\n"), ..event },
                _ => {}
            }
        }
    }

    /// Waits until the stream ends.
    pub(crate) fn end(mut self) {
        let mut rest = String::new();
        self.reader.read_to_string(&mut rest).unwrap();
    }

    /// The first lines of output, not returned before, of which one contains a text.
    pub(crate) fn until_line(&mut self, part: &str) -> Event {
        self.find(|event| event.name != "part" && event.data.contains(part))
    }

    /// The first event with this name, not returned before, that contains a text.
    pub(crate) fn until(&mut self, name: &str, part: &str) -> Event {
        self.find(|event| event.name == name && event.data.contains(part))
    }

    /// Parts and output have no order among each other, so events before the wanted one are kept for later calls.
    fn find(&mut self, is_wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            if let Some(place) = self.kept.iter().position(&is_wanted) {
                return self.kept.remove(place);
            }
            let event = self.next();
            self.kept.push(event);
        }
    }
}
