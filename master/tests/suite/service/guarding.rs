//! Tests which requests the master accepts, with and without a token.

use serde_json::json;

use crate::service::harness::{Answer, Master, client, statuses};

const CREATE: &str = "/create?strategy=AllReduce&n_worker=1&name=forged";

async fn has_no_jobs(master: &Master) {
    assert_eq!(master.jobs.table.list(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_a_token_refuses_requests_of_browsers() {
    let master = Master::serving(None).await;
    let headers = [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("referer", "http://evil.example/page"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-storage-access", "none"),
        ("sec-gpc", "1"),
        ("user-agent", "Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 Version/15.0 Safari/605.1.15"),
    ];
    for (name, value) in headers {
        let answer = Answer::of(client().get(master.url(CREATE)).header(name, value)).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"), "{name}: {value}");
    }
    has_no_jobs(&master).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_a_token_accepts_only_host_headers_of_this_machine() {
    let master = Master::serving(None).await;
    let foreign = [
        "evil.example",
        "evil.example:7897",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "localhost.evil.example",
        "[[::1]",
        "localhost.",
        "127.0.0.1.",
        "127.1",
        "0x7f000001",
        "0.0.0.0",
        "::1",
        "[::1",
        "[::2]",
        "[::]",
        "[127.0.0.1]",
        "[::1]evil.example",
        "user@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:7897:7897",
        "localhost,evil.example",
        "",
    ];
    for host in foreign {
        let answer = Answer::of(client().get(master.url(CREATE)).header("host", host)).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"), "{host:?}");
    }
    has_no_jobs(&master).await;
    for host in ["127.0.0.1", "localhost", "LOCALHOST:7897", "127.8.9.10:1", "[::1]", "[::1]:7897"] {
        let answer = Answer::of(client().get(master.url("/v1/jobs")).header("host", host)).await;
        assert_eq!(answer.status, 200, "{host:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_repeated_host_header_is_refused() {
    let master = Master::serving(None).await;
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        for hosts in ["Host: 127.0.0.1\r\nHost: evil.example\r\n", "Host: 127.0.0.1\r\nhost: 127.0.0.1\r\n", ""] {
            let request = format!("GET {CREATE} {version}\r\n{hosts}Connection: close\r\n\r\n");
            let answer = master.raw(request.as_bytes()).await;
            assert_eq!(statuses(&answer), [403], "{request}{answer}");
        }
    }
    has_no_jobs(&master).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_target_with_a_foreign_host_is_refused() {
    let master = Master::serving(None).await;
    let targets =
        ["http://evil.example", "http://127.0.0.1@evil.example", "http://user@127.0.0.1", "http://localhost."];
    for target in targets {
        let request = format!("GET {target}{CREATE} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        let answer = master.raw(request.as_bytes()).await;
        assert_eq!(statuses(&answer), [403], "{request}{answer}");
    }
    has_no_jobs(&master).await;
    let request = b"GET http://localhost:7897/v1/jobs HTTP/1.1\r\nHost: localhost:7897\r\nConnection: close\r\n\r\n";
    assert_eq!(statuses(&master.raw(request).await), [200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_with_a_token_refuses_requests_without_the_token() {
    let master = Master::serving(Some("the-token")).await;
    let twice = client().get(master.url(CREATE)).header("authorization", "Bearer the-token");
    let twice = twice.header("authorization", "Bearer the-token");
    let wrong = ["Bearer the-tokem", "Bearer the-token2", "Bearer ", "Basic the-token", "the-token", "bearer"];
    let requests = wrong.map(|value| client().get(master.url(CREATE)).header("authorization", value));
    for request in requests.into_iter().chain([client().get(master.url(CREATE)), twice]) {
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"));
    }
    has_no_jobs(&master).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_with_a_token_accepts_requests_with_the_token_from_any_host_and_origin() {
    let master = Master::serving(Some("the-token")).await;
    let request = client().get(master.url("/v1/jobs")).bearer_auth("the-token");
    let answer = Answer::of(request.header("host", "muster.example").header("origin", "http://muster.example")).await;
    assert_eq!((answer.status, answer.json()["jobs"].clone()), (200, json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_routes_of_jobs_require_the_token() {
    let master = Master::serving(Some("the-token")).await;
    let requests = [
        client().get(master.url("/v1/jobs")),
        client().post(master.url("/v1/jobs")),
        client().get(master.url("/v1/jobs/a")),
        client().delete(master.url("/v1/jobs/a")),
        client().post(master.url("/v1/jobs/a/cancel")),
        client().get(master.url("/v1/jobs/a/logs")),
    ];
    for request in requests {
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_openapi_need_no_token() {
    let master = Master::serving(Some("the-token")).await;
    for path in ["/openapi.json", "/metrics"] {
        assert_eq!(master.get(path).await.status, 200, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        let answer = master.get(path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "OK"), "{path}");
    }
}
