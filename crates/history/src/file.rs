//! One file of the history: a line with a header, and a line with the job.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;

use protocol::history::PastJob;
use protocol::view::JobSummary;
use serde::{Deserialize, Serialize};

/// The format of the files. A later version of Muster increases this number if this version would misread the files of
/// the later version.
const FORMAT: u32 = 1;
/// Maximum bytes of a header.
const HEADER_BYTES_MAX: u64 = 256 * 1024;

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    /// The length of the line with the job, without its line feed.
    bytes: u64,
    job: JobSummary,
}

/// The part of a header that all formats have.
#[derive(Deserialize)]
struct AnyHeader {
    format: u32,
}

/// Why a file is not read. The text is the end of a sentence about the file.
#[derive(Debug)]
pub(crate) enum Unread {
    Absent,
    NotPrivate,
    Later,
    Incomplete,
    Damaged,
    Failed(io::Error),
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("does not exist"),
            Self::NotPrivate => f.write_str("can be read or changed by other users"),
            Self::Later => f.write_str("was written by a later version of Muster"),
            Self::Incomplete => f.write_str("is not complete"),
            Self::Damaged => f.write_str("is damaged"),
            Self::Failed(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::NotFound { Self::Absent } else { Self::Failed(error) }
    }
}

/// Writes a job.
pub(crate) fn write(file: &mut impl Write, job: &PastJob) -> io::Result<()> {
    let body = serde_json::to_vec(job)?;
    let header = Header { format: FORMAT, bytes: body.len() as u64, job: job.view.summary() };
    let mut lines = serde_json::to_vec(&header)?;
    lines.push(b'\n');
    lines.extend(body);
    lines.push(b'\n');
    file.write_all(&lines)
}

/// The summary of a job, without reading the whole file.
pub(crate) fn summary(path: &Path) -> Result<JobSummary, Unread> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let (header, line) = header(&mut BufReader::new(file))?;
    if length < line.saturating_add(header.bytes) { Err(Unread::Incomplete) } else { Ok(header.job) }
}

/// The job.
pub(crate) fn job(path: &Path) -> Result<PastJob, Unread> {
    let mut file = BufReader::new(File::open(path)?);
    let (header, _) = header(&mut file)?;
    let mut body = vec![];
    file.take(header.bytes).read_to_end(&mut body)?;
    if (body.len() as u64) < header.bytes {
        return Err(Unread::Incomplete);
    }
    serde_json::from_slice(&body).map_err(|_| Unread::Damaged)
}

/// The header, and the length of its line.
fn header(file: &mut impl BufRead) -> Result<(Header, u64), Unread> {
    let mut line = vec![];
    let length = file.take(HEADER_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(if (length as u64) < HEADER_BYTES_MAX { Unread::Incomplete } else { Unread::Damaged });
    }
    let AnyHeader { format } = serde_json::from_slice(&line).map_err(|_| Unread::Damaged)?;
    if format > FORMAT {
        return Err(Unread::Later);
    }
    Ok((serde_json::from_slice(&line).map_err(|_| Unread::Damaged)?, length as u64))
}
