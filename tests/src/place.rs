//! The places where a test's jobs run. Journeys, the tests that run in several places, use only this interface.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use protocol::env::EnvName;
use protocol::view::JobView;
use rustix::process::Signal;

use crate::client::{Finished, Running};
use crate::cluster::{Cluster, FaultProxy, Image};
use crate::master::Master;
use crate::processes::{pids, signal, within};
use crate::scene::Scene;

/// Default arguments of a master.
const STATE: [&str; 2] = ["--state-dir", "state"];

/// Where jobs run, and the kind of master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Jobs run as processes of this machine. The client starts a master for each job.
    OwnMaster,
    /// Jobs run as processes of this machine, with a permanent master.
    Processes,
    /// Jobs run as pods of the cluster in KUBECONFIG, with a permanent master.
    Cluster,
}

/// A place that is set up for one test, with a folder and an exec.py.
pub struct Stage {
    // Declared before the folder, so the master and the pods are dropped first.
    site: Site,
    /// `EXEC_PY=`, followed by the script, for the shared image. `None` for jobs that run an example.
    script: Option<String>,
    scene: Scene,
}

enum Site {
    OwnMaster,
    Processes(Master),
    Cluster(Cluster),
}

impl Stage {
    /// Sets up a place for jobs that run this script.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn new(place: Place, exec_py: &str) -> Self {
        Self::with_master(place, exec_py, &STATE)
    }

    /// Like [`Self::new`], but the master has these arguments.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn with_master(place: Place, exec_py: &str, args: &[&str]) -> Self {
        let script = Some(format!("EXEC_PY={exec_py}"));
        Self::set_up(place, Scene::new(exec_py), (script, Image::shared), args)
    }

    /// Sets up a place for jobs that run `examples/hello`.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn hello(place: Place) -> Self {
        Self::set_up(place, Scene::of_example("hello"), (None, Image::shared), &STATE)
    }

    /// Sets up a place for jobs that run this example. A cluster's image is built from the example's Dockerfile.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn of_example(place: Place, name: &str) -> Self {
        Self::set_up(place, Scene::of_example(name), (None, || Image::of_example(name)), &STATE)
    }

    /// Sets up the cluster for jobs that run this script in this image.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn in_image(image: &Arc<Image>, exec_py: &str) -> Self {
        let script = Some(format!("EXEC_PY={exec_py}"));
        Self::set_up(Place::Cluster, Scene::new(exec_py), (script, || Arc::clone(image)), &STATE)
    }

    /// Sets up the cluster for jobs that run this script. The master reaches the cluster's API through this proxy.
    ///
    /// # Panics
    /// If the place cannot be set up.
    pub fn behind(api: &FaultProxy, exec_py: &str) -> Self {
        let scene = Scene::new(exec_py);
        let cluster = Cluster::behind(api, &scene, Image::shared(), &STATE);
        Self { site: Site::Cluster(cluster), script: Some(format!("EXEC_PY={exec_py}")), scene }
    }

    fn set_up(
        place: Place,
        scene: Scene,
        (script, image): (Option<String>, impl Fn() -> Arc<Image>),
        args: &[&str],
    ) -> Self {
        let site = match place {
            Place::OwnMaster => Site::OwnMaster,
            Place::Processes => Site::Processes(Master::start(scene.path(), args, &[])),
            Place::Cluster => Site::Cluster(Cluster::new(&scene, image(), args)),
        };
        Self { site, script, scene }
    }

    /// Returns the test's folder.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Returns the client's command that submits a job with these flags and follows the job.
    pub fn submitting(&self, flags: &[&str]) -> Command {
        let Site::Cluster(cluster) = &self.site else { return self.client(flags) };
        let mut own = cluster.image.flags();
        own.extend(self.script.iter().flat_map(|script| ["--env".to_owned(), script.clone()]));
        self.client(&own.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    /// Submits a job with these flags, and follows the job to its end.
    ///
    /// # Panics
    /// If the client does not end before the deadline.
    pub fn submit(&self, flags: &[&str]) -> Finished {
        Finished::of(&mut self.submitting(flags))
    }

    /// Runs a client command to its end.
    ///
    /// # Panics
    /// If the command does not end before the deadline.
    pub fn verb(&self, args: &[&str]) -> Finished {
        Finished::of(&mut self.client(args))
    }

    /// Follows the output of a job.
    ///
    /// # Panics
    /// If the client does not start.
    pub fn follow(&self, job: &str) -> Running {
        Running::of(&mut self.client(&["logs", job, "--follow"]))
    }

    /// Waits until the job has finished, and returns its view.
    ///
    /// # Panics
    /// If the job does not finish before the deadline.
    pub fn finished(&self, job: &str) -> JobView {
        self.verb(&["wait", job, "-o", "json"]).view()
    }

    /// Returns the job's current view.
    ///
    /// # Panics
    /// If the job does not exist.
    pub fn status(&self, job: &str) -> JobView {
        self.verb(&["status", job, "-o", "json"]).code(0).view()
    }

    /// Returns a client command, with the flag for the master.
    pub fn client(&self, args: &[&str]) -> Command {
        match self.master() {
            Some(master) => self.scene.client(&[&["--master", &master.url], args].concat()),
            None => self.scene.client(args),
        }
    }

    /// Sends a request for this path to the master, by curl with these arguments. Returns the answer's body.
    ///
    /// # Panics
    /// If the place has no permanent master.
    pub fn curl(&self, args: &[&str], path: &str) -> String {
        let url = format!("{}{path}", self.url());
        self.scene.curl(&[args, &[&url]].concat())
    }

    /// Returns the URL of the master.
    ///
    /// # Panics
    /// If the place has no permanent master.
    pub fn url(&self) -> &str {
        &self.master().expect("no permanent master").url
    }

    fn master(&self) -> Option<&Master> {
        match &self.site {
            Site::OwnMaster => None,
            Site::Processes(master) => Some(master),
            Site::Cluster(cluster) => Some(&cluster.master),
        }
    }

    /// Kills the master with `kill -9`.
    ///
    /// # Panics
    /// If the place has no permanent master.
    pub fn kill_master(&mut self) {
        match &mut self.site {
            Site::OwnMaster => panic!("this place has no permanent master"),
            Site::Processes(master) | Site::Cluster(Cluster { master, .. }) => master.kill(),
        }
    }

    /// Starts a new master at the same address, after the old master was killed.
    ///
    /// # Panics
    /// If the new master ends before it serves, or the place has no permanent master.
    pub fn next_master(&mut self, args: &[&str]) {
        match &mut self.site {
            Site::OwnMaster => panic!("this place has no permanent master"),
            Site::Processes(master) => master.follow_up(args),
            Site::Cluster(cluster) => cluster.next_master(args),
        }
    }

    /// Returns the cluster.
    ///
    /// # Panics
    /// If the place is not a cluster.
    pub fn cluster(&self) -> &Cluster {
        match &self.site {
            Site::Cluster(cluster) => cluster,
            Site::OwnMaster | Site::Processes(_) => panic!("this place is not a cluster"),
        }
    }

    /// Returns the query parameter that names the image, or an empty text if the place is not a cluster.
    pub fn img(&self) -> String {
        match &self.site {
            Site::Cluster(cluster) => format!("&img={}", cluster.image.wrapped()),
            Site::OwnMaster | Site::Processes(_) => String::new(),
        }
    }

    /// Returns the variable EXEC_PY with the script, for the shared image. Empty for jobs that run an example.
    pub fn script_variable(&self) -> BTreeMap<EnvName, String> {
        let variable = self.script.as_deref().and_then(|script| script.split_once('='));
        let named = |(name, value): (&str, &str)| Some((name.parse().ok()?, value.to_owned()));
        variable.and_then(named).into_iter().collect()
    }

    /// On a cluster, returns the pods that have not ended. With a permanent master of processes, returns the process
    /// ids of exec.py. Without a permanent master, returns all processes in the folder.
    pub fn runs(&self) -> Vec<String> {
        match &self.site {
            Site::OwnMaster => self.scene.processes().lines().map(str::to_owned).collect(),
            Site::Processes(_) => self.scene.runs().iter().map(u32::to_string).collect(),
            Site::Cluster(cluster) => cluster.live_pods(),
        }
    }

    /// Asserts that no pod or process of the jobs runs. With a permanent master, first waits for their end, because
    /// pods may end after the client.
    ///
    /// # Panics
    /// If a pod or process still runs. The message lists the pods or processes.
    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        match self.site {
            Site::OwnMaster => assert_eq!(self.runs(), Vec::<String>::new(), "processes are left behind"),
            Site::Processes(_) | Site::Cluster(_) => {
                within("no pod or exec.py runs", || self.runs().is_empty().then_some(()), || self.runs().join(" "));
            }
        }
    }

    /// Kills an agent with `kill -9`: on a cluster the agent of the job's worker-0, otherwise any agent in the folder.
    ///
    /// # Panics
    /// If no agent runs.
    pub fn kill_agent(&self, job: &str) {
        match &self.site {
            Site::OwnMaster | Site::Processes(_) => {
                let agents = pids(self.scene.path(), "--supervised --listen");
                signal(
                    *agents.first().unwrap_or_else(|| panic!("no agent runs:\n{}", self.scene.processes())),
                    Signal::KILL,
                );
            }
            Site::Cluster(cluster) => cluster.kill_container(&format!("{job}-worker-0")),
        }
    }
}
