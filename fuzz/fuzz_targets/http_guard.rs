//! Who may ask the master: one that answers without a token answers no browser and no other host's name, and one that
//! has a token answers that alone. The first line is the method, each other one a header.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use libfuzzer_sys::fuzz_target;
use master::http::Guard;

/// Whether a Host header names loopback, by the grammar of RFC 3986 (3.2.2 and 3.2.3).
fn is_loopback(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let end = match host.find(']') {
        Some(bracket) => bracket + 1,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let port_ok =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let octets: Vec<Result<u8, _>> = name.split('.').map(str::parse).collect();
    let is_v4 = octets.len() == 4 && octets.iter().all(Result::is_ok) && octets[0] == Ok(127);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_v6 = address.is_some_and(|address| address.parse() == Ok(std::net::Ipv6Addr::LOCALHOST));
    port_ok && (name.eq_ignore_ascii_case("localhost") || is_v4 || is_v6)
}

fuzz_target!(|request: &[u8]| {
    let mut lines = request.split(|byte| *byte == b'\n');
    let Ok(method) = Method::from_bytes(lines.next().unwrap_or_default()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let uri = Uri::from_static("/create");
    let is_of_browsers = |name: &HeaderName| ["origin", "referer", "sec-"].iter().any(|start| name.as_str().starts_with(start));
    let names_a_browser = headers.get_all("user-agent").iter().any(|name| name.as_bytes().starts_with(b"Mozilla/"));
    let is_no_browser = !headers.keys().any(is_of_browsers) && !names_a_browser;
    let hosts: Vec<&[u8]> = headers.get_all("host").iter().map(HeaderValue::as_bytes).collect();
    let is_here = hosts.len() == 1 && is_loopback(hosts[0]);
    let tokens: Vec<&[u8]> = headers.get_all("authorization").iter().map(HeaderValue::as_bytes).collect();
    let token = tokens == [b"Bearer secret"];
    let is_safe = method != Method::HEAD;

    assert_eq!(Guard::Anyone.admits(&method, &uri, &headers), is_safe && is_no_browser);
    assert_eq!(Guard::Token("secret".to_owned()).admits(&method, &uri, &headers), is_safe && token);
    if Guard::ThisMachine.admits(&method, &uri, &headers) {
        assert!(is_safe && is_no_browser && is_here, "{method} {headers:?}");
    }
});
