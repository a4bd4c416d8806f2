//! Ten thousand requests without this agent's token have no effect. An agent without a token refuses requests that a
//! web page can make a browser send.

use fastrand::Rng;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use crate::support::{Agent, PATIENCE, program};
use hmac::{Hmac, KeyInit, Mac};
use protocol::agent::RunState;
use protocol::error::ErrorCode;
use sha2::{Digest, Sha256};

const ROUTES: [(&str, &str); 13] = [
    ("POST", "/config"),
    ("POST", "/warm"),
    ("GET", "/run"),
    ("GET", "/status"),
    ("GET", "/logs"),
    ("POST", "/stop"),
    ("POST", "/finish"),
    ("GET", "/reach?address=127.0.0.1:1"),
    ("PUT", "/code/0000000000000000000000000000000000000000000000000000000000000000"),
    ("GET", "/code/0000000000000000000000000000000000000000000000000000000000000000"),
    ("PUT", "/code/0000000000000000000000000000000000000000000000000000000000000000/blobs"),
    ("GET", "/nothing"),
    ("DELETE", "/status"),
];

/// Derives the token of a job, as a master does.
fn token_of(job_uid: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(&[7; 32]).unwrap();
    mac.update(job_uid.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

fn hash_of(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// A query and header lines that do not authenticate a request.
fn wrong(dice: &mut Rng, token: &str) -> (String, String) {
    let place = dice.usize(..token.len());
    let number = dice.u64(..);
    let headers = match dice.usize(..17) {
        0 => String::new(),
        1 => {
            let length = dice.usize(..100);
            let random: String =
                (0..length).map(|_| char::from(u8::try_from(33 + dice.usize(..94)).unwrap())).collect();
            bearer(&random)
        }
        2 => bearer(&token[..place]),
        3 => bearer(&token[place.max(1)..]),
        4 => bearer(&token_of(&format!("another-job-{number}"))),
        5 => bearer(&token.to_uppercase()),
        6 => bearer(&format!("{token}{number:x}")),
        7 => bearer(&format!("{number:x}{token}")),
        8 => {
            let other = if &token[place..=place] == "0" { "1" } else { "0" };
            bearer(&format!("{}{other}{}", &token[..place], &token[place + 1..]))
        }
        9 => ["", " ", "\t"].map(bearer)[dice.usize(..3)].clone(),
        10 => bearer(token) + &bearer(&format!("{number:x}")),
        11 => bearer(&format!("{number:x}")) + &bearer(token),
        12 => bearer(token) + &bearer(token),
        13 => {
            let schemes = ["bearer ", "BEARER ", "Basic ", "Token ", "Bearer", "Bearer\t", "Bearer  ", ""];
            format!("authorization: {}{token}\r\n", schemes[dice.usize(..schemes.len())])
        }
        14 => {
            let names = ["proxy-authorization", "x-authorization", "cookie", "authorization2"];
            format!("{}: Bearer {token}\r\n", names[dice.usize(..names.len())])
        }
        // The hash, which the pod's spec shows.
        15 => bearer(&hash_of(token)),
        _ => {
            let names = ["token", "access_token", "authorization", "bearer"];
            return (format!("?{}={token}", names[dice.usize(..names.len())]), String::new());
        }
    };
    (String::new(), headers)
}

/// Sends all `requests` at once. Returns the status codes of the answers.
fn answers(agent: &Agent, requests: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(agent.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].to_owned()).collect()
}

#[test]
fn ten_thousand_requests_without_the_right_token_are_refused_on_every_route_except_healthz() {
    let token = token_of("this-job");
    let agent = Agent::start(&["--token-sha256", &hash_of(&token)], &["sh", "-c", "echo started"]);
    let mut dice = Rng::with_seed(4);
    let (mut asked, mut refused) = (0, 0);
    while asked < 10_000 {
        let mut requests = String::new();
        for number in 0..100 {
            let (method, path) = ROUTES[dice.usize(..ROUTES.len())];
            let (query, headers) = wrong(&mut dice, &token);
            let last = if number == 99 { "connection: close\r\n" } else { "" };
            requests +=
                &format!("{method} {path}{query} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{headers}{last}\r\n");
        }
        let answers = answers(&agent, &requests);
        asked += 100;
        refused += answers.iter().filter(|status| *status == "401").count();
    }
    assert_eq!((asked, refused), (10_000, 10_000));
    let status = agent.request_with(&bearer(&token), "GET", "/status", "");
    let status: protocol::agent::RunStatus = serde_json::from_slice(&status.body).unwrap();
    assert_eq!((status.seq, status.state), (1, RunState::Idle), "a refused request has changed the status");
}

#[test]
fn every_route_except_healthz_requires_the_token_and_requests_with_the_token_are_accepted() {
    let token = token_of("this-job");
    let agent = Agent::start(&["--token-sha256", &hash_of(&token)], &["true"]);
    assert_eq!(agent.get("/healthz").status, 200);
    for (method, path) in ROUTES {
        assert_eq!(agent.request(method, path, "").refusal(), (401, ErrorCode::Unauthorized), "{method} {path}");
    }
    let allowed = [
        ("POST", "/config", "{}"),
        ("POST", "/warm", r#"{"env":{}}"#),
        ("GET", "/run", ""),
        ("GET", "/status", ""),
        ("GET", "/logs", ""),
    ];
    for (method, path, body) in allowed.into_iter().chain([("POST", "/stop", "")]) {
        let status = agent.request_with(&bearer(&token), method, path, body).status;
        assert!([200, 202].contains(&status), "{method} {path}: {status}");
    }
}

/// Sends one request with these header lines to each of the routes that start a run. Returns the status codes.
fn starts(agent: &Agent, headers: &str) -> Vec<String> {
    let end = format!("{headers}content-length: 2\r\n");
    let ask = |head: &str| format!("{head} HTTP/1.1\r\n{end}\r\n{{}}");
    let last = "GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned();
    answers(agent, &[ask("POST /config"), ask("GET /run"), last].concat())
}

#[test]
fn without_a_token_requests_of_browsers_and_for_other_hosts_start_no_run() {
    let agent = Agent::of_shell("true");
    for headers in [
        "host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
        "host: 127.0.0.1\r\nReferer: http://evil.example/page\r\n",
        "host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
        "host: 127.0.0.1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n",
        "host: evil.example\r\n",
        "host: 127.0.0.1\r\nhost: evil.example\r\n",
        "host: 10.0.0.1:7896\r\n",
        "",
    ] {
        assert_eq!(starts(&agent, headers), ["403", "403", "200"], "{headers}");
    }
    let forbidden = agent.request_with("origin: null\r\n", "GET", "/run", "").problem();
    assert_eq!(forbidden.detail, "without a token, requests from browsers are refused");
    assert_eq!(agent.status().seq, 1, "a refused request has changed the status");
    for host in ["127.0.0.1", "localhost:7896", "[::1]:80"] {
        assert_eq!(starts(&agent, &format!("host: {host}\r\n")), ["200", "200", "200"], "{host}");
        agent.wait_for_exit();
    }
}

#[test]
fn beyond_loopback_an_agent_without_a_token_accepts_every_host_name_but_no_browser() {
    let mut program = program();
    program.args(["--supervised", "--listen", "0.0.0.0:0", "--", "true"]);
    let mut agent = Agent::from_program(program);
    agent.address.set_ip(Ipv4Addr::LOCALHOST.into());
    assert_eq!(starts(&agent, "host: worker-0.jobs:7896\r\norigin: null\r\n"), ["403", "403", "200"]);
    assert_eq!(starts(&agent, "host: worker-0.jobs:7896\r\n"), ["200", "200", "200"]);
}
