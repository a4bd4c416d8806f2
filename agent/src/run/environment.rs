//! The environment of exec.py: what the body of `/config` asks for, on top of the agent's own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use protocol::env::{EnvError, EnvName, MUSTER_NO_PROXY};
use serde_json::value::RawValue;

/// What a config changes: a variable's value, or that it shall not be set.
pub type EnvChanges = BTreeMap<EnvName, Option<String>>;

/// Variables by name. Other than those of a config, an inherited one may be anything that the kernel passed on.
pub type Environment = BTreeMap<OsString, OsString>;

/// By which a program is told of a proxy. gRPC reads the lower-case ones, Python's libraries both.
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY"];

/// Why a config cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The body is no JSON object.
    #[error("the body is not a JSON object: {0}")]
    NotAnObject(#[source] serde_json::Error),
    /// A string holds what is no text, such as half a surrogate pair.
    #[error("the value of {name} is not text: {source}")]
    NotText {
        /// The variable.
        name: EnvName,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// A name or a value cannot be passed to a program.
    #[error(transparent)]
    Env(#[from] EnvError),
}

/// Reads the body of `/config`: a string stands for itself, a number or boolean for its text, an object or array for
/// its compact JSON text with keys and numbers as they were sent, null for "not set".
///
/// # Errors
/// All of [`ConfigError`].
pub fn parse_config(body: &[u8]) -> Result<EnvChanges, ConfigError> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(ConfigError::NotAnObject)?;
    members.into_iter().map(|(name, value)| parse_member(&name, value.get())).collect()
}

/// Reads one member of a config. `json` is valid JSON without space around it.
fn parse_member(name: &str, json: &str) -> Result<(EnvName, Option<String>), ConfigError> {
    let name: EnvName = name.parse()?;
    let value = match json.as_bytes().first() {
        Some(b'n') => return Ok((name, None)),
        Some(b'"') => {
            serde_json::from_str(json).map_err(|source| ConfigError::NotText { name: name.clone(), source })?
        }
        Some(_) | None => compact(json),
    };
    name.check_value(&value)?;
    Ok((name, Some(value)))
}

/// Valid JSON without the space between its parts.
fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        let space = matches!(character, ' ' | '\t' | '\n' | '\r');
        if in_string || !space {
            text.push(character);
        }
        in_string ^= character == '"' && !escaped;
        escaped = in_string && character == '\\' && !escaped;
    }
    text
}

/// The environment of a run.
pub fn child_environment(own: &Environment, changes: &EnvChanges) -> Environment {
    let mut environment = own.clone();
    for (name, value) in changes {
        let name = OsString::from(name.as_str());
        match value {
            Some(value) => environment.insert(name, value.into()),
            None => environment.remove(&name),
        };
    }
    keep_peers_off_the_proxy(&mut environment);
    environment
}

/// Adds the hosts in [`MUSTER_NO_PROXY`] to those that no proxy may stand before. gRPC would otherwise ask the proxy
/// for the peers, and TensorFlow would wait for them without limit and without a word.
fn keep_peers_off_the_proxy(environment: &mut Environment) {
    let get = |name: &str| environment.get(OsStr::new(name)).filter(|value| !value.is_empty());
    let (true, Some(peers)) = (PROXIES.into_iter().any(|name| get(name).is_some()), get(MUSTER_NO_PROXY)) else {
        return;
    };
    // Where both are set, some programs read one and some the other, so neither may lack what the other has for them.
    let lower = get("no_proxy").or(get("NO_PROXY"));
    let upper = get("NO_PROXY").or(get("no_proxy"));
    let mut added = vec![("no_proxy", joined(lower, peers)), ("NO_PROXY", joined(upper, peers))];
    // gRPC reads this one first, and no_proxy only in its absence.
    if let Some(grpc) = get("no_grpc_proxy") {
        added.push(("no_grpc_proxy", joined(Some(grpc), peers)));
    }
    environment.extend(added.into_iter().map(|(name, value)| (name.into(), value)));
}

/// Two lists of hosts as one.
fn joined(first: Option<&OsString>, second: &OsStr) -> OsString {
    let mut list = first.map_or_else(OsString::new, |first| {
        let mut list = first.clone();
        list.push(",");
        list
    });
    list.push(second);
    list
}
