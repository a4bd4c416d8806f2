//! Later code in the same working directory: which files it changes, and which files of the script stay.

use std::fs::{self, Permissions};
use std::iter;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use agent::code::CodeFolder;
use bytes::Bytes;
use protocol::agent::{CodeStatus, ExitOutcome};
use protocol::error::ErrorCode;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::support::code::{Code, Place, files};

#[test]
fn later_code_waits_until_a_start_names_it_and_leaves_files_of_the_script_alone() {
    let place = Place::new(&["python3", "train.py"]);
    let old = Code::of(&[("train.py", "1"), ("same.py", "same"), ("gone/deep/a.py", "a"), ("now_folder", "f")]);
    place.deliver(&old);
    fs::create_dir(place.path("checkpoints")).unwrap();
    for (name, text) in [("checkpoints/1", "weights"), ("gone/log", "log")] {
        fs::write(place.path(name), text).unwrap();
    }
    let same_before = fs::metadata(place.path("same.py")).unwrap().ino();
    let before = place.files();
    let new = Code::of(&[("train.py", "2"), ("same.py", "same"), ("now_folder/x", "x"), ("copy.py", "same")]);
    assert_eq!(place.deliver(&new), 2, "wrong number of blobs that are not in place yet");
    assert_eq!(place.files(), before);
    assert_eq!(place.agent.status().code, CodeStatus { staged: Some(new.id()), running: Some(old.id()) });
    assert_eq!(place.configure(&new, "1.1").status, 200);
    let expected = [
        ("train.py", "2"),
        ("same.py", "same"),
        ("now_folder/x", "x"),
        ("copy.py", "same"),
        ("checkpoints/1", "weights"),
        ("gone/log", "log"),
    ];
    assert_eq!(place.files(), files(&expected));
    assert_eq!(fs::metadata(place.path("same.py")).unwrap().ino(), same_before, "a file was replaced by an equal file");
    assert!(!place.path("gone/deep").exists());
    assert_eq!(place.agent.status().code, CodeStatus { staged: Some(new.id()), running: Some(new.id()) });
    // A later start can use the old code again.
    assert_eq!(place.deliver(&old), 3);
    assert_eq!(place.configure(&old, "1.2").status, 200);
    assert_eq!(fs::read_to_string(place.path("gone/deep/a.py")).unwrap(), "a");
}

#[test]
fn a_file_that_the_push_changes_has_a_later_time() {
    let place = Place::new(&["python3", "train.py"]);
    place.deliver(&Code::of(&[("train.py", "1")]));
    // Python compares whole seconds.
    let modified = || fs::metadata(place.path("train.py")).unwrap().mtime();
    for (text, generation) in [("2", "1.1"), ("3", "1.2"), ("4", "1.3")] {
        let before = modified();
        place.push(&Code::of(&[("train.py", text)]), generation);
        assert!(modified() > before, "the time of the changed file is not later");
    }
}

#[test]
fn a_push_keeps_what_the_script_wrote_and_names_the_files_that_both_changed() {
    let place = Place::new(&["python3", "train.py"]);
    let quiet = "import sys";
    let of = |train: &str, more: &[(&str, &str)]| Code::of(&[&[("train.py", train)], more].concat());
    place.deliver(&of(quiet, &[("best.txt", "old"), ("both", "1"), ("gone", "g"), ("left", "l"), ("missing", "m")]));
    for (name, text) in [("best.txt", "0.9"), ("both", "script"), ("gone", "script"), ("new", "script"), ("log", "x")] {
        fs::write(place.path(name), text).unwrap();
    }
    fs::remove_file(place.path("missing")).unwrap();
    let next = "import os";
    place.push(&of(next, &[("best.txt", "old"), ("both", "2"), ("missing", "m"), ("new", "n")]), "1.1");
    let stayed = [("best.txt", "0.9"), ("gone", "script"), ("log", "x"), ("missing", "m")];
    assert_eq!(place.files(), files(&[&stayed[..], &[("train.py", next), ("both", "2"), ("new", "n")]].concat()));
    assert_eq!(place.agent.get("/run?generation=1.1").status, 200);
    assert_eq!(place.agent.wait_for_exit().outcome, ExitOutcome::Code(0));
    let said = "[muster: kept gone, which the new code no longer has: the script had changed it]\n\
                [muster: the new code replaces both, which the script had changed]\n\
                [muster: the new code replaces new, which the script had changed]\n";
    assert_eq!(String::from_utf8(place.agent.logs("stderr")).unwrap(), said);
    // A later push keeps the file too.
    place.push(&of(quiet, &[("best.txt", "old")]), "1.2");
    assert_eq!(fs::read_to_string(place.path("best.txt")).unwrap(), "0.9");
}

