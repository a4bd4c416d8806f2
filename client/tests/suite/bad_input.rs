//! A bad command line is refused in one sentence, before anything starts.

use std::path::Path;

use crate::support::{folder_with_script, run};

/// Runs the client with this command line, whose words have one blank between them. Checks: exit code 2, nothing on
/// stdout, one error line with this sentence, and only hints after that line.
#[track_caller]
fn refused(folder: &Path, line: &str, sentence: &str) {
    let ended = run(folder, &line.split(' ').collect::<Vec<_>>()).expect_code(2);
    assert_eq!(ended.stdout, "", "{line}");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines[0].contains(sentence), "{line}: {}", ended.stderr);
    let hints = lines[1..].iter().filter(|line| line.starts_with("hint: ")).count();
    assert_eq!(lines.len() - 1, hints, "{line}: {}", ended.stderr);
}

#[test]
fn bad_numbers_and_durations_are_refused() {
    let folder = folder_with_script();
    for (line, sentence) in [
        ("--worker-num 0", "worker-num is 0: use at least 1"),
        ("--worker-num -1", "--worker-num: invalid number of replicas \"-1\""),
        ("--worker-num 3.5", "--worker-num: invalid number of replicas \"3.5\""),
        ("--worker-num four", "--worker-num: invalid number of replicas \"four\""),
        ("--worker-num ", "--worker-num"),
        ("--worker-num 4294967296", "invalid number of replicas \"4294967296\": the maximum is 5457"),
        ("--max-restarts 99999999999999999999", "the maximum is 4294967295"),
        ("--worker-num -99999999999", "--worker-num: invalid number of replicas \"-99999999999\""),
        ("--worker-num 100000", "worker-num 100000 is too large"),
        ("--worker-num", "--worker-num <N|MIN:MAX>"),
        ("--worker-num 4:2", "the minimum of workers, 4, is above the maximum, 2"),
        ("--worker-num 0:3", "worker-num is 0: use at least 1"),
        ("--worker-num 2:", "--worker-num: invalid number of workers \"2:\": use one number, such as 4, or"),
        ("--worker-num :4", "--worker-num: invalid number of workers \":4\""),
        ("--worker-num 2:8:1", "--worker-num: invalid number of workers \"2:8:1\""),
        ("--worker-num two:8", "--worker-num: invalid number of replicas \"two\""),
        ("--worker-num 2:4294967296", "invalid number of replicas \"4294967296\": the maximum is 5457"),
        ("--ps-num 1", "ps-num is 1, but AllReduce has no parameter servers"),
        ("--strategy ps --ps-num 0", "ps-num is 0"),
        ("--chief-num 2", "chief-num 2 is not allowed"),
        ("--evaluator-num 2", "evaluator-num 2 is not allowed"),
        ("wait digits --notify file:///tmp/x", "--notify: use an address that begins with http:// or https://"),
        ("--metric loss", "--metric: write NAME=REGEX, such as loss='loss: ([0-9.]+)'"),
        ("--metric loss=loss", "--metric: the regular expression has 0 groups"),
        ("--metric loss=(", "--metric: not a regular expression: "),
        ("--metric =([0-9]+)", "invalid name of a metric \"\""),
        ("--deadline 1ms", "--deadline: invalid duration \"1ms\": use whole seconds, such as 1s"),
        ("--start-timeout 0.5s", "--start-timeout: invalid duration \"0.5s\": use whole seconds"),
        ("--backoff 1500ms", "--backoff: invalid duration \"1500ms\": use whole seconds"),
        ("--termination-grace 1ms", "--termination-grace: invalid duration \"1ms\": use whole seconds"),
        ("--ttl-after-finished 200years", "invalid duration \"200years\": the maximum is 4294967295s"),
        ("--deadline 0s", "deadline"),
        ("--deadline -5m", "--deadline: invalid duration \"-5m\": write 5m, without a minus sign"),
    ] {
        refused(folder.path(), line, sentence);
    }
}

