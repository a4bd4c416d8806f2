//! Tests of the files of local masters.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn master(port: u16) -> Announced {
    let url = format!("http://127.0.0.1:{port}").parse().unwrap();
    Announced { url, token: "s3cret".parse().unwrap(), job: "digits".parse().unwrap() }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The path of a folder that does not exist yet.
fn folder() -> (tempfile::TempDir, Vec<PathBuf>) {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("state/muster/run");
    (temporary, vec![folder])
}

#[test]
fn a_master_is_found_until_its_announcement_is_dropped() {
    let (_temporary, folders) = folder();
    assert_eq!(find(&folders), FoundMaster::default());
    let first = Announcement::write(&folders, &master(1)).unwrap();
    assert_eq!((mode(&folders[0]), mode(&first.path)), (0o700, 0o600));
    assert_eq!(find(&folders), FoundMaster { masters: vec![master(1)], ignored: vec![] });
    let _second = Announcement::write(&folders, &master(2)).unwrap();
    assert_eq!(find(&folders).masters.len(), 2);
    drop(first);
    assert_eq!(find(&folders).masters, [master(2)]);
}

#[test]
fn a_file_is_written_to_the_next_folder_if_a_folder_is_not_private() {
    let (temporary, mut folders) = folder();
    let shared = temporary.path().join("muster");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o755);
    folders.insert(0, shared.clone());
    let written = Announcement::write(&folders, &master(1)).unwrap();
    assert!(written.path.starts_with(&folders[1]), "{}", written.path.display());
    assert_eq!(find(&folders), FoundMaster { masters: vec![master(1)], ignored: vec![(shared, NOT_PRIVATE)] });
    Announcement::write(&folders[..1], &master(1)).unwrap_err();
    Announcement::write(&[], &master(1)).unwrap_err();
}

#[test]
fn a_file_of_this_network_is_removed_if_no_client_locks_it() {
    let (_temporary, folders) = folder();
    let written = Announcement::write(&folders, &master(1)).unwrap();
    let stale = folders[0].join("stale.json");
    let foreign = folders[0].join("foreign.json");
    fs::copy(&written.path, &stale).unwrap();
    let text = fs::read_to_string(&written.path).unwrap().replace(&Network::own().namespace, "another");
    fs::write(&foreign, text).unwrap();
    set_mode(&foreign, 0o600);
    assert_eq!(find(&folders).masters, [master(1)]);
    assert!(!stale.exists() && written.path.exists());
    assert!(foreign.exists(), "the file of another network was removed");
}

#[test]
fn a_file_that_others_can_read_or_write_and_a_linked_folder_are_ignored() {
    let (temporary, folders) = folder();
    let written = Announcement::write(&folders, &master(1)).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o602] {
        set_mode(&written.path, mode);
        let ignored = vec![(written.path.clone(), NOT_PRIVATE)];
        assert_eq!(find(&folders), FoundMaster { masters: vec![], ignored }, "{mode:o}");
    }
    set_mode(&written.path, 0o600);
    let link = temporary.path().join("link");
    symlink(&folders[0], &link).unwrap();
    assert_eq!(find(std::slice::from_ref(&link)), FoundMaster { masters: vec![], ignored: vec![(link, NOT_PRIVATE)] });
}

#[test]
fn another_users_file_is_not_private() {
    let (_temporary, folders) = folder();
    let written = Announcement::write(&folders, &master(1)).unwrap();
    let metadata = written.path.metadata().unwrap();
    assert!(is_private(&metadata, metadata.uid()) && !is_private(&metadata, metadata.uid() + 1));
}

#[test]
fn a_file_is_used_only_if_it_is_valid_and_of_this_network() {
    let network = |machine: &str, boot_id: &str, namespace: &str| Network {
        machine: machine.to_owned(),
        boot_id: boot_id.to_owned(),
        namespace: namespace.to_owned(),
    };
    let here = network("m", "b", "n");
    let read = |network: &Network, token: &str| {
        let network = serde_json::to_string(network).unwrap();
        let text =
            format!(r#"{{"url":"http://127.0.0.1:1","token":"{token}","pid":1,"job":"digits","network":{network}}}"#);
        parse(&text, &here)
    };
    assert!(matches!(read(&here, "s3cret"), AnnouncedState::Living(found) if found == master(1)));
    assert!(matches!(read(&network("m", "b", "container"), "s3cret"), AnnouncedState::Elsewhere));
    assert!(matches!(read(&network("other", "c", "n"), "s3cret"), AnnouncedState::Elsewhere));
    assert!(matches!(read(&network("m", "earlier", "n"), "s3cret"), AnnouncedState::Stale));
    assert!(matches!(read(&here, "two words"), AnnouncedState::Ignored(NOT_UNDERSTOOD)));
    assert!(matches!(parse("{}", &here), AnnouncedState::Ignored(NOT_UNDERSTOOD)));
}
