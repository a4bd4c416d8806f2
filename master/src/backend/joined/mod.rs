//! The back end for machines whose agents join by themselves. Each pod is a place for one machine. The agents outlive
//! this master. So the back end stores the newest message of each machine on disk, for the next master.
//!
//! The master cannot end processes on a machine. So a deletion asks the agent to stop its run. The pod stays listed
//! until the agent confirms the stop, or until the run must be dead (see [`protocol::lease`]).

mod files;
mod places;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use job::key::JobKey;
use job::observation::{Incarnation, PodState, Wait};
use protocol::agent::{FirstSignal, RunState};
use protocol::error::ErrorCode;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use protocol::join::JoinRequest;
use protocol::lease::Lease;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::files::MessageFolder;
use self::places::{MessageEffects, Places};
use super::{BackendError, Machines, PodBackend, PodSpec, PodTable, Refusal};
use crate::agents::client::{AgentAnswer, AgentClient, AgentError, POLL_WAIT_MAX, Poll};
use crate::agents::token::AgentKey;
use crate::mutex::Mutex;

/// The back end for machines that join.
#[derive(Clone)]
pub struct JoinedBackend(Arc<SharedMachines>);

struct SharedMachines {
    files: MessageFolder,
    /// Locked by the task that handles a machine's message, so that messages are handled one after another.
    turn: tokio::sync::Mutex<()>,
    agents: AgentClient,
    key: AgentKey,
    jobs: Mutex<BTreeMap<JobKey, Places>>,
}

impl JoinedBackend {
    /// Opens the back end, which stores the machines' messages in `folder`. `key` is the key of the agents' tokens.
    /// Removes the messages about jobs for which `lease_of` returns `None`. Call this function in a runtime.
    ///
    /// # Errors
    /// Fails if a folder or a message cannot be read, because a script may still run on the machine that sent the
    /// message.
    pub fn open(folder: PathBuf, key: AgentKey, lease_of: impl Fn(&JobKey) -> Option<Lease>) -> io::Result<Self> {
        let files = MessageFolder::new(folder);
        let found = files.read()?;
        let (turn, agents, jobs) = (tokio::sync::Mutex::default(), AgentClient::new(), Mutex::default());
        let shared = Arc::new(SharedMachines { files, turn, agents, key, jobs });
        for (job, replica, message) in found {
            match (lease_of(&job), message) {
                (None, _) => shared.files.remove(&job, replica),
                (Some(_), Some(message)) => shared.with_job(&job, |places| places.find_again(replica, message)),
                (Some(lease), None) => {
                    let freeing = tokio::spawn(Arc::clone(&shared).free(job.clone(), replica, lease));
                    shared.with_job(&job, |places| places.hold(replica, AbortOnDropHandle::new(freeing)));
                }
            }
        }
        Ok(Self(shared))
    }
}

/// A machine that must leave its place.
struct Leaving {
    job: JobKey,
    replica: ReplicaId,
    incarnation: Incarnation,
    boot_id: String,
    agent: SocketAddr,
    lease: Lease,
}

impl SharedMachines {
    /// Calls `change` with the places of one job. Then removes the job from `jobs` if it has no pods and no watchers.
    fn with_job<T>(&self, job: &JobKey, change: impl FnOnce(&mut Places) -> T) -> T {
        let mut jobs = self.jobs.lock();
        let places = jobs.entry(job.clone()).or_default();
        let changed = change(places);
        if places.table.is_unused() {
            jobs.remove(job);
        }
        changed
    }

    fn forget(&self, job: &JobKey, places: &mut Places, replica: ReplicaId) {
        self.files.remove(job, replica);
        places.remove(replica);
    }

    /// Carries out the changes that a machine's message causes. Writes each change to disk first, and then to the
    /// table of pods. If a pod was deleted during the write, removes its message from disk again.
    async fn take(self: Arc<Self>, job: JobKey, message: JoinRequest) -> io::Result<Option<ReplicaId>> {
        let _turn = self.turn.lock().await;
        let boot_id = message.boot_id.clone();
        let MessageEffects { place, news } = self.with_job(&job, |places| places.choose(message));
        for news in news {
            let (shared, key) = (Arc::clone(&self), job.clone());
            let write = move || shared.files.write(&key, news.replica, &news.message).map(|()| news);
            let news = spawn_blocking(write).await.map_err(io::Error::other)??;
            self.with_job(&job, |places| {
                let replica = news.replica;
                if !places.occupy(news) {
                    self.files.remove(&job, replica);
                }
            });
        }
        Ok(place.filter(|id| self.with_job(&job, |places| places.is_of(*id, &boot_id))))
    }

    /// Waits until the run on a machine is dead, and then frees the machine's place. The agent may then join again.
    async fn end(self: Arc<Self>, machine: Leaving) {
        let agents = self.agents.with_token(&self.key.token(&machine.job.uid));
        tokio::select! {
            () = stopped(&agents, &machine) => {}
            () = self.abandoned(&machine) => {
                warn!(agent = %machine.agent, "gave up a machine that has not confirmed the end of its run");
            }
        }
        let Leaving { job, replica, incarnation, .. } = machine;
        self.with_job(&job, |places| {
            if places.table.has(replica, &incarnation) {
                info!(job = %job.name, %replica, "a machine has left its place");
                self.forget(&job, places, replica);
            }
        });
    }

    /// Frees the place of an unknown machine when the machine's run must be dead. No master has polled the machine's
    /// agent since this master began.
    async fn free(self: Arc<Self>, job: JobKey, replica: ReplicaId, lease: Lease) {
        sleep(lease.death()).await;
        self.with_job(&job, |places| {
            info!(job = %job.name, %replica, "the place of an unknown machine is free");
            self.forget(&job, places, replica);
        });
    }

