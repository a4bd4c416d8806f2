//! The guards of the master's HTTP server. Each guard refuses HEAD requests. `Anyone` also refuses requests from
//! browsers. `ThisMachine` also refuses requests from browsers, and requests that do not name loopback as their host.
//! `Token` also refuses requests without the guard's token. The guards admit all other requests. The first line of the
//! input is the method and the target. Each further line is a header.
#![cfg_attr(fuzzing, no_main)]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use master::http::Guard;

/// Whether a Host header, or the authority of a target, names loopback: `localhost`, `127.x.x.x` or `[::1]`. The
/// grammar is that of RFC 3986, 3.2.2 and 3.2.3.
fn is_loopback(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let end = match host.find(']') {
        Some(bracket) => bracket + 1,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let port_ok =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let octets: Vec<Option<u8>> = name.split('.').map(octet).collect();
    let is_v4 = octets.len() == 4 && octets.iter().all(Option::is_some) && octets[0] == Some(127);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_v6 = address.is_some_and(|address| address.parse() == Ok(std::net::Ipv6Addr::LOCALHOST));
    port_ok && (name.eq_ignore_ascii_case("localhost") || is_v4 || is_v6)
}

/// Parses a number from 0 to 255. Refuses leading zeros, because some parsers read `0127` as octal.
fn octet(text: &str) -> Option<u8> {
    text.parse().ok().filter(|octet: &u8| octet.to_string() == text)
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|request: &[u8]| check(request));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(request: &[u8]) {
    let mut lines = request.split(|byte| *byte == b'\n');
    let mut first = lines.next().unwrap_or_default().splitn(2, |byte| *byte == b' ');
    let Ok(method) = Method::from_bytes(first.next().unwrap_or_default()) else { return };
    let Ok(uri) = Uri::try_from(first.next().unwrap_or_default()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let is_of_browsers =
        |name: &HeaderName| ["origin", "referer", "sec-"].iter().any(|start| name.as_str().starts_with(start));
    let names_a_browser = headers.get_all("user-agent").iter().any(|name| name.as_bytes().starts_with(b"Mozilla/"));
    let is_no_browser = !headers.keys().any(is_of_browsers) && !names_a_browser;
    let hosts: Vec<&[u8]> = headers.get_all("host").iter().map(HeaderValue::as_bytes).collect();
    let target_fits = uri.authority().is_none_or(|authority| is_loopback(authority.as_str().as_bytes()));
    let is_here = hosts.len() == 1 && is_loopback(hosts[0]) && target_fits;
    let tokens: Vec<&[u8]> = headers.get_all("authorization").iter().map(HeaderValue::as_bytes).collect();
    let token = tokens == [b"Bearer secret"];
    let is_safe = method != Method::HEAD;

    assert_eq!(Guard::Anyone.admits(&method, &uri, &headers), is_safe && is_no_browser);
    assert_eq!(Guard::Token("secret".to_owned()).admits(&method, &uri, &headers), is_safe && token);
    assert_eq!(Guard::ThisMachine.admits(&method, &uri, &headers), is_safe && is_no_browser && is_here);
}
