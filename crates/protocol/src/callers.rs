//! Which requests a program without a token obeys: requests of other programs, but not of browsers. A web page can make
//! a browser send requests to loopback, and one GET can start a program.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ensure::ensure;

/// Who may send requests to a program without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Programs of this machine, except browsers.
    ThisMachine,
    /// All programs that reach the port, except browsers.
    Anyone,
}

/// Why a request without a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForeignRequest {
    /// A browser has sent the request.
    #[error("without a token, requests from browsers are refused")]
    Browser,
    /// The request names another machine, or none.
    #[error("the Host header must name this machine by a loopback address or localhost")]
    OtherHost,
}

/// Prefixes of the names of headers that browsers send and curl does not. A page can neither omit nor set a header
/// that begins with `sec-` (Fetch, 2.2.2).
const OF_BROWSERS: [&str; 3] = ["origin", "referer", "sec-"];

/// The start of every browser's User-Agent, including browsers that are too old for `sec-` headers.
const BROWSER_NAME: &[u8] = b"Mozilla/";

impl Callers {
    /// Checks a request without a token. `target` is the host in the request's target, if it names one, as in
    /// `GET http://HOST/create` (RFC 9112, 3.2.2). `headers` are names in lower case, and values.
    pub fn check(self, target: Option<&str>, headers: &[(&str, &[u8])]) -> Result<(), ForeignRequest> {
        ensure!(!headers.iter().any(|(name, value)| is_of_browsers(name, value)), ForeignRequest::Browser);
        match self {
            Self::ThisMachine if !target.is_none_or(is_this_machine) || !is_addressed_to_this_machine(headers) => {
                Err(ForeignRequest::OtherHost)
            }
            Self::ThisMachine | Self::Anyone => Ok(()),
        }
    }
}

fn is_of_browsers(name: &str, value: &[u8]) -> bool {
    OF_BROWSERS.iter().any(|begin| name.starts_with(begin)) || name == "user-agent" && value.starts_with(BROWSER_NAME)
}

/// Whether there is one Host header, and it names this machine.
fn is_addressed_to_this_machine(headers: &[(&str, &[u8])]) -> bool {
    let mut hosts = headers.iter().filter_map(|(name, value)| (*name == "host").then_some(*value));
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    std::str::from_utf8(host).is_ok_and(is_this_machine)
}

/// Whether a host, with or without a port, names loopback by address or as `localhost`. An attacker's DNS can resolve
/// any other name to loopback.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let is_loopback = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse().is_ok_and(|address: Ipv6Addr| address.is_loopback()),
        None => name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback()),
    };
    is_loopback || name.eq_ignore_ascii_case("localhost")
}
