//! Finds the script that a container runs. Replaces the script's path in the image by the path of a file on this
//! machine or in the job's code.

use std::path::{Path, PathBuf};

use protocol::code::ScriptPath;
use serde_json::Value;

use crate::ending::error::Error;

/// Flags with which an interpreter runs something else than a script file.
const NO_SCRIPT: [&str; 2] = ["-c", "-m"];

/// Flags of Python whose value is the next word.
const VALUED: [&str; 3] = ["-W", "-X", "--check-hash-based-pycs"];

/// If the script is an absolute path that does not exist on this machine, looks for a file with the same name in these
/// folders. Replaces the path by the path of the first such file.
pub(super) fn find(container: &mut Value, origin: &str, folders: &[PathBuf]) -> Result<(), Error> {
    let Some(word) = script(container) else { return Ok(()) };
    let script = word.as_str().unwrap_or_default().to_owned();
    let path = Path::new(&script);
    if !path.is_absolute() || path.exists() {
        return Ok(());
    }
    let file = PathBuf::from(path.file_name().unwrap_or_default());
    if let Some(found) = folders.iter().map(|folder| folder.join(&file)).find(|found| found.is_file()) {
        *word = found.to_string_lossy().into_owned().into();
        return Ok(());
    }
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let missing = format!("there is no {} in {}", file.display(), folders.join(" or "));
    Err(Error::input(format!("{origin}: {script} is a path in the image, and {missing}"))
        .hint("put the script beside the TFJob's file, or name the script's folder with --code DIR"))
}

/// Looks for the container's script in `folder`, the folder of the job's code. An absolute path is a path in the image,
/// so only its file name is looked up. Replaces the script by the path in the folder, and returns this path. `None` if
/// the folder has no such file.
pub(super) fn bring(container: &mut Value, folder: &Path) -> Option<ScriptPath> {
    let word = script(container)?;
    let path = Path::new(word.as_str()?);
    let file = if path.is_absolute() { Path::new(path.file_name()?) } else { path.strip_prefix(".").unwrap_or(path) };
    let script: ScriptPath = file.to_str().filter(|_| folder.join(file).is_file())?.parse().ok()?;
    *word = script.as_str().into();
    Some(script)
}

/// The script in the container's command line: the first word after the program, not counting flags and their
/// values. `None` if a flag of [`NO_SCRIPT`] comes before that word.
fn script(container: &mut Value) -> Option<&mut Value> {
    let [command, args] = ["command", "args"].map(|name| container[name].as_array().map_or(0, Vec::len));
    let place_of = |place: usize| if place < command { ("command", place) } else { ("args", place - command) };
    let mut before_is_valued = false;
    let found = (1..command + args).map(place_of).find(|(list, place)| {
        let word = container[*list][*place].as_str().unwrap_or_default();
        let is_value = before_is_valued;
        before_is_valued = !is_value && VALUED.contains(&word);
        !is_value && (NO_SCRIPT.contains(&word) || !word.starts_with('-'))
    });
    let (list, place) = found?;
    let word = &mut container[list][place];
    (!word.as_str().is_some_and(|word| NO_SCRIPT.contains(&word))).then_some(word)
}
