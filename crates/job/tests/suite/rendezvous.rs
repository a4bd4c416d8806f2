//! Tests of the environment of each member: TF_CONFIG with the TensorFlow cluster and the member's task, and
//! further variables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use job::rendezvous::Rendezvous;
use job::{plan, warm};
use proptest::prelude::{Strategy as _, prop_assert, prop_assert_eq, proptest};
use protocol::batching::{BatchList, Batching};
use protocol::env::EnvName;
use protocol::group::Group;
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::pod::PodOptions;
use protocol::processes::NprocPerNode;
use protocol::run_policy::{NO_RESTART_LIMIT, Preload, RunPolicy};
use protocol::tf_config::TfConfigOptions;
use serde_json::{Value, json};

use crate::support::{FIRST, cases, id};

fn request(strategy: Strategy, worker_num: u32) -> JobRequest {
    JobRequest {
        worker_num: Some(worker_num),
        ..JobRequest::new("digits".parse().expect("not a job's name"), strategy)
    }
}

fn spec(request: JobRequest) -> JobSpec {
    JobSpec::try_from(request).expect("an invalid request")
}

/// A distinct address for each replica.
fn members(spec: &JobSpec) -> BTreeMap<ReplicaId, SocketAddr> {
    let address = |(place, id): (usize, ReplicaId)| {
        let place = u16::try_from(place).expect("gangs of tests are small");
        (id, SocketAddr::from(([10, 0, (place >> 8) as u8, place as u8], 1234)))
    };
    plan::replicas(spec).into_iter().enumerate().map(address).collect()
}

/// The environment of every member, as JSON.
fn environments(spec: &JobSpec) -> BTreeMap<ReplicaId, Value> {
    let members = members(spec);
    let rendezvous = Rendezvous::new(spec, FIRST, &members).of_job("u-1");
    let body = |id: &ReplicaId| {
        let text = serde_json::to_string(&rendezvous.environment(*id)).expect("not JSON");
        (*id, serde_json::from_str(&text).expect("not JSON"))
    };
    members.keys().map(body).collect()
}

#[test]
fn each_of_four_workers_gets_the_whole_tensorflow_cluster_and_its_own_task_and_rank() {
    let cluster = json!({"worker": ["10.0.0.0:1234", "10.0.0.1:1234", "10.0.0.2:1234", "10.0.0.3:1234"]});
    for (place, (id, env)) in environments(&spec(request(Strategy::AllReduce, 4))).into_iter().enumerate() {
        let tf_config = json!({"cluster": cluster, "task": {"type": "worker", "index": place}});
        assert_eq!(env["TF_CONFIG"], tf_config, "{id}");
        assert_eq!((&env["RANK"], &env["WORLD_SIZE"]), (&json!(place), &json!(4)), "{id}");
        assert_eq!((&env["WORKER_NUMBER"], &env["TOT_WORKERS"]), (&json!(place), &json!(4)), "{id}");
        assert_eq!(env["NUM_WORKERS"], json!(4), "{id}");
    }
}

