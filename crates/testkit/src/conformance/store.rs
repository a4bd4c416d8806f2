//! The rules for every store. The tests of each store run this whole suite.

use protocol::code::{CodeId, Manifest};
use protocol::ids::{JobName, UnixMillis};
use protocol::job::{JobRequest, JobSpec, Strategy};

use master::store::{
    CODE_COPY_BYTES_MAX, CodeCopies, CodeCopy, CopyOutcome, FORMAT, JobRecord, JobStore, StoreError, StoreEvent,
    Stored, Version, amend,
};

/// Runs the suite on an empty store.
///
/// # Panics
/// If the store breaks a rule. The message describes how.
pub async fn check(store: &dyn JobStore) {
    a_created_record_is_read_back(store).await;
    a_taken_name_is_refused(store).await;
    an_update_needs_the_version_that_was_read(store).await;
    two_concurrent_amendments_both_take_effect(store).await;
    a_watch_sends_all_records_and_then_each_change(store).await;
    a_delete_removes_only_the_record_with_its_uid_and_can_be_repeated(store).await;
    a_version_of_a_deleted_record_is_no_version_of_its_successor(store).await;
    if let Some(copies) = store.code_copies() {
        check_copies(store, copies).await;
    }
}

async fn check_copies(store: &dyn JobStore, copies: &dyn CodeCopies) {
    the_largest_copy_is_read_back_and_is_no_record(store, copies).await;
    a_copy_of_another_content_is_replaced(copies).await;
    only_an_unchanged_copy_is_removed(copies).await;
}

/// The id of some code.
fn code() -> CodeId {
    Manifest::new(vec![]).expect("not a manifest").id()
}

async fn keep(copies: &dyn CodeCopies, content: &[u8]) -> CopyOutcome {
    copies.keep(code(), content).await.expect("could not keep the copy")
}

async fn listed(copies: &dyn CodeCopies) -> Vec<CodeCopy> {
    copies.copies().await.expect("could not list the copies")
}

async fn content(copies: &dyn CodeCopies) -> Option<Vec<u8>> {
    copies.read(code()).await.expect("could not read the copy")
}

async fn the_largest_copy_is_read_back_and_is_no_record(store: &dyn JobStore, copies: &dyn CodeCopies) {
    assert_eq!(
        (listed(copies).await, content(copies).await),
        (vec![], None),
        "the store has a copy, although none was kept yet"
    );
    let (records, mut watch) = (store.list().await, store.watch().await.expect("could not watch the store"));
    let largest: Vec<u8> = (0..CODE_COPY_BYTES_MAX).map(|index| (index % 251) as u8).collect();
    let kept = keep(copies, &largest).await;
    assert_eq!(content(copies).await, Some(largest));
    let CopyOutcome::New(copy) = kept else { panic!("the first copy is not new: {kept:?}") };
    assert_eq!(listed(copies).await, [copy]);
    let records =
        (records.expect("could not list the records"), store.list().await.expect("could not list the records"));
    assert_eq!(records.0, records.1, "a copy is listed as a record");
    let later = store.create(record("beside")).await.expect("could not create the record");
    // The watch reports the record that existed before, and then the record that was created after the copy.
    while let Some(event) = watch.recv().await {
        match event {
            StoreEvent::Changed(stored) if *stored == later => break,
            StoreEvent::Changed(stored) => assert!(records.0.contains(&stored), "{stored:?}"),
            StoreEvent::Replayed { all_readable } => assert!(all_readable, "a copy makes the records unreadable"),
            StoreEvent::Deleted(_) | StoreEvent::Damaged(_) | StoreEvent::AllReadable(_) => {
                panic!("a copy changes a record: {event:?}")
            }
        }
    }
}

async fn a_copy_of_another_content_is_replaced(copies: &dyn CodeCopies) {
    let before = listed(copies).await;
    let CopyOutcome::New(new) = keep(copies, b"small").await else {
        panic!("a copy with other content did not count as new")
    };
    assert_eq!(content(copies).await.as_deref(), Some(b"small".as_slice()));
    assert_ne!(before[0].uid, new.uid);
    assert_eq!(listed(copies).await, [new]);
}

async fn only_an_unchanged_copy_is_removed(copies: &dyn CodeCopies) {
    let before = listed(copies).await.remove(0);
    let CopyOutcome::Renewed(renewed) = keep(copies, b"small").await else { panic!("the same copy is not renewed") };
    assert_eq!(before.uid, renewed.uid);
    assert_ne!(before.version, renewed.version);
    copies.remove(&before).await.expect("the removal of an outdated version returned an error");
    assert_eq!(listed(copies).await, std::slice::from_ref(&renewed), "a renewed copy was removed");
    copies.remove(&CodeCopy { uid: "another".to_owned(), ..renewed.clone() }).await.expect("a removal failed");
    assert_eq!(listed(copies).await, std::slice::from_ref(&renewed), "a removal with another uid removed the copy");
    for _ in 0..2 {
        copies.remove(&renewed).await.expect("could not remove the copy");
        assert_eq!((listed(copies).await, content(copies).await), (vec![], None));
    }
}

