//! Tests of the checks of a spec before its job exists: by the back end, by a dry run in the cluster, and against
//! quotas.

use master::backend::kube::{HostVolumes, PodRules};
use master::backend::{PodBackend, Refusal};
use master::kube::{OwnUses, Used};
use protocol::dry_run::PodsOfKind;
use protocol::error::ErrorCode;
use protocol::job::JobSpec;
use protocol::pod::PodOptions;
use serde_json::{Value, json};

use super::objects::failure;
use super::server::{ApiServer, Kind, Reply};
use super::world::{begin, begin_with, internal_error, spec};

#[tokio::test(start_paused = true)]
async fn one_pod_is_tried_by_a_dry_run_and_none_is_created() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    assert_eq!(pods.admit(&spec("digits")).await, Ok(()));
    assert_eq!(server.mutations(), ["Create pods (dry run)"]);
    assert_eq!(server.object("pods", "digits-worker-0"), None);
    let tried = server.journal().into_iter().find(|asked| asked.kind == Kind::Create).expect("no dry run").body;
    assert_eq!(tried["metadata"]["name"], "digits-worker-0");
    assert_eq!(tried["spec"]["containers"][0]["image"], "digits:1");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_in_the_words_of_the_cluster() {
    for (code, reason, sentence) in [
        (400, "BadRequest", "Pod in version \"v1\" cannot be handled as a Pod"),
        (403, "Forbidden", "pods \"digits-worker-0\" is forbidden: violates PodSecurity \"restricted:latest\""),
        (404, "NotFound", "namespaces \"training\" not found"),
        (422, "Invalid", "Pod \"digits-worker-0\" is invalid: spec.priorityClassName: no PriorityClass was found"),
    ] {
        let server = ApiServer::new();
        let pods = begin(&server).await;
        server.script(Kind::Create, Reply::Instead(failure(code, reason, sentence)));
        let sentence = format!("the cluster refuses a pod of this job: {sentence}");
        assert_eq!(pods.admit(&spec("digits")).await, Err(Refusal { code: ErrorCode::BadPod, sentence }));
        assert_eq!(server.count(Kind::Create), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_one_pod_of_each_kind_with_the_number_of_its_pods() {
    let server = ApiServer::new();
    let kinds = begin(&server).await.preview(&JobSpec { worker_num: 3, ..spec("digits") }).await.expect("refused");
    let [PodsOfKind { count: 3, first }] = &kinds[..] else { panic!("{kinds:?}") };
    assert_eq!((&first["kind"], &first["metadata"]["name"]), (&json!("Pod"), &json!("digits-worker-0")));
    assert_eq!(first["spec"]["containers"][0]["image"], "digits:1");
    let of_an_existing_pod = ["uid", "ownerReferences", "creationTimestamp"];
    assert!(of_an_existing_pod.iter().all(|name| first["metadata"].get(name).is_none()), "{first}");
    assert_eq!(server.object("pods", "digits-worker-0"), None);
}

/// A quota of the namespace, with its hard limits.
fn quota(hard: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "team" }, "spec": { "hard": hard } })
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_does_not_fit_into_a_quota_is_refused_with_its_size_and_the_limit() {
    let pod = PodOptions { memory: Some("2Gi:4Gi".parse().expect("not an amount")), ..PodOptions::default() };
    let spec = JobSpec { worker_num: 3, pod, ..spec("digits") };
    for (hard, sentence) in [
        (json!({ "pods": "2" }), Some("3 pods do not fit into quota \"team\", which allows 2")),
        (
            json!({ "requests.memory": "5Gi" }),
            Some("3 pods with requests.memory of 2048Mi each do not fit into quota \"team\", which allows 5Gi in all"),
        ),
        (
            json!({ "limits.memory": "11Gi" }),
            Some("3 pods with limits.memory of 4096Mi each do not fit into quota \"team\", which allows 11Gi in all"),
        ),
        (json!({ "pods": "3", "memory": "6Gi", "limits.memory": "12Gi", "requests.nvidia.com/gpu": "0" }), None),
    ] {
        let server = ApiServer::new();
        server.put("resourcequotas", quota(&hard));
        let expected =
            sentence.map_or(Ok(()), |sentence| Err(Refusal { code: ErrorCode::BadPod, sentence: sentence.to_owned() }));
        assert_eq!(begin(&server).await.admit(&spec).await, expected, "{hard}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_is_accepted_even_if_a_quota_is_used_up_or_cannot_be_read() {
    let full =
        "pods \"digits-worker-0\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=8, limited: pods=8";
    let full = Reply::Instead(failure(403, "Forbidden", full));
    let server = ApiServer::new();
    server.put("resourcequotas", quota(&json!({ "pods": "8" })));
    let pods = begin(&server).await;
    server.script(Kind::Create, full.clone());
    assert_eq!(pods.admit(&spec("digits")).await, Ok(()));

    server.put("resourcequotas", quota(&json!({ "pods": "1" })));
    server.script(Kind::Create, full);
    assert!(pods.admit(&spec("digits")).await.is_err(), "two pods are admitted although the quota allows one");
    let hidden = "resourcequotas is forbidden: User \"muster\" cannot list resource";
    server.script(Kind::List, Reply::Instead(failure(403, "Forbidden", hidden)));
    assert_eq!(pods.admit(&spec("digits")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_requires_amounts_is_reported_with_the_options_to_set() {
    for (message, hint) in [
        ("failed quota: team: must specify limits.memory", "; set the amount, for example with --memory 4Gi"),
        (
            "failed quota: team: must specify limits.cpu for: agent; limits.memory for: agent",
            "; set the amount, for example with --memory 4Gi --cpu 2",
        ),
    ] {
        let server = ApiServer::new();
        let pods = begin(&server).await;
        server.script(Kind::Create, Reply::Instead(failure(403, "Forbidden", message)));
        let refusal = pods.admit(&spec("digits")).await.expect_err("not refused");
        assert_eq!(refusal.sentence, format!("the cluster refuses a pod of this job: {message}{hint}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_refused_for_answers_that_do_not_concern_its_spec() {
    for reply in [
        Reply::Instead(failure(409, "AlreadyExists", "pods \"digits-worker-0\" already exists")),
        Reply::Instead(failure(429, "TooManyRequests", "the server has received too many requests")),
        Reply::Instead(internal_error()),
        Reply::Instead(failure(503, "ServiceUnavailable", "apiserver is shutting down")),
        Reply::Silence,
    ] {
        let server = ApiServer::new();
        let pods = begin(&server).await;
        server.script(Kind::Create, reply.clone());
        assert_eq!(pods.admit(&spec("digits")).await, Ok(()), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_volume_is_refused_before_any_call_of_the_api_unless_the_master_allows_it() {
    let server = ApiServer::new();
    let volumes = ["empty:/scratch", "host:/srv:/data"].map(|volume| volume.parse().expect("not a volume")).into();
    let spec = JobSpec { pod: PodOptions { volumes, ..PodOptions::default() }, ..spec("digits") };
    let refusal = begin(&server).await.admit(&spec).await.expect_err("not refused");
    assert_eq!(refusal.code, ErrorCode::BadPod);
    assert!(refusal.sentence.contains("\"host:/srv:/data\"") && refusal.sentence.contains("--allow-host-volumes"));
    assert_eq!(server.mutations(), Vec::<String>::new());
    let allowing = begin_with(&server, PodRules { host_volumes: HostVolumes::Allowed, ..PodRules::default() }).await;
    assert_eq!(allowing.admit(&spec).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_secrets_and_the_account_of_the_master_are_refused_before_any_call_of_the_api() {
    let server = ApiServer::new();
    let name = |name: &str| name.parse().expect("not a name");
    for pod in [
        PodOptions { env_secrets: vec![name("s3"), name("muster")], ..PodOptions::default() },
        PodOptions { env_secrets: vec![name("muster-token-x7k2p")], ..PodOptions::default() },
        PodOptions { service_account: Some(name("muster")), ..PodOptions::default() },
    ] {
        let refusal = begin(&server).await.admit(&JobSpec { pod, ..spec("digits") }).await.expect_err("not refused");
        assert_eq!(refusal.code, ErrorCode::BadPod);
        assert!(refusal.sentence.contains("belongs to the master"), "{}", refusal.sentence);
    }
    assert_eq!(server.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_spec_without_an_image_or_with_a_work_dir_is_refused_before_any_call_of_the_api() {
    let server = ApiServer::new();
    let pods = begin(&server).await;
    let without = JobSpec { image: None, ..spec("digits") };
    assert_eq!(pods.admit(&without).await.expect_err("not refused").code, ErrorCode::BadImage);
    let with = JobSpec { work_dir: Some("/work".into()), ..spec("digits") };
    assert_eq!(pods.admit(&with).await.expect_err("not refused").code, ErrorCode::BadWorkDir);
    assert_eq!(server.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_pod_cannot_have_the_secret_the_account_or_the_state_of_the_master() {
    let server = ApiServer::new();
    let own = [Used::Claim("output".to_owned()), Used::Secret("sealed-token".to_owned())];
    let rules = PodRules { own_uses: OwnUses::Known(own.into()), ..PodRules::default() };
    let pods = begin_with(&server, rules).await;
    let secret =
        |name: &str| PodOptions { env_secrets: vec![name.parse().expect("not a name")], ..PodOptions::default() };
    let account = PodOptions { service_account: "muster".parse().ok(), ..PodOptions::default() };
    let belongs = "\"muster\" belongs to the master: use another Secret or service account";
    let claim = |volume: &str| {
        let volume = volume.parse().expect("not a volume");
        PodOptions { volumes: vec![volume], ..PodOptions::default() }
    };
    let (named, mounted) = (claim("pvc:muster-state:/state:ro"), claim("pvc:output:/state:ro"));
    let state = "claim \"muster-state\" contains the master's state: use another claim";
    let output = "claim \"output\" contains the master's state: use another claim";
    let sealed = (secret("sealed-token"), "Secret \"sealed-token\" belongs to the master: use another Secret");
    for (pod, sentence) in [(secret("muster"), belongs), (account, belongs), (named, state), (mounted, output), sealed]
    {
        let refusal = pods.admit(&JobSpec { pod, ..spec("digits") }).await.expect_err("not refused");
        assert_eq!(refusal.sentence, sentence);
    }
    assert_eq!(server.mutations(), Vec::<String>::new());
    assert_eq!(pods.admit(&JobSpec { pod: claim("pvc:data:/data"), ..spec("digits") }).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_master_that_does_not_know_its_own_pod_refuses_every_claim_and_every_secret() {
    let server = ApiServer::new();
    let pods = begin_with(&server, PodRules { own_uses: OwnUses::Unknown, ..PodRules::default() }).await;
    let claim = PodOptions { volumes: vec!["pvc:data:/data".parse().expect("not a volume")], ..PodOptions::default() };
    let secret = PodOptions { env_secrets: vec!["s3".parse().expect("not a name")], ..PodOptions::default() };
    for (pod, used) in [(claim, "claim \"data\""), (secret, "Secret \"s3\"")] {
        let refusal = pods.admit(&JobSpec { pod, ..spec("digits") }).await.expect_err("not refused");
        assert!(refusal.sentence.starts_with(&format!("{used} is refused")), "{refusal:?}");
    }
    assert_eq!(server.mutations(), Vec::<String>::new());
    assert_eq!(pods.admit(&spec("digits")).await, Ok(()));
}