#[test]
fn bad_names_variables_addresses_flags_and_verbs_are_refused() {
    let folder = folder_with_script();
    std::fs::write(folder.path().join("job.env"), "A=1\nPASSWORD hunter2\n").unwrap();
    let [too_long, longest] = [56, 55].map(|length| format!("--task {}", "a".repeat(length)));
    for (line, sentence) in [
        ("--strategy Horovod", "--strategy: strategy \"Horovod\" is unknown: use AllReduce or ParameterServer"),
        ("--task My_Job", "--task: task name \"My_Job\" is not a DNS label"),
        (&too_long, "is not a DNS label: use 1 to 55 of a-z"),
        (&format!("{longest} --worker-num 2"), "is too long: the pod name "),
        ("--task ", "--task"),
        ("--env 1A=x", "--env: environment name \"1A\" is not allowed"),
        ("--env =x", "--env: environment name \"\" is not allowed"),
        ("--env TF_CONFIG={}", "TF_CONFIG is set by Muster itself"),
        ("--env MUSTER_JOB=x", "MUSTER_JOB is set by Muster itself"),
        ("--env NOBODY_HAS_THIS", "--env NOBODY_HAS_THIS: NOBODY_HAS_THIS is not set in your environment"),
        ("--env-file no-such.env", "--env-file: read no-such.env"),
        ("--env-file job.env", "--env-file: job.env, line 2: not of the form NAME=VALUE"),
        ("-o yaml", "invalid value 'yaml' for '--output <FORMAT>'"),
        ("--workers 4", "unexpected argument '--workers' found"),
        ("lits", "unknown verb \"lits\""),
        ("--worker-num 4 foo", "unknown verb \"foo\""),
        ("list foo bar", "unexpected argument 'bar' found"),
        ("list --state running,lost", "--state: \"lost\" is not a state; the states are pending, starting, "),
        ("--master 10.0.0.1:31898", "--master: \"10.0.0.1:31898\" is not the address of a master"),
        ("--master ftp://host", "it must begin with http:// or https://"),
        ("--master ", "--master"),
        ("--master http://me:secret@host:1", "--master: a master's address may have only a host, a port and a path"),
        ("--detach --master local", "--detach cannot be used with a local master"),
        ("list --master http://127.0.0.1:9 --token-file no-such-token", "read the token file no-such-token"),
    ] {
        refused(folder.path(), line, sentence);
    }
}

#[test]
fn bad_values_of_flags_for_pods_are_refused() {
    let folder = folder_with_script();
    for (line, sentence) in [
        ("--image Digits", "--image: \"Digits\" is not the name of an image"),
        ("--push http://r", "--push: \"http://r\" is not a registry: write HOST[:PORT][/PATH]"),
        ("--load helm", "invalid value 'helm' for '--load <TOOL>'"),
        ("--push r:1 --load kind", "'--push <REGISTRY>' cannot be used with '--load <TOOL>'"),
        ("--cpu many", "--cpu: \"many\" is not a valid amount: write a quantity such as 2, 500m or 4Gi"),
        ("--memory 2Gi:1Gi", "--memory: \"2Gi:1Gi\" is not a valid amount"),
        ("--cpu -1", "--cpu: \"-1\" is not a valid amount"),
        ("--memory -1", "--memory: \"-1\" is not a valid amount"),
        ("--gpus -1", "--gpus: invalid number of GPUs \"-1\": use a whole number"),
        ("--volume data", "--volume: \"data\" is not a valid volume: write pvc:CLAIM:/path"),
        ("--volume empty:/a --volume pvc:data:/a:ro", "--volume: two volumes have the path /a"),
        ("--env-secret My_Keys", "--env-secret: \"My_Keys\" is not a valid object name"),
        ("--node-selector disk", "--node-selector: \"disk\" is not of the form KEY=VALUE"),
        ("--toleration a=b:Sometimes", "--toleration: \"a=b:Sometimes\" is not a valid toleration"),
        ("--termination-grace 0s", "--termination-grace: invalid duration \"0s\": use at least 1s"),
        ("--termination-grace 1s1ms", "--termination-grace: invalid duration \"1s1ms\": use whole seconds"),
        ("--image-pull-policy Often", "--image-pull-policy: \"Often\" is not a valid pull policy"),
    ] {
        refused(folder.path(), line, sentence);
    }
}

#[test]
fn a_folder_without_a_script_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    refused(&path, "--master local", &format!("no exec.py in {}", path.display()));
    std::fs::create_dir(path.join("exec.py")).unwrap();
    refused(&path, "--master local", "is not a file");
}

