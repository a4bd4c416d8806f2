//! How the body of a config becomes the environment of a run, and how flags and variables become the agent's
//! configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use agent::config::{Config, Invocation, Supervision, parse};
use agent::process::environment::{Environment, child_environment, parse_config};

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
}

fn value(json: &str) -> Option<String> {
    let changes = parse_config(format!(r#"{{"A": {json} }}"#).as_bytes()).unwrap();
    changes.into_values().next().unwrap()
}

#[test]
fn json_strings_are_decoded_and_other_json_values_become_compact_text() {
    for (json, text) in [
        (r#""plain""#, "plain"),
        (r#""a \"quoted\" é \ud83d\ude00""#, "a \"quoted\" é 😀"),
        (r#""""#, ""),
        ("0", "0"),
        ("-1.50", "-1.50"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("true", "true"),
        ("false", "false"),
        ("{ \"b\" : [ 1 ,\n 2 ] , \"a\" : \" { \\\" } \" }", r#"{"b":[1,2],"a":" { \" } "}"#),
        (r#"[ "ends in a backslash \\" , 1 ]"#, r#"["ends in a backslash \\",1]"#),
        ("[ ]", "[]"),
    ] {
        assert_eq!(value(json).as_deref(), Some(text), "{json}");
    }
    assert_eq!(value("null"), None);
}

#[test]
fn a_config_adds_replaces_and_removes_variables() {
    let own = environment(&[("KEPT", "1"), ("REPLACED", "1"), ("REMOVED", "1")]);
    let changes = parse_config(br#"{"REPLACED": "2", "REMOVED": null, "ADDED": "3", "NEVER_WAS": null}"#).unwrap();
    let expected = environment(&[("ADDED", "3"), ("KEPT", "1"), ("REPLACED", "2")]);
    assert_eq!(child_environment(&own, &changes), expected);
}

/// The agent's own variables, and the run's values of no_proxy and NO_PROXY.
type Case = (&'static [(&'static str, &'static str)], Option<&'static str>, Option<&'static str>);

#[test]
fn peers_are_added_to_no_proxy_if_a_proxy_is_set() {
    let peers = br#"{"MUSTER_NO_PROXY": "10.0.0.1,10.0.0.2"}"#;
    let table: [Case; 6] = [
        (&[], None, None),
        (&[("no_proxy", "x")], Some("x"), None),
        (&[("http_proxy", "")], None, None),
        (&[("GRPC_PROXY", "p")], Some("10.0.0.1,10.0.0.2"), Some("10.0.0.1,10.0.0.2")),
        (&[("https_proxy", "p"), ("NO_PROXY", "x")], Some("x,10.0.0.1,10.0.0.2"), Some("x,10.0.0.1,10.0.0.2")),
        (
            &[("http_proxy", "p"), ("NO_PROXY", "X"), ("no_proxy", "x")],
            Some("x,10.0.0.1,10.0.0.2"),
            Some("X,10.0.0.1,10.0.0.2"),
        ),
    ];
    for (own, lower, upper) in table {
        let child = child_environment(&environment(own), &parse_config(peers).unwrap());
        let get = |name: &str| child.get(&OsString::from(name)).map(|v| v.to_str().unwrap());
        assert_eq!((get("no_proxy"), get("NO_PROXY")), (lower, upper), "{own:?}");
        assert_eq!(get("no_grpc_proxy"), None);
    }
    let own = environment(&[("grpc_proxy", "p"), ("no_grpc_proxy", "x")]);
    let child = child_environment(&own, &parse_config(peers).unwrap());
    assert_eq!(child[&OsString::from("no_grpc_proxy")], "x,10.0.0.1,10.0.0.2");
    let untouched = environment(&[("http_proxy", "p"), ("no_proxy", "x")]);
    let child = child_environment(&untouched, &BTreeMap::new());
    assert_eq!(child, untouched, "the environment changed although there are no peers");
    // JAX takes each variable with `_proxy` in its name for a proxy, and then warns that the script may hang.
    let child = child_environment(&environment(&[]), &parse_config(peers).unwrap());
    assert_eq!(child, environment(&[]), "without a proxy, a script gets MUSTER_NO_PROXY");
}

#[test]
fn ranks_that_share_a_machine_get_one_thread_each_unless_someone_has_set_a_number() {
    for (own, config, threads) in [
        (None, r#"{"LOCAL_WORLD_SIZE": 2}"#, Some("1")),
        (None, r#"{"LOCAL_WORLD_SIZE": 1}"#, None),
        (None, "{}", None),
        (Some("8"), r#"{"LOCAL_WORLD_SIZE": 2}"#, Some("8")),
        (Some("8"), r#"{"LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": "4"}"#, Some("4")),
        (Some("8"), r#"{"LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": null}"#, None),
    ] {
        let own: Environment = own.map(|own| ("OMP_NUM_THREADS".into(), own.into())).into_iter().collect();
        let child = child_environment(&own, &parse_config(config.as_bytes()).unwrap());
        let found = child.get(&OsString::from("OMP_NUM_THREADS")).map(|value| value.to_str().unwrap());
        assert_eq!(found, threads, "{own:?} {config}");
    }
}

fn configuration(arguments: &[&str], own: &[(&str, &str)]) -> Config {
    let invocation = parse(arguments.iter().map(OsString::from).collect(), environment(own)).unwrap();
    let Invocation::Agent(config) = invocation else { panic!("{invocation:?}") };
    *config
}

#[test]
fn an_agent_without_a_token_listens_on_loopback_unless_configured() {
    let listens = |arguments: &[&str], own: &[(&str, &str)]| {
        let addresses = configuration(arguments, own).addresses();
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let (local, open) = ("127.0.0.1:7896 [::1]:7896", "[::]:7896 0.0.0.0:7896");
    let token = "0".repeat(64);
    assert_eq!(listens(&[], &[]), local);
    assert_eq!(listens(&["--supervised"], &[]), local);
    assert_eq!(listens(&["--token-sha256", &token], &[]), open);
    assert_eq!(listens(&[], &[("MUSTER_TOKEN_SHA256", &token)]), open);
    assert_eq!(listens(&["--listen", "0.0.0.0:1"], &[]), "0.0.0.0:1");
    assert_eq!(listens(&[], &[("MUSTER_LISTEN", "0.0.0.0:1")]), "0.0.0.0:1");
}

#[test]
fn flags_override_variables_and_variables_override_defaults() {
    let default = configuration(&[], &[]);
    assert_eq!(default.listen, None);
    assert_eq!(default.command, ["python", "exec.py"]);
    assert_eq!((default.linger, default.termination_grace), (Duration::from_secs(600), Duration::from_secs(30)));
    assert_eq!((default.log_bytes.get(), default.supervision), (16_777_216, Supervision::Pod));

    assert_eq!(default.termination_log, Some("/dev/termination-log".into()));

    let variables = [
        ("MUSTER_LISTEN", "[::]:1"),
        ("MUSTER_TERMINATION_GRACE_SECONDS", "2"),
        ("MUSTER_COMMAND", "python -u x.py"),
        ("MUSTER_JOB", "j"),
        ("PATH", "p"),
    ];
    let config = configuration(&["--termination-grace", "1.5", "--work-dir=/srv"], &variables);
    assert_eq!(
        (config.listen.unwrap().to_string().as_str(), config.termination_grace),
        ("[::]:1", Duration::from_millis(1500))
    );
    assert_eq!((config.folders.work_dir.to_str(), config.command.len()), (Some("/srv"), 3));
    assert_eq!(config.environment, environment(&[("PATH", "p")]), "wrong environment of the command");

    let config = configuration(&["--supervised", "--", "sh", "--listen", "--", "x"], &variables);
    assert_eq!(config.termination_log, None, "a supervised agent has a termination log");
    assert_eq!(config.command, ["sh", "--listen", "--", "x"]);
}

#[test]
fn variables_with_the_prefix_of_the_script_reach_the_script_without_the_prefix() {
    let variables = [("MUSTER_SCRIPT_BATCH", "64"), ("MUSTER_SCRIPT_PATH", "/opt"), ("PATH", "/bin"), ("A", "1")];
    let config = configuration(&[], &variables);
    assert_eq!(config.environment, environment(&[("A", "1"), ("BATCH", "64"), ("PATH", "/opt")]));
}

#[test]
fn the_words_of_an_entrypoint_keep_their_order_and_do_not_change_the_command() {
    let entrypoint = ["--entrypoint=bash", "--entrypoint", "/my script.sh"];
    for command in [&[][..], &["--", "python", "exec.py", "--", "x"]] {
        let config = configuration(&[&entrypoint[..], command].concat(), &[]);
        assert_eq!(config.entrypoint, ["bash", "/my script.sh"]);
        assert_eq!(config.command, configuration(command, &[]).command);
    }
}
