//! A bad command line is refused in one sentence, before anything starts.

use std::path::Path;

use crate::support::{folder_with_script, run};

/// Runs the client and checks: exit code 2, nothing on stdout, one error line, and only hints after that line.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], sentence: &str) {
    let ended = run(folder, arguments).expect_code(2);
    assert_eq!(ended.stdout, "", "{arguments:?}");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines[0].contains(sentence), "{arguments:?}: {}", ended.stderr);
    let hints = lines[1..].iter().filter(|line| line.starts_with("hint: ")).count();
    assert_eq!(lines.len() - 1, hints, "{arguments:?}: {}", ended.stderr);
}

#[test]
fn bad_numbers_are_refused() {
    let folder = folder_with_script();
    for (arguments, sentence) in [
        (&["--worker-num", "0"][..], "worker-num is 0: use at least 1"),
        (&["--worker-num", "-1"], "--worker-num: invalid number of replicas \"-1\""),
        (&["--worker-num", "3.5"], "--worker-num: invalid number of replicas \"3.5\""),
        (&["--worker-num", "four"], "--worker-num: invalid number of replicas \"four\""),
        (&["--worker-num", ""], "--worker-num"),
        (&["--worker-num", "4294967296"], "invalid number of replicas \"4294967296\": the maximum is 5457"),
        (&["--max-restarts", "99999999999999999999"], "the maximum is 4294967295"),
        (&["--worker-num", "-99999999999"], "--worker-num: invalid number of replicas \"-99999999999\""),
        (&["--worker-num", "100000"], "worker-num 100000 is too large"),
        (&["--worker-num"], "--worker-num <N|MIN:MAX>"),
        (&["--worker-num", "4:2"], "the minimum of workers, 4, is above the maximum, 2"),
        (&["--worker-num", "0:3"], "worker-num is 0: use at least 1"),
        (&["--worker-num", "2:"], "--worker-num: invalid number of workers \"2:\": use one number, such as 4, or"),
        (&["--worker-num", ":4"], "--worker-num: invalid number of workers \":4\""),
        (&["--worker-num", "2:8:1"], "--worker-num: invalid number of workers \"2:8:1\""),
        (&["--worker-num", "two:8"], "--worker-num: invalid number of replicas \"two\""),
        (&["--worker-num", "2:4294967296"], "invalid number of replicas \"4294967296\": the maximum is 5457"),
        (&["--ps-num", "1"], "ps-num is 1, but AllReduce has no parameter servers"),
        (&["--strategy", "ps", "--ps-num", "0"], "ps-num is 0"),
        (&["--chief-num", "2"], "chief-num 2 is not allowed"),
        (&["--evaluator-num", "2"], "evaluator-num 2 is not allowed"),
    ] {
        refused(folder.path(), arguments, sentence);
    }
}

#[test]
fn bad_durations_are_refused() {
    let folder = folder_with_script();
    for (arguments, sentence) in [
        (["--deadline", "1ms"], "--deadline: invalid duration \"1ms\": use whole seconds, such as 1s"),
        (["--start-timeout", "0.5s"], "--start-timeout: invalid duration \"0.5s\": use whole seconds"),
        (["--backoff", "1500ms"], "--backoff: invalid duration \"1500ms\": use whole seconds"),
        (["--termination-grace", "1ms"], "--termination-grace: invalid duration \"1ms\": use whole seconds"),
        (["--ttl-after-finished", "200years"], "invalid duration \"200years\": the maximum is 4294967295s"),
        (["--deadline", "0s"], "deadline"),
    ] {
        refused(folder.path(), &arguments, sentence);
    }
}

