//! The checks of `client doctor` for jobs with a local master: whether this machine can run them.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use protocol::agent::PYTHONS;
use tokio::process::Command;
use tokio::time::timeout;

use crate::address::config::own_path;
use crate::ending::error::Error;
use crate::master::announcement;
use crate::master::local::SET_TMPDIR;
use crate::output::size;
use crate::output::{Check, CheckVerdict};
use crate::programs;

/// Maximum time for Python to look for TensorFlow.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(20);
/// Prints Python's version, and TensorFlow's version if TensorFlow is installed. Does not import TensorFlow.
const VERSIONS: &str = "
import sys
from importlib import metadata
found = [d.version for name in ('tensorflow', 'tensorflow-cpu') for d in metadata.distributions(name=name)]
print('.'.join(map(str, sys.version_info[:3])), *found[:1])
";
/// With less free space than this, the files of a job may not fit.
const SPACE_WANTED: u64 = 1 << 30;

/// Makes the checks.
pub(crate) async fn examine(run_folders: &[PathBuf]) -> Vec<Check> {
    vec![programs(), python(versions().await.as_deref()), temporary(&std::env::temp_dir()), announced(run_folders)]
}

fn programs() -> Check {
    match programs::master() {
        Ok(master) => Check::passed("programs", format!("{} and its agent", master.display())),
        Err(error) => Check::failed("programs", &error),
    }
}

/// The versions of the Python that runs scripts, and of its TensorFlow. `None` if no Python works.
async fn versions() -> Option<String> {
    for python in PYTHONS {
        if let Some(output) = run(python).await {
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            return output.status.success().then_some(text);
        }
    }
    None
}

async fn run(python: &str) -> Option<Output> {
    let mut command = Command::new(python);
    command
        .env("PATH", programs::path_for_scripts(own_path()))
        .args(["-c", VERSIONS])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    timeout(PYTHON_TIMEOUT, command.output()).await.ok()?.ok()
}

fn python(versions: Option<&str>) -> Check {
    match versions.map(|versions| versions.split_once(' ').ok_or(versions)) {
        None => {
            let activate = "put a Python 3 first on the PATH, as an activated virtual environment does";
            let missing = Error::master("there is no working python or python3 on the PATH").hint(activate);
            Check::failed("Python", &missing)
        }
        Some(Err(python)) => {
            let detail = format!("{python}, without TensorFlow");
            Check::warned("Python", detail, "if your scripts need TensorFlow: pip install tensorflow")
        }
        Some(Ok((python, tensorflow))) => Check::passed("Python", format!("{python}, TensorFlow {tensorflow}")),
    }
}

/// Checks that files can be written to the folder for temporary files, and that it has space.
fn temporary(folder: &Path) -> Check {
    let name = "temporary folder";
    if let Err(error) = tempfile::tempfile_in(folder) {
        return Check::failed(name, &Error::master(format!("{}: {error}", folder.display())).hint(SET_TMPDIR));
    }
    let free = rustix::fs::statvfs(folder).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    match free {
        Ok(free) if free < SPACE_WANTED => {
            Check::warned(name, format!("{} has only {} free", folder.display(), size(free)), SET_TMPDIR)
        }
        Ok(free) => Check::passed(name, format!("{} has {} free", folder.display(), size(free))),
        Err(error) => Check::new(name, CheckVerdict::Warn, format!("the free space is not known: {error}")),
    }
}

/// Checks the folder of the files by which commands in other terminals find a local master.
fn announced(run_folders: &[PathBuf]) -> Check {
    let name = "other terminals";
    match announcement::usable(run_folders) {
        Ok(folder) => Check::passed(name, format!("find local masters by files in {}", folder.display())),
        Err(error) => {
            let hint = "set XDG_RUNTIME_DIR to a folder that only you can use";
            Check::warned(name, format!("cannot find local masters: {error}"), hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_fails_and_a_missing_tensorflow_is_a_warning() {
        let verdict = |versions| python(versions).verdict;
        assert_eq!(verdict(None), CheckVerdict::Fail);
        assert_eq!(verdict(Some("3.11.7")), CheckVerdict::Warn);
        assert_eq!(python(Some("3.11.7 2.21.0")).detail, "3.11.7, TensorFlow 2.21.0");
    }
}