#[test]
fn submit_flags_with_a_verb_are_refused_and_global_flags_are_not() {
    let folder = folder_with_script();
    for (line, sentence) in [
        ("--worker-num 4 list", "--worker-num before \"list\" is an argument for submitting a job"),
        ("-d status x", "--detach before \"status\""),
        ("-o json list", "--output before \"list\""),
        ("--strategy AllReduce wait x", "--strategy before \"wait\""),
        ("--preload list", "--preload before \"list\" is an argument for submitting a job"),
        ("list --worker-num 4", "unexpected argument '--worker-num' found"),
    ] {
        refused(folder.path(), line, sentence);
    }
    // Nothing listens on port 9, so exit code 3 means that the client tried to connect.
    run(folder.path(), &["--master", "http://127.0.0.1:9", "list"]).expect_code(3);
    run(folder.path(), &["list", "--master", "http://127.0.0.1:9"]).expect_code(3);
}

#[test]
fn verbs_need_a_running_master() {
    let folder = folder_with_script();
    for verb in ["get", "status x", "logs x", "cancel x"] {
        let word = verb.split(' ').next().unwrap_or_default();
        refused(folder.path(), verb, &format!("no master is given, but \"{word}\" needs one"));
    }
    let asked = "you have no running local master: a local master ends with its job";
    refused(folder.path(), "--master local get", asked);
}

#[test]
fn invalid_arguments_of_verbs_are_refused() {
    let folder = folder_with_script();
    for (line, sentence) in [
        ("status", "<NAME>"),
        ("status No_Name", "task name \"No_Name\" is not a DNS label"),
        ("logs x --replica boss-1", "--replica: \"boss-1\" is not a replica"),
        ("logs x --tail -3", "--tail: invalid number of lines \"-3\": use a whole number"),
        ("logs x --since 5", "--since: invalid duration \"5\": use a number and a unit"),
        ("logs x --since -5m", "--since: invalid duration \"-5m\": write 5m, without a minus sign"),
        ("logs x --since -f", "--since: invalid duration \"-f\": use a number and a unit"),
        ("logs x --since-time -5m", "--since-time: invalid time \"-5m\": use RFC 3339"),
        ("wait x --timeout -5m", "--timeout: invalid duration \"-5m\": write 5m, without a minus sign"),
        ("logs x --since 999999999999h", "--since: invalid duration"),
        ("logs x --since-time tomorrow", "--since-time: invalid time \"tomorrow\": use RFC 3339"),
        ("logs x --since 5m --since-time 2026-11-24T00:00:00Z", "--since-time"),
        ("logs x --tail 4294967296", "the maximum is 4294967295"),
        ("wait x --timeout soon", "--timeout: invalid duration \"soon\": use a number and a unit"),
        ("wait x --timeout -5", "--timeout: invalid duration \"-5\""),
        ("wait x --timeout 5", "use a number and a unit, such as 90s, 10m or 2h"),
    ] {
        refused(folder.path(), &format!("{line} --master http://127.0.0.1:9"), sentence);
    }
}

#[test]
fn a_bad_command_line_has_a_hint_that_fits_the_typed_words() {
    let folder = folder_with_script();
    for (line, hint) in [
        ("status", "client status --help"),
        ("list foo bar", "client list --help"),
        ("logs x --tail -1", "client logs --help"),
        ("foo", "client --help lists flags and verbs"),
        ("lgos", "did you mean \"logs\"?"),
        ("lgos digits", "did you mean \"logs\"?"),
        ("-d train.py more.py", "client --help lists flags and verbs; pass arguments for the script after --"),
        ("--worker-num -1", "client --help lists flags and verbs"),
        ("status --task wj", "client status --help"),
        ("--backoff -1s", "client --help lists flags and verbs"),
        ("--epochs 3", "client --help lists flags and verbs; pass arguments for the script after --\n"),
        ("--worker-nun 3", "a similar argument exists: '--worker-num'"),
        ("--tail 3 logs x", "'logs --tail' exists"),
        ("-worker-num 2", "did you mean --worker-num?"),
        ("-task=digits", "did you mean --task?"),
        ("--nnodes 2", "did you mean --worker-num?"),
        ("-np 2 exec.py", "did you mean --worker-num?"),
        ("logs x -follow", "did you mean --follow?"),
        ("-workers 2", "client --help lists flags and verbs"),
        ("-x -- -task", "client --help lists flags and verbs"),
        ("--master 10.0.0.1:31898", "write http://10.0.0.1:31898"),
        ("get", "give --master URL or set MUSTER_MASTER"),
        ("--master local get", "run `master --backend process` in another terminal"),
    ] {
        let ended = run(folder.path(), &line.split(' ').collect::<Vec<_>>()).expect_code(2);
        ended.expect_stderr(&format!("\nhint: {hint}"));
    }
}
