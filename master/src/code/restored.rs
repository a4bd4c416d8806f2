//! Fills the store from the copies beside the records, or from agents, for a master that has lost its disk.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::Fuse;
use futures_util::{Stream, StreamExt};
use protocol::code::CodeId;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{CodeError, CodeStore, UnpackError};
use crate::error_chain::error_chain;

/// Minimum time between two requests for a copy that does not exist. Many agents may wait for the same code.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The code whose copy was missing or damaged, and when. Locked while a copy is read, so that each copy is read once.
pub(super) type Misses = Mutex<BTreeMap<CodeId, Instant>>;

impl CodeStore {
    /// Restores this code from its copy, unless the store has the code. Returns whether the store has the code now.
    /// `copy` reads the copy, and is `None` without copies. Then this always returns false.
    ///
    /// # Errors
    /// The error of `copy`. Then the code may still exist.
    pub async fn restore<E>(
        self: &Arc<Self>,
        id: CodeId,
        copy: Option<impl Future<Output = Result<Option<Vec<u8>>, E>>>,
    ) -> Result<bool, E> {
        let Some(copy) = copy else { return Ok(false) };
        let mut misses = self.misses.lock().await;
        if self.has(id).await {
            return Ok(true);
        }
        misses.retain(|_, at| at.elapsed() < LOOK_INTERVAL);
        if misses.contains_key(&id) {
            return Ok(false);
        }
        let is_restored = match copy.await? {
            Some(content) => self.unpacked(id, content).await,
            None => false,
        };
        if !is_restored {
            misses.insert(id, Instant::now());
        }
        Ok(is_restored)
    }

    /// Whether the store has this code.
    pub(crate) async fn has(self: &Arc<Self>, id: CodeId) -> bool {
        self.blocking(move |store| store.manifest(id).is_some()).await
    }

    /// Stores code that arrives as one stream, see [`packed`](super::packed).
    pub(crate) async fn take_back<E: Error + Send + Sync + 'static>(
        self: &Arc<Self>,
        id: CodeId,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<(), UnpackError> {
        let content = Arriving { pieces: Box::pin(pieces.fuse()), rest: Bytes::new(), runtime: Handle::current() };
        self.blocking(move |store| store.take_in(id, content)).await
    }

    async fn unpacked(self: &Arc<Self>, id: CodeId, content: Vec<u8>) -> bool {
        match self.blocking(move |store| store.unpack(id, &content)).await {
            Ok(()) => info!(code = %id, "read code from its copy beside the records"),
            Err(error) => {
                warn!(code = %id, error = error_chain(&error), "cannot use the copy of some code");
                return false;
            }
        }
        true
    }

    /// Like [`Self::pack`], on a thread for blocking work.
    pub(crate) async fn packed(self: &Arc<Self>, id: CodeId, most: usize) -> Result<Option<Vec<u8>>, CodeError> {
        self.blocking(move |store| store.pack(id, most)).await
    }

    async fn blocking<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let store = Arc::clone(self);
        spawn_blocking(move || work(&store)).await.expect("no work on the store of code panics")
    }
}

/// Reads a stream on a thread for blocking work.
struct Arriving<S> {
    pieces: Pin<Box<Fuse<S>>>,
    /// The bytes of the last piece that were not read yet.
    rest: Bytes,
    runtime: Handle,
}

impl<E: Error + Send + Sync + 'static, S: Stream<Item = Result<Bytes, E>>> Read for Arriving<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.runtime.block_on(self.pieces.next()) {
                Some(piece) => self.rest = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let part = self.rest.split_to(to.len().min(self.rest.len()));
        to[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}
