//! Agents with a warm interpreter, and a small module in place of TensorFlow.

use std::fs;
use std::path::PathBuf;

use protocol::agent::ExitOutcome;
use protocol::warm::WarmState;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{Agent, wait_until};

/// The small module. It counts its imports, and registers a function that Python calls when it exits.
const STANDIN: &str = "import atexit, os
with open(os.environ['IMPORTS'], 'a') as file: file.write('.')
os.environ['BY_STANDIN'] = 'set while it was imported'
SEEN = os.environ.get('TUNED')
atexit.register(print, 'standin ends')
";

/// A job's folder, and a folder of installed modules.
pub(crate) struct Folders {
    root: TempDir,
}

impl Folders {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["job", "site-packages"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("site-packages/standin.py"), STANDIN).unwrap();
        fs::write(root.path().join("imports"), "").unwrap();
        Self { root }
    }

    pub(crate) fn job(&self) -> PathBuf {
        self.root.path().join("job")
    }

    pub(crate) fn installed(&self) -> PathBuf {
        self.root.path().join("site-packages")
    }

    /// How many interpreters have imported the module.
    pub(crate) fn imports(&self) -> usize {
        fs::read(self.root.path().join("imports")).unwrap().len()
    }

    pub(crate) fn write_script(&self, script: impl AsRef<[u8]>) {
        fs::write(self.job().join("exec.py"), script).unwrap();
    }

    /// An agent that runs `python3 exec.py -x 1`.
    pub(crate) fn agent(&self) -> Agent {
        self.agent_of(&["python3", "exec.py", "-x", "1"])
    }

    pub(crate) fn agent_of(&self, command: &[&str]) -> Agent {
        Agent::start(&["--work-dir", self.job().to_str().unwrap()], command)
    }

    /// The variables that a run needs, and the variables in `more`.
    pub(crate) fn env(&self, more: &Value) -> Value {
        let mut env = Map::new();
        env.insert("PYTHONPATH".to_owned(), json!(self.installed()));
        env.insert("IMPORTS".to_owned(), json!(self.root.path().join("imports")));
        env.insert("PYTHONDONTWRITEBYTECODE".to_owned(), json!("1"));
        env.extend(more.as_object().unwrap().clone());
        env.into()
    }
}

/// The outcome of a run, and its output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) outcome: ExitOutcome,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Agent {
    /// Asks for a warm interpreter, and waits until it is ready or cold.
    pub(crate) fn warm_up(&self, env: &Value, modules: &Value) -> WarmState {
        let answer = self.post("/warm", &json!({"env": env, "modules": modules}).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        wait_until("the end of the imports", || self.status().warm.filter(|state| *state != WarmState::Importing))
    }

    /// Waits until the agent has no warm interpreter, and returns the reason.
    pub(crate) fn wait_until_cold(&self) -> String {
        wait_until("the end of the warm interpreter", || match self.status().warm {
            Some(WarmState::Cold { reason }) => Some(reason),
            Some(WarmState::Importing | WarmState::Ready) | None => None,
        })
    }

    pub(crate) fn start_with(&self, env: &Value) {
        self.go_with(&env.to_string());
    }

    /// Completes a run with these variables.
    pub(crate) fn ran(&self, env: &Value) -> Ran {
        let before = ["stdout", "stderr"].map(|stream| self.logs(stream).len());
        self.start_with(env);
        let outcome = self.wait_for_exit().outcome;
        let text = |stream, from: usize| String::from_utf8_lossy(&self.logs(stream)[from..]).into_owned();
        Ran { outcome, stdout: text("stdout", before[0]), stderr: text("stderr", before[1]) }
    }
}
