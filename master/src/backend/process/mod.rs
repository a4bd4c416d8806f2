//! Runs each pod as an agent that is a child process of this master, for use on a laptop.

mod child;
mod force;
mod orphans;
mod ports;
mod python;
mod run_dir;
mod work_dirs;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use job::key::JobKey;
use job::observation::PodState;
use job::plan;
use protocol::error::ErrorCode;
use protocol::group::Group;
use protocol::ids::{JobName, ReplicaId};
use protocol::job::JobSpec;
use protocol::pod::PodOptions;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::child::{ChildOrder, Started};
pub use self::orphans::Orphans;
use self::ports::Ports;
use self::run_dir::RunDirs;
use self::work_dirs::WorkDirs;
use super::table::Table;
use super::{BackendError, COUNTING_LIMIT, PodBackend, PodSpec, PodTable, Refusal};
use crate::host::descriptors::Descriptors;
use crate::mutex::Mutex;

/// The back end that runs pods as child processes.
#[derive(Debug, Clone)]
pub struct ProcessBackend {
    launcher: Arc<Launcher>,
    jobs: Arc<Mutex<HashMap<JobName, JobPods>>>,
    tasks: TaskTracker,
}

/// What the back end uses of this master's process and host.
#[derive(Debug)]
pub struct Host {
    /// The agent's program.
    pub agent_binary: PathBuf,
    /// The folder of a job that names no folder and brings no code.
    pub default_work_dir: PathBuf,
    /// The variables of this process that agents do not inherit.
    pub not_inherited: Vec<OsString>,
    /// The descriptor limits that this process had before it raised its own limits. Agents get them.
    pub descriptors: Descriptors,
    /// The processes that killed agents leave behind.
    pub orphans: Orphans,
}

/// What every new child needs.
#[derive(Debug)]
struct Launcher {
    host: Host,
    run_dirs: RunDirs,
    work_dirs: WorkDirs,
    ports: Ports,
}

/// The pods of one job.
#[derive(Debug, Default)]
struct JobPods {
    table: Table,
    orders: HashMap<ReplicaId, watch::Sender<ChildOrder>>,
    /// Ended pods whose folders are being removed.
    removed: BTreeSet<ReplicaId>,
}

impl ProcessBackend {
    /// Creates the back end. The pods' folders are below `state_dir`.
    ///
    /// If a pod's folder exists, an earlier master created the pod. The pod died with that master, so the back end
    /// lists the pod as disrupted.
    pub fn new(host: Host, state_dir: &Path) -> io::Result<Self> {
        let (run_dirs, work_dirs) = (RunDirs::new(state_dir), WorkDirs::new(state_dir));
        let mut jobs: HashMap<JobName, JobPods> = HashMap::new();
        for (job, replica) in run_dirs.list()? {
            let reason = "its processes ended with the master that had started them".to_owned();
            let ended = PodState::disrupted(reason);
            jobs.entry(job).or_default().table.list(replica, ended);
        }
        let ports = Ports::new(std::process::id());
        let launcher = Arc::new(Launcher { host, run_dirs, work_dirs, ports });
        Ok(Self { launcher, jobs: Arc::new(Mutex::new(jobs)), tasks: TaskTracker::new() })
    }

    /// Calls `change` with the pods of one job. Then removes the job from `jobs` if it has no pods and no watchers.
    fn with_job<T>(&self, job: &JobName, change: impl FnOnce(&mut JobPods) -> T) -> T {
        let mut jobs = self.jobs.lock();
        let pods = jobs.entry(job.clone()).or_default();
        let changed = change(pods);
        if pods.table.is_unused() {
            jobs.remove(job);
        }
        changed
    }

    async fn carry(self, pod: PodSpec, started: Started, orders: watch::Receiver<ChildOrder>) {
        let set = |state: PodState| {
            self.with_job(&pod.job.name, |pods| pods.table.set(pod.replica, state));
        };
        let last = child::run(&self.launcher, (&pod, started), orders.clone(), set).await;
        debug!(job = %pod.job.name, pod = %pod.name(), "pod ended");
        // The order is read under the lock. If the order to delete comes after this, `delete` itself finds the ended
        // pod and removes it.
        let stays = self.with_job(&pod.job.name, |pods| {
            let stays = *orders.borrow() != ChildOrder::Delete;
            if stays {
                pods.table.set(pod.replica, last);
            } else {
                pods.removed.insert(pod.replica);
            }
            stays
        });
        if !stays {
            self.remove(&pod.job.name, pod.replica).await;
        }
    }

    /// Removes a pod that has ended. Uses a blocking thread, because the pod's folder may contain large code. The
    /// removal continues even if this future is dropped.
    async fn remove(&self, job: &JobName, replica: ReplicaId) {
        let (backend, job) = (self.clone(), job.clone());
        // Fails only while the runtime shuts down.
        let _ = spawn_blocking(move || backend.remove_at_once(&job, replica)).await;
    }

    fn remove_at_once(&self, job: &JobName, replica: ReplicaId) {
        if let Err(error) = self.launcher.run_dirs.remove(job, replica) {
            warn!(%job, %replica, %error, "could not remove a pod's folder");
        }
        self.with_job(job, |pods| {
            pods.orders.remove(&replica);
            pods.removed.remove(&replica);
            pods.table.remove(replica);
        });
    }
}

