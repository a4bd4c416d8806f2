//! The body of an agent's `/config`: what is taken can be passed to a program, and reads back as it was.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeMap;

use agent::run::environment::{Environment, child_environment, parse_config};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|body: &[u8]| check(body));

/// Tries one input.
///
/// # Panics
/// When it breaks what the first line of this file says.
pub(crate) fn check(body: &[u8]) {
    let Ok(changes) = parse_config(body) else { return };
    for (name, value) in &changes {
        assert_eq!(name.as_str().parse().as_ref(), Ok(name));
        if let Some(value) = value {
            assert_eq!(name.check_value(value), Ok(()));
        }
    }
    let again: BTreeMap<&str, &Option<String>> = changes.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let again = parse_config(&serde_json::to_vec(&again).expect("text is JSON")).expect("what was taken is taken");
    assert_eq!(again, changes);

    let child = child_environment(&Environment::new(), &changes);
    for (name, value) in changes {
        let found = child.get(std::ffi::OsStr::new(name.as_str()));
        // The hosts that no proxy may stand before are added to these.
        if !name.as_str().to_ascii_lowercase().ends_with("_proxy") {
            assert_eq!(found, value.map(Into::into).as_ref(), "{name}");
        }
    }
}
