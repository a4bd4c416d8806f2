//! The bodies of answers: a text, a log as it grows, or the code that the agent has.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use protocol::aged_output::AgedPart;
use protocol::ids::Generation;
use protocol::routes::LOG_COMPLETE_TRAILER;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::warn;

use crate::activity::OpenRequest;
use crate::code::HeldFiles;
use crate::follow::{LogReader, ReaderPiece};

/// Bytes of a piece of code.
const PIECE_BYTES: usize = 64 * 1024;
/// How long a client may take to read one piece of a log or of code. After that, the answer ends.
const READER_LIMIT: Duration = Duration::from_secs(60);

/// The form in which output is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputForm {
    /// The bytes alone.
    Plain,
    /// The bytes with their ages, see [`protocol::aged_output`].
    Aged,
}

/// The body of an answer: whole, or piece by piece.
pub(crate) type AgentBody = Either<Full<Bytes>, BodyPieces>;

/// A log or code, piece by piece. The body ends when the sender is dropped.
#[derive(Debug)]
pub(crate) struct BodyPieces(mpsc::Receiver<Frame<Bytes>>);

impl Body for BodyPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(Ok))
    }
}

/// The pieces that `follower` reads.
pub(crate) fn following(follower: LogReader, form: OutputForm, open: OpenRequest) -> AgentBody {
    // One piece waits in the channel while another is sent. Further pieces wait in the log.
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(deliver(follower, form, sender, open));
    AgentBody::Right(BodyPieces(pieces))
}

/// The code that the agent has. If a file cannot be read, the body ends early, and its reader finds that blobs are
/// missing.
pub(crate) fn held(held: HeldFiles, open: OpenRequest) -> AgentBody {
    let (sender, pieces) = mpsc::channel(1);
    let mut to = PieceWriter { sender, runtime: Handle::current(), buffer: Vec::with_capacity(PIECE_BYTES) };
    spawn_blocking(move || {
        let _open = open;
        if let Err(error) = held.write_into(&mut to) {
            warn!(%error, "the job's code could not be sent back");
        }
    });
    AgentBody::Right(BodyPieces(pieces))
}

/// Sends bytes to the reader of a body. Blocks while the reader is slow, for [`READER_LIMIT`] at most.
struct PieceWriter {
    sender: mpsc::Sender<Frame<Bytes>>,
    runtime: Handle,
    buffer: Vec<u8>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE_BYTES - self.buffer.len();
        let bytes = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let frame = Frame::data(Bytes::copy_from_slice(&self.buffer));
        self.buffer.clear();
        match self.runtime.block_on(timeout(READER_LIMIT, self.sender.send(frame))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(ErrorKind::BrokenPipe.into()),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }
}

/// Sends a log until the log ends or the reader disconnects. Also stops before missing bytes, because a body of raw
/// bytes cannot mark a gap. If the reader then asks for the missing bytes, a header of the answer has their number.
async fn deliver(mut follower: LogReader, form: OutputForm, sender: mpsc::Sender<Frame<Bytes>>, _open: OpenRequest) {
    loop {
        let piece = tokio::select! {
            piece = follower.next() => piece,
            () = sender.closed() => return,
        };
        let (frame, is_last) = match piece {
            Ok(ReaderPiece::Bytes(bytes, age)) => match form {
                OutputForm::Plain => (Frame::data(bytes), false),
                OutputForm::Aged => (Frame::data(AgedPart { age, bytes: &bytes }.to_bytes().into()), false),
            },
            Ok(ReaderPiece::RunEnded(generation)) => (completeness(generation), true),
            Ok(ReaderPiece::Dropped(_) | ReaderPiece::End) => return,
            Err(error) => {
                warn!(%error, "a log could not be read");
                return;
            }
        };
        let sent = timeout(READER_LIMIT, sender.send(frame)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

/// The trailer that shows readers that they have all output of a run.
fn completeness(generation: Option<Generation>) -> Frame<Bytes> {
    let value = generation.map(|generation| generation.to_string()).unwrap_or_default();
    let value = HeaderValue::try_from(value).expect("digits and a dot are valid in a header");
    Frame::trailers(HeaderMap::from_iter([(HeaderName::from_static(LOG_COMPLETE_TRAILER), value)]))
}
