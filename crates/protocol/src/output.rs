//! The lines of a job's output, as the master sends them.

use serde::{Deserialize, Serialize};

use crate::ids::{ReplicaId, UnixMillis};

/// A line of a job's merged output, written as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// The replica that printed the line.
    pub replica: ReplicaId,
    /// When the line was complete, by the master's clock. Sent only if requested. Absent if the time is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<UnixMillis>,
    /// Byte offset after this line in the replica's output. To resume, request the output from this offset.
    pub offset: u64,
    /// The text without its newline, with invalid UTF-8 replaced. A line longer than 16 KiB is sent in pieces.
    pub line: String,
    /// Whether the line is still being written, such as a progress bar. `line` is then the line's newest part, and
    /// `offset` is where the line begins. The stream sends the complete line later. Sent only if requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A master that does not know how much output earlier masters have kept counts on from a multiple of this offset, so
/// that no two bytes have the same offset.
pub const OFFSETS_OF_A_MASTER: u64 = 1 << 40;

/// Whether a gap of this many bytes contains output that an earlier master kept, so that its real length is unknown.
pub fn is_of_earlier_master(missing: u64) -> bool {
    missing >= OFFSETS_OF_A_MASTER / 2
}

/// Maximum bytes of output in a [`LogLine`].
pub const LOG_LINE_BYTES: usize = 16 * 1024;

/// Maximum bytes of an unfinished [`LogLine`]. Only the newest bytes are sent, because a terminal shows no more.
pub const UNFINISHED_BYTES: usize = 4 * 1024;
