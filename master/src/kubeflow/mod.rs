//! Follows the TFJobs of the namespace in which the master's jobs run. For each TFJob, one task submits the job and
//! writes the TFJob's status. If a user deletes a TFJob, its job is deleted.

pub mod programs;
mod pull_secret;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use job::key::JobKey;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{Config, Event};
use launchers::kubeflow::{NextStep, ObjectMemory, Read, ReplicaHost, Watched};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::programs::ProgramSource;
use crate::error_chain::error_chain;
use crate::host::clock::wall_clock;
use crate::kube::api::call;
use crate::kube::changes::changes_of;
use crate::kube::{ApiFailure, Cluster};
use crate::registry::{JobHandle, Jobs, JobsError};

/// Interval between two regular sweeps, which delete the jobs of deleted TFJobs. Before each regular sweep, the master
/// checks whether the cluster's definition of TFJobs is still Muster's.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// Pause after a call that failed, and between the two sweeps that follow the deletion of a TFJob.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Jobs that one sweep deletes at a time.
const DELETED_AT_ONCE: usize = 8;

/// What the tasks of TFJobs share.
#[derive(Clone)]
pub struct Site {
    /// The cluster with the TFJobs.
    pub cluster: Cluster,
    /// The jobs of this master.
    pub jobs: Arc<Jobs>,
    /// Where the replicas of TFJobs run.
    pub place: ReplicaHost,
    /// Looks up what images run.
    pub programs: Arc<ProgramSource>,
}

/// Follows the TFJobs while the cluster's definition of TFJobs is Muster's.
pub async fn run(site: Site) {
    let mut is_told = false;
    loop {
        match site.cluster.has_our_tfjobs().await {
            Ok(true) => {
                info!(namespace = site.cluster.namespace(), "following the TFJobs of the namespace");
                TfJobWatch::new(&site).run().await;
                is_told = false;
            }
            Ok(false) if !is_told => {
                is_told = true;
                warn!(
                    "the cluster does not have Muster's definition of TFJobs, so TFJobs do not become jobs: see client \
                     install --tfjobs"
                );
            }
            Ok(false) => {}
            Err(error) => warn!(error = error_chain(&error), "could not check the cluster's definition of TFJobs"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Follows the TFJobs of the namespace. In this file, an object is a TFJob of the cluster.
struct TfJobWatch {
    site: Site,
    /// The objects, by name.
    tended: BTreeMap<String, Tended>,
    /// While the watch lists all objects: the names of the objects listed so far.
    listing: BTreeSet<String>,
    /// Whether the watch has listed all objects at least once.
    is_complete: bool,
    /// When the next sweep is due.
    sweep_at: Option<Instant>,
    /// The newest sweep.
    sweep: Option<AbortOnDropHandle<()>>,
}

/// An object with its task.
struct Tended {
    uid: String,
    newest: watch::Sender<DynamicObject>,
    _task: AbortOnDropHandle<()>,
}

impl TfJobWatch {
    fn new(site: &Site) -> Self {
        let (tended, listing) = (BTreeMap::new(), BTreeSet::new());
        Self { site: site.clone(), tended, listing, is_complete: false, sweep_at: None, sweep: None }
    }

    /// Returns when the cluster's definition of TFJobs is no longer Muster's.
    async fn run(mut self) {
        let mut events = Box::pin(changes_of(self.site.cluster.watched_tfjobs(), Config::default()));
        let mut checks = interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(event) = events.next() => match event {
                    Ok(event) => self.take(event),
                    Err(error) => warn!(error = error_chain(&error), "the watch of TFJobs broke; restarting it"),
                },
                () = at(self.sweep_at) => {
                    self.sweep_at = None;
                    self.sweep();
                }
                _ = checks.tick() => {
                    if let Ok(false) = self.site.cluster.has_our_tfjobs().await { return }
                    self.sweep();
                }
            }
        }
    }

    fn take(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                self.listing.insert(object.name_any());
                self.tend(object);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                self.tended.retain(|name, _| listed.contains(name));
                self.is_complete = true;
                self.sweep();
            }
            Event::Apply(object) => self.tend(object),
            Event::Delete(object) => self.forget(&object),
        }
    }

    fn tend(&mut self, object: DynamicObject) {
        if object.metadata.deletion_timestamp.is_some() {
            return self.forget(&object);
        }
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        if let Some(tended) = self.tended.get(&name).filter(|tended| tended.uid == uid) {
            tended.newest.send_replace(object);
            return;
        }
        let (newest, objects) = watch::channel(object);
        let tender = Tender { site: self.site.clone(), name: name.clone() };
        let task = AbortOnDropHandle::new(tokio::spawn(tender.run(objects)));
        self.tended.insert(name, Tended { uid, newest, _task: task });
    }

    fn forget(&mut self, object: &DynamicObject) {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        if self.tended.get(&name).is_some_and(|tended| tended.uid == uid) {
            self.tended.remove(&name);
        }
        if self.sweep.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            self.sweep();
        }
        // A sweep may be under way, or the object's task may have created the job a moment ago.
        self.sweep_at = Some(Instant::now() + RETRY_PAUSE);
    }

    /// Begins to delete the jobs whose object no longer exists. Ends an earlier sweep: this sweep finds again the jobs
    /// that the earlier sweep has not deleted yet.
    fn sweep(&mut self) {
        if !self.is_complete {
            return;
        }
        let there: HashSet<&str> = self.tended.values().map(|tended| tended.uid.as_str()).collect();
        let of_objects = self.site.jobs.table.of_objects().into_iter();
        let orphans = of_objects.filter(|(_, uid)| !there.contains(uid.as_str()));
        let orphans: Vec<Orphan> = orphans.map(|(job, object)| Orphan { job, object }).collect();
        let site = self.site.clone();
        let sweep = stream::iter(orphans).for_each_concurrent(DELETED_AT_ONCE, move |orphan| {
            let site = site.clone();
            async move {
                if let Err(error) = orphan.delete(&site).await {
                    warn!(job = %orphan.job.name, error = error_chain(&error), "could not delete a job whose TFJob is gone");
                }
            }
        });
        self.sweep = Some(AbortOnDropHandle::new(tokio::spawn(sweep)));
    }
}