    /// Resolves when the run must be dead, because no driver has watched the job for [`Lease::death`]. A driver that
    /// watches the job decides itself when the run is dead. The driver then calls [`PodBackend::delete_unconfirmed`].
    async fn abandoned(&self, Leaving { job, lease, .. }: &Leaving) {
        let mut since = Instant::now();
        while since.elapsed() < lease.death() {
            sleep(lease.tick()).await;
            if self.with_job(job, |places| places.table.is_watched()) {
                since = Instant::now();
            }
        }
    }
}

/// Resolves when the agent reports that nothing runs, or when another agent answers at the agent's address.
async fn stopped(agents: &AgentClient, Leaving { boot_id, agent, lease, .. }: &Leaving) {
    let mut poll = None;
    loop {
        // The status below shows whether the stop succeeded.
        let _ = agents.stop(*agent, None, FirstSignal::Term, Duration::ZERO).await;
        match agents.status(*agent, poll).await {
            Ok(AgentAnswer::Status(status)) if status.boot_id != *boot_id => return,
            Ok(AgentAnswer::Status(status)) => match status.state {
                RunState::Idle | RunState::Configured | RunState::Exited => return,
                RunState::Running | RunState::Stopping => {
                    poll = Some(Poll { after: status.seq, wait: lease.length().min(POLL_WAIT_MAX), lease: None });
                }
            },
            // The machine's own agent accepts the job's token, so another agent has answered.
            Err(AgentError::Refused { status: 401, .. }) => return,
            Ok(AgentAnswer::SeedOnly) | Err(_) => {
                poll = None;
                sleep(lease.tick()).await;
            }
        }
    }
}

fn lease_of(message: &JoinRequest) -> Lease {
    let seconds = message.lease_seconds.unwrap_or(protocol::run_policy::LEASE_SECONDS);
    Lease::new(Duration::from_secs(seconds.into()))
}

#[async_trait]
impl Machines for JoinedBackend {
    async fn join(&self, job: &JobKey, message: JoinRequest) -> io::Result<Option<ReplicaId>> {
        let (shared, job) = (Arc::clone(&self.0), job.clone());
        // The task continues if the caller is cancelled. Otherwise a message could be on disk while its machine has no
        // place.
        tokio::spawn(async move { shared.take(job, message).await }).await.map_err(io::Error::other)?
    }

    fn neighbour(&self, job: &JobKey, address: SocketAddr) -> Option<(ReplicaId, SocketAddr)> {
        self.0.with_job(job, |places| places.neighbour(address))
    }
}

#[async_trait]
impl PodBackend for JoinedBackend {
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let of_pods = || spec.pod.asked_for().first().map(|option| (ErrorCode::BadPod, (*option).to_owned()));
        let given = match spec {
            JobSpec { image: Some(_), .. } => Some((ErrorCode::BadImage, "an image".to_owned())),
            JobSpec { code: Some(_), .. } => Some((ErrorCode::BadCode, "code".to_owned())),
            JobSpec { work_dir: Some(_), .. } => Some((ErrorCode::BadWorkDir, "work_dir".to_owned())),
            JobSpec { args, .. } if !args.is_empty() => Some((ErrorCode::BadArgs, "an argument".to_owned())),
            JobSpec { groups, .. } if !groups.is_empty() => Some((ErrorCode::BadPod, "groups".to_owned())),
            _ => of_pods(),
        };
        if let Some((code, what)) = given {
            let sentence = format!(
                "{what} has no meaning here: this master runs jobs on machines that join it, and each machine has its own \
                 script"
            );
            return Err(Refusal { code, sentence });
        }
        if spec.run_policy.lease().is_none() {
            let sentence = "on-unreachable must be \"replace\": this master runs jobs on machines that join it, and \
                            only a lease shows that a machine is lost";
            return Err(Refusal { code: ErrorCode::BadRunPolicy, sentence: sentence.to_owned() });
        }
        Ok(())
    }

    async fn create(&self, pod: PodSpec) -> Result<(), BackendError> {
        let waits = PodState::Pending { has_node: false, wait: Some(Wait::Other("waits for a machine".to_owned())) };
        // A place needs no other fields. The machine's agent has its own command.
        let PodSpec { job, replica, .. } = pod;
        self.0.with_job(&job, |places| places.table.list(replica, waits));
        Ok(())
    }

    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        self.0.with_job(job, |places| {
            let Some(pod) = places.table.get(replica) else { return };
            match (places.machines.get(&replica), &pod.state) {
                (Some(message), PodState::Running(_)) if !places.endings.contains_key(&replica) => {
                    let machine = Leaving {
                        job: job.clone(),
                        replica,
                        incarnation: pod.incarnation,
                        boot_id: message.boot_id.clone(),
                        agent: message.address,
                        lease: lease_of(message),
                    };
                    let ending = tokio::spawn(Arc::clone(&self.0).end(machine));
                    places.endings.insert(replica, AbortOnDropHandle::new(ending));
                }
                // A task frees the place when the machine's run is dead.
                (Some(_), PodState::Running(_)) | (None, PodState::Leaving { .. }) => {}
                (_, _) => self.0.forget(job, places, replica),
            }
        });
        Ok(())
    }

    async fn delete_unconfirmed(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        self.0.with_job(job, |places| self.0.forget(job, places, replica));
        Ok(())
    }

    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        self.0.with_job(job, |places| places.table.subscribe())
    }

    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }
}
