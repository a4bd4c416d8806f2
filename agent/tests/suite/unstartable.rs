//! Which ends of a run mean that no line of exec.py ran. Tests use recorded errors of several versions of Python, and a
//! real Python.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::Duration;

use crate::support::{Agent, supervised};
use agent::run::unstartable::EndedRun;
use protocol::agent::{ExitOutcome, STDERR_TAIL_BYTES};

fn why_of(command: &[&str], code: i32, stderr: &str) -> Option<String> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    let outcome = ExitOutcome::Code(code);
    EndedRun { command: &command, outcome: &outcome, stderr, lasted: Duration::from_secs(1) }.why_nothing_ran()
}

fn why(code: i32, stderr: &str) -> Option<String> {
    why_of(&["python", "exec.py", "--epochs", "3"], code, stderr)
}

const INVALID: &str = "  File \"/srv/exec.py\", line 2\n    foo bar\n        ^^^\nSyntaxError: invalid syntax\n";

#[test]
fn a_syntax_error_of_exec_py_is_reported_with_its_line() {
    let cases = [
        // Python 2.7, 3.6 and 3.8.
        (
            "  File \"exec.py\", line 2\n    foo bar\n          ^\nSyntaxError: invalid syntax\n",
            "exec.py, line 2: invalid syntax",
        ),
        // Python 3.9 to 3.13.
        (INVALID, "exec.py, line 2: invalid syntax"),
        (
            "  File \"/srv/exec.py\", line 2\n    x=1\n    ^\nIndentationError: expected an indented block after function definition on line 1\n",
            "exec.py, line 2: expected an indented block after function definition on line 1",
        ),
        (
            "  File \"/srv/exec.py\", line 3\n    y=2\nTabError: inconsistent use of tabs and spaces in indentation\n",
            "exec.py, line 3: inconsistent use of tabs and spaces in indentation",
        ),
        (
            "  File \"exec.py\", line 1\nSyntaxError: Non-UTF-8 code starting with '\\xe9' in file exec.py on line 1\n",
            "exec.py, line 1: Non-UTF-8 code starting with '\\xe9' in file exec.py on line 1",
        ),
        (
            "SyntaxError: Non-UTF-8 code starting with '\\xe9' in file /srv/exec.py on line 1, but no encoding declared\n",
            "SyntaxError: Non-UTF-8 code starting with '\\xe9' in file /srv/exec.py on line 1, but no encoding declared",
        ),
    ];
    for (stderr, error) in cases {
        assert_eq!(why(1, stderr), Some(format!("exec.py has a syntax error: {error}")));
    }
    let warned = format!("/srv/exec.py:1: SyntaxWarning: invalid escape sequence '\\d'\n  x = \"\\d\"\n{INVALID}");
    assert_eq!(why(1, &warned).as_deref(), Some("exec.py has a syntax error: exec.py, line 2: invalid syntax"));
}

#[test]
fn an_error_of_a_script_other_than_exec_py_is_reported_with_its_name() {
    let why_of = |code, stderr: &str| why_of(&["/entry", "python3.12", "src/train.py"], code, stderr);
    let invalid = INVALID.replace("exec.py", "src/train.py");
    let reason = "src/train.py has a syntax error: src/train.py, line 2: invalid syntax";
    assert_eq!(why_of(1, &invalid).as_deref(), Some(reason));
    assert_eq!(why_of(1, &invalid.replace("src/", "my_src/")), None);
    let failure = "can't open file '/srv/src/train.py': [Errno 2] No such file or directory";
    assert_eq!(why_of(2, &format!("python3.12: {failure}\n")), Some(format!("python {failure}")));
}

#[test]
fn an_exec_py_that_cannot_be_opened_is_reported_with_pythons_error() {
    for file in ["exec.py", "/srv/exec.py"] {
        let failure = format!("can't open file '{file}': [Errno 2] No such file or directory");
        assert_eq!(why(2, &format!("/usr/bin/python: {failure}\n")), Some(format!("python {failure}")));
    }
}

