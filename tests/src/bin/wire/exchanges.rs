//! Parses the log of the proxies into requests and answers (HTTP/1.1, RFC 9112).

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

/// The headers that mean something to Muster. The other headers belong to HTTP libraries.
const HEADERS: [&str; 5] = ["accept", "content-type", "te", "trailer", "retry-after"];
/// The prefix of Muster's own headers.
const OWN_HEADERS: &str = "muster-";

/// One direction of a connection.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// The first byte of each piece, and the time of the piece.
    pieces: Vec<(usize, u64)>,
    read: usize,
}

/// A request or an answer.
struct Message {
    micros: u64,
    first_line: String,
    headers: Map<String, Value>,
    body: Value,
    is_complete: bool,
}

/// Returns the exchanges in a log, by the times of the requests. `neutral` replaces names of this machine.
pub(crate) fn in_log(log: &str, neutral: impl Fn(&[u8]) -> Vec<u8>) -> anyhow::Result<Value> {
    let mut connections: BTreeMap<(String, String), [Stream; 2]> = BTreeMap::new();
    for line in log.lines() {
        let piece: Value = serde_json::from_str(line)?;
        let text = |name: &str| piece[name].as_str().unwrap_or_default().to_owned();
        let streams = connections.entry((text("link"), text("connection"))).or_default();
        let stream = &mut streams[usize::from(piece["side"] == "answer")];
        stream.pieces.push((stream.bytes.len(), piece["micros"].as_u64().unwrap_or_default()));
        let bytes: Vec<u8> = serde_json::from_value(piece["bytes"].clone())?;
        stream.bytes.extend(bytes);
    }
    let mut exchanges = vec![];
    for ((link, connection), [mut requests, mut answers]) in connections {
        for stream in [&mut requests, &mut answers] {
            stream.bytes = neutral(&stream.bytes);
        }
        while let Some(request) = requests.next(false) {
            let answer = answers.next(true);
            let (micros, exchange) = exchange(&link, request, answer).with_context(|| connection.clone())?;
            exchanges.push((micros, exchange));
        }
    }
    exchanges.sort_by_key(|(micros, _)| *micros);
    Ok(exchanges.into_iter().map(|(_, exchange)| exchange).collect())
}

fn exchange(link: &str, request: Message, answer: Option<Message>) -> anyhow::Result<(u64, Value)> {
    let mut words = request.first_line.split(' ');
    let (method, target) = (words.next().context("no method")?, words.next().context("no target")?);
    let answer = answer.map(|answer| -> anyhow::Result<Value> {
        let status: u16 = answer.first_line.split(' ').nth(1).context("no status")?.parse()?;
        let Message { headers, body, is_complete, .. } = answer;
        Ok(json!({ "status": status, "headers": headers, "body": body, "is_complete": is_complete }))
    });
    let (headers, body) = (request.headers, request.body);
    let asked = json!({ "method": method, "target": target, "headers": headers, "body": body });
    Ok((request.micros, json!({ "link": link, "request": asked, "answer": answer.transpose()? })))
}

impl Stream {
    /// Reads the next message. `None` at the end, and if the head of the message is not complete.
    fn next(&mut self, is_answer: bool) -> Option<Message> {
        let begin = self.read;
        let micros = self.pieces.iter().rev().find(|(first, _)| *first <= begin).map(|(_, micros)| *micros)?;
        let mut lines = self.head()?.into_iter();
        let first_line = lines.next()?;
        let mut fields: Vec<(String, String)> = lines.filter_map(|line| field(&line)).collect();
        let value = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
        let (body, is_complete) = match length {
            _ if value("transfer-encoding").is_some() => {
                let (body, trailers) = self.chunks();
                let is_complete = trailers.is_some();
                fields.extend(trailers.into_iter().flatten().filter_map(|line| field(&line)));
                (body, is_complete)
            }
            Some(length) => {
                let body = self.take(length);
                let is_complete = body.len() == length;
                (body, is_complete)
            }
            None if is_answer => (self.take(usize::MAX), true),
            None => (vec![], true),
        };
        let own = |(name, _): &(String, String)| name.starts_with(OWN_HEADERS) || HEADERS.contains(&name.as_str());
        let secret = fields.iter().any(|(name, _)| name == "authorization");
        let mut headers: Map<String, Value> =
            fields.iter().filter(|field| own(field)).map(|(name, value)| (name.clone(), json!(value))).collect();
        if secret {
            headers.insert("authorization".to_owned(), json!("Bearer TOKEN"));
        }
        Some(Message { micros, first_line, headers, body: as_json(&body), is_complete })
    }

    /// The lines up to an empty line.
    fn head(&mut self) -> Option<Vec<String>> {
        let mut lines = vec![];
        loop {
            match self.line()? {
                line if line.is_empty() => return Some(lines),
                line => lines.push(line),
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.read..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.read += end + 2;
        Some(line)
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let end = self.read.saturating_add(length).min(self.bytes.len());
        let taken = self.bytes[self.read..end].to_vec();
        self.read = end;
        taken
    }

    /// A chunked body, and its trailers if the body is complete.
    fn chunks(&mut self) -> (Vec<u8>, Option<Vec<String>>) {
        let mut body = vec![];
        loop {
            let size = self.line().and_then(|line| usize::from_str_radix(line.split(';').next()?.trim(), 16).ok());
            match size {
                None => return (body, None),
                Some(0) => return (body, self.head()),
                Some(size) => body.extend(self.take(size)),
            }
            self.take(2);
        }
    }
}

fn field(line: &str) -> Option<(String, String)> {
    line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
}

/// A body: `null` if it is empty, else an object whose key says how the value is written.
fn as_json(body: &[u8]) -> Value {
    match (serde_json::from_slice::<Value>(body), std::str::from_utf8(body)) {
        _ if body.is_empty() => Value::Null,
        (Ok(value), _) => json!({ "json": value }),
        (_, Ok(text)) => json!({ "text": text }),
        _ => json!({ "hex": body.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}
