//! The headline of a failed run.

use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::Failure;
use protocol::ids::UnixMillis;

fn headline(outcome: ExitOutcome, exception: &str, stderr: &str) -> String {
    let exit = ExitReport::new(outcome, UnixMillis(0));
    let exit = ExitReport { exception: Some(exception.to_owned()), stderr_tail: stderr.to_owned(), ..exit };
    Failure::ReplicaExited { replica: "worker-1".parse().expect("not a replica"), exit }.to_string()
}

#[test]
fn the_headline_names_the_line_of_the_script_and_not_of_a_library() {
    let stack = "Traceback (most recent call last):\n  File \"/w/other.py\", line 1, in <module>\nKeyError: 1\n\n\
         During handling of the above exception, another exception occurred:\n\n\
         Traceback (most recent call last):\n  File \"/w/train.py\", line 73, in <module>\n    fit()\n  \
         File \"/usr/lib/python3.11/site-packages/keras/m.py\", line 9, in fit\n    raise\n\
         ValueError: no\nmore text\n";
    let code = ExitOutcome::Code(1);
    assert_eq!(headline(code.clone(), "ValueError: no", stack), "worker-1: ValueError: no (train.py:73)");
    assert_eq!(headline(code.clone(), "ValueError: no", "ValueError: no\n"), "worker-1: ValueError: no");
    let only_library = "  File \"/opt/site-packages/a.py\", line 4, in f\nOSError: full\n";
    assert_eq!(headline(code.clone(), "OSError: full", only_library), "worker-1: OSError: full (a.py:4)");
    let said = headline(code, &format!("ValueError: {}", "x".repeat(500)), "");
    assert!(said.starts_with("worker-1: ValueError: xxx") && said.ends_with("x…") && said.len() < 220, "{said}");
}

#[test]
fn a_signal_is_the_headline_of_a_script_that_has_printed_an_exception_before() {
    assert_eq!(headline(ExitOutcome::Signal(9), "ValueError: no", ""), "worker-1 was killed by signal 9 (SIGKILL)");
}