impl Launcher {
    fn work_dir_of<'a>(&'a self, asked: Option<&'a Path>) -> &'a Path {
        asked.unwrap_or(&self.host.default_work_dir)
    }
}

#[async_trait]
impl PodBackend for ProcessBackend {
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal> {
        if let Some(image) = &spec.image {
            let sentence =
                format!("image \"{image}\" has no meaning here: this master runs pods as processes of its own host");
            return Err(Refusal { code: ErrorCode::BadImage, sentence });
        }
        let kinds = plan::kinds(spec);
        // A job with a global batch uses `cpu` of a group only to compare the speed of workers, so it is accepted here.
        // `cpu` of the whole job is a limit, so it is refused.
        let of_job = |mut pod: PodOptions| {
            pod.cpu = pod.cpu.filter(|_| spec.pod.cpu.is_some() || spec.global_batch().is_none());
            pod.asked_for().first().copied()
        };
        if let Some(option) = kinds.iter().find_map(|(replica, _)| of_job(spec.pod_of(*replica))) {
            let sentence = format!(
                "{option} has no meaning here: this master runs pods as processes of its own host, without limits"
            );
            return Err(Refusal { code: ErrorCode::BadPod, sentence });
        }
        let replicas = plan::replicas(spec).len() as u64;
        self.launcher
            .host
            .descriptors
            .admit(replicas)
            .map_err(|too_many| Refusal { code: ErrorCode::TooManyReplicas, sentence: too_many.to_string() })?;
        // In a job from another launcher's file, each group may run a program of its own instead of the script.
        let runs_script = kinds.iter().any(|(replica, _)| spec.group_of(*replica).is_none_or(Group::runs_script));
        match spec.code {
            Some(_) => python::check_python(&self.launcher.host.orphans).await,
            None if !runs_script => Ok(()),
            None => {
                let folder = self.launcher.work_dir_of(spec.work_dir.as_deref());
                python::check(folder, &spec.script, &self.launcher.host.orphans).await
            }
        }
    }

    async fn create(&self, pod: PodSpec) -> Result<(), BackendError> {
        let orders = self.with_job(&pod.job.name, |pods| {
            if !pods.table.list(pod.replica, PodState::Pending { has_node: true, wait: None }) {
                return None;
            }
            let (sender, receiver) = watch::channel(ChildOrder::Live);
            pods.orders.insert(pod.replica, sender);
            Some(receiver)
        });
        let Some(orders) = orders else { return Ok(()) };
        match child::start(&self.launcher, &pod) {
            Ok(started) => drop(self.tasks.spawn(self.clone().carry(pod, started, orders))),
            Err(error) => {
                self.remove_at_once(&pod.job.name, pod.replica);
                let lacks_room = error.lacks_room();
                let failed = BackendError::Create { pod: pod.name(), source: Box::new(error) };
                return Err(if lacks_room { BackendError::NoRoom(Box::new(failed)) } else { failed });
            }
        }
        Ok(())
    }

    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        let has_ended = self.with_job(&job.name, |pods| {
            if let Some(orders) = pods.orders.get(&replica) {
                orders.send_replace(ChildOrder::Delete);
            }
            // Only one call removes the pod. A second call would remove the folder of the next pod.
            pods.table.get(replica).is_some_and(|pod| pod.has_ended()) && pods.removed.insert(replica)
        });
        if has_ended {
            self.remove(&job.name, replica).await;
        }
        Ok(())
    }

    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        self.with_job(&job.name, |pods| pods.table.subscribe())
    }

    fn folder(&self, job: &JobKey, spec: &JobSpec) -> Option<PathBuf> {
        Some(match spec.code {
            Some(_) => self.launcher.work_dirs.path(job),
            None => self.launcher.work_dir_of(spec.work_dir.as_deref()).to_owned(),
        })
    }

    async fn written_files(&self, job: &JobKey) -> u64 {
        let (launcher, job) = (Arc::clone(&self.launcher), job.clone());
        let deadline = Instant::now() + COUNTING_LIMIT;
        spawn_blocking(move || launcher.work_dirs.written_files(&job, deadline)).await.unwrap_or_default()
    }

    async fn forget(&self, job: &JobKey) {
        let (launcher, key) = (Arc::clone(&self.launcher), job.clone());
        let removed = spawn_blocking(move || launcher.work_dirs.remove(&key)).await;
        if let Err(error) = removed.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            warn!(job = %job.name, %error, "could not remove the job's folder");
        }
    }

    async fn kept(&self) -> Vec<JobKey> {
        let launcher = Arc::clone(&self.launcher);
        let listed = spawn_blocking(move || launcher.work_dirs.jobs()).await;
        listed.unwrap_or_else(|panic| Err(io::Error::other(panic))).unwrap_or_else(|error| {
            warn!(%error, "could not list the jobs' folders");
            vec![]
        })
    }

    async fn shutdown(&self) {
        for pods in self.jobs.lock().values() {
            for orders in pods.orders.values() {
                orders.send_if_modified(|order| {
                    let lives = *order == ChildOrder::Live;
                    if lives {
                        *order = ChildOrder::Abandon;
                    }
                    lives
                });
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}
