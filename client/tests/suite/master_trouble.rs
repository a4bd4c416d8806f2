//! A master that is unreachable or needs a token, and another program at the master's address.

use std::os::unix::fs::PermissionsExt;

use crate::support::fake_master::{FakeMaster, Script, something_else};
use crate::support::views::succeeded;
use crate::support::{client, finish, folder_with_script, run};

/// Nothing listens on port 1, and the system never assigns it to a program that asks for any port.
const NOBODYS_URL: &str = "http://127.0.0.1:1";

#[test]
fn an_unreachable_master_is_reported_at_once() {
    let folder = folder_with_script();
    for arguments in [&["list"][..], &["status", "x"], &["logs", "x", "-f"], &["wait", "x"]] {
        let ended = run(folder.path(), &[arguments, &["--master", NOBODYS_URL]].concat()).expect_code(3);
        assert_eq!(ended.stdout, "");
        let ended =
            ended.expect_stderr(&format!("error: the master at {NOBODYS_URL} cannot be reached: Connection refused"));
        ended.expect_stderr("hint: is the master running");
    }
}

#[test]
fn each_request_of_a_submit_is_repeated_while_the_master_is_away_and_says_so_once() {
    let away = vec!["GET /v1/master", "GET /v1/master", "POST /v1/jobs", "POST /v1/jobs"];
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], away, ..Script::default() });
    let ended = master.submit(&["-d"]).expect_code(0);
    let once_each = "away for a moment; retrying\naway for a moment; retrying\njob digits accepted: ";
    assert!(ended.stderr.starts_with(once_each), "{}", ended.stderr);
    let asked = [&["GET /v1/master"; 3][..], &["POST /v1/jobs"; 3]].concat();
    assert_eq!(master.asked(), asked);
}

#[test]
fn another_program_is_not_taken_for_a_master() {
    let folder = folder_with_script();
    for (status, body) in [(200, "<html>"), (200, "{}"), (404, "not found"), (404, "{\"detail\":\"x\"}"), (302, "")] {
        let url = something_else(status, body);
        for arguments in [&["list"][..], &["logs", "x"], &["--task", "x"]] {
            let ended = run(folder.path(), &[arguments, &["--master", &url]].concat()).expect_code(3);
            ended.expect_stderr(&format!("error: {url} answers, but not as a Muster master (HTTP status {status})"));
        }
    }
}

#[test]
fn a_master_on_this_machine_that_runs_as_another_user_is_reported() {
    let own = rustix::process::getuid().as_raw();
    for (uid, is_told) in [(None, false), (Some(own), false), (Some(own + 1), true)] {
        let master = FakeMaster::start(Script { views: vec![succeeded("digits")], uid, ..Script::default() });
        let ended = master.submit(&["-d"]).expect_code(0);
        let sentence = format!("the master at {} runs as another user (uid {})", master.url, own + 1);
        assert_eq!(ended.stderr.contains(&sentence), is_told, "{}", ended.stderr);
    }
}

#[test]
fn the_token_comes_from_the_file_else_from_the_variable() {
    let folder = folder_with_script();
    std::fs::write(folder.path().join("token"), "s3cret\n").unwrap();
    let token = Some("s3cret".to_owned());
    let master = FakeMaster::start(Script { views: vec![succeeded("digits")], token, ..Script::default() });
    let ended = master.run(&["list"]).expect_code(3);
    ended.expect_stderr("error: the token is missing or wrong").expect_stderr("hint: give the master's token");
    for (flags, variable) in [(&["list"][..], "s3cret"), (&["list", "--token-file", "token"], "wrong")] {
        let mut command = master.client(folder.path(), flags);
        finish(command.env("MUSTER_TOKEN", variable).spawn().unwrap()).expect_code(0);
    }
}

#[test]
fn a_warning_names_a_token_file_that_others_can_read_unless_kubernetes_wrote_it() {
    let folder = folder_with_script();
    let secret = folder.path().join("..2026_01_31_10_00_00.1");
    std::fs::create_dir(&secret).unwrap();
    std::os::unix::fs::symlink(secret.join("mounted"), folder.path().join("mounted")).unwrap();
    let master = FakeMaster::with(vec![succeeded("digits")]);
    for (path, file, mode, warns) in [
        (folder.path().join("token"), "token", 0o644, true),
        (folder.path().join("a token"), "a token", 0o640, true),
        (folder.path().join("token"), "token", 0o600, false),
        (secret.join("mounted"), "mounted", 0o644, false),
    ] {
        std::fs::write(&path, "s3cret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let ended = master.run_in(folder.path(), &["list", "--token-file", file]).expect_code(0);
        let quoted = if file.contains(' ') { "'a token'" } else { file };
        let warning = format!("warning: other users can read the token in {file}; keep them out: chmod 600 {quoted}\n");
        assert_eq!(ended.stderr, if warns { warning } else { String::new() }, "{mode:o} {file}");
    }
}

#[test]
fn the_flag_for_the_master_wins_over_the_variable() {
    let folder = folder_with_script();
    let master = FakeMaster::with(vec![succeeded("digits")]);
    let listed = |variable: &str, flags: &[&str]| {
        let mut command = client(folder.path());
        finish(command.arg("list").args(flags).env("MUSTER_MASTER", variable).spawn().unwrap()).code
    };
    assert_eq!(listed(&master.url, &[]), Some(0));
    assert_eq!(listed(NOBODYS_URL, &["--master", &master.url]), Some(0));
    assert_eq!(listed(NOBODYS_URL, &[]), Some(3));
}

#[test]
fn a_master_on_this_machine_is_asked_without_a_proxy() {
    let folder = folder_with_script();
    let master = FakeMaster::with(vec![succeeded("digits")]);
    let mut command = master.client(folder.path(), &["list"]);
    finish(command.env("http_proxy", NOBODYS_URL).spawn().unwrap()).expect_code(0);
}
