//! A job whose batch sizes change, on two bare machines. Its scripts continue when the master is killed. In these
//! tests, each machine is a loopback address.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use protocol::view::JobView;

use crate::balanced::{GLOBAL_BATCH, Journal, SCRIPT, slow_down};
use crate::client::Running;
use crate::master::Master;
use crate::processes::within;
use crate::programs::built;
use crate::scene::Scene;

/// The arguments of the master.
const JOINED: [&str; 4] = ["--state-dir", "state", "--backend", "joined"];
/// The name of the job, and of the folder with its journals.
const JOB: &str = "balanced";

/// The job, its machines and its master.
pub struct Machines {
    // Declared before the folder, so the programs end first.
    agents: Vec<Running>,
    /// The master.
    pub master: Master,
    scene: Scene,
}

impl Machines {
    /// Begins the job. Rank 1 is slow. The first master has these variables in its environment.
    ///
    /// # Panics
    /// If a program cannot be started.
    pub fn begin(variables: &[(&str, &str)]) -> Self {
        let scene = Scene::new(SCRIPT);
        fs::create_dir(scene.path().join(JOB)).expect("cannot create the folder");
        slow_down(&scene.path().join(JOB), 1);
        let master = Master::start(scene.path(), &JOINED, variables);
        let batch = GLOBAL_BATCH.to_string();
        let submit = ["--master", &master.url, "-d", "--task", JOB, "--worker-num", "2", "--global-batch", &batch];
        // A busy computer may not renew a shorter lease in time.
        let policy = ["--on-unreachable", "replace", "--lease", "20s", "--max-restarts", "0"];
        scene.run(&[&submit[..], &policy].concat()).code(0);
        let agents = ["127.0.0.2:0", "127.0.0.3:0"].map(|address| {
            let mut agent = Command::new(built("agent"));
            agent.args(["--join", &master.url, "--task", JOB, "--address", address]);
            Running::of(agent.args(["--", "python", "exec.py", JOB]).current_dir(scene.path()))
        });
        Self { agents: agents.into(), master, scene }
    }

    /// The folder with the journals.
    pub fn folder(&self) -> PathBuf {
        self.scene.path().join(JOB)
    }

    /// The journals so far.
    pub fn journal(&self) -> Journal {
        Journal::read(&self.folder())
    }

    /// The job's view. `None` while no master answers.
    pub fn view(&self) -> Option<JobView> {
        let status = self.scene.run(&["--master", &self.master.url, "status", JOB, "-o", "json"]);
        serde_json::from_str(&status.stdout).ok()
    }

    /// Waits until a strike has killed the master, and starts the next master.
    ///
    /// # Panics
    /// If the master is not killed.
    pub fn replace_the_struck_master(&mut self) {
        within("the master is killed", || self.view().is_none().then_some(()), || self.state());
        self.next_master();
    }

    /// Starts the next master. The previous master must have ended.
    ///
    /// # Panics
    /// If the next master does not start.
    pub fn next_master(&mut self) {
        self.master.follow_up(&JOINED);
    }

    /// Waits until both ranks use sizes with a higher version than `before`. Returns the version.
    ///
    /// # Panics
    /// If the sizes do not change.
    pub fn until_changed(&self, before: u64) -> u64 {
        let newest = || self.journal().newest(2)?.1.values().map(|line| line.split).min();
        within(&format!("a version after {before}"), || newest().filter(|split| *split > before), || self.state())
    }

    /// Waits until all agents have ended. Fails if an agent has not exited with 0.
    ///
    /// # Panics
    /// If an agent fails.
    pub fn ended(&mut self) {
        for agent in self.agents.drain(..) {
            agent.ended().code(0);
        }
    }

    /// What a failed test prints.
    fn state(&self) -> String {
        let agents: Vec<String> = self.agents.iter().map(Running::said_so_far).collect();
        format!("{:#?}\n{}\n{}", self.view(), self.master.log(), agents.concat())
    }
}