#[test]
fn an_environment_has_exactly_the_documented_variables() {
    let env = &environments(&spec(request(Strategy::AllReduce, 1)))[&id("worker-0")];
    let expected = json!({
        "TF_CONFIG": {"cluster": {"worker": ["10.0.0.0:1234"]}, "task": {"type": "worker", "index": 0}},
        "NUM_WORKERS": 1, "TOT_WORKERS": 1, "WORKER_NUMBER": 0, "RANK": 0, "WORLD_SIZE": 1,
        "MUSTER_JOB": "digits", "MUSTER_ROLE": "worker", "MUSTER_INDEX": 0, "MUSTER_GENERATION": "1.1",
        "MUSTER_RESTART_COUNT": 0, "MUSTER_NO_PROXY": "10.0.0.0", "PYTHONUNBUFFERED": "1",
        "TF_GRPC_WORKER_CACHE_THREADS": "1", "TF_GRPC_WORKER_CACHE_QUEUES": "1",
        "PS_HOSTS": "", "WORKER_HOSTS": "10.0.0.0:1234",
    });
    let of_launchers = json!({
        "MASTER_ADDR": "10.0.0.0", "MASTER_PORT": 1234, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default", "ROLE_RANK": 0, "ROLE_WORLD_SIZE": 1,
        "TORCHELASTIC_RUN_ID": "u-1", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 3,
        "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        "PET_NNODES": 1, "PET_NODE_RANK": 0, "PET_NPROC_PER_NODE": 1,
        "PET_MASTER_ADDR": "10.0.0.0", "PET_MASTER_PORT": 1234,
        "JAX_COORDINATOR_ADDRESS": "10.0.0.0:1234", "JAX_NUM_PROCESSES": 1, "JAX_PROCESS_ID": 0,
        "COORDINATOR_ADDRESS": "10.0.0.0", "COORDINATOR_PORT": 1234, "NUM_PROCESSES": 1, "PROCESS_ID": 0,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.0:1234", "KERAS_DISTRIBUTION_NUM_PROCESSES": 1,
        "KERAS_DISTRIBUTION_PROCESS_ID": 0,
    });
    let all = [&expected, &of_launchers].map(|part| part.as_object().expect("not an object").clone());
    assert_eq!(env, &Value::Object(all.into_iter().flatten().collect()));
}

#[test]
fn without_a_limit_of_restarts_torchelastics_variable_is_the_largest_number_of_32_bits_with_a_sign() {
    let run_policy = RunPolicy { max_restarts: NO_RESTART_LIMIT, ..RunPolicy::default() };
    let request = JobRequest { run_policy, ..request(Strategy::AllReduce, 1) };
    let env = &environments(&spec(request))[&id("worker-0")];
    assert_eq!(env["TORCHELASTIC_MAX_RESTARTS"], json!(2_147_483_647));
}

/// The values of these variables as JSON. A variable that is not set has the value `-`.
fn chosen(env: &Value, names: [&str; 6]) -> Vec<String> {
    names.map(|name| env.get(name).map_or("-".to_owned(), Value::to_string)).into()
}

const PLACES: [&str; 6] =
    ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "PET_NODE_RANK", "PET_NNODES"];

#[test]
fn replicas_on_the_same_host_are_numbered_as_one_group() {
    let spec = spec(request(Strategy::AllReduce, 4));
    let places = |addresses: [&str; 4]| {
        let addresses = addresses.map(|text| text.parse::<SocketAddr>().expect("not an address"));
        let members = plan::replicas(&spec).into_iter().zip(addresses).collect();
        let rendezvous = Rendezvous::new(&spec, FIRST, &members);
        let place = |id: &ReplicaId| {
            chosen(&serde_json::to_value(rendezvous.environment(*id)).expect("not JSON"), PLACES).join(" ")
        };
        members.keys().map(place).collect::<Vec<_>>()
    };
    let pods = ["10.0.0.9:1234", "10.0.0.2:1234", "10.0.0.3:1234", "[fd00::4]:1234"];
    assert_eq!(places(pods), ["0 1 0 4 0 4", "0 1 1 4 1 4", "0 1 2 4 2 4", "0 1 3 4 3 4"]);
    let laptop = ["127.0.0.1:20003", "127.0.0.1:20001", "127.0.0.1:20004", "127.0.0.1:20002"];
    assert_eq!(places(laptop), ["0 4 0 1 0 4", "1 4 0 1 1 4", "2 4 0 1 2 4", "3 4 0 1 3 4"]);
    let both = ["10.0.0.9:1", "10.0.0.2:1", "10.0.0.9:2", "10.0.0.2:2"];
    assert_eq!(places(both), ["0 2 0 2 0 4", "0 2 1 2 1 4", "1 2 0 2 2 4", "1 2 1 2 3 4"]);
}