#[test]
fn bad_names_variables_flags_and_verbs_are_refused() {
    let folder = folder_with_script();
    let [too_long, longest] = [56, 55].map(|length| "a".repeat(length));
    for (arguments, sentence) in [
        (
            &["--strategy", "Horovod"][..],
            "--strategy: strategy \"Horovod\" is unknown: use AllReduce or ParameterServer",
        ),
        (&["--task", "My_Job"], "--task: task name \"My_Job\" is not a DNS label"),
        (&["--task", &too_long], "is not a DNS label: use 1 to 55 of a-z"),
        (&["--task", &longest, "--worker-num", "2"], "is too long: the pod name "),
        (&["--task", ""], "--task"),
        (&["--env", "1A=x"], "--env: environment name \"1A\" is not allowed"),
        (&["--env", "=x"], "--env: environment name \"\" is not allowed"),
        (&["--env", "TF_CONFIG={}"], "TF_CONFIG is set by Muster itself"),
        (&["--env", "MUSTER_JOB=x"], "MUSTER_JOB is set by Muster itself"),
        (&["--env", "NOBODY_HAS_THIS"], "--env NOBODY_HAS_THIS: NOBODY_HAS_THIS is not set in your environment"),
        (&["--env-file", "no-such.env"], "--env-file: read no-such.env"),
        (&["-o", "yaml"], "invalid value 'yaml' for '--output <FORMAT>'"),
        (&["--workers", "4"], "unexpected argument '--workers' found"),
        (&["lits"], "unknown verb \"lits\""),
        (&["--worker-num", "4", "foo"], "unknown verb \"foo\""),
        (&["list", "foo"], "unexpected argument 'foo' found"),
    ] {
        refused(folder.path(), arguments, sentence);
    }
}

#[test]
fn an_error_in_an_env_file_names_the_line() {
    let folder = folder_with_script();
    std::fs::write(folder.path().join("job.env"), "A=1\nPASSWORD hunter2\n").unwrap();
    refused(folder.path(), &["--env-file", "job.env"], "--env-file: job.env, line 2: not of the form NAME=VALUE");
}

#[test]
fn a_folder_without_a_script_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    refused(&path, &["--master", "local"], &format!("no exec.py in {}", path.display()));
    std::fs::create_dir(path.join("exec.py")).unwrap();
    refused(&path, &["--master", "local"], "is not a file");
}

#[test]
fn an_invalid_address_of_a_master_is_refused() {
    let folder = folder_with_script();
    for (url, sentence) in [
        ("10.0.0.1:31898", "--master: \"10.0.0.1:31898\" is not the address of a master"),
        ("ftp://host", "it must begin with http:// or https://"),
        ("", "--master"),
        ("http://me:secret@host:1", "--master: a master's address may have only a host, a port and a path"),
    ] {
        refused(folder.path(), &["--master", url], sentence);
    }
    let hint = run(folder.path(), &["--master", "10.0.0.1:31898"]);
    hint.expect_stderr("hint: write http://10.0.0.1:31898");
}

#[test]
fn submit_flags_with_a_verb_are_refused_and_global_flags_are_not() {
    let folder = folder_with_script();
    for (arguments, sentence) in [
        (&["--worker-num", "4", "list"][..], "--worker-num before \"list\" is an argument for submitting a job"),
        (&["-d", "status", "x"], "--detach before \"status\""),
        (&["-o", "json", "list"], "--output before \"list\""),
        (&["--strategy", "AllReduce", "wait", "x"], "--strategy before \"wait\""),
        (&["list", "--worker-num", "4"], "unexpected argument '--worker-num' found"),
    ] {
        refused(folder.path(), arguments, sentence);
    }
    // Nothing listens on port 9, so exit code 3 means that the client tried to connect.
    run(folder.path(), &["--master", "http://127.0.0.1:9", "list"]).expect_code(3);
    run(folder.path(), &["list", "--master", "http://127.0.0.1:9"]).expect_code(3);
}

#[test]
fn verbs_need_a_running_master() {
    let folder = folder_with_script();
    for arguments in [&["list"][..], &["status", "x"], &["logs", "x"], &["cancel", "x"]] {
        refused(folder.path(), arguments, "no master is given");
    }
    run(folder.path(), &["list"]).expect_stderr("hint: give --master URL or set MUSTER_MASTER");
    let asked = ["--master", "local", "list"];
    refused(folder.path(), &asked, "you have no running local master: a local master ends with its job");
    run(folder.path(), &asked).expect_stderr("hint: run `master --backend process` in another terminal");
}

#[test]
fn a_job_at_a_local_master_cannot_be_detached() {
    let folder = folder_with_script();
    refused(folder.path(), &["--detach", "--master", "local"], "--detach cannot be used with a local master");
}

