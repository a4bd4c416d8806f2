//! `push`: the messages about a push that is refused, takes long, or is replaced by another push.

use protocol::code::CodeId;
use protocol::error::ErrorCode;
use protocol::ids::{Generation, UnixMillis};
use protocol::view::{JobState, JobView};
use std::fs;

use crate::support::fake_master::{Changed, FakeMaster, Script, refusal};
use crate::support::views::{running, succeeded};
use crate::support::{Ended, folder_with_script};

fn code(digit: &str) -> Option<CodeId> {
    Some(digit.repeat(64).parse().unwrap())
}

/// A job that brings its code, in start 1.`sequence`, after this many pushes. The start has the code of
/// push number `started`.
fn job(seq: u64, sequence: u32, pushes: u32, started: u32) -> JobView {
    let mut view = running("digits");
    (view.spec_mut().work_dir, view.spec_mut().code, view.code) = (None, code("0"), code("1"));
    (view.seq, view.generation) = (seq, Some(Generation { epoch: 1, sequence }));
    (view.pushes, view.started_pushes) = (pushes, started);
    view
}

fn refused(status: u16, code: ErrorCode, detail: &str) -> Changed {
    Changed::Refused(refusal(status, code, detail))
}

/// The number of requests to change the job.
fn changes(master: &FakeMaster) -> usize {
    master.asked().iter().filter(|asked| asked.starts_with("PATCH")).count()
}

/// Pushes to a running job. The master answers each PATCH request with the next of `changes`.
#[track_caller]
fn push(changes: impl Into<Vec<Changed>>, more: &[&str]) -> (Ended, FakeMaster) {
    let changes = changes.into().into();
    let master = FakeMaster::start(Script { views: vec![job(2, 1, 0, 0)], changes, ..Script::default() });
    (master.run(&[&["push", "digits"], more].concat()), master)
}

#[test]
fn client_push_exits_with_1_and_says_why_if_another_push_has_replaced_its_code() {
    let other = JobView { code: code("2"), ..job(3, 2, 2, 2) };
    let (ended, _) = push([Changed::Accepted(job(2, 1, 1, 0).into(), vec![other])], &[]);
    ended.expect_code(1).expect_stderr("a later push to job digits has replaced the code of this push");
}

#[test]
fn a_push_during_a_start_waits_for_the_start_with_its_own_code() {
    let next = vec![job(3, 2, 2, 1), job(4, 3, 2, 2)];
    let (ended, _) = push([Changed::Accepted(job(2, 1, 2, 0).into(), next)], &[]);
    ended.expect_code(0).expect_stderr("job digits runs the new code after ").expect_stderr("(start 1.3)");
}

#[test]
fn a_push_to_a_job_that_ends_succeeds_only_if_the_new_code_has_run() {
    let ended = JobView { seq: 3, pushes: 1, ..succeeded("digits") };
    let (pushed, _) = push([Changed::Accepted(job(2, 1, 1, 0).into(), vec![ended.clone()])], &[]);
    pushed.expect_code(1).expect_stderr("job digits has ended without the new code (succeeded)");
    let has_run = JobView { started_pushes: 1, ..ended };
    let (pushed, _) = push([Changed::Accepted(job(2, 1, 1, 0).into(), vec![has_run])], &[]);
    pushed.expect_code(0).expect_stderr("job digits has run the new code, and has ended (succeeded)");
}

#[test]
fn a_push_is_repeated_while_agents_receive_the_code() {
    let underway = || refused(503, ErrorCode::CodeUnderway, "worker-1 is slow");
    let accepted = Changed::Accepted(job(2, 1, 1, 0).into(), vec![job(3, 2, 1, 1)]);
    let (ended, master) = push([underway(), underway(), accepted], &[]);
    let ended = ended.expect_code(0).expect_stderr("job digits runs the new code after ");
    assert_eq!(ended.stderr.matches("worker-1 is slow").count(), 1, "{}", ended.stderr);
    assert_eq!(changes(&master), 3);
}

#[test]
fn a_push_sends_the_code_again_if_the_master_is_replaced_after_it_has_received_the_code() {
    let missing = || refused(409, ErrorCode::CodeMissing, "send the code first");
    let accepted = Changed::Accepted(job(2, 1, 1, 0).into(), vec![job(3, 2, 1, 1)]);
    let (ended, master) = push([missing(), missing(), accepted], &[]);
    ended.expect_code(0).expect_stderr("code of 1 file: sent ").expect_stderr("job digits runs the new code after ");
    let manifests = master.asked().iter().filter(|asked| asked.starts_with("PUT") && !asked.ends_with("blobs")).count();
    assert_eq!((manifests, changes(&master)), (2, 3));
}

