//! Tests which jobs are warm, and which variables and modules their warm interpreters receive.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use job::rendezvous::Rendezvous;
use job::warm;
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::{Preload, RunPolicy};
use serde_json::json;

/// The address of an agent in a pod.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn spec(strategy: Strategy, preload: Option<Preload>) -> JobSpec {
    let request = JobRequest::new("digits".parse().expect("not a job's name"), strategy);
    let env = [("EPOCHS", "3"), ("PYTHONUNBUFFERED", "0")];
    let env = env.map(|(name, value)| (name.parse().expect("not a variable's name"), value.to_owned())).into();
    let run_policy = RunPolicy { preload, ..RunPolicy::default() };
    JobSpec::try_from(JobRequest { env, run_policy, ..request }).expect("an invalid request")
}

#[test]
fn a_fixed_job_without_code_is_warm_only_if_its_user_asks_for_it() {
    for (preload, expected) in [(None, false), (Some(Preload::Never), false), (Some(Preload::Modules(vec![])), true)] {
        let spec = spec(Strategy::AllReduce, preload);
        assert_eq!(warm::is_warm(&spec), expected, "{spec:?}");
        assert_eq!(warm::request(&spec, Role::Worker, ADDRESS).is_some(), expected, "{spec:?}");
    }
}

#[test]
fn a_warm_request_has_only_the_variables_that_are_the_same_in_every_start() {
    let modules = vec!["tensorflow.keras".parse().expect("not a module"), "numpy".parse().expect("not a module")];
    let all = spec(Strategy::AllReduce, Some(Preload::Modules(modules)));
    let golden = json!({
        "env": {
            "EPOCHS": "3", "PYTHONUNBUFFERED": "0",
            "TF_GRPC_WORKER_CACHE_QUEUES": "1", "TF_GRPC_WORKER_CACHE_THREADS": "1",
        },
        "modules": ["tensorflow.keras", "numpy"],
    });
    let request = warm::request(&all, Role::Worker, ADDRESS).expect("not a warm job");
    assert_eq!(serde_json::to_value(request).expect("not JSON"), golden);
    // Agents at loopback share their machine. They learn the number of ranks, from which they compute OMP_NUM_THREADS.
    let loopback = warm::request(&all, Role::Worker, Ipv4Addr::LOCALHOST.into()).expect("not a warm job");
    let ranks =
        loopback.env.iter().find(|(name, _)| name.as_str() == "LOCAL_WORLD_SIZE").map(|(_, value)| value.as_str());
    assert_eq!((ranks, loopback.env.len()), (Some("2"), 5));
    let servers = spec(Strategy::ParameterServer, Some(Preload::Modules(vec![])));
    for (role, fails_fast) in [(Role::Ps, true), (Role::Worker, true), (Role::Chief, false)] {
        let request = warm::request(&servers, role, ADDRESS).expect("not a warm job");
        assert_eq!(request.env.keys().any(|name| name.as_str() == "GRPC_FAIL_FAST"), fails_fast, "{role:?}");
    }
}

/// Otherwise, the interpreter would not have the environment of a start, and the start would be cold.
#[test]
fn a_warm_interpreter_gets_the_variables_with_their_references_expanded_as_in_a_start() {
    let env = [("PRICE", "$$5"), ("TEXT", "$(PRICE) at $(NOWHERE)"), ("NAME", "run-$(RANK)")];
    let env = env.map(|(name, value)| (name.parse().expect("not a variable's name"), value.to_owned())).into();
    let preload = RunPolicy { preload: Some(Preload::Modules(vec![])), ..RunPolicy::default() };
    let request = JobRequest::new("digits".parse().expect("not a job's name"), Strategy::AllReduce);
    let spec = JobSpec::try_from(JobRequest { env, run_policy: preload, ..request }).expect("an invalid request");
    let warm = warm::request(&spec, Role::Worker, ADDRESS).expect("not a warm job");
    let worker = ReplicaId { role: Role::Worker, index: 0 };
    let members = [(worker, SocketAddr::new(ADDRESS, 1))].into();
    let rendezvous = Rendezvous::new(&spec, "1.1".parse().expect("not a generation"), &members);
    let start = serde_json::to_value(rendezvous.environment(worker)).expect("not JSON");
    let [price, text, name] = ["PRICE", "TEXT", "NAME"].map(|name| name.parse().expect("not a variable's name"));
    assert_eq!((warm.env[&price].as_str(), &start["PRICE"]), ("$5", &json!("$5")));
    assert_eq!((warm.env[&text].as_str(), &start["TEXT"]), ("$5 at $(NOWHERE)", &json!("$5 at $(NOWHERE)")));
    assert_eq!((warm.env[&name].as_str(), &start["NAME"]), ("run-$(RANK)", &json!("run-0")), "the rank may change");
}
