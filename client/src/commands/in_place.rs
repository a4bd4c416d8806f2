//! Asks a master whether it sees a folder of this machine, so that a job can run in the folder itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use master_client::MasterClient;
use protocol::master::{BOOT_ID, FolderQuery};

use crate::ending::error::Error;
use crate::master::announcement::own_uid;
use crate::master::patience::persist;
use crate::output::Notes;

/// Whether the master sees these folders as the same user. They are absolute paths without links.
pub(super) async fn sees<'a>(
    client: &MasterClient,
    folders: impl Iterator<Item = &'a Path>,
    notes: &Notes,
) -> Result<bool, Error> {
    for folder in folders {
        let Some(query) = identity(folder) else { return Ok(false) };
        let master = persist(notes, || client.about_folder(&query)).await?;
        if !master.same_folder || master.uid != own_uid() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The folder with its identity on this machine. `None` if it cannot be read.
fn identity(folder: &Path) -> Option<FolderQuery> {
    let (found, boot_id) = (fs::metadata(folder).ok()?, fs::read_to_string(BOOT_ID).ok()?);
    Some(FolderQuery {
        folder: Some(folder.to_str()?.into()),
        device: Some(found.dev()),
        inode: Some(found.ino()),
        boot_id: Some(boot_id.trim().to_owned()),
    })
}
