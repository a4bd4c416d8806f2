//! One scenario: a folder, a master behind a proxy, and agents behind proxies. At the end, writes what was recorded.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use e2e::programs::{built, root};
use e2e::{Finished, Master, Running, Scene, within};
use protocol::env::MUSTER_TOKEN_SHA256;
use protocol::view::{JobState, JobView};
use serde_json::Value;

use crate::{exchanges, proxy};

/// Prints the rows of a database of records as JSON.
const ROWS: &str = "import json, sqlite3, sys\n\
                    rows = sqlite3.connect(sys.argv[1]).execute('SELECT name, record FROM jobs')\n\
                    print(json.dumps(dict(rows.fetchall())))";

/// A running scenario.
pub(crate) struct Setting {
    name: &'static str,
    to: PathBuf,
    args: Vec<String>,
    /// The master.
    pub(crate) master: Master,
    /// The URL of the proxy in front of the master, for clients.
    pub(crate) url: String,
    /// The folder of the programs.
    pub(crate) scene: Scene,
}

impl Setting {
    /// Starts a master with this back end. The script of its jobs is `exec_py`.
    pub(crate) fn begin(name: &'static str, to: &Path, exec_py: &str, backend: &[&str]) -> anyhow::Result<Self> {
        let scene = Scene::new(exec_py);
        let agent = scene.path().join("agent");
        let (this, log) = (std::env::current_exe()?, scene.path().join("log"));
        let command =
            [this.as_path(), Path::new("--agent"), &log, &built("agent")].map(|part| part.display().to_string());
        fs::write(&agent, format!("#!/bin/sh\nexec {} \"$@\"\n", command.join(" ")))?;
        fs::set_permissions(&agent, Permissions::from_mode(0o755))?;
        let agent = agent.display().to_string();
        let args = [&["--state-dir", "state", "--agent-binary", &agent, "--backend"], backend].concat();
        let master = Master::start(scene.path(), &args, &[]);
        let address = master.url.strip_prefix("http://").context("no address")?.parse()?;
        let url = format!("http://{}", proxy::start("client to master", address, &log)?);
        let args = args.into_iter().map(str::to_owned).collect();
        Ok(Self { name, to: to.to_owned(), args, master, url, scene })
    }

    /// Kills the master with `kill -9`, and starts the next master.
    pub(crate) fn take_over(&mut self) {
        self.master.kill();
        self.master.follow_up(&self.args.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Runs a command of the client to its end, whatever its exit code.
    pub(crate) fn client(&self, args: &[&str]) -> Finished {
        self.scene.run(&[&["--master", &self.url], args].concat())
    }

    /// Starts an agent of a bare machine behind a proxy. Its last words go to the file `words`.
    pub(crate) fn machine(&self, job: &str, words: &str) -> anyhow::Result<Running> {
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let address = proxy::start("master to agent", listen, &self.scene.path().join("log"))?;
        let master = self.master.url.strip_prefix("http://").context("no address")?.parse()?;
        let master = proxy::start("agent to master", master, &self.scene.path().join("log"))?;
        fs::write(self.scene.path().join(words), "")?;
        let mut agent = Command::new(built("agent"));
        agent.args(["--join", &format!("http://{master}"), "--task", job, "--listen", &listen.to_string()]);
        agent.args(["--address", &address.to_string(), "--termination-log", words, "--", "python", "exec.py"]);
        Ok(Running::of(agent.current_dir(self.scene.path())))
    }

    /// Waits until the job has this state and satisfies `is_so`. Asks the master itself, so nothing is recorded.
    pub(crate) fn until(&self, job: &str, state: JobState, is_so: impl Fn(&JobView) -> bool) -> JobView {
        let ask = || self.scene.run(&["--master", &self.master.url, "status", job, "-o", "json"]).stdout;
        let view = || serde_json::from_str::<JobView>(&ask()).ok().filter(|view| view.state == state && is_so(view));
        within(&format!("{job} is {state:?}"), view, || format!("{}\n{}", ask(), self.master.log()))
    }

    /// Writes the records as they are now into `records/NAME-MOMENT.json`.
    pub(crate) fn records(&self, moment: &str) -> anyhow::Result<()> {
        let asked =
            Command::new("python3").args(["-c", ROWS]).arg(self.scene.path().join("state/jobs.sqlite")).output()?;
        let rows: serde_json::Map<String, Value> = serde_json::from_slice(&asked.stdout)?;
        ensure!(!rows.is_empty(), "there is no record");
        for (job, record) in rows {
            self.write(&format!("records/{job}-{moment}.json"), record.as_str().context("not a text")?)?;
        }
        Ok(())
    }

    /// Copies a file of the scenario's folder.
    pub(crate) fn copy(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.write(to, &fs::read_to_string(self.scene.path().join(from)).context(from.to_owned())?)
    }

    /// Writes the messages and the history.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let log = fs::read_to_string(self.scene.path().join("log"))?;
        let mut exchanges = exchanges::in_log(&log, |bytes| self.neutral(bytes))?;
        blank(&mut exchanges);
        self.write(&format!("messages/{}.json", self.name), &format!("{exchanges:#}\n"))?;
        for entry in fs::read_dir(self.scene.path().join("state/history")).into_iter().flatten() {
            let name = entry?.file_name().into_string().ok().context("not a name")?;
            self.copy(&format!("state/history/{name}"), &format!("history/{name}"))?;
        }
        Ok(())
    }

    /// Writes a file without the names of this machine.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let bytes = self.neutral(text.as_bytes());
        ensure!(!String::from_utf8_lossy(&bytes).contains("/root/"), "{name} names a folder of this machine");
        let path = self.to.join(name);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(&path, bytes).context(name.to_owned())
    }

    /// Replaces the names of this machine. The length stays the same, because messages and files of the history contain
    /// lengths.
    fn neutral(&self, bytes: &[u8]) -> Vec<u8> {
        let (scene, root) = (self.scene.path().display().to_string(), root().display().to_string());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let mut bytes = bytes.to_owned();
        for (own, other) in [(&scene, "/home/user/digits"), (&root, "/opt/muster/muster"), (&host, "machine-0")] {
            let other: Vec<u8> = other.bytes().chain(std::iter::repeat(b'-')).take(own.len()).collect();
            while let Some(at) = bytes.windows(own.len().max(1)).position(|part| part == own.as_bytes()) {
                bytes[at..at + own.len()].copy_from_slice(&other);
            }
        }
        bytes
    }
}

/// Replaces the hashes of tokens.
pub(crate) fn blank(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(blank),
        Value::Object(fields) => {
            if fields.get("name").is_some_and(|name| name == MUSTER_TOKEN_SHA256) {
                fields.insert("value".to_owned(), "0".repeat(64).into());
            }
            for (name, value) in fields {
                if name == "token_sha256" { *value = "0".repeat(64).into() } else { blank(value) }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