#[test]
fn watched_files_that_an_agent_refused_are_pushed_again_without_another_save() {
    let full = || refused(409, ErrorCode::CodeNotTaken, "the disk of worker-1 is full");
    let end = JobView { seq: 3, pushes: 1, started_pushes: 1, ..succeeded("digits") };
    let accepted = Changed::Accepted(job(2, 1, 1, 0).into(), vec![end]);
    let (ended, master) = push([full(), accepted], &["--watch"]);
    let ended = ended.expect_code(0).expect_stderr("error: the disk of worker-1 is full");
    assert_eq!(ended.stderr.matches("the disk of worker-1").count(), 1, "{}", ended.stderr);
    assert_eq!(changes(&master), 2);
}

#[test]
fn a_watch_pushes_at_once_if_files_were_saved_after_the_scripts_began() {
    let folder = folder_with_script();
    let mut halted = JobView { state: JobState::Halted, ..running("digits") };
    halted.spec_mut().work_dir = Some(folder.path().into());
    halted.replicas_mut()[1].started_at = Some(UnixMillis(2_820));
    let end = JobView { seq: 3, pushes: 1, started_pushes: 1, ..succeeded("digits") };
    let accepted = Changed::Accepted(JobView { pushes: 1, ..halted.clone() }.into(), vec![end]);
    let master = FakeMaster::start(Script { views: vec![halted], changes: [accepted].into(), ..Script::default() });
    master.run_in(folder.path(), &["push", "digits", "--watch"]).expect_code(0);
    assert_eq!(changes(&master), 1);
}

#[test]
fn a_path_that_is_not_a_folder_is_refused_and_a_message_names_a_folder_that_the_job_does_not_use() {
    let (refused, master) = push([], &["exec.py"]);
    refused.expect_code(2).expect_stderr("/exec.py is not a folder").expect_stderr("hint: give the folder");
    assert_eq!(changes(&master), 0, "something was pushed");

    let mut own = job(2, 1, 0, 0);
    (own.spec_mut().code, own.code, own.spec_mut().work_dir) = (None, None, Some("/data/digits".into()));
    let after = JobView { pushes: 1, started_pushes: 1, seq: 3, ..own.clone() };
    for given in [".", "misspelled"] {
        let accepted = Changed::Accepted(JobView { pushes: 1, ..own.clone() }.into(), vec![after.clone()]);
        let script = Script { views: vec![own.clone()], changes: [accepted].into(), ..Script::default() };
        let master = FakeMaster::start(script);
        let ended = master.run(&["push", "digits", given]).expect_code(0);
        let sentence = "job digits runs in /data/digits: its scripts start again with the files there, not with";
        ended.expect_stderr(&format!("{sentence} {given}"));
    }
}

/// Pushes a folder with this script and another file that does not parse.
#[track_caller]
fn push_beside_a_template(script: &str, more: &[&str]) -> Ended {
    let accepted = Changed::Accepted(job(2, 1, 1, 0).into(), vec![job(3, 2, 1, 1)]);
    let master =
        FakeMaster::start(Script { views: vec![job(2, 1, 0, 0)], changes: [accepted].into(), ..Script::default() });
    let folder = folder_with_script();
    fs::write(folder.path().join("exec.py"), script).unwrap();
    fs::write(folder.path().join("template.py"), "{{ name }} = 1\n").unwrap();
    master.run_in(folder.path(), &[&["push", "digits"], more].concat())
}

#[test]
fn only_the_jobs_script_must_parse_and_only_without_force() {
    let other = push_beside_a_template("print()\n", &[]).expect_code(0).expect_stderr("(template.py, line 1)");
    other.expect_stderr("exclude it in .musterignore").expect_stderr("job digits runs the new code after ");
    let script = push_beside_a_template("print(\n", &[]).expect_code(2);
    script.expect_stderr("error: the script does not parse: ").expect_stderr("(exec.py, line 1)");
    let forced = push_beside_a_template("print(\n", &["--force"]).expect_code(0);
    assert!(!forced.stderr.contains("parse"), "{}", forced.stderr);
}

#[test]
fn a_job_without_a_folder_cannot_be_watched() {
    let mut on_machines = job(2, 1, 0, 0);
    (on_machines.spec_mut().code, on_machines.code, on_machines.spec_mut().work_dir) = (None, None, None);
    let master = FakeMaster::with(vec![on_machines]);
    let refused = master.run(&["push", "digits", "--watch"]);
    refused.expect_code(2).expect_stderr("error: --watch cannot be used with job digits: the job names no folder");
    assert_eq!(changes(&master), 0, "something was pushed");
}

#[test]
fn a_push_that_can_never_work_exits_with_2_and_a_full_disk_exits_with_3() {
    let (ended, _) = push([refused(409, ErrorCode::CannotPush, "its script is in its image")], &[]);
    ended.expect_code(2).expect_stderr("error: its script is in its image");
    let (ended, _) = push([refused(409, ErrorCode::CodeNotTaken, "its disk is full")], &[]);
    ended.expect_code(3).expect_stderr("error: its disk is full");
}