/// The record of a new job with this name.
///
/// # Panics
/// If `name` is not a valid job name.
pub fn record(name: &str) -> JobRecord {
    let request = JobRequest {
        worker_num: Some(2),
        ..JobRequest::new(name.parse().expect("the name is not a valid job name"), Strategy::AllReduce)
    };
    let spec = JobSpec::try_from(request).expect("an invalid request");
    let (uid, holder) = (format!("uid-of-{name}"), "a-master".to_owned());
    JobRecord { format: FORMAT, ..JobRecord::new(spec, uid, holder, UnixMillis(1)) }
}

async fn read(store: &dyn JobStore, name: &JobName) -> Option<Stored> {
    store.get(name).await.expect("could not read the record")
}

async fn a_created_record_is_read_back(store: &dyn JobStore) {
    let name = &record("first").spec.name;
    assert_eq!(read(store, name).await, None, "the store has a record that was not created yet");
    let created = store.create(record("first")).await.expect("could not create the record");
    let given = JobRecord { uid: created.record.uid.clone(), ..record("first") };
    assert_eq!(
        created.record, given,
        "the stored record differs from the given one in more than the uid, which the store chooses"
    );
    assert_eq!(read(store, name).await, Some(created.clone()));
    store.create(record("another")).await.expect("could not create the record");
    let names: Vec<String> =
        store.list().await.expect("could not list the records").iter().map(|s| s.name().to_string()).collect();
    assert_eq!(names, ["another", "first"], "the list is incomplete or not sorted by name");
    assert_eq!(store.holders().await.expect("could not list the holders"), ["a-master", "a-master"]);
}

async fn a_taken_name_is_refused(store: &dyn JobStore) {
    let mut other = record("first");
    other.uid = "another".to_owned();
    let refused = store.create(other).await;
    assert!(matches!(&refused, Err(StoreError::Exists(name)) if name.as_str() == "first"), "{refused:?}");
}

async fn an_update_needs_the_version_that_was_read(store: &dyn JobStore) {
    let read = read(store, &record("first").spec.name).await.expect("the record is missing");
    let raised = JobRecord { epoch: 2, ..read.record.clone() };
    let updated = store.update(raised.clone(), &read.version).await.expect("could not update the record");
    assert_eq!(updated.record.epoch, 2);
    assert_ne!(updated.version, read.version);
    let late = store.update(raised.clone(), &read.version).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))), "{late:?}");
    let absent = store.update(record("absent"), &Version("1".to_owned())).await;
    assert!(matches!(absent, Err(StoreError::NotFound(_))), "{absent:?}");
}

async fn two_concurrent_amendments_both_take_effect(store: &dyn JobStore) {
    let name = record("first").spec.name.clone();
    let before = read(store, &name).await.expect("the record is missing").record;
    let raise = || amend(store, &name, |record| record.epoch += 1);
    let (one, two) = tokio::join!(raise(), raise());
    assert_eq!((one.is_ok(), two.is_ok()), (true, true));
    let after = read(store, &name).await.expect("the record is missing").record;
    assert_eq!((after.epoch, after.revision), (before.epoch + 2, before.revision + 2));
}

async fn a_watch_sends_all_records_and_then_each_change(store: &dyn JobStore) {
    let mut watch = store.watch().await.expect("could not watch the store");
    for expected in ["another", "first"] {
        let event = watch.recv().await;
        assert!(matches!(&event, Some(StoreEvent::Changed(s)) if s.name().as_str() == expected), "{event:?}");
    }
    assert_eq!(watch.recv().await, Some(StoreEvent::Replayed { all_readable: true }));
    let later = store.create(record("later")).await.expect("could not create the record").record;
    store.delete(&later.spec.name, &later.uid).await.expect("could not delete the record");
    let created = watch.recv().await;
    assert!(matches!(&created, Some(StoreEvent::Changed(s)) if s.name().as_str() == "later"), "{created:?}");
    assert_eq!(watch.recv().await, Some(StoreEvent::Deleted(record("later").spec.name.clone())));
}

async fn a_delete_removes_only_the_record_with_its_uid_and_can_be_repeated(store: &dyn JobStore) {
    for name in ["first", "another"] {
        let name = record(name).spec.name.clone();
        let uid = read(store, &name).await.expect("the record is missing").record.uid;
        store.delete(&name, "another uid").await.expect("a delete with another uid failed");
        assert!(read(store, &name).await.is_some(), "a delete with another uid removed the record");
        store.delete(&name, &uid).await.expect("could not delete the record");
        store.delete(&name, &uid).await.expect("could not delete an absent record");
        assert_eq!(read(store, &name).await, None);
    }
}

async fn a_version_of_a_deleted_record_is_no_version_of_its_successor(store: &dyn JobStore) {
    let old = store.create(record("again")).await.expect("could not create the record");
    store.delete(old.name(), &old.record.uid).await.expect("could not delete the record");
    let new = store.create(record("again")).await.expect("could not create the record");
    let late = store.update(JobRecord { epoch: 7, ..old.record }, &old.version).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))), "{late:?}");
    assert_eq!(read(store, new.name()).await, Some(new));
}
