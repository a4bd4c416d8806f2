//! Fills the store from the copies beside the records, for a master that has lost its disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::code::CodeId;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{CodeError, CodeStore};
use crate::error_chain::error_chain;
use crate::store::{CodeCopies, StoreError};

/// Minimum time between two requests for a copy that does not exist. Many agents may wait for the same code.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The code whose copy was missing or damaged, and when. Locked while a copy is read, so that each copy is read once.
pub(super) type Misses = Mutex<BTreeMap<CodeId, Instant>>;

impl CodeStore {
    /// Makes sure that the store has this code. Returns whether it has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the copy cannot be read. Then the code may still exist.
    pub async fn restore(self: &Arc<Self>, id: CodeId, copies: Option<&dyn CodeCopies>) -> Result<bool, StoreError> {
        let Some(copies) = copies else { return Ok(false) };
        let mut misses = self.misses.lock().await;
        if self.blocking(move |store| store.manifest(id).is_some()).await {
            return Ok(true);
        }
        misses.retain(|_, at| at.elapsed() < LOOK_INTERVAL);
        if misses.contains_key(&id) {
            return Ok(false);
        }
        let is_restored = match copies.read(id).await? {
            Some(content) => self.unpacked(id, content).await,
            None => false,
        };
        if !is_restored {
            misses.insert(id, Instant::now());
        }
        Ok(is_restored)
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
