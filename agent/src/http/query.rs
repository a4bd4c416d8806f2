//! Query parameters. Values are not decoded, because Muster sends only values that need no percent-encoding.

use std::str::FromStr;
use std::time::Duration;

use hyper::Request;
use protocol::agent::Membership;
use protocol::ids::Generation;
use protocol::lease::{ClockMillis, Renewal};
use protocol::processes::PROCESSES_MAX;

use crate::log::Stream;
use crate::server::answer::RequestFailure;

/// What an invalid number should have been.
pub(super) const WHOLE: &str = "a whole number";

/// Maximum grace: a day.
const GRACE_MAX_SECONDS: u64 = 86_400;

/// The query of one request.
pub(super) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    pub(super) fn of<B>(request: &'a Request<B>) -> Self {
        Self(request.uri().query().unwrap_or_default())
    }

    /// The value of a parameter. If the parameter is repeated, the first value counts.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.split('&').find_map(|pair| match pair.split_once('=') {
            Some((key, value)) => (key == name).then_some(value),
            None => (pair == name).then_some(""),
        })
    }

    pub(super) fn parse<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, RequestFailure> {
        let parse = |text: &str| text.parse().map_err(|_| bad(name, text, expected));
        self.get(name).map(parse).transpose()
    }

    pub(super) fn generation(&self) -> Result<Option<Generation>, RequestFailure> {
        self.parse("generation", "of the form E.S, such as 1.1")
    }

    /// The membership in a start: `seat`, `of` and `start`, either all three or none. `pushes` is optional.
    pub(super) fn membership(&self) -> Result<Option<Membership>, RequestFailure> {
        let number = |name: &str| self.parse::<u32>(name, WHOLE);
        let pushes = number("pushes")?.unwrap_or_default();
        match (number("seat")?, number("of")?, number("start")?) {
            (None, None, None) => Ok(None),
            (Some(seat), Some(of), Some(start)) => Ok(Some(Membership { seat, of, start, pushes })),
            _ => Err(RequestFailure::Query("seat, of and start must be given together".to_owned())),
        }
    }

    /// The number of main processes. `None` if the body of a config is the environment of the only one.
    pub(super) fn processes(&self) -> Result<Option<usize>, RequestFailure> {
        let expected = "a number of processes from 1 to 64";
        let Some(processes) = self.parse::<u32>("processes", expected)? else { return Ok(None) };
        if !(1..=PROCESSES_MAX).contains(&processes) {
            return Err(bad("processes", &processes.to_string(), expected));
        }
        Ok(Some(processes as usize))
    }

    /// Time from SIGTERM to SIGKILL, in seconds with or without a fraction.
    pub(super) fn grace(&self) -> Result<Option<Duration>, RequestFailure> {
        let name = "grace";
        let expected = "a number of seconds, 86400 at most";
        let Some(text) = self.get(name) else { return Ok(None) };
        let seconds: f64 = text.parse().map_err(|_| bad(name, text, expected))?;
        let grace = Duration::try_from_secs_f64(seconds).map_err(|_| bad(name, text, expected))?;
        if grace <= Duration::from_secs(GRACE_MAX_SECONDS) { Ok(Some(grace)) } else { Err(bad(name, text, expected)) }
    }

    /// Maximum time of a long poll: `wait_ms` or, without this parameter, `wait` in seconds.
    pub(super) fn wait(&self) -> Result<Option<Duration>, RequestFailure> {
        let seconds = self.parse("wait", "a whole number of seconds")?.map(Duration::from_secs);
        Ok(self.millis("wait_ms")?.map(Duration::from_millis).or(seconds))
    }

    fn millis(&self, name: &str) -> Result<Option<u64>, RequestFailure> {
        self.parse(name, "a whole number of milliseconds")
    }

    /// The renewal that keeps the run alive: `fence_ms` and `heard_ms`, either both or none.
    pub(super) fn renewal(&self) -> Result<Option<Renewal>, RequestFailure> {
        match (self.millis("fence_ms")?, self.millis("heard_ms")?) {
            (None, None) => Ok(None),
            (Some(fence), Some(heard)) => {
                Ok(Some(Renewal { fence: Duration::from_millis(fence), heard: ClockMillis(heard) }))
            }
            _ => Err(RequestFailure::Query("fence_ms and heard_ms must be given together".to_owned())),
        }
    }

    pub(super) fn stream(&self) -> Result<Stream, RequestFailure> {
        match self.get("stream") {
            None | Some("both") => Ok(Stream::Both),
            Some("stdout") => Ok(Stream::Stdout),
            Some("stderr") => Ok(Stream::Stderr),
            Some(other) => Err(bad("stream", other, "both, stdout or stderr")),
        }
    }

    /// A parameter that is `true` or `false`. Without it, the value is `false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, RequestFailure> {
        Ok(self.parse(name, "true or false")?.unwrap_or(false))
    }
}

fn bad(name: &str, text: &str, expected: &str) -> RequestFailure {
    let shown: String = text.chars().take(80).collect();
    RequestFailure::Query(format!("{name}={shown} is not {expected}"))
}
