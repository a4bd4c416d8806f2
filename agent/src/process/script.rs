//! Finds the script in a command such as `python train.py --epochs 3`, perhaps after the words of an image's
//! ENTRYPOINT.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The index of the first Python whose next word is a script and not a flag. `None` for other commands, such as
/// `python -m`, whose errors and needs are unknown.
pub fn place_of_python(command: &[OsString]) -> Option<usize> {
    command.windows(2).position(|words| is_python(&words[0]) && is_script(&words[1]))
}

fn is_python(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("python"))
}

fn is_script(word: &OsStr) -> bool {
    !word.as_encoded_bytes().starts_with(b"-")
}
