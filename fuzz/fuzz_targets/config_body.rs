//! The body of a request to an agent's `/config`. If the agent accepts the body, the body's variables are valid, and
//! the agent can pass them to a program. If these variables are written as a new body, the agent accepts the new body
//! and reads the same variables from it.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;

use agent::process::environment::{Environment, child_environment, parse_config};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|body: &[u8]| check(body));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(body: &[u8]) {
    let Ok(changes) = parse_config(body) else { return };
    for (name, value) in &changes {
        assert_eq!(name.as_str().parse().as_ref(), Ok(name));
        if let Some(value) = value {
            assert_eq!(name.check_value(value), Ok(()));
        }
    }
    let again: BTreeMap<&str, &Option<String>> = changes.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let again = parse_config(&serde_json::to_vec(&again).expect("the variables could not be written as JSON"))
        .expect("the agent refuses a body that was written from accepted variables");
    assert_eq!(again, changes);

    let child = child_environment(&Environment::new(), &changes);
    for (name, value) in changes {
        let found = child.get(std::ffi::OsStr::new(name.as_str()));
        // The agent may add hosts to `no_proxy`, `NO_PROXY` and `no_grpc_proxy`.
        if !name.as_str().to_ascii_lowercase().ends_with("_proxy") {
            assert_eq!(found, value.map(Into::into).as_ref(), "{name}");
        }
    }
}