/// The environment of each process of a replica, as an agent merges it.
fn processes(body: &Value) -> Vec<Value> {
    let merge = |own: &Value| {
        let mut merged = body["all"].clone();
        for (name, value) in own.as_object().expect("not an object") {
            match (&mut merged[name], value) {
                (Value::Object(shared), Value::Object(own)) => shared.extend(own.clone()),
                (place, value) => *place = value.clone(),
            }
        }
        merged
    };
    body["each"].as_array().expect("no list").iter().map(merge).collect()
}

#[test]
fn each_of_several_processes_has_a_rank_and_a_task_of_its_own() {
    let spec = spec(JobRequest {
        nproc_per_node: Some(NprocPerNode::Number(2)),
        evaluator_num: Some(1),
        ..request(Strategy::AllReduce, 2)
    });
    let members = members(&spec);
    let rendezvous = Rendezvous::new(&spec, FIRST, &members).of_job("u-1");
    let body = |name: &str| serde_json::to_value(rendezvous.body(id(name))).expect("not JSON");
    let cluster = json!({"worker": ["10.0.0.0:1234", "10.0.0.0:1235", "10.0.0.1:1234", "10.0.0.1:1235"]});
    let mut rank = 0;
    for node in 0..2 {
        for (process, env) in processes(&body(&format!("worker-{node}"))).into_iter().enumerate() {
            let task = json!({"type": "worker", "index": rank});
            assert_eq!(env["TF_CONFIG"], json!({"cluster": cluster, "task": task}), "rank {rank}");
            for (name, value) in [
                ("RANK", rank),
                ("WORKER_NUMBER", rank),
                ("JAX_PROCESS_ID", rank),
                ("WORLD_SIZE", 4),
                ("TOT_WORKERS", 4),
                ("LOCAL_RANK", process),
                ("LOCAL_WORLD_SIZE", 2),
                ("MUSTER_PROCESS", process),
                ("MUSTER_INDEX", node),
                ("GROUP_RANK", node),
                ("PET_NNODES", 2),
                ("PET_NODE_RANK", node),
                ("PET_NPROC_PER_NODE", 2),
            ] {
                assert_eq!(env[name], json!(value), "{name} of rank {rank}");
            }
            assert_eq!((&env["MASTER_ADDR"], &env["MASTER_PORT"]), (&json!("10.0.0.0"), &json!(1234)));
            rank += 1;
        }
    }
    assert_eq!(body("evaluator-0")["TF_CONFIG"]["task"], json!({"type": "evaluator", "index": 0}));
    assert!(body("evaluator-0").get("MUSTER_PROCESS").is_none());
}

#[test]
fn the_processes_of_a_large_gang_share_the_addresses_in_the_message() {
    let spec = spec(JobRequest { nproc_per_node: Some(NprocPerNode::Number(8)), ..request(Strategy::AllReduce, 100) });
    let members = members(&spec);
    let rendezvous = Rendezvous::new(&spec, FIRST, &members);
    let body = serde_json::to_value(rendezvous.body(id("worker-99"))).expect("not JSON");
    let bytes = |part: &Value| part.to_string().len();
    assert!(bytes(&body["each"]) < 8 * 1024 && bytes(&body["all"]) > 16 * 1024, "{}", body["each"]);
}

#[test]
fn a_replica_of_a_group_with_gpus_learns_the_number_of_its_group() {
    let group = |count, gpus| Group { gpus, ..Group::new(Role::Worker, count) };
    let request = JobRequest {
        groups: vec![group(1, Some(4)), group(1, None)],
        pod: PodOptions { gpus: Some(2), ..PodOptions::default() },
        ..request(Strategy::AllReduce, 2)
    };
    let envs = environments(&spec(request));
    assert_eq!(envs[&id("worker-0")]["PET_NPROC_PER_NODE"], 4);
    assert_eq!(envs[&id("worker-1")]["PET_NPROC_PER_NODE"], 2);
}

