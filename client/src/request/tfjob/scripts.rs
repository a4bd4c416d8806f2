//! Finds the script that a container runs. Replaces the script's path in the image by the path of a file on this
//! machine or in the job's code.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use protocol::code::ScriptPath;
use serde_json::Value;

use crate::ending::error::Error;

/// Long flags of Python and of bash whose value is the next word.
const VALUED: [&str; 3] = ["--check-hash-based-pycs", "--init-file", "--rcfile"];
/// Shells, in which the letters of a flag have other meanings than in Python.
const SHELLS: [&str; 3] = ["bash", "dash", "sh"];

/// A script of an image, and the file that runs in its place.
pub(super) type Replaced = (String, String);

/// Looks for the script in `code`, as [`bring`] does for pods. If it is neither there nor, with this path, on this
/// machine, looks for it in `beside`, the folder of the TFJob's file. Replaces the path by the path of the file. A
/// relative path may be the path of a file in the folder in which the script runs, and then stays.
pub(super) fn find(
    container: &mut Value,
    origin: &str,
    code: Option<&Path>,
    beside: &Path,
) -> Result<Option<Replaced>, Error> {
    let Some(word) = script(container) else { return Ok(None) };
    let script = word.as_str().unwrap_or_default().to_owned();
    let path = Path::new(&script);
    let file_in = |folder: &Path| endings(path).iter().map(|end| folder.join(end)).find(|found| found.is_file());
    let of_code = code.and_then(file_in);
    let exists = code.unwrap_or(beside).join(path).exists() && (of_code.is_none() || path.is_relative());
    if exists || script.contains("$(") {
        return Ok(None);
    }
    if let Some(found) = of_code.or_else(|| file_in(beside)) {
        let file = found.to_string_lossy().into_owned();
        *word = file.clone().into();
        return Ok(Some((script, file)));
    }
    let file = path.file_name().unwrap_or_default().display();
    let folders: Vec<String> = code.into_iter().chain([beside]).map(|folder| folder.display().to_string()).collect();
    let missing = format!("there is no {file} in {}", folders.join(" or "));
    Err(Error::input(format!("{origin}: {script} is a path in the image, and {missing}"))
        .hint("put the script beside the TFJob's file, or name the script's folder with --code DIR"))
}

/// Looks for the container's script in `folder`, the folder of the job's code. Replaces the script by the path in the
/// folder, and returns this path. An absolute path is a path in the image, and is also returned. `None` if the folder
/// has no such file.
pub(super) fn bring(container: &mut Value, folder: &Path) -> Option<(ScriptPath, Option<Replaced>)> {
    let word = script(container)?;
    let image = word.as_str()?.to_owned();
    let path = Path::new(&image);
    let is_of_image = path.is_absolute();
    let files = if is_of_image { endings(path) } else { vec![path.strip_prefix(".").unwrap_or(path).to_owned()] };
    let file = files.into_iter().find(|file| folder.join(file).is_file())?;
    let script: ScriptPath = file.to_str()?.parse().ok()?;
    *word = script.as_str().into();
    let replaced = is_of_image.then(|| (image, script.to_string()));
    Some((script, replaced))
}

/// The paths that a file of an image can have in a folder with a part of the image's files, the longest first:
/// `opt/app/train.py`, `app/train.py` and `train.py`.
fn endings(path: &Path) -> Vec<PathBuf> {
    let is_part = |part: &Component<'_>| !matches!(part, Component::RootDir | Component::CurDir);
    let parts: Vec<_> = path.components().filter(is_part).collect();
    (0..parts.len()).map(|from| parts[from..].iter().collect()).collect()
}

/// Sentences about the files that run in place of scripts of the image. Refuses a file that is in place of two scripts.
pub(super) fn told(replaced: Vec<Replaced>, origin: &str) -> Result<Vec<String>, Error> {
    let mut images: BTreeMap<String, String> = BTreeMap::new();
    for (image, file) in replaced {
        let other = images.entry(file).or_insert_with(|| image.clone());
        if *other != image {
            return Err(Error::input(format!("{origin}: {other} and {image} are two scripts, but one file fits both"))
                .hint("give --code the folder that has both scripts, in folders with the names of the image"));
        }
    }
    Ok(images.into_iter().map(|(file, image)| format!("{origin}: {file} runs in place of {image}")).collect())
}

/// The script in the container's command line: the first word after the program, not counting flags and their
/// values. `None` if the program runs something else than a script file.
fn script(container: &mut Value) -> Option<&mut Value> {
    let [command, args] = ["command", "args"].map(|name| container[name].as_array().map_or(0, Vec::len));
    let place_of = |place: usize| if place < command { ("command", place) } else { ("args", place - command) };
    let word_at = |(list, place): (&str, usize)| container[list][place].as_str().unwrap_or_default();
    let program = (command + args > 0).then(|| Path::new(word_at(place_of(0))).file_name()).flatten();
    let is_shell = program.is_some_and(|program| SHELLS.iter().any(|shell| program == *shell));
    let mut places = (1..command + args).map(place_of);
    while let Some((list, place)) = places.next() {
        match Word::of(word_at((list, place)), is_shell) {
            Word::Flag => {}
            Word::Valued => drop(places.next()),
            Word::NoScript => return None,
            Word::Script => return container[list].get_mut(place),
        }
    }
    None
}

/// What a word after an interpreter is.
enum Word {
    /// A flag, or several, whose value is not the next word.
    Flag,
    /// A flag whose value is the next word.
    Valued,
    /// A flag with which the interpreter runs no script file.
    NoScript,
    Script,
}

impl Word {
    /// Reads also several flags in one word, such as `-xec`, and a flag with its value, such as `-cprint(1)`.
    fn of(word: &str, is_shell: bool) -> Self {
        let Some(letters) = word.strip_prefix('-') else { return Self::Script };
        if letters.starts_with('-') {
            return if VALUED.contains(&word) { Self::Valued } else { Self::Flag };
        }
        if is_shell {
            return match letters {
                _ if letters.contains(['c', 's']) => Self::NoScript,
                _ if letters.ends_with(['o', 'O']) => Self::Valued,
                _ => Self::Flag,
            };
        }
        match letters.char_indices().find(|(_, letter)| ['c', 'm', 'W', 'X'].contains(letter)) {
            Some((_, 'c' | 'm')) => Self::NoScript,
            Some((place, _)) if place + 1 == letters.len() => Self::Valued,
            Some(_) => Self::Flag,
            None if letters.is_empty() => Self::NoScript,
            None => Self::Flag,
        }
    }
}
