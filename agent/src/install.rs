//! Copies this program to another place. In a pod, an init container copies the agent into a folder that it shares with
//! the job's own image. No shell is needed, because the agent's image has none.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Everybody may execute the copy, because the job's image may run as another user.
const MODE: u32 = 0o755;

/// Copies this program to `target`, and creates the folder of `target`. The file appears whole or not at all.
///
/// # Errors
/// The error of the first step that fails.
pub(crate) fn install(target: &Path) -> io::Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = OsString::from_iter([target.as_os_str(), ".part".as_ref()]);
    let copied = fs::copy("/proc/self/exe", &part)
        .and_then(|_| fs::set_permissions(&part, Permissions::from_mode(MODE)))
        .and_then(|()| fs::rename(&part, target));
    copied.inspect_err(|_| drop(fs::remove_file(&part)))
}