#[test]
fn replicas_that_do_not_train_get_the_lists_of_hosts_but_no_rank_and_no_coordinator() {
    let request = JobRequest {
        ps_num: Some(2),
        evaluator_num: Some(1),
        pod: PodOptions { gpus: Some(8), ..PodOptions::default() },
        ..request(Strategy::ParameterServer, 2)
    };
    let envs = environments(&spec(request));
    let names =
        ["MASTER_ADDR", "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "ROLE_WORLD_SIZE", "PET_NPROC_PER_NODE", "RANK"];
    assert_eq!(chosen(&envs[&id("chief-0")], names).join(" "), r#""10.0.0.0" "10.0.0.0:1234" 0 3 8 0"#);
    assert_eq!(chosen(&envs[&id("worker-1")], names).join(" "), r#""10.0.0.0" "10.0.0.0:1234" 2 3 8 2"#);
    for name in ["ps-1", "evaluator-0"] {
        assert_eq!(chosen(&envs[&id(name)], names), ["-"; 6], "{name}");
    }
    for (id, env) in &envs {
        assert_eq!(env["PS_HOSTS"], "10.0.0.3:1234,10.0.0.4:1234", "{id}");
        assert_eq!(env["WORKER_HOSTS"], "10.0.0.1:1234,10.0.0.2:1234", "{id}");
    }
}

#[test]
fn a_tensorflow_cluster_with_parameter_servers_also_has_a_chief_and_workers() {
    let spec = spec(JobRequest { ps_num: Some(1), ..request(Strategy::ParameterServer, 2) });
    let cluster =
        json!({"chief": ["10.0.0.0:1234"], "worker": ["10.0.0.1:1234", "10.0.0.2:1234"], "ps": ["10.0.0.3:1234"]});
    let envs = environments(&spec);
    for (name, role, index, rank) in
        [("chief-0", "chief", 0, json!(0)), ("worker-1", "worker", 1, json!(2)), ("ps-0", "ps", 0, Value::Null)]
    {
        let env = &envs[&id(name)];
        assert_eq!(env["TF_CONFIG"], json!({"cluster": cluster, "task": {"type": role, "index": index}}), "{name}");
        assert_eq!(env["RANK"], rank, "{name}");
        assert_eq!((&env["NUM_WORKERS"], &env["WORLD_SIZE"]), (&json!(2), &json!(3)), "{name}");
    }
}

#[test]
fn only_the_workers_and_parameter_servers_of_a_parameter_server_job_get_grpc_fail_fast() {
    let request = JobRequest { evaluator_num: Some(1), ..request(Strategy::ParameterServer, 1) };
    let envs = environments(&spec(request));
    let fail_fast = |name: &str| envs[&id(name)].get("GRPC_FAIL_FAST").cloned();
    assert_eq!(fail_fast("worker-0"), Some(json!("use_caller")));
    assert_eq!(fail_fast("ps-0"), Some(json!("use_caller")));
    assert_eq!((fail_fast("chief-0"), fail_fast("evaluator-0")), (None, None));
}

#[test]
fn variables_of_the_job_override_defaults() {
    let name = |text: &str| text.parse::<EnvName>().expect("not a variable's name");
    let env = BTreeMap::from([
        (name("PYTHONUNBUFFERED"), String::new()),
        (name("GRPC_FAIL_FAST"), "false".to_owned()),
        (name("TF_GRPC_WORKER_CACHE_THREADS"), "8".to_owned()),
        (name("LEARNING_RATE"), "0.1".to_owned()),
        (name("MASTER_PORT"), "29500".to_owned()),
        (name("PS_HOSTS"), "a:1".to_owned()),
    ]);
    let env = &environments(&spec(JobRequest { env, ..request(Strategy::ParameterServer, 1) }))[&id("worker-0")];
    assert_eq!(env["PYTHONUNBUFFERED"], json!(""));
    assert_eq!(env["GRPC_FAIL_FAST"], json!("false"));
    assert_eq!(env["TF_GRPC_WORKER_CACHE_THREADS"], json!("8"));
    assert_eq!(env["LEARNING_RATE"], json!("0.1"));
    assert_eq!((&env["MASTER_PORT"], &env["PS_HOSTS"]), (&json!("29500"), &json!("a:1")));
}

#[test]
fn references_in_variables_of_the_job_are_replaced_as_in_kubernetes() {
    let name = |text: &str| text.parse::<EnvName>().expect("not a variable's name");
    let table = [
        ("ID", "$(RANK)", "1"),
        ("OWN", "$(PLAIN)/$(ID) $(MUSTER_ROLE)-$(MUSTER_INDEX)", "a/1 worker-1"),
        ("REFERS", "u:$(STAYS)", "u:$(UNKNOWN) $(RANK) $ $"),
        ("PLAIN", "a", "a"),
        ("PROCESS_ID", "$(WORKER_HOSTS)", "10.0.0.0:1234,10.0.0.1:1234"),
        ("SELF", "$(SELF)", "$(SELF)"),
        ("STAYS", "$(UNKNOWN) $$(RANK) $$ $", "$(UNKNOWN) $(RANK) $ $"),
        (
            "TASK",
            "$(TF_CONFIG)",
            r#"{"cluster":{"worker":["10.0.0.0:1234","10.0.0.1:1234"]},"task":{"type":"worker","index":1}}"#,
        ),
    ];
    let env = table.map(|(key, value, _)| (name(key), value.to_owned())).into();
    let envs = environments(&spec(JobRequest { env, ..request(Strategy::AllReduce, 2) }));
    for (key, value, expected) in table {
        assert_eq!(envs[&id("worker-1")][key], expected, "{value}");
    }
    let big =
        (0..100).map(|n| (name(&format!("BIG{n}")), "$(FILL)".repeat(2))).chain([(name("FILL"), "x".repeat(60_000))]);
    let env = big.collect();
    let envs = environments(&spec(JobRequest { env, ..request(Strategy::AllReduce, 1) }));
    let total = envs[&id("worker-0")].to_string().len();
    assert!(total < 7 << 20, "an environment of {total} bytes");
}

#[test]
fn the_coordinator_of_a_jaxjob_is_in_brackets_if_it_has_an_ipv6_address() {
    let spec = spec(request(Strategy::AllReduce, 1));
    let members = BTreeMap::from([(id("worker-0"), "[fd00::4]:1234".parse().expect("not an address"))]);
    let env =
        serde_json::to_value(Rendezvous::new(&spec, FIRST, &members).environment(id("worker-0"))).expect("not JSON");
    assert_eq!((&env["COORDINATOR_ADDRESS"], &env["COORDINATOR_PORT"]), (&json!("[fd00::4]"), &json!(1234)));
}

#[test]
fn variables_of_the_job_never_override_computed_variables() {
    let honest = spec(request(Strategy::AllReduce, 2));
    let expected = environments(&honest);
    // A request with a reserved variable is refused. If it were accepted, the computed value would still win.
    let mut forged = honest.clone();
    for (id, env) in &expected {
        let names = env.as_object().expect("not an object").keys();
        let names = names.map(|name| name.parse::<EnvName>().expect("not a variable's name"));
        for key in names.filter(EnvName::is_reserved) {
            forged.env = BTreeMap::from([(key.clone(), "forged".to_owned())]);
            let text = serde_json::to_string(&Rendezvous::new(&forged, FIRST, &members(&forged)).environment(*id));
            let text = text.expect("not JSON");
            assert!(!text.contains("forged"), "{key}: {text}");
        }
    }
}

#[test]
fn every_variable_is_either_computed_for_each_start_or_constant() {
    let spec = spec(request(Strategy::AllReduce, 2));
    let constant =
        warm::request(&JobSpec { run_policy: preloading(), ..spec.clone() }, Role::Worker, [10, 0, 0, 1].into())
            .expect("not warm");
    for env in environments(&spec).values() {
        for name in env.as_object().expect("not an object").keys() {
            let name: EnvName = name.parse().expect("not a variable's name");
            assert_ne!(name.is_computed(), constant.env.contains_key(&name), "{name}");
        }
    }
}

#[test]
fn a_job_with_a_global_batch_tells_its_sizes_in_the_variables_and_the_tf_config_of_its_launchers() {
    let batching = |list| Batching { global_batch: Some(96), list, ..Batching::default() };
    let servers = JobRequest { ps_num: Some(2), ..request(Strategy::ParameterServer, 2) };
    for (request, list, sizes, tf_config) in [
        (request(Strategy::AllReduce, 2), BatchList::Text, vec![32, 64], json!("[32,64]")),
        (request(Strategy::AllReduce, 2), BatchList::List, vec![32, 64], json!([32, 64])),
        (servers, BatchList::List, vec![0, 32, 64], json!([0, 0, 0, 32, 64])),
    ] {
        let spec = spec(JobRequest { batching: batching(list), ..request });
        let members = members(&spec);
        let rendezvous = Rendezvous::new(&spec, FIRST, &members).with_sizes(sizes.clone());
        for id in members.keys() {
            let env = serde_json::to_value(rendezvous.environment(*id)).expect("not JSON");
            let own = rendezvous.rank(*id).map(|rank| sizes[rank.0 as usize]).filter(|size| *size > 0);
            for name in ["BATCH_SIZE", "WORKER_BATCH_SIZE"] {
                assert_eq!(env.get(name), own.map(|own| json!(own)).as_ref(), "{id} {name}");
            }
            assert_eq!((&env["GLOBAL_BATCH_SIZE"], &env["GLOBAL_CLUSTER_BATCH_SIZE"]), (&json!(96), &json!(96)));
            let text: Vec<String> = sizes.iter().map(u32::to_string).collect();
            assert_eq!(env["BATCH_SIZE_LIST"], json!(text.join(",")));
            assert_eq!(env["MUSTER_BATCH_SIZES"], json!(format!("[{}]", text.join(","))));
            assert_eq!(env["TF_CONFIG"]["batch_size_list"], tf_config);
        }
    }
    let without = environments(&spec(request(Strategy::AllReduce, 2)));
    assert!(
        without
            .values()
            .all(|env| env.get("BATCH_SIZE").is_none() && env["TF_CONFIG"].get("batch_size_list").is_none())
    );
}

fn preloading() -> RunPolicy {
    RunPolicy { preload: Some(Preload::Modules(vec![])), ..RunPolicy::default() }
}

#[test]
fn the_restart_count_does_not_depend_on_the_generation() {
    let spec = spec(request(Strategy::AllReduce, 1));
    let members = members(&spec);
    for (generation, restarts) in [("1.1", 0), ("3.1", 0), ("1.4", 3), ("3.2", 5)] {
        let parsed = generation.parse().expect("not a generation");
        let rendezvous = Rendezvous::new(&spec, parsed, &members).after_restarts(restarts);
        let env = serde_json::to_value(rendezvous.environment(id("worker-0"))).expect("not JSON");
        assert_eq!(env["MUSTER_GENERATION"], json!(generation));
        assert_eq!(env["MUSTER_RESTART_COUNT"], json!(restarts), "{generation}");
    }
}

#[test]
fn muster_no_proxy_names_each_host_once() {
    let spec = spec(request(Strategy::AllReduce, 3));
    let address = |text: &str| text.parse::<SocketAddr>().expect("not an address");
    let members = BTreeMap::from([
        (id("worker-0"), address("127.0.0.1:20001")),
        (id("worker-1"), address("127.0.0.1:20002")),
        (id("worker-2"), address("10.0.0.9:20001")),
    ]);
    let body = serde_json::to_value(Rendezvous::new(&spec, FIRST, &members).environment(id("worker-1")));
    assert_eq!(body.expect("not JSON")["MUSTER_NO_PROXY"], json!("10.0.0.9,127.0.0.1"));
}

fn any_spec() -> impl proptest::strategy::Strategy<Value = JobSpec> {
    let counts = (1..40_u32, 1..6_u32, 0..2_u32, 0..2_u32, proptest::bool::ANY);
    counts.prop_map(|(workers, servers, chief, evaluator, all_reduce)| {
        let strategy = if all_reduce { Strategy::AllReduce } else { Strategy::ParameterServer };
        spec(JobRequest {
            ps_num: (!all_reduce).then_some(servers),
            chief_num: Some(chief),
            evaluator_num: Some(evaluator),
            ..request(strategy, workers)
        })
    })
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_member_gets_the_same_cluster_and_its_own_task_in_it(spec in any_spec()) {
        let (envs, members) = (environments(&spec), members(&spec));
        let cluster = &envs.values().next().expect("the job has no replica")["TF_CONFIG"]["cluster"];
        for (id, env) in &envs {
            prop_assert_eq!(&env["TF_CONFIG"]["cluster"], cluster);
            let task = &env["TF_CONFIG"]["task"];
            prop_assert_eq!(task, &json!({"type": id.role, "index": id.index}));
            if id.role != Role::Evaluator {
                let own = &cluster[id.role.as_str()][id.index as usize];
                prop_assert_eq!(own, &json!(members[id].to_string()));
            }
        }
        let listed: usize = cluster.as_object().expect("not an object").values().map(|of_role| of_role.as_array().map_or(0, Vec::len)).sum();
        prop_assert_eq!(listed, members.keys().filter(|id| id.role != Role::Evaluator).count());
    }

    #[test]
    fn replicas_that_train_have_consecutive_ranks_from_zero(spec in any_spec()) {
        let envs = environments(&spec);
        let (with, without): (Vec<_>, Vec<_>) = envs.iter().partition(|(_, env)| env.get("RANK").is_some());
        prop_assert!(with.iter().all(|(id, _)| matches!(id.role, Role::Chief | Role::Worker)));
        prop_assert!(without.iter().all(|(id, _)| matches!(id.role, Role::Ps | Role::Evaluator)));
        let ranks: Vec<u64> = with.iter().filter_map(|(_, env)| env["RANK"].as_u64()).collect();
        let world = u64::from(spec.chief_num + spec.worker_num);
        prop_assert_eq!(ranks, (0..world).collect::<Vec<_>>());
        prop_assert!(envs.values().all(|env| env["WORLD_SIZE"] == json!(world)));
    }

    #[test]
    fn every_variable_is_valid_in_a_process_environment(spec in any_spec()) {
        for env in environments(&spec).values() {
            let env = env.as_object().expect("an environment is an object");
            prop_assert!(env["TF_CONFIG"].is_object());
            let names: BTreeSet<&String> = env.keys().collect();
            prop_assert_eq!(names.len(), env.len());
            for (name, value) in env {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let name: EnvName = name.parse().expect("not a variable's name");
                prop_assert_eq!(name.check_value(&text), Ok(()));
            }
        }
    }
}

#[test]
fn tf_config_follows_the_options_of_the_job() {
    let tf_config = TfConfigOptions {
        omit_single: true,
        chief_is_master: true,
        extra: json!({ "environment": "cloud" }).as_object().expect("not an object").clone(),
    };
    let with = |worker_num, chief_num| {
        let request = JobRequest {
            chief_num: Some(chief_num),
            tf_config: tf_config.clone(),
            ..request(Strategy::AllReduce, worker_num)
        };
        environments(&spec(request))
    };
    let pair = with(1, 1);
    let cluster = json!({ "master": ["10.0.0.0:1234"], "worker": ["10.0.0.1:1234"] });
    let of = |kind: &str| json!({ "cluster": cluster, "task": { "type": kind, "index": 0 }, "environment": "cloud" });
    assert_eq!(pair[&id("chief-0")]["TF_CONFIG"], of("master"));
    assert_eq!(pair[&id("worker-0")]["TF_CONFIG"], of("worker"));
    assert_eq!(with(0, 1)[&id("chief-0")].get("TF_CONFIG"), None);
}
