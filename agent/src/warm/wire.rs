//! The messages between the agent and the warm interpreter: see `python/warm.py`.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::rules::EnvironmentChanges;

/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// The request for a run.
#[derive(Debug, Serialize)]
pub(super) struct RunRequest<'a> {
    /// The script and its arguments.
    pub(super) argv: Vec<&'a str>,
    /// The changes to the interpreter's environment.
    pub(super) env: EnvironmentChanges<'a>,
}

/// An answer of the interpreter, or of a process that it has forked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WarmAnswer {
    /// The modules are imported.
    Ready {
        /// The names of the modules.
        modules: Vec<String>,
        /// The interpreter's resident memory.
        rss_bytes: u64,
    },
    /// The process id of a run, which waits for its start.
    Pid(i32),
    /// No run can start, for this reason.
    Cold(String),
    /// The script has changed, and a new interpreter may fit it.
    Outdated(String),
}

/// Sends `message` and reads one answer. Returns the stream too, because dropping it would end a waiting run.
pub(super) async fn exchange(mut stream: UnixStream, message: Vec<u8>) -> io::Result<(UnixStream, WarmAnswer)> {
    stream.write_all(&message).await?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if line.len() > ANSWER_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "the answer is too long"));
        }
        if stream.read_buf(&mut line).await? == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "Python ended without an answer"));
        }
    }
    let answer = serde_json::from_slice(&line)?;
    Ok((stream, answer))
}

/// Maximum number of descriptors of a run.
const DESCRIPTORS_MAX: usize = 5;

/// Asks for a run. Sends one byte, which carries these descriptors. Fails if the socket is full.
pub(super) fn request_run(requests: &StdStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("the descriptors do not fit into a message"));
    }
    sendmsg(requests, &[IoSlice::new(b"r")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
