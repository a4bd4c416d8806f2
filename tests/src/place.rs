//! Where the jobs of a test run, so that one journey can be made in every place.

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

/// What a master is told about its state, by default.
const STATE: [&str; 2] = ["--state-dir", "state"];

/// Where jobs run, and under which master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As processes of this machine, under a master that the client runs for one job alone.
    OwnMaster,
    /// As processes of this machine, under a master that stays.
    Processes,
    /// As pods of the cluster that KUBECONFIG names, under a master that stays.
    Cluster,
}

/// A place that has been set up for one test, with an exec.py.
pub struct Stage {
    // The master and the pods go before the folder does.
    site: Site,
    /// The variable that brings the script into the image that all tests share.
    script: Option<String>,
    scene: Scene,
}

enum Site {
    OwnMaster,
    Processes(Master),
    Cluster(Cluster),
}

impl Stage {
    /// Sets a place up for jobs that run this script.
    ///
    /// # Panics
    /// When it cannot be set up.
    pub fn new(place: Place, exec_py: &str) -> Self {
        Self::with_master(place, exec_py, &STATE)
    }

    /// The same, with a master that is told this.
    ///
    /// # Panics
    /// When it cannot be set up.
    pub fn with_master(place: Place, exec_py: &str, args: &[&str]) -> Self {
        let script = Some(format!("EXEC_PY={exec_py}"));
        Self::set_up(place, Scene::new(exec_py), (script, Image::shared), args)
    }

    /// Sets a place up for jobs that run `examples/hello`.
    ///
    /// # Panics
    /// When it cannot be set up.
    pub fn hello(place: Place) -> Self {
        Self::set_up(place, Scene::of_example("hello"), (None, Image::shared), &STATE)
    }

    /// Sets a place up for jobs that run this example, in the cluster in the image that its own Dockerfile makes.
    ///
    /// # Panics
    /// When it cannot be set up.
    pub fn of_example(place: Place, name: &str) -> Self {
        Self::set_up(place, Scene::of_example(name), (None, || Image::of_example(name)), &STATE)
    }

    /// Sets the cluster up for jobs that run this script in an image of their own.
    ///
    /// # Panics
    /// When it cannot be set up.
    pub fn in_image(image: &Arc<Image>, exec_py: &str) -> Self {
        let script = Some(format!("EXEC_PY={exec_py}"));
        Self::set_up(Place::Cluster, Scene::new(exec_py), (script, || Arc::clone(image)), &STATE)
    }

    /// Sets the cluster up for jobs that run this script, with a master that reaches the cluster's API by this way.
    ///
    /// # Panics
    /// When it cannot be set up.
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

    /// The folder.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// The client, told to submit a job with these flags and to follow it.
    pub fn submitting(&self, flags: &[&str]) -> Command {
        let Site::Cluster(cluster) = &self.site else { return self.client(flags) };
        let mut own = cluster.image.flags();
        own.extend(self.script.iter().flat_map(|script| ["--env".to_owned(), script.clone()]));
        self.client(&own.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>())
    }

    /// Submits a job with these flags and follows it to its end.
    ///
    /// # Panics
    /// When the client does not end in time.
    pub fn submit(&self, flags: &[&str]) -> Finished {
        Finished::of(&mut self.submitting(flags))
    }