/// A job whose object this master does not know.
struct Orphan {
    job: JobKey,
    /// The uid of the object.
    object: String,
}

impl Orphan {
    /// Deletes the job, unless its object exists. Another master may have created the object and the job a moment ago.
    /// This master watches objects and jobs independently, and may know only the job. So ask the API.
    async fn delete(&self, Site { cluster, jobs, .. }: &Site) -> Result<(), ObjectTrouble> {
        let named = ListParams::default().fields(&format!("metadata.name={}", self.job.name));
        let found = call(cluster.tfjobs().list(&named)).await?;
        let is_there = |object: &DynamicObject| {
            object.uid().as_deref() == Some(self.object.as_str()) && object.metadata.deletion_timestamp.is_none()
        };
        if found.iter().any(is_there) {
            return Ok(());
        }
        match jobs.requests.delete(&self.job.name, Some(&self.job.uid)).await {
            // Meanwhile the job may have been deleted, and a later job may have its name.
            Ok(_) | Err(JobsError::Unknown(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a task could not do what its object needs. A retry may succeed.
#[derive(Debug, thiserror::Error)]
enum ObjectTrouble {
    #[error(transparent)]
    Job(#[from] JobsError),
    #[error(transparent)]
    Api(#[from] ApiFailure),
}

/// The task of one object.
struct Tender {
    site: Site,
    /// The name of the object.
    name: String,
}

impl Tender {
    /// Follows the object and its job. Returns when the object no longer exists.
    async fn run(self, mut objects: watch::Receiver<DynamicObject>) {
        let (mut memory, mut arrivals) = (ObjectMemory::default(), self.site.jobs.table.arrivals());
        let mut object = self.read(&objects.borrow_and_update(), &memory);
        loop {
            arrivals.borrow_and_update();
            let mut handle = object.job().and_then(|name| self.site.jobs.table.find(name));
            let job = handle.as_mut().map(|handle| handle.view.borrow_and_update().clone());
            if let Some(own) = job.as_ref().filter(|job| object.owns(job)) {
                memory.had_job = true;
                if memory.programs.recall(&own.spec) {
                    object = object.with_programs(&self.site.place, memory.programs.known());
                }
            }
            let (need, has_job) = (object.need(job.as_ref(), &memory, wall_clock()), handle.is_some());
            let pause = match self.act(&mut object, need, &mut memory).await {
                Ok(pause) => pause,
                Err(trouble) => {
                    warn!(tfjob = self.name, error = error_chain(&trouble), "could not follow a TFJob; trying again");
                    Some(RETRY_PAUSE)
                }
            };
            tokio::select! {
                // The newest object comes first: a look-up may have taken long, and a user may have edited the object.
                biased;
                changed = objects.changed() => match changed {
                    Ok(()) => object = self.read(&objects.borrow_and_update(), &memory),
                    Err(_) => return,
                },
                () = changed(handle) => {}
                _ = arrivals.changed(), if !has_job => {}
                () = at(pause.map(|pause| Instant::now() + pause)) => {}
            }
        }
    }

    fn read(&self, object: &DynamicObject, memory: &ObjectMemory) -> Watched {
        Watched::of(&serde_json::to_value(object).unwrap_or_default(), &self.site.place, memory.programs.known())
    }

    /// Does what the object needs. Returns the maximum time until the object must be checked again, or `None` if the
    /// task can wait for a change.
    async fn act(
        &self,
        object: &mut Watched,
        need: NextStep,
        memory: &mut ObjectMemory,
    ) -> Result<Option<Duration>, ObjectTrouble> {
        match need {
            NextStep::Nothing => Ok(None),
            NextStep::Apply(read) => {
                self.apply(*read, memory).await?;
                memory.applied = Some(object.generation());
                Ok(Some(Duration::ZERO))
            }
            NextStep::Show(status) => {
                self.show(object, status).await?;
                Ok(memory.programs.pause(wall_clock()))
            }
            NextStep::LookUp { images, status } => {
                if let Some(status) = status {
                    self.show(object, status).await?;
                }
                memory.programs.note(self.site.programs.look_up_all(images).await, wall_clock());
                *object = object.with_programs(&self.site.place, memory.programs.known());
                Ok(Some(Duration::ZERO))
            }
            NextStep::Wait(pause) => Ok(Some(pause)),
            NextStep::Remove => self.remove(object).await.map(|()| None),
        }
    }

    /// Submits or changes the job. A refusal is shown in the object's status.
    async fn apply(&self, read: Read, memory: &mut ObjectMemory) -> Result<(), ObjectTrouble> {
        memory.refusal = match self.site.jobs.requests.apply(read).await {
            Ok(_) => None,
            Err(error) if error.is_passing() => return Err(error.into()),
            Err(error) => Some(error_chain(&error)),
        };
        Ok(())
    }

    async fn show(&self, object: &mut Watched, status: Value) -> Result<(), ObjectTrouble> {
        let patch = Patch::Merge(object.patch(&status));
        let api = self.site.cluster.tfjobs();
        unless_gone(call(api.patch_status(&self.name, &PatchParams::default(), &patch)).await)?;
        object.wrote(status);
        Ok(())
    }

    async fn remove(&self, object: &Watched) -> Result<(), ObjectTrouble> {
        // Ask the store, not the registry: a job whose record is unreadable still exists, but the registry does not
        // list the job.
        if let Some(job) = object.job()
            && self.site.jobs.requests.is_on_record(job).await?
        {
            return Ok(());
        }
        info!(tfjob = self.name, "deleting a TFJob whose job was deleted");
        let preconditions = Preconditions { uid: Some(object.uid().to_owned()), resource_version: None };
        let params = DeleteParams::background().preconditions(preconditions);
        Ok(unless_gone(call(self.site.cluster.tfjobs().delete(&self.name, &params)).await)?)
    }
}

/// Ignores the errors of a call if the object no longer exists (404), or if a newer object has its name (409). The
/// watch reports this change.
fn unless_gone<T>(outcome: Result<T, ApiFailure>) -> Result<(), ApiFailure> {
    match outcome {
        Ok(_) | Err(ApiFailure::Refused { status: 404 | 409, .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Waits until a job changes.
async fn changed(job: Option<JobHandle>) {
    let Some(mut job) = job else { return pending().await };
    if job.view.changed().await.is_err() {
        // The job's driver has ended. If another driver takes over the job, nothing notifies this task.
        sleep(RETRY_PAUSE).await;
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
