//! Requests that say twice how long they are. hyper goes by Transfer-Encoding then and hides the Content-Length; whoever
//! stands in between may have gone by the other (RFC 9112, section 6.3), so such a request is refused, and for that its
//! bytes are looked at as they come.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::header::TRANSFER_ENCODING;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What is looked for at the beginning of lines. A config that is valid JSON has no such line.
const LENGTH: &[u8] = b"content-length";

/// Whether a Content-Length has come since the last request.
#[derive(Debug, Clone, Default)]
pub(super) struct Lengths(Arc<AtomicBool>);

impl Lengths {
    /// Whether a request says its length in two ways. To be asked once for each.
    pub(super) fn conflict(&self, headers: &HeaderMap) -> bool {
        self.0.swap(false, Ordering::Relaxed) && headers.contains_key(TRANSFER_ENCODING)
    }
}

/// A connection whose incoming lines are looked at.
#[derive(Debug)]
pub(super) struct Watched {
    connection: TcpStream,
    lengths: Lengths,
    line: Line,
}

/// How much of a line is what is looked for.
#[derive(Debug, Clone, Copy)]
enum Line {
    SoFar(usize),
    Other,
}

impl Watched {
    pub(super) fn new(connection: TcpStream, lengths: Lengths) -> Self {
        Self { connection, lengths, line: Line::SoFar(0) }
    }

    fn look(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.line = match self.line {
                Line::SoFar(_) | Line::Other if *byte == b'\n' => Line::SoFar(0),
                Line::SoFar(matched) if byte.eq_ignore_ascii_case(&LENGTH[matched]) => Line::SoFar(matched + 1),
                Line::SoFar(_) | Line::Other => Line::Other,
            };
            if matches!(self.line, Line::SoFar(matched) if matched == LENGTH.len()) {
                self.lengths.0.store(true, Ordering::Relaxed);
                self.line = Line::Other;
            }
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.connection).poll_read(context, buffer))?;
        self.look(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