#[test]
fn a_run_in_which_a_line_may_have_run_is_an_ordinary_failure() {
    let traceback = "Traceback (most recent call last):\n  File \"/srv/exec.py\", line 1, in <module>\n    import b\n";
    for (code, stderr) in [
        // Errors of a module that exec.py imports, or of a text that exec.py compiles.
        (
            1,
            format!("{traceback}  File \"/srv/b.py\", line 1\n    foo bar\n        ^^^\nSyntaxError: invalid syntax\n"),
        ),
        (1, format!("{traceback}{INVALID}")),
        (1, format!("epoch 1\n{INVALID}")),
        (1, INVALID.replace("exec.py", "train.py")),
        (1, format!("{INVALID}and more\n")),
        (1, String::new()),
        (1, "SyntaxError: my own\n".to_owned()),
        (0, INVALID.to_owned()),
        (2, INVALID.to_owned()),
        (2, "usage: exec.py [-h]\nexec.py: error: unrecognized arguments: --x\n".to_owned()),
        (2, "python: can't open file 'data.csv': [Errno 2] No such file or directory\n".to_owned()),
        (127, "sh: 1: foo: not found\n".to_owned()),
        (127, "cannot start \"rsync\": not found on PATH\n".to_owned()),
    ] {
        assert_eq!(why(code, &stderr), None, "{code} {stderr:?}");
    }
    let long = format!("{}{INVALID}", "  x\n".repeat(STDERR_TAIL_BYTES / 4));
    assert_eq!(why(1, &long), None, "wrong reason for a stderr whose beginning is missing");
    assert_eq!(why_of(&["sh", "exec.py"], 1, INVALID), None);
    assert_eq!(why_of(&["python", "train.py"], 1, INVALID), None);
    let command = ["python", "exec.py"].map(OsString::from);
    let outcome = ExitOutcome::Code(1);
    let slow = EndedRun { command: &command, outcome: &outcome, stderr: INVALID, lasted: Duration::from_secs(600) };
    assert_eq!(slow.why_nothing_ran(), None, "a run of ten minutes is reported as a run that never started the script");
    let killed = ExitOutcome::Signal(9);
    assert_eq!(EndedRun { outcome: &killed, lasted: Duration::ZERO, ..slow }.why_nothing_ran(), None);
}

/// How a real Python ends with this exec.py, or without exec.py.
fn real(exec_py: Option<&[u8]>) -> ExitOutcome {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("broken.py"), "foo bar\n").unwrap();
    if let Some(text) = exec_py {
        fs::write(folder.path().join("exec.py"), text).unwrap();
    }
    Agent::start(&["--work-dir", folder.path().to_str().unwrap()], &["python3", "exec.py"]).outcome()
}

#[test]
fn python3_replaces_a_missing_python_and_an_error_names_both_if_both_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(folder.path().join("exec.py"), "print('ran')").unwrap();
    let run = |entrypoint: &[&str]| {
        let mut program = supervised();
        program.args(entrypoint).current_dir(folder.path()).env("PATH", &bin);
        let agent = Agent::from_program(program);
        (agent.outcome(), agent.logs("stdout"))
    };
    let neither = "cannot start \"python\": neither python nor python3 is on PATH; install Python 3, or set PATH";
    assert_eq!(run(&[]), (ExitOutcome::NotStarted(neither.to_owned()), vec![]));

    let real = Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output().unwrap();
    symlink(String::from_utf8(real.stdout).unwrap(), bin.join("python3")).unwrap();
    assert_eq!(run(&[]), (ExitOutcome::Code(0), b"ran\n".to_vec()));
    let entry = folder.path().join("entry");
    fs::write(&entry, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = run(&["--entrypoint", entry.to_str().unwrap()]);
    assert_eq!(ran, (ExitOutcome::Code(0), b"ran\n".to_vec()), "wrong result of the run with an image's ENTRYPOINT");
}

#[test]
fn a_real_python_that_runs_no_line_of_exec_py_is_distinguished_from_a_failing_script() {
    for (exec_py, beginning) in [
        (Some(&b"x = 1\nfoo bar\n"[..]), "exec.py has a syntax error: exec.py, line 2: "),
        (Some(b"def f():\nx = 1\n"), "exec.py has a syntax error: exec.py, line 2: expected an indented block"),
        (
            Some(b"if 1:\n\tx = 1\n        y = 2\n"),
            "exec.py has a syntax error: exec.py, line 3: inconsistent use of tabs",
        ),
        (Some(b"x = '\\d'\nreturn 3\n"), "exec.py has a syntax error: exec.py, line 2: 'return' outside function"),
        (Some(b"x = '\xe9'\n"), "exec.py has a syntax error: "),
        (None, "python can't open file '"),
    ] {
        let outcome = real(exec_py);
        assert!(matches!(&outcome, ExitOutcome::NotStarted(why) if why.starts_with(beginning)), "{outcome:?}");
    }
    for (exec_py, code) in [
        (&b"import broken\n"[..], 1),
        (b"compile('foo bar', 'exec.py', 'exec')\n", 1),
        (b"raise SyntaxError('mine')\n", 1),
        (b"import sys; sys.exit(2)\n", 2),
        (b"import sys; sys.exit('a sentence')\n", 1),
    ] {
        assert_eq!(real(Some(exec_py)), ExitOutcome::Code(code), "{}", String::from_utf8_lossy(exec_py));
    }
}