#[test]
fn a_later_agent_of_the_same_folder_keeps_what_the_script_wrote_and_restores_what_is_missing() {
    let mut place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("train.py", "import sys"), ("best.txt", "old"), ("lost.py", "")]);
    place.deliver(&code);
    fs::write(place.path("best.txt"), "0.9").unwrap();
    fs::write(place.path("weights"), "w").unwrap();
    place.agent = place.next_agent("");
    assert_eq!(place.deliver(&code), 0, "code that is in place was sent again");
    fs::remove_file(place.path("lost.py")).unwrap();
    place.agent = place.next_agent("");
    place.deliver(&code);
    let kept = [("best.txt", "0.9"), ("weights", "w"), ("lost.py", "")];
    assert_eq!(place.files(), files(&[&kept[..], &[("train.py", "import sys")]].concat()));
    // Other code waits for a start, because agents that share the folder may run the code that is there.
    place.agent = place.next_agent("");
    let next = Code::of(&[("train.py", "import os"), ("best.txt", "old"), ("lost.py", "")]);
    place.deliver(&next);
    assert_eq!(fs::read_to_string(place.path("train.py")).unwrap(), "import sys");
    assert_eq!(place.configure(&next, "1.1").status, 200);
    assert_eq!(place.files(), files(&[&kept[..], &[("train.py", "import os")]].concat()));
}

#[test]
fn agents_that_share_a_folder_put_the_same_code_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let places: Vec<Place> = (0..4).map(|_| Place::new(&["python3", "train.py"])).collect();
    let agents = places.iter().map(|own| own.sharing(folder.path())).collect::<Vec<_>>();
    let many: Vec<String> = (0..200).map(|number| format!("a{number}.py")).collect();
    let code = |text: &str| {
        Code::of(&many.iter().map(|name| (name.as_str(), text)).chain([("train.py", "")]).collect::<Vec<_>>())
    };
    for (code, generation) in [(code("old"), "1.1"), (code("new"), "1.2")] {
        std::thread::scope(|scope| {
            let put = |agent: &Place| {
                agent.deliver(&code);
                assert_eq!(agent.configure(&code, generation).status, 200);
            };
            let threads: Vec<_> = agents.iter().map(|agent| scope.spawn(move || put(agent))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let text = fs::read_to_string(folder.path().join("a199.py")).unwrap();
        fs::write(folder.path().join("a0.py"), "of the script").unwrap();
        assert_eq!(text, if generation == "1.1" { "old" } else { "new" });
        assert!(agents.iter().all(|agent| agent.agent.status().code.running == Some(code.id())));
    }
    let said: usize = agents.iter().map(|agent| agent.agent.logs("stderr").len()).sum();
    assert_eq!(said, "[muster: the new code replaces a0.py, which the script had changed]\n".len());
}

#[test]
fn a_link_in_place_of_a_folder_is_named_and_links_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "precious").unwrap();
    let place = Place::new(&["python3", "train.py"]);
    let old = Code::of(&[("train.py", "1"), ("data/x", "x")]);
    place.deliver(&old);
    fs::remove_dir_all(place.path("data")).unwrap();
    symlink(outside.path(), place.path("data")).unwrap();
    let new = Code::of(&[("train.py", "2"), ("data/y", "y")]);
    place.deliver(&new);
    let answer = place.configure(&new, "1.1");
    assert_eq!(answer.refusal(), (422, ErrorCode::BadCode));
    assert!(answer.problem().detail.contains("/data\" is in the way"), "{}", answer.text());
    assert_eq!(fs::read_to_string(place.path("train.py")).unwrap(), "1", "a refused config has changed the script");
    // Code without files in `data` leaves the link and the folder behind the link alone.
    let without = Code::of(&[("train.py", "3"), ("link", "l")]);
    symlink(outside.path().join("x"), place.path("link")).unwrap();
    place.deliver(&without);
    assert_eq!(place.configure(&without, "1.2").status, 200);
    assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "precious");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    fs::create_dir(place.path("taken")).unwrap();
    fs::write(place.path("taken/by"), "the script").unwrap();
    let taken = Code::of(&[("train.py", "4"), ("taken", "t")]);
    place.deliver(&taken);
    assert!(place.configure(&taken, "1.3").problem().detail.contains("/taken\" is in the way"));
}

#[test]
fn a_folder_of_the_code_becomes_a_file_unless_the_script_has_files_in_it() {
    let place = Place::new(&["python3", "train.py"]);
    place.deliver(&Code::of(&[("train.py", "1"), ("data/deep/x", "x"), ("data/y", "y")]));
    fs::write(place.path("data/deep/log"), "log").unwrap();
    let before = place.files();
    let new = Code::of(&[("train.py", "2"), ("data", "one file")]);
    place.deliver(&new);
    let answer = place.configure(&new, "1.1");
    assert!(answer.problem().detail.contains("/data\" is in the way"), "{}", answer.text());
    assert_eq!(place.files(), before, "a refused config has changed files");
    fs::remove_file(place.path("data/deep/log")).unwrap();
    assert_eq!(place.configure(&new, "1.1").status, 200);
    assert_eq!(place.files(), files(&[("train.py", "2"), ("data", "one file")]));
}

