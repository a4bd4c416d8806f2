//! Tests of the limits of the history, and of files that cannot be read.

use std::os::unix::fs::PermissionsExt;

use protocol::progress::{JobSeries, ReplicaSeries, SeriesPoint};
use protocol::view::JobState;
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// A job that ended at this time, with this many bytes of output.
fn job(uid: &str, ended: u64, output: usize) -> PastJob {
    let spec = json!({
        "name": "digits", "strategy": "AllReduce",
        "worker_num": 1, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
    });
    let view = json!({
        "name": "digits", "uid": uid, "seq": 1, "state": "succeeded", "result": {"outcome": "succeeded"},
        "spec": spec, "replicas": [], "times": {"accepted": 1, "ended": ended},
    });
    let timeline = json!({
        "name": "digits", "uid": uid, "state": "succeeded", "now": ended, "accepted": 1, "starts": [], "replicas": [],
        "spent": {},
    });
    PastJob {
        view: serde_json::from_value(view).unwrap(),
        timeline: serde_json::from_value(timeline).unwrap(),
        series: JobSeries { replicas: vec![], until: None, usage: vec![] },
        last_output: "x".repeat(output),
    }
}

fn history() -> (TempDir, History) {
    let folder = tempfile::tempdir().unwrap();
    let history = History::at(folder.path().join("history"));
    (folder, history)
}

fn uids(history: &History) -> Vec<String> {
    history.list().unwrap().jobs.into_iter().map(|job| job.uid).collect()
}

fn files(history: &History) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(&history.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_job_is_listed_and_read_and_only_its_owner_can_read_its_file() {
    let (_folder, history) = history();
    assert_eq!(history.list().unwrap(), PastJobs::default());
    let (one, two) = (job("a-1", 10, 3), job("b-2", 20, 3));
    history.keep(&one).unwrap();
    history.keep(&two).unwrap();
    history.keep(&two).unwrap();
    assert_eq!(uids(&history), ["b-2", "a-1"]);
    assert_eq!(history.list().unwrap().jobs[0].state, JobState::Succeeded);
    assert_eq!(history.read("a-1").unwrap(), Some(one));
    assert_eq!([history.read("1").unwrap(), history.read("../a-1").unwrap()], [None, None]);
    for path in files(&history) {
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(history.folder.metadata().unwrap().mode() & 0o777, 0o700);
    history.keep(&job("../../x", 30, 0)).unwrap_err();
}

#[test]
fn the_oldest_jobs_make_room_and_an_older_job_than_all_is_not_kept() {
    let (_folder, history) = history();
    for index in 0..ENTRIES_MAX as u64 + 3 {
        history.keep(&job(&format!("u{index}"), 1000 + index, 0)).unwrap();
    }
    let listed = uids(&history);
    assert_eq!((listed.len(), listed.first().unwrap().as_str()), (ENTRIES_MAX, "u202"));
    assert_eq!(listed.last().unwrap(), "u3");
    history.keep(&job("old", 1, 0)).unwrap();
    assert_eq!(uids(&history), listed);
}

#[test]
fn large_jobs_make_room_too() {
    let (_folder, history) = history();
    let share = usize::try_from(BYTES_MAX / 3).unwrap();
    for index in 0..4 {
        history.keep(&job(&format!("u{index}"), 1000 + index, share)).unwrap();
    }
    assert_eq!(uids(&history), ["u3", "u2"]);
}

#[test]
fn a_job_that_is_too_large_is_kept_without_its_series() {
    let (_folder, history) = history();
    let point = serde_json::from_value(json!({"at": 1_764_000_000_000_u64, "generation": "1.1"})).unwrap();
    for (uid, points, kept) in [("small", 1000, 1000), ("large", 250_000, 0)] {
        let series =
            ReplicaSeries { replica: "worker-0".parse().unwrap(), points: vec![SeriesPoint::clone(&point); points] };
        let series = JobSeries { replicas: vec![series], until: None, usage: vec![] };
        history.keep(&PastJob { series, ..job(uid, 1000, 0) }).unwrap();
        let read = history.read(uid).unwrap().expect("the job is not kept");
        assert_eq!(read.series.replicas.iter().map(|replica| replica.points.len()).sum::<usize>(), kept, "{uid}");
    }
}

#[test]
fn files_that_cannot_be_read_are_skipped_with_a_reason() {
    let (_folder, history) = history();
    for (index, uid) in ["good", "cut", "short", "later", "damaged", "open"].into_iter().enumerate() {
        history.keep(&job(uid, 1000 + index as u64, 100)).unwrap();
    }
    let path = |uid: &str| files(&history).into_iter().find(|path| path.to_str().unwrap().contains(uid)).unwrap();
    let text = |uid: &str| fs::read_to_string(path(uid)).unwrap();
    fs::write(path("cut"), &text("cut")[..500]).unwrap();
    fs::write(path("short"), &text("short")[..20]).unwrap();
    fs::write(path("later"), text("later").replacen("\"format\":1", "\"format\":2", 1)).unwrap();
    fs::write(path("damaged"), format!("{{}}\n{}", text("damaged"))).unwrap();
    fs::set_permissions(path("open"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(history.folder.join(format!("{UNFINISHED}1")), "half").unwrap();
    let PastJobs { jobs, skipped } = history.list().unwrap();
    assert_eq!(jobs.len(), 1);
    let reasons: Vec<&str> = skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    let expected = [
        "can be read or changed by other users",
        "is damaged",
        "was written by a later version of Muster",
        "is not complete",
        "is not complete",
    ];
    assert_eq!(reasons, expected, "{skipped:?}");
    let error = history.read("later").unwrap_err().to_string();
    assert!(error.ends_with("-digits.later.json of the history was written by a later version of Muster"), "{error}");
    assert_eq!(history.read("good").unwrap(), Some(job("good", 1000, 100)));
}

#[test]
fn a_file_whose_header_names_a_huge_length_is_skipped() {
    let (_folder, history) = history();
    history.keep(&job("a-1", 10, 3)).unwrap();
    let file = files(&history).remove(0);
    let text = fs::read_to_string(&file).unwrap();
    let (head, rest) = text.split_once("\"bytes\":").unwrap();
    let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    fs::write(&file, format!("{head}\"bytes\":{}{rest}", u64::MAX)).unwrap();
    let list = history.list().unwrap();
    assert_eq!((list.jobs.len(), list.skipped[0].reason.as_str()), (0, "is not complete"));
    assert!(history.read("a-1").is_err());
}
