//! Opens the page in the user's browser, and hides the page's address from other users of the machine. They can read
//! the arguments of every process, so the browser gets the path of a private file, which leads to the page.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Stdio;

use tempfile::NamedTempFile;
use tokio::process::{Child, Command};

use crate::master::announcement;
use crate::output::Notes;

/// The program that opens a file in the desktop's browser.
const OPENER: &str = "xdg-open";

/// A file that leads to the page. Dropping the value removes the file.
pub(crate) struct Opened {
    _file: NamedTempFile,
    /// The program that opens the file. It ends soon, or when the browser ends.
    _opener: Child,
}

/// Opens the page. If this fails, says so: the user can still open the printed address.
pub(crate) fn open(folders: &[PathBuf], address: &str, notes: &Notes) -> Option<Opened> {
    let opened = write_file(folders, address).and_then(|file| {
        let path = fs::canonicalize(file.path())?;
        let mut opener = Command::new(OPENER);
        // Ctrl-C must not end a browser that was started only now.
        opener.arg(path).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Opened { _file: file, _opener: opener.spawn()? })
    });
    opened.inspect_err(|error| notes.say(&format!("could not open a browser with {OPENER}: {error}"))).ok()
}

/// Writes the file in the first usable folder. Only this user can read it.
fn write_file(folders: &[PathBuf], address: &str) -> io::Result<NamedTempFile> {
    let folder = announcement::usable(folders)?;
    let mut file = tempfile::Builder::new().prefix("ui-").suffix(".html").tempfile_in(folder)?;
    write!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><title>Muster</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={address}\"><a href=\"{address}\">Open the page of client ui</a>"
    )?;
    Ok(file)
}
