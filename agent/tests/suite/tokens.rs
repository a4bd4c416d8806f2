//! Ten thousand requests without this agent's token have no effect.

use fastrand::Rng;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{Agent, PATIENCE};
use hmac::{Hmac, KeyInit, Mac};
use protocol::agent::RunState;
use sha2::{Digest, Sha256};

const ROUTES: [(&str, &str); 12] = [
    ("POST", "/config"),
    ("POST", "/warm"),
    ("GET", "/run"),
    ("GET", "/status"),
    ("GET", "/logs"),
    ("POST", "/stop"),
    ("POST", "/finish"),
    ("GET", "/reach?address=127.0.0.1:1"),
    ("PUT", "/code/0000000000000000000000000000000000000000000000000000000000000000"),
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
        assert_eq!(agent.request(method, path, "").status, 401, "{method} {path}");
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
