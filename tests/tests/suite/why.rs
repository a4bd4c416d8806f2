//! Tests of `client why` with real programs. The verb must name the first replica that failed, and the consequences.

use e2e::scripts::with_peers;
use e2e::{Place, Stage};

e2e::journeys_of_causes!(Place::Processes, #[cfg(unix)]);

#[test]
fn a_syntax_error_that_appears_after_the_submit_leads_to_no_further_restart() {
    // At the submit, the master checks that Python can parse exec.py. Here, exec.py changes before the restart.
    let exec_py = with_peers("open('exec.py', 'w').write('x = (')\nsys.exit(3)");
    let stage = Stage::new(Place::Processes, &exec_py);
    stage.submit(&["--task", "edited", "--worker-num", "1", "--backoff", "0s"]).code(1);
    let why = stage.verb(&["why", "edited"]).code(0).stdout;
    assert!(why.starts_with("job edited failed, after 1 restart: worker-0 was not started: "), "{why}");
    assert!(why.contains("SyntaxError: '(' was never closed"), "{why}");
    assert!(why.contains("\n  start 1.1: worker-0 exited with code 3"), "{why}");
}
