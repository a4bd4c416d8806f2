//! Golden JSON of what a master says about itself, of a client's folder, and of the answer to a deletion.

use protocol::deletion::Deletion;
use protocol::master::{BackendKind, FolderQuery, MasterView};
use serde_json::json;

use crate::common::assert_golden;

#[test]
fn a_master_says_that_it_sees_a_folder_only_if_it_does() {
    let unseen = MasterView {
        version: "1".to_owned(),
        backend: BackendKind::Process,
        uid: Some(7),
        python: None,
        same_folder: false,
    };
    assert_golden(&unseen, &json!({"version": "1", "backend": "process", "uid": 7}));
    let seen = MasterView { same_folder: true, ..unseen };
    assert_golden(&seen, &json!({"version": "1", "backend": "process", "uid": 7, "same_folder": true}));
}

#[test]
fn a_folder_has_its_path_and_its_identity() {
    let query = FolderQuery {
        folder: Some("/home/ada".into()),
        device: Some(66),
        inode: Some(5),
        boot_id: Some("0b5e".to_owned()),
    };
    assert_golden(&query, &json!({"folder": "/home/ada", "device": 66, "inode": 5, "boot_id": "0b5e"}));
    assert!(serde_json::from_value::<FolderQuery>(json!({"owner": 0})).is_err(), "an unknown field is accepted");
}

#[test]
fn a_deletion_counts_the_files_of_the_scripts() {
    assert_golden(&Deletion::default(), &json!({}));
    assert_golden(&Deletion { written_files: 3 }, &json!({"written_files": 3}));
}