/// Fails a push of this code after some of its files have moved: the staged file with this index is missing.
fn fail_half_way(place: &Place, code: &Code, index: usize, generation: &str) {
    place.deliver(code);
    fs::remove_file(place.path(&format!(".muster/staged/{index}"))).unwrap();
    assert_eq!(place.configure(code, generation).refusal(), (500, ErrorCode::Internal));
}

#[test]
fn after_a_push_that_failed_half_way_each_next_code_is_complete_and_the_files_of_the_script_stay() {
    let of = |a: &str, b: &str| Code::of(&[("a.py", a), ("best.txt", "b"), ("sub/b.py", b), ("train.py", "")]);
    let (old, new, third) = (of("old", "old"), of("new", "new"), of("old", "third"));
    let nexts = [(&old, ["old", "old"]), (&new, ["new", "new"]), (&third, ["old", "third"])];
    for ((next, expected), is_restarted) in nexts.into_iter().flat_map(|next| [(next, false), (next, true)]) {
        let mut place = Place::new(&["python3", "train.py"]);
        place.deliver(&old);
        fs::write(place.path("best.txt"), "0.9").unwrap();
        fail_half_way(&place, &new, 2, "1.1");
        assert_eq!(fs::read_to_string(place.path("a.py")).unwrap(), "new", "the push failed before its first file");
        if is_restarted {
            place.agent = place.next_agent("");
        }
        place.push(next, "1.2");
        let text = |path: &str| fs::read_to_string(place.path(path)).unwrap();
        assert_eq!([text("a.py"), text("sub/b.py")], expected, "restarted: {is_restarted}");
        assert_eq!(text("best.txt"), "0.9");
        assert_eq!(place.agent.get("/run?generation=1.2").status, 200);
        place.agent.wait_for_exit();
        assert_eq!(String::from_utf8(place.agent.logs("stderr")).unwrap(), "", "restarted: {is_restarted}");
    }
}

#[test]
fn a_folder_that_another_agent_has_changed_gets_the_code_of_a_start_again() {
    let (folder, own) = (tempfile::tempdir().unwrap(), [(); 2].map(|()| Place::new(&["python3", "train.py"])));
    let [one, other] = own.each_ref().map(|own| own.sharing(folder.path()));
    let (old, new) = (Code::of(&[("train.py", "1")]), Code::of(&[("train.py", "2")]));
    one.push(&old, "1.1");
    other.push(&new, "1.1");
    assert_eq!(one.configure(&old, "1.2").refusal(), (409, ErrorCode::CodeMissing));
    one.push(&old, "1.2");
    assert_eq!(fs::read_to_string(folder.path().join("train.py")).unwrap(), "1");
}

#[test]
fn if_the_record_of_the_code_is_damaged_no_file_is_replaced_in_silence() {
    let mut place = Place::new(&["python3", "train.py"]);
    let code = Code::of(&[("train.py", ""), ("best.txt", "old")]);
    place.deliver(&code);
    fs::write(place.path("best.txt"), "0.9").unwrap();
    fs::write(place.path(".muster/placed.json"), "").unwrap();
    place.agent = place.next_agent("");
    place.deliver(&code);
    assert_eq!(fs::read_to_string(place.path("best.txt")).unwrap(), "0.9", "a file was replaced before a start");
    place.push(&code, "1.1");
    assert_eq!(place.agent.get("/run?generation=1.1").status, 200);
    place.agent.wait_for_exit();
    let said = "[muster: the new code replaces best.txt, which the script may have changed]\n";
    assert_eq!(String::from_utf8(place.agent.logs("stderr")).unwrap(), said);
}

#[test]
fn a_file_that_cannot_be_read_counts_as_changed_by_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let mut here = CodeFolder::new(folder.path().to_owned(), None);
    let mut push = |code: &Code| {
        let missing = here.offer(code.id(), code.manifest.clone()).unwrap().missing;
        here.receive(code.id(), iter::once(Bytes::from(code.stream(&missing)))).unwrap();
        here.put_in_place(code.id()).unwrap()
    };
    push(&Code::of(&[("train.py", "1"), ("secret", "s"), ("same", "same")]));
    for name in ["secret", "same"] {
        fs::set_permissions(folder.path().join(name), Permissions::from_mode(0o000)).unwrap();
    }
    // Root can read all files, but not without this capability.
    let mut limited = capabilities(None).unwrap();
    limited.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, limited).unwrap();
    let said = push(&Code::of(&[("train.py", "2"), ("copy", "s"), ("same", "same")]));
    assert_eq!(said, ["kept secret, which the new code no longer has: the script had changed it"]);
    assert_eq!(fs::read_to_string(folder.path().join("copy")).unwrap(), "s");
}
