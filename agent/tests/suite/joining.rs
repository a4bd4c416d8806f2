//! The command lines of agents that join a job from a bare machine, and the routes with which a master checks the
//! addresses of agents.

use std::collections::BTreeMap;
use std::ffi::OsString;

use agent::config::join::{Endpoint, Join};
use agent::config::{Config, Invocation, UsageError, parse};
use protocol::elastic::Workers;

use crate::support::Agent;

fn parsed(arguments: &str, own: &[(&str, &str)]) -> Result<Config, UsageError> {
    let own: BTreeMap<OsString, OsString> = own.iter().map(|(name, value)| (name.into(), value.into())).collect();
    match parse(arguments.split_whitespace().map(OsString::from).collect(), own)? {
        Invocation::Agent(config) => Ok(*config),
        other @ (Invocation::Shim(_) | Invocation::Install(_) | Invocation::Help | Invocation::Version) => {
            panic!("{other:?}")
        }
    }
}

fn join(arguments: &str) -> Join {
    parsed(arguments, &[]).expect(arguments).join.expect("no job to join")
}

fn endpoint(host: &str, port: impl Into<Option<u16>>) -> Endpoint {
    Endpoint { host: host.to_owned(), port: port.into() }
}

#[test]
fn an_agent_joins_the_job_that_its_flags_name() {
    let joins =
        join("--join http://10.0.0.1:80 --task digits --worker-num 1:2 --address m2:1 --lease 9 --max-restarts 0");
    assert_eq!((joins.master, joins.task.as_str()), (endpoint("10.0.0.1", 80), "digits"));
    assert_eq!(joins.options.workers, Some(Workers { min: 1, max: 2 }));
    assert_eq!(joins.options.address, Some(endpoint("m2", 1)));
    assert_eq!((joins.options.lease_seconds, joins.options.max_restarts), (Some(9), Some(0)));
    assert_eq!(parsed("", &[("MUSTER_TOKEN", "secret")]).expect("the empty command line is refused").join, None);
    let own =
        parsed("--join master --task digits", &[("MUSTER_TOKEN", "secret")]).expect("the command line is refused");
    assert_eq!(own.join.and_then(|join| join.token).as_deref(), Some("secret"));
    assert!(own.environment.is_empty(), "the environment of scripts has the token");
}

#[test]
fn a_lease_is_a_duration_as_in_the_client_or_a_number_of_seconds() {
    for (given, seconds) in [("5s", 5), ("1m30s", 90), ("5", 5)] {
        let joins = join(&format!("--join master --task digits --lease {given}"));
        assert_eq!(joins.options.lease_seconds, Some(seconds), "{given}");
    }
}

#[test]
fn flags_in_the_spelling_of_torchrun_have_the_same_effect() {
    let ours = join("--join 10.0.0.1:29400 --task digits --worker-num 2 --nproc-per-node 8 --max-restarts 3");
    let theirs = "--rdzv_endpoint=10.0.0.1:29400 --rdzv_id=digits --nnodes=2:2 --nproc_per_node=8 --max_restarts=3 \
                  --monitor_interval=0.5";
    assert_eq!(join(theirs), ours);
    assert_eq!(join(&theirs.replace('_', "-")), ours);
}

#[test]
fn a_host_may_be_a_name_or_an_address_with_or_without_a_port() {
    let known = [
        ("http://master", endpoint("master", None)),
        ("http://master/", endpoint("master", None)),
        ("[::1]:80", endpoint("::1", 80)),
        ("127.0.0.1", endpoint("127.0.0.1", None)),
    ];
    for (text, expected) in known {
        assert_eq!(text.parse::<Endpoint>().expect(text), expected);
    }
    for bad in ["", "https://m", "http://m/v1", "m:x", "m:70000", "u@m:1", "http://", "m?q=1", ":80"] {
        assert!(bad.parse::<Endpoint>().is_err(), "{bad:?}");
    }
}

#[test]
fn bad_values_and_flags_that_cannot_be_combined_are_refused() {
    let joins = "--join http://10.0.0.1:7897 --task digits";
    let hash = "0".repeat(64);
    let refused = [
        ("--task digits".to_owned(), "--task has no meaning without --join"),
        ("--nnodes 2".to_owned(), "--worker-num has no meaning without --join"),
        ("--join http://10.0.0.1:7897".to_owned(), "--join needs --task NAME, the name of the job"),
        (format!("{joins} --supervised"), "--supervised has no meaning with --join"),
        (
            format!("{joins} --token-sha256 {hash}"),
            "--token-sha256 has no meaning with --join: the master chooses the agent's token",
        ),
        (
            format!("{joins} --worker-num 2:"),
            "--worker-num: \"2:\" is invalid: use a number such as 2, or MIN:MAX such as 1:2",
        ),
        (
            format!("{joins} --lease 500ms"),
            "--lease: \"500ms\" is invalid: use a duration of whole seconds, such as 5s",
        ),
        ("--join https://m --task digits".to_owned(), "--join: \"https://m\" is invalid: use http://HOST:PORT"),
    ];
    for (arguments, says) in refused {
        assert_eq!(parsed(&arguments, &[]).map(drop).map_err(|error| error.to_string()), Err(says.to_owned()));
    }
    let own = [("MUSTER_TOKEN", "a b")];
    let error = parsed(joins, &own).map(drop).expect_err("a token with a space is accepted").to_string();
    assert_eq!(error, "MUSTER_TOKEN is empty, or contains characters other than visible ASCII");
}

#[test]
fn healthz_with_the_boot_id_of_another_agent_is_refused() {
    let agent = Agent::of_shell("true");
    let own = agent.status().boot_id;
    assert_eq!(agent.get(&format!("/healthz?boot_id={own}")).status, 200);
    let answer = agent.get("/healthz?boot_id=another");
    assert_eq!((answer.status, answer.problem().detail.as_str()), (409, "another agent listens at this address"));
}

#[test]
fn the_route_reach_reports_whether_the_agent_can_connect_to_an_address() {
    let (agent, another) = (Agent::of_shell("true"), Agent::of_shell("true"));
    let asked = |address: &str| agent.get(&format!("/reach?address={address}"));
    assert_eq!(asked(&another.address.to_string()).status, 200);
    // Nothing listens on port 1.
    let answer = asked("127.0.0.1:1");
    assert_eq!((answer.status, answer.problem().detail.as_str()), (502, "Connection refused (os error 111)"));
    assert_eq!([asked("127.0.0.1").status, agent.get("/reach").status], [400, 400]);
}
