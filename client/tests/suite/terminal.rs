//! The output on a terminal, and Ctrl-C.

use std::process::Child;

use protocol::output::LogLine;
use protocol::view::JobView;
use rustix::process::Signal;

use crate::support::fake_master::{FakeMaster, Logs, Script};
use crate::support::live_master::{Jobs, LiveMaster, TOKEN};
use crate::support::terminal::Terminal;
use crate::support::views::{line, pending, running};
use crate::support::{client, command, finish, folder_with_script, interrupt, until};

/// A master with a job that does not change and has printed these lines.
fn serving(view: JobView, lines: Vec<LogLine>) -> FakeMaster {
    FakeMaster::start(Script { views: vec![view], logs: [Logs::Lines(lines)].into(), ..Script::default() })
}

fn following(master: &FakeMaster) -> (Terminal, Child) {
    Terminal::start(&mut master.client(folder_with_script().path(), &["logs", "digits", "-f"]))
}

#[test]
fn lines_of_a_starting_job_stay_above_its_progress() {
    let lines = (1..=3).map(|index| line("worker-0", index, &format!("line {index}"))).collect();
    let master = serving(pending("digits"), lines);
    let (terminal, child) = following(&master);
    terminal.until_shown("worker-0 │ line 3");
    let redrawn = terminal.written("0 of 2 replicas have joined");
    until("the progress is drawn again", || terminal.written("0 of 2 replicas have joined") > redrawn + 2);
    // A screen that is read during a write may lack its last lines.
    until("the lines stay above the progress", || {
        let screen = terminal.screen();
        let shown: Vec<&str> = screen.lines().collect();
        shown.get(1..4) == Some(&["worker-0 │ line 1", "worker-0 │ line 2", "worker-0 │ line 3"])
            && shown.get(4).is_some_and(|line| line.ends_with(" 0 of 2 replicas have joined"))
            && shown.get(5).is_some_and(|line| line.ends_with("worker-0 requested"))
    });
    drop(interrupt(child, Signal::INT));
}

#[test]
fn an_unfinished_line_is_shown_below_the_finished_lines() {
    let growing = |text: &str| LogLine { unfinished: true, ..line("worker-1", 7, text) };
    let lines = vec![
        line("worker-0", 5, "epoch 1"),
        growing("10%|#\r20%|##\u{1b}[2J\r30%|### "),
        line("worker-0", 9, "epoch 2"),
    ];
    let master = serving(running("digits"), lines);
    let (terminal, child) = following(&master);
    terminal.until_shown("worker-1 │ 30%|###");
    until("the second line is shown", || terminal.screen().contains("worker-0 │ epoch 2"));
    let in_place = "worker-0 │ epoch 1\nworker-0 │ epoch 2\nworker-1 │ 30%|###";
    until("all lines are in place", || terminal.screen().ends_with(in_place));
    assert!(master.was_asked("unfinished=true"), "{:?}", master.asked());
    drop(interrupt(child, Signal::INT));
    until("the unfinished line is removed", || !terminal.screen().contains("30%"));
}

#[test]
fn a_finished_line_is_shown_once() {
    let growing = LogLine { unfinished: true, ..line("worker-0", 1, "99%") };
    let master = serving(running("digits"), vec![growing, line("worker-0", 5, "100%")]);
    let (terminal, child) = following(&master);
    until("the line is shown", || terminal.screen().lines().skip(1).eq(["worker-0 │ 100%"]));
    drop(interrupt(child, Signal::INT));
}

#[test]
fn top_renews_its_table_in_place_until_an_interrupt() {
    let master = serving(running("digits"), vec![]);
    let (terminal, child) = Terminal::start(&mut master.client(folder_with_script().path(), &["top"]));
    terminal.until_shown("digits");
    let asked = || master.asked().iter().filter(|request| request.as_str() == "GET /v1/jobs").count();
    let before = asked();
    until("the master is asked again", || asked() > before);
    until("the table is shown once", || {
        let screen = terminal.screen();
        screen.matches("MS/STEP").count() == 1 && screen.matches("digits").count() == 1
    });
    drop(interrupt(child, Signal::INT));
    until("the table is gone as a whole", || terminal.screen().is_empty());
}

#[test]
fn top_says_since_when_its_table_is_not_up_to_date() {
    let away = vec!["GET /v1/jobs"; 20];
    let master = FakeMaster::start(Script { views: vec![running("digits")], ..Script::default() });
    let (terminal, child) = Terminal::start(&mut master.client(folder_with_script().path(), &["top"]));
    terminal.until_shown("digits");
    master.go_away(away);
    until("the old table is below the reason", || {
        let screen = terminal.screen();
        ["not up to date since ", "away for a moment", "digits"].iter().all(|text| screen.contains(text))
    });
    drop(interrupt(child, Signal::INT));
}

#[test]
fn top_prints_its_table_once_on_a_terminal_that_cannot_redraw_lines() {
    let master = serving(running("digits"), vec![]);
    let folder = folder_with_script();
    let (terminal, child) = Terminal::start(master.client(folder.path(), &["top"]).env("TERM", "dumb"));
    terminal.until_shown("digits  running");
    finish(child).expect_code(0);
}

#[test]
fn top_counts_the_jobs_for_which_the_terminal_has_no_room() {
    let views = (0..100).map(|index| running(&format!("digits-{index}"))).collect();
    let master = LiveMaster::start(Jobs { views, ..Jobs::default() });
    let folder = folder_with_script();
    let mut top = client(folder.path());
    let (terminal, child) = Terminal::start(top.args(["top", "--master", &master.url]).env("MUSTER_TOKEN", TOKEN));
    terminal.until_shown("more; --once prints all");
    let screen = terminal.screen();
    let (begin, end) = (screen.lines().next().unwrap_or_default(), screen.lines().last().unwrap_or_default());
    assert!(begin.starts_with("NAME") && end.starts_with("… and "), "{screen}");
    drop(interrupt(child, Signal::INT));
}

#[test]
fn client_env_prints_no_token_on_a_terminal() {
    for (arguments, hint) in [(&["env"][..], "client env"), (&["env", "--unset"], "client env --unset")] {
        let folder = folder_with_script();
        let (terminal, child) = Terminal::start(client(folder.path()).args(arguments).env("MUSTER_TOKEN", "s3cret"));
        terminal.until_shown(&format!("hint: eval \"$({hint})\""));
        finish(child).expect_code(2);
        assert!(!terminal.screen().contains("export"), "{}", terminal.screen());
    }
}

#[test]
fn ctrl_c_at_a_terminal_also_ends_the_loop_of_a_shell() {
    let master = serving(running("digits"), vec![line("worker-0", 6, "hello")]);
    let folder = folder_with_script();
    let twice = "for n in 1 2; do \"$0\" logs digits -f --master \"$1\"; done";
    let mut shell = command("setsid".as_ref(), folder.path());
    shell.args(["--ctty", "bash", "-c", twice, env!("CARGO_BIN_EXE_client"), &master.url]);
    let (terminal, child) = Terminal::start(&mut shell);
    terminal.until_shown("worker-0 │ hello");
    terminal.type_in(b"\x03");
    drop(finish(child).expect_signal(Signal::INT));
    assert_eq!(terminal.written("job digits is running"), 1, "{}", terminal.screen());
}
