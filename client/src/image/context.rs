//! Writes a folder as a tar, the context of a Docker build. Docker receives the tar while the folder is being read.
//! The tar contains all files, folders and links that .dockerignore does not exclude, sorted by name and owned by root.
//! Modes and times stay the same.

use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::code::ignored::Ignored;
use crate::ending::error::Error;

/// Size of the buffer for bytes on their way to Docker, in bytes.
const PIECE: usize = 256 * 1024;
/// The permission bits, including setuid, setgid and sticky.
const MODE_MASK: u32 = 0o7777;

/// Reads the folder's .dockerignore.
pub(super) fn ignored(folder: &Path) -> Result<Ignored, Error> {
    let path = folder.join(".dockerignore");
    match fs::read_to_string(&path) {
        Ok(text) => {
            Ignored::parse(&text).map_err(|line| Error::input(format!(".dockerignore: invalid pattern \"{line}\"")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ignored::parse("").expect("no invalid pattern")),
        Err(error) => Err(unreadable(&path)(error)),
    }
}

/// Writes the tar of a folder. Blocks until the reader has read the whole tar or has stopped reading.
pub(super) fn write(folder: &Path, ignored: &Ignored, to: impl Write) -> Result<(), Error> {
    let mut tar = tar::Builder::new(io::BufWriter::with_capacity(PIECE, to));
    add_folder(&mut tar, folder, Path::new(""), ignored)?;
    let ended = tar.into_inner().and_then(|mut buffer| buffer.flush());
    ended.map_err(unreadable(folder))
}

/// The error for a file or folder of a build that cannot be read.
fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::image(format!("read {} for the build", path.display())).because(error)
}

fn add_folder<W: Write>(tar: &mut tar::Builder<W>, root: &Path, folder: &Path, ignored: &Ignored) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = root.join(path);
        move |error| unreadable(&path)(error)
    };
    for path in children(root, folder).map_err(failed(folder))? {
        let metadata = fs::symlink_metadata(root.join(&path)).map_err(failed(&path))?;
        let is_left_out = ignored.leaves_out(&path, metadata.is_dir());
        if !is_left_out {
            add(tar, root, &path, &metadata).map_err(failed(&path))?;
        }
        if metadata.is_dir() && (!is_left_out || ignored.takes_back()) {
            add_folder(tar, root, &path, ignored)?;
        }
    }
    Ok(())
}

/// The paths of everything in a folder, relative to the root and sorted.
fn children(root: &Path, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root.join(folder))?;
    let mut paths = entries.map(|entry| Ok(folder.join(entry?.file_name()))).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn add<W: Write>(tar: &mut tar::Builder<W>, root: &Path, path: &Path, metadata: &Metadata) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(metadata.mode() & MODE_MASK);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(0);
    if metadata.is_symlink() {
        header.set_entry_type(tar::EntryType::Symlink);
        return tar.append_link(&mut header, path, fs::read_link(root.join(path))?);
    }
    if metadata.is_dir() {
        header.set_entry_type(tar::EntryType::Directory);
        return tar.append_data(&mut header, path, io::empty());
    }
    // Docker ignores sockets, pipes and devices.
    if !metadata.is_file() {
        return Ok(());
    }
    header.set_size(metadata.len());
    let content = io::Read::take(fs::File::open(root.join(path))?, metadata.len());
    tar.append_data(&mut header, path, content)
}

/// A writer that sends each piece to a channel.
pub(super) struct ChannelWriter(pub(super) mpsc::Sender<Bytes>);

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "Docker stopped reading");
        self.0.blocking_send(Bytes::copy_from_slice(bytes)).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn tar_of(folder: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(folder, &ignored(folder).unwrap(), &mut bytes).unwrap();
        bytes
    }

    fn paths(tar: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(tar);
        let paths = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        paths.map(|path| path.trim_end_matches('/').to_owned()).collect()
    }

    #[test]
    fn the_same_folder_gives_the_same_tar_with_its_files_sorted_by_name() {
        let folder = folder(&[("b.py", "b"), ("Dockerfile", "FROM x"), ("a/z", ""), ("a/c", "")]);
        assert_eq!(tar_of(folder.path()), tar_of(folder.path()));
        assert_eq!(paths(&tar_of(folder.path())), ["Dockerfile", "a", "a/c", "a/z", "b.py"]);
    }

    #[test]
    fn excluded_files_are_not_sent_and_files_that_are_included_again_are_sent() {
        let folder = folder(&[
            (".dockerignore", "data\n!data/keep\n*.log\n"),
            ("Dockerfile", ""),
            ("data/drop", ""),
            ("data/keep", ""),
            ("x.log", ""),
            ("exec.py", ""),
        ]);
        assert_eq!(paths(&tar_of(folder.path())), [".dockerignore", "Dockerfile", "data/keep", "exec.py"]);
    }

    #[test]
    fn modes_links_and_long_names_are_kept_and_owners_become_root() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(90));
        let folder = folder(&[("run.sh", "#!/bin/sh\n"), (&long, "")]);
        fs::set_permissions(folder.path().join("run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("/nowhere", folder.path().join("link")).unwrap();
        let bytes = tar_of(folder.path());
        assert!(paths(&bytes).contains(&long));
        let mut archive = tar::Archive::new(bytes.as_slice());
        for entry in archive.entries().unwrap().map(Result::unwrap) {
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
            match entry.path().unwrap().to_str().unwrap() {
                "run.sh" => assert_eq!(entry.header().mode().unwrap(), 0o750),
                "link" => assert_eq!(entry.link_name().unwrap().unwrap(), Path::new("/nowhere")),
                _ => {}
            }
        }
    }

    #[test]
    fn an_invalid_pattern_is_an_error() {
        let folder = folder(&[(".dockerignore", "[a\n")]);
        let error = ignored(folder.path()).err().unwrap();
        assert_eq!(error.to_string(), ".dockerignore: invalid pattern \"[a\"");
    }
}