#[test]
fn invalid_arguments_of_verbs_are_refused() {
    let folder = folder_with_script();
    let at = ["--master", "http://127.0.0.1:9"];
    for (arguments, sentence) in [
        (&["status"][..], "<NAME>"),
        (&["status", "No_Name"], "task name \"No_Name\" is not a DNS label"),
        (&["logs", "x", "--replica", "boss-1"], "--replica: \"boss-1\" is not a replica"),
        (&["logs", "x", "--tail", "-3"], "--tail: invalid number of lines \"-3\": use a whole number"),
        (&["logs", "x", "--since", "5"], "--since: invalid duration \"5\": use a number and a unit"),
        (&["logs", "x", "--since", "-5m"], "--since: invalid duration \"-5m\": write 5m, without a minus sign"),
        (&["logs", "x", "--since", "-f"], "--since: invalid duration \"-f\": use a number and a unit"),
        (&["logs", "x", "--since-time", "-5m"], "--since-time: invalid time \"-5m\": use RFC 3339"),
        (&["wait", "x", "--timeout", "-5m"], "--timeout: invalid duration \"-5m\": write 5m, without a minus sign"),
        (&["--deadline", "-5m"], "--deadline: invalid duration \"-5m\": write 5m, without a minus sign"),
        (&["logs", "x", "--since", "999999999999h"], "--since: invalid duration"),
        (&["logs", "x", "--since-time", "tomorrow"], "--since-time: invalid time \"tomorrow\": use RFC 3339"),
        (&["logs", "x", "--since", "5m", "--since-time", "2026-11-24T00:00:00Z"], "--since-time"),
        (&["logs", "x", "--tail", "4294967296"], "the maximum is 4294967295"),
        (&["wait", "x", "--timeout", "soon"], "--timeout: invalid duration \"soon\": use a number and a unit"),
        (&["wait", "x", "--timeout", "-5"], "--timeout: invalid duration \"-5\""),
        (&["wait", "x", "--timeout", "5"], "use a number and a unit, such as 90s, 10m or 2h"),
    ] {
        refused(folder.path(), &[arguments, &at[..]].concat(), sentence);
    }
}

#[test]
fn a_bad_command_line_has_a_hint_that_fits_the_typed_verb() {
    let folder = folder_with_script();
    for (arguments, hint) in [
        (&["status"][..], "hint: client status --help"),
        (&["list", "foo"], "hint: client list --help"),
        (&["logs", "x", "--tail", "-1"], "hint: client logs --help"),
        (&["foo"], "hint: client --help lists flags and verbs"),
        (&["lgos"], "hint: did you mean \"logs\"?"),
        (&["lgos", "digits"], "hint: did you mean \"logs\"?"),
        (
            &["-d", "train.py", "more.py"],
            "hint: client --help lists flags and verbs; pass arguments for the script after --",
        ),
        (&["--worker-num", "-1"], "hint: client --help lists flags and verbs"),
        (&["status", "--task", "wj"], "hint: client status --help"),
        (&["--backoff", "-1s"], "hint: client --help lists flags and verbs"),
        (&["--epochs", "3"], "hint: client --help lists flags and verbs; pass arguments for the script after --\n"),
        (&["--worker-nun", "3"], "hint: a similar argument exists: '--worker-num'"),
        (&["--tail", "3", "logs", "x"], "hint: 'logs --tail' exists"),
    ] {
        run(folder.path(), arguments).expect_code(2).expect_stderr(hint);
    }
}

#[test]
fn a_long_flag_with_one_dash_has_a_hint() {
    let folder = folder_with_script();
    for (arguments, hint) in [
        (&["-worker-num", "2"][..], "hint: did you mean --worker-num?"),
        (&["-task=digits"], "hint: did you mean --task?"),
        (&["logs", "x", "-follow"], "hint: did you mean --follow?"),
        (&["-workers", "2"], "hint: client --help lists flags and verbs"),
        (&["-x", "--", "-task"], "hint: client --help lists flags and verbs"),
    ] {
        run(folder.path(), arguments).expect_code(2).expect_stderr(hint);
    }
}

#[test]
fn a_token_file_that_cannot_be_read_is_an_error() {
    let folder = folder_with_script();
    let at = ["list", "--master", "http://127.0.0.1:9", "--token-file", "no-such-token"];
    refused(folder.path(), &at, "read the token file no-such-token");
}
