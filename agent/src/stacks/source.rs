//! Adds the text of each line of a script to a dump. `faulthandler` writes only the numbers of lines.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use protocol::stacks::{is_library, place_in};
use rustix::fs::OFlags;

/// Maximum bytes of a script whose lines are shown, and maximum number of scripts.
const SCRIPT_BYTES_MAX: u64 = 1024 * 1024;
const SCRIPTS_MAX: usize = 32;
/// Maximum characters of a line.
const LINE_CHARS_MAX: usize = 160;

/// The dump with the source below each line that is not in a library, while `room` has bytes left for it. Paths of
/// scripts may be relative to `work_dir`. Reads files, so this may take as long as a slow disk needs.
pub(super) fn with_source(dump: &str, work_dir: &Path, room: &mut usize) -> String {
    let mut scripts: HashMap<PathBuf, Vec<String>> = HashMap::new();
    let mut text = String::with_capacity(dump.len() * 2);
    for line in dump.lines() {
        text += line;
        text.push('\n');
        let Some((file, number)) = place_in(line).filter(|(file, _)| !is_library(file)) else { continue };
        let path = work_dir.join(file);
        if scripts.len() < SCRIPTS_MAX || scripts.contains_key(&path) {
            let lines = scripts.entry(path).or_insert_with_key(|path| lines_of(path).unwrap_or_default());
            let index = (number as usize).checked_sub(1);
            let source = index.and_then(|index| lines.get(index)).map_or("", |source| source.trim());
            let added = format!("    {}\n", source.chars().take(LINE_CHARS_MAX).collect::<String>());
            if !source.is_empty() && added.len() <= *room {
                text += &added;
                *room -= added.len();
            }
        }
    }
    text
}

fn lines_of(path: &Path) -> Option<Vec<String>> {
    let mut bytes = Vec::new();
    opened(path)?.take(SCRIPT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// A regular file. A script chooses the paths in its dump, and the open of a pipe or of a device may wait or do harm.
fn opened(path: &Path) -> Option<File> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    OpenOptions::new().read(true).custom_flags(flags.try_into().ok()?).open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_script_is_followed_by_its_source() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("exec.py"), format!("import os\n    with open(x): \n\n{}\n", "y".repeat(500)))
            .unwrap();
        let frame = |file: &str, line: u32| format!("  File \"{file}\", line {line} in f\n");
        let absolute = folder.path().join("exec.py").display().to_string();
        let library = "/usr/lib/python3/os.py";
        let dump = ["Thread 0x1:\n".to_owned(), frame("exec.py", 2), frame(&absolute, 1), frame("exec.py", 3)].concat()
            + &[frame("exec.py", 4), frame("exec.py", 99), frame("absent.py", 1), frame(library, 1)].concat();
        let source = |text: &str| format!("    {text}\n");
        let expected = ["Thread 0x1:\n", &frame("exec.py", 2), &source("with open(x):")].concat()
            + &[frame(&absolute, 1), source("import os"), frame("exec.py", 3)].concat()
            + &[frame("exec.py", 4), source(&"y".repeat(LINE_CHARS_MAX))].concat()
            + &[frame("exec.py", 99), frame("absent.py", 1), frame(library, 1)].concat();
        assert_eq!(with_source(&dump, folder.path(), &mut 1000), expected);
        assert_eq!(with_source(&dump, folder.path(), &mut 3), dump);
    }

    #[test]
    fn a_path_that_is_no_regular_file_is_not_opened() {
        for path in ["/dev/zero", "/", "/proc/self/fd/0/x"] {
            assert!(opened(Path::new(path)).is_none(), "{path}");
        }
    }
}