    /// Runs one of the client's verbs to its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn verb(&self, args: &[&str]) -> Finished {
        Finished::of(&mut self.client(args))
    }

    /// Follows the output of a job.
    ///
    /// # Panics
    /// When the client does not start.
    pub fn follow(&self, job: &str) -> Running {
        Running::of(&mut self.client(&["logs", job, "--follow"]))
    }

    /// The job, once it has finished.
    ///
    /// # Panics
    /// When it does not finish in time.
    pub fn finished(&self, job: &str) -> JobView {
        self.verb(&["wait", job, "-o", "json"]).view()
    }

    /// The job as it is now.
    ///
    /// # Panics
    /// When there is none.
    pub fn status(&self, job: &str) -> JobView {
        self.verb(&["status", job, "-o", "json"]).code(0).view()
    }

    fn client(&self, args: &[&str]) -> Command {
        match self.master() {
            Some(master) => self.scene.client(&[&["--master", &master.url], args].concat()),
            None => self.scene.client(args),
        }
    }

    /// What a master answers to this path, by curl.
    ///
    /// # Panics
    /// Where there is no master that stays.
    pub fn curl(&self, args: &[&str], path: &str) -> String {
        let url = format!("{}{path}", self.master().expect("a master that stays").url);
        self.scene.curl(&[args, &[&url]].concat())
    }

    fn master(&self) -> Option<&Master> {
        match &self.site {
            Site::OwnMaster => None,
            Site::Processes(master) => Some(master),
            Site::Cluster(cluster) => Some(&cluster.master),
        }
    }

    /// Ends the master with `kill -9`.
    ///
    /// # Panics
    /// Where none stays.
    pub fn kill_master(&mut self) {
        match &mut self.site {
            Site::OwnMaster => panic!("no master stays here"),
            Site::Processes(master) | Site::Cluster(Cluster { master, .. }) => master.kill(),
        }
    }

    /// Starts a master in the place of the one that was killed, at the same address.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn next_master(&mut self, args: &[&str]) {
        match &mut self.site {
            Site::OwnMaster => panic!("no master stays here"),
            Site::Processes(master) => master.follow_up(args),
            Site::Cluster(cluster) => cluster.next_master(args),
        }
    }

    /// The cluster.
    ///
    /// # Panics
    /// In other places.
    pub fn cluster(&self) -> &Cluster {
        match &self.site {
            Site::Cluster(cluster) => cluster,
            Site::OwnMaster | Site::Processes(_) => panic!("this place is no cluster"),
        }
    }

    /// The query's part that names the image, where there is one.
    pub fn img(&self) -> String {
        match &self.site {
            Site::Cluster(cluster) => format!("&img={}", cluster.image.wrapped()),
            Site::OwnMaster | Site::Processes(_) => String::new(),
        }
    }

    /// The variable that brings the script into the image that all tests share, where there is one.
    pub fn script_variable(&self) -> BTreeMap<EnvName, String> {
        let variable = self.script.as_deref().and_then(|script| script.split_once('='));
        let named = |(name, value): (&str, &str)| Some((name.parse().ok()?, value.to_owned()));
        variable.and_then(named).into_iter().collect()
    }

    /// What runs of the jobs, by name or number: every pod that has not ended, every process that is an exec.py; under
    /// a master of the client's own, every process.
    pub fn runs(&self) -> Vec<String> {
        match &self.site {
            Site::OwnMaster => self.scene.processes().lines().map(str::to_owned).collect(),
            Site::Processes(_) => self.scene.runs().iter().map(u32::to_string).collect(),
            Site::Cluster(cluster) => cluster.live_pods(),
        }
    }

    /// Asserts that nothing of the jobs runs. The client of a master that stays does not wait for the pods.
    ///
    /// # Panics
    /// With what runs.
    #[track_caller]
    pub fn assert_still(&self) {
        match self.site {
            Site::OwnMaster => assert_eq!(self.runs(), Vec::<String>::new(), "left behind"),
            Site::Processes(_) | Site::Cluster(_) => {
                within("nothing is left", || self.runs().is_empty().then_some(()), || self.runs().join(" "));
            }
        }
    }

    /// Ends an agent of this job with `kill -9`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill_agent(&self, job: &str) {
        match &self.site {
            Site::OwnMaster | Site::Processes(_) => {
                let agents = pids(self.scene.path(), "--supervised --listen");
                signal(*agents.first().unwrap_or_else(|| panic!("{}", self.scene.processes())), Signal::KILL);
            }
            Site::Cluster(cluster) => cluster.kill_container(&format!("{job}-worker-0")),
        }
    }
}
