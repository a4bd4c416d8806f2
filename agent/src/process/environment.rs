//! The environment of exec.py: the agent's own environment, changed by the body of `/config`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use protocol::env::launchers::LOCAL_WORLD_SIZE;
use protocol::env::{EnvError, EnvName, MUSTER_NO_PROXY, OMP_NUM_THREADS};
use protocol::warm::WarmRequest;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The changes of a config: a variable's value, or `None` to remove it.
pub type EnvChanges = BTreeMap<EnvName, Option<String>>;

/// Variables by name. Variables of a config are UTF-8. Inherited variables may contain other bytes.
pub type Environment = BTreeMap<OsString, OsString>;

/// The variables that name a proxy. gRPC reads the names in lower case. Python's libraries read all of them.
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY"];

/// Why a config is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The body is not a JSON object.
    #[error("the body is not the expected JSON object: {0}")]
    NotAnObject(#[source] serde_json::Error),
    /// A string is not valid text: for example, it contains half a surrogate pair.
    #[error("the value of {name} is not text: {source}")]
    NotText {
        /// The variable.
        name: EnvName,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// There are not as many environments as processes.
    #[error("the body has the environments of {found} processes, not of {processes}")]
    Count {
        /// The number of processes.
        processes: usize,
        /// The number of environments.
        found: usize,
    },
    /// A name or a value cannot be passed to a program.
    #[error(transparent)]
    Env(#[from] EnvError),
}

/// Reads the body of `/config`. The value of a variable is the content of a JSON string. For another JSON value, it is
/// the compact text, with keys and numbers as they were sent. `null` removes the variable.
pub fn parse_config(body: &[u8]) -> Result<EnvChanges, ConfigError> {
    parse_members(serde_json::from_slice(body).map_err(ConfigError::NotAnObject)?)
}

fn parse_members(members: BTreeMap<String, &RawValue>) -> Result<EnvChanges, ConfigError> {
    members.into_iter().map(|(name, value)| parse_member(&name, value.get())).collect()
}

/// The body of a config of several processes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigOfSeveral<'a> {
    /// The changes for all processes.
    #[serde(borrow)]
    all: BTreeMap<String, &'a RawValue>,
    /// The further changes for each process, by its index.
    #[serde(borrow)]
    each: Vec<BTreeMap<String, &'a RawValue>>,
}

/// Reads the body of `/config` for this number of processes: `{"all": CHANGES, "each": [CHANGES, …]}`. If the value of a
/// variable is an object in both, as that of TF_CONFIG, the process gets the members of both objects.
///
/// # Errors
/// As [`parse_config`], and if there are more or fewer changes than processes.
pub fn parse_config_of_several(body: &[u8], processes: usize) -> Result<Vec<EnvChanges>, ConfigError> {
    let ConfigOfSeveral { all, each } = serde_json::from_slice(body).map_err(ConfigError::NotAnObject)?;
    if each.len() != processes {
        return Err(ConfigError::Count { processes, found: each.len() });
    }
    let mut parsed = Vec::new();
    let of_all = parse_members(all.clone())?;
    for own in each {
        let mut changes = of_all.clone();
        for (name, value) in own {
            let merged = all.get(&name).and_then(|shared| merged(shared.get(), value.get()));
            let (name, value) = parse_member(&name, merged.as_deref().unwrap_or(value.get()))?;
            changes.insert(name, value);
        }
        parsed.push(changes);
    }
    Ok(parsed)
}

/// The object `shared` with the members of the object `own`; `None` unless both are objects.
fn merged(shared: &str, own: &str) -> Option<String> {
    let object = |json| serde_json::from_str::<BTreeMap<String, &RawValue>>(json).ok();
    let (mut members, own) = (object(shared)?, object(own)?);
    members.extend(own);
    serde_json::to_string(&members).ok()
}

/// Reads the body of `/warm`.
///
/// # Errors
/// [`ConfigError::NotAnObject`] and [`ConfigError::Env`].
pub fn parse_warm(body: &[u8]) -> Result<WarmRequest, ConfigError> {
    let request: WarmRequest = serde_json::from_slice(body).map_err(ConfigError::NotAnObject)?;
    request.env.iter().try_for_each(|(name, value)| name.check_value(value))?;
    Ok(request)
}

/// Reads the body of `/notice`. Returns the same JSON object on one line.
pub fn parse_notice(body: &[u8]) -> Result<String, ConfigError> {
    let _: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(ConfigError::NotAnObject)?;
    Ok(compact(&String::from_utf8_lossy(body)))
}

/// Reads one member of a config. `json` is valid JSON without surrounding space.
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

/// Removes the space between the parts of valid JSON.
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

/// The environment of a run: `own` with these changes, and with the peers in `no_proxy`.
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
    let ranks = environment.get(OsStr::new(LOCAL_WORLD_SIZE)).and_then(|ranks| ranks.to_str()?.parse::<u32>().ok());
    if ranks > Some(1) && !changes.keys().any(|name| name.as_str() == OMP_NUM_THREADS) {
        environment.entry(OMP_NUM_THREADS.into()).or_insert("1".into());
    }
    environment
}

/// Keeps the hosts in [`MUSTER_NO_PROXY`] off a proxy. Otherwise gRPC would connect to the peers through the proxy, and
/// TensorFlow would wait for the peers silently and without a limit. Without a proxy, removes the variable: JAX would
/// take it for a proxy, and warn that the script may hang.
fn keep_peers_off_the_proxy(environment: &mut Environment) {
    if !has_proxy(environment) {
        environment.remove(OsStr::new(MUSTER_NO_PROXY));
    } else if let Some(peers) = environment.get(OsStr::new(MUSTER_NO_PROXY)).filter(|peers| !peers.is_empty()).cloned()
    {
        keep_off_the_proxy(environment, &peers);
    }
}

fn has_proxy(environment: &Environment) -> bool {
    PROXIES.iter().any(|name| environment.get(OsStr::new(name)).is_some_and(|value| !value.is_empty()))
}

/// If a proxy is set, adds these hosts, which are separated by commas, to `no_proxy`.
pub(crate) fn keep_off_the_proxy(environment: &mut Environment, hosts: &OsStr) {
    if !has_proxy(environment) {
        return;
    }
    let get = |name: &str| environment.get(OsStr::new(name)).filter(|value| !value.is_empty());
    // Some programs read `no_proxy` and others `NO_PROXY`, so both variables get all hosts.
    let lower = get("no_proxy").or(get("NO_PROXY"));
    let upper = get("NO_PROXY").or(get("no_proxy"));
    let mut added = vec![("no_proxy", joined(lower, hosts)), ("NO_PROXY", joined(upper, hosts))];
    // gRPC reads `no_grpc_proxy` if it is set, and `no_proxy` otherwise.
    if let Some(grpc) = get("no_grpc_proxy") {
        added.push(("no_grpc_proxy", joined(Some(grpc), hosts)));
    }
    environment.extend(added.into_iter().map(|(name, value)| (name.into(), value)));
}

/// Adds a folder to the end of `PYTHONPATH`, so that modules in other folders take precedence. Adds no empty entry,
/// because an empty entry means the working directory to Python.
pub(super) fn append_to_python_path(environment: &mut Environment, folder: &Path) {
    let path = environment.entry("PYTHONPATH".into()).or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(folder);
}

/// Joins two lists of hosts.
fn joined(first: Option<&OsString>, second: &OsStr) -> OsString {
    let mut list = first.map_or_else(OsString::new, |first| {
        let mut list = first.clone();
        list.push(",");
        list
    });
    list.push(second);
    list
}
