//! Whether a run can start from a warm interpreter: pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use protocol::env::{EnvName, KUBEFLOW_TRAINER_SERVER_TOKEN, KUBEFLOW_TRAINER_SERVER_URL};

use crate::process::environment::Environment;
use crate::process::script::place_of_python;

/// Variables that the agent itself changes before a run. Python's libraries and gRPC read the variables of proxies at
/// each connection. Transformers reads the other variables when its Trainer begins.
const READ_LATE: [&str; 5] =
    ["no_proxy", "NO_PROXY", "no_grpc_proxy", KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_TOKEN];

/// The script and its arguments, if the command is `PYTHON SCRIPT …`. Other commands may prepare something for Python.
/// PYTHON and SCRIPT must be the same in each start, so neither may contain `$`. Arguments are sent with each start.
pub fn script_of(command: &[OsString]) -> Option<&[OsString]> {
    let is_constant = command.iter().take(2).all(|word| !word.as_encoded_bytes().contains(&b'$'));
    (is_constant && place_of_python(command) == Some(0)).then(|| &command[1..])
}

/// The changes from the interpreter's environment to that of a run; `None` removes a variable.
pub type EnvironmentChanges<'a> = BTreeMap<&'a str, Option<&'a str>>;

/// The changes that a run needs. Modules read many variables while they are imported. So only `READ_LATE` and the
/// variables that Muster computes for each start may differ.
///
/// # Errors
/// The name of a variable that differs, although it must be the same.
pub fn changes<'a>(imported: &'a Environment, run: &'a Environment) -> Result<EnvironmentChanges<'a>, String> {
    let names: BTreeSet<&OsString> = imported.keys().chain(run.keys()).collect();
    let differing = names.into_iter().filter(|name| imported.get(*name) != run.get(*name));
    let change = |name: &'a OsString| {
        let text = name.to_str().filter(|text| may_differ(text)).ok_or(name)?;
        let value = run.get(name).map(|value| value.to_str().ok_or(name)).transpose()?;
        Ok((text, value))
    };
    differing.map(change).collect::<Result<_, &OsString>>().map_err(|name| name.to_string_lossy().into_owned())
}

fn may_differ(name: &str) -> bool {
    READ_LATE.contains(&name) || name.parse().is_ok_and(|name: EnvName| name.is_computed())
}
