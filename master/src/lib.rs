//! The master: accepts jobs, creates their pods, starts their gangs and serves their state. This file is the wiring.

pub mod agents;
pub mod backend;
pub mod code;
pub mod config;
pub mod driver;
mod error_chain;
pub mod host;
pub mod http;
pub mod kube;
pub mod kubeflow;
pub mod logs;
pub mod mutex;
pub mod registry;
pub mod store;
pub mod tally;
pub mod turns;

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use history::History;
use image_program::Registries;
use job::key::JobKey;
use launchers::kubeflow::ReplicaHost;
use protocol::image::ImageRef;
use protocol::lease::Lease;
use tokio::net::TcpListener;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::agents::client::AgentClient;
use crate::agents::token::AgentKey;
use crate::backend::PodBackend;
use crate::backend::joined::JoinedBackend;
use crate::backend::kube::{DefaultUser, HostVolumes, KubeBackend, PodRules};
use crate::backend::process::{Host, Orphans, ProcessBackend};
use crate::code::CodeStore;
use crate::config::{Backend, Config, WatchTfJobs};
use crate::driver::Context;
use crate::host::descriptors::Descriptors;
use crate::host::signals::Signals;
use crate::host::state_dir::StateDir;
use crate::http::{AboutMaster, Server};
use crate::kube::Cluster;
use crate::kubeflow::Site;
use crate::kubeflow::programs::ProgramSource;
use crate::logs::Archive;
use crate::registry::Jobs;
use crate::store::kube::KubeStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{JobStore, StoreError, Stored};
use crate::tally::Tally;

/// Runs a master until a signal or the end of its supervisor stops it.
///
/// # Errors
/// Fails when the master cannot start, or when the store or the watch of the pods breaks.
pub async fn run(config: Config) -> anyhow::Result<()> {
    run_with(config, |context| context).await
}

/// Like [`run`], with a `change` to the context that all drivers share. A test program injects faults with it.
pub async fn run_with(config: Config, change: impl FnOnce(Context) -> Context) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(Config::log_filter()).context("RUST_LOG")?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let mut signals = Signals::install(config.supervised)?;
    config.check()?;
    let guard = config.guard()?;
    // Raise the limit first: later code reads it.
    let descriptors = Descriptors::raise().context("raise the limit of open files")?;
    let state = StateDir::claim(&config.state_dir()?)?;
    let World { store, backend, cluster, place, agent_key, boot_id, logs, code, history } = tokio::select! {
        world = World::find(&config, &state, descriptors) => world?,
        reason = signals.told_to_end() => return ended_by(reason),
    };
    let listener = listener::bind(config.listen).with_context(|| CannotListen(config.listen))?;
    let code = Arc::new(CodeStore::open(&code).context("open the store of code")?);
    let (history, agents, tally) = (History::at(history), AgentClient::new(), Tally::default());
    let context = Context { store, backend: Arc::clone(&backend), agents, agent_key, boot_id, code, tally, history };
    let archive = if cluster.is_some() { Archive::outlived } else { Archive::new }(logs, config.log_budget);
    let jobs = Jobs::new(Arc::new(change(context)), archive, config.keep_finished);
    let mut following = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&jobs).run()));
    tokio::select! {
        () = jobs.complete() => {}
        ended = &mut following => return why_it_ended(ended),
        () = backend.blind() => return Err(anyhow!(BLIND)),
        reason = signals.told_to_end() => return ended_by(reason),
    }
    announce(&listener)?;
    let _tfjobs = match cluster {
        Some(cluster) if config.cluster.watch_tfjobs != WatchTfJobs::No => {
            let registries = Registries::new(config.plain_hosts())?;
            let programs = ProgramSource::new(cluster.clone(), registries, &config.cluster.pull_secrets);
            let (jobs, place, programs) = (Arc::clone(&jobs), place.clone(), Arc::new(programs));
            let follow = kubeflow::run(Site { cluster, jobs, place, programs });
            Some(AbortOnDropHandle::new(tokio::spawn(follow)))
        }
        Some(_) | None => None,
    };

    let end = CancellationToken::new();
    let (agent_binary, python) = (config.agent_to_give()?, Config::python());
    let about = AboutMaster { backend: config.backend().into(), place, agent_binary, python };
    let server = Server::new(Arc::clone(&jobs), guard, about, end.clone());
    let serving = tokio::spawn(async move { server.serve(listener).await });
    let outcome = tokio::select! {
        ended = &mut following => why_it_ended(ended),
        () = backend.blind() => Err(anyhow!(BLIND)),
        reason = signals.told_to_end() => ended_by(reason),
    };
    end.cancel();
    // `shutdown` ends this master's pods. No driver may record that as a failure, so the drivers stop first.
    following.abort();
    let _ = following.await;
    let (served, ()) = tokio::join!(serving, backend.shutdown());
    served.context("serve HTTP")?;
    if config.supervised && outcome.is_ok() {
        state.remove()?;
    }
    outcome
}

/// A requested shutdown is a success.
#[expect(clippy::unnecessary_wraps, reason = "the other outcomes are errors, so all return a Result")]
fn ended_by(reason: &str) -> anyhow::Result<()> {
    info!(reason, "shutting down");
    Ok(())
}

/// The error of a master whose watch of the pods broke.
const BLIND: &str = "the watch of the pods broke: restart the master, and it continues with its jobs";

/// The task that follows the records runs as long as the master, so its end is an error.
fn why_it_ended(ended: Result<Result<(), StoreError>, JoinError>) -> anyhow::Result<()> {
    ended.context("follow the records")?.context("follow the records")
}

/// What the back end determines: the store, the pods, the key of the agents, and the folders.
struct World {
    store: Arc<dyn JobStore>,
    backend: Arc<dyn PodBackend>,
    /// The cluster of the pods, if they are Kubernetes pods.
    cluster: Option<Cluster>,
    /// Where TFJobs run.
    place: ReplicaHost,
    agent_key: AgentKey,
    /// See [`Context::boot_id`].
    boot_id: String,
    /// The folder for output. Each store has its own folder, because a master removes the output of jobs that are not
    /// in its store.
    logs: PathBuf,
    /// The folder for code that jobs bring. Each store has its own folder, for the same reason.
    code: PathBuf,
    /// The folder for the files of jobs that have ended. The jobs of each store have their own folder.
    history: PathBuf,
}

impl World {
    async fn find(config: &Config, state: &StateDir, descriptors: Descriptors) -> anyhow::Result<Self> {
        match config.backend() {
            Backend::Process => on_this_host(config, state, descriptors).await,
            Backend::Kubernetes => in_cluster(config, state).await,
            Backend::Joined => on_machines(config, state).await,
        }
    }

    /// A world with the records in a file.
    async fn with_file(
        store: SqliteStore,
        backend: Arc<dyn PodBackend>,
        agent_key: AgentKey,
        state: &StateDir,
    ) -> anyhow::Result<Self> {
        let (boot_id, store) = (boot_id(&store).await?, Arc::new(store));
        let (logs, code, history) = (state.logs(), state.code(), state.history());
        Ok(Self {
            store,
            backend,
            cluster: None,
            place: ReplicaHost::Processes,
            agent_key,
            boot_id,
            logs,
            code,
            history,
        })
    }
}

async fn boot_id(store: &dyn JobStore) -> anyhow::Result<String> {
    let holders = store.holders().await.context("list the records")?;
    Ok(store::boot_id::after(holders.iter().map(String::as_str), store.now(), &uuid::Uuid::now_v7().to_string()))
}

fn open_records(state: &StateDir) -> anyhow::Result<SqliteStore> {
    let file = state.records();
    SqliteStore::open(&file).with_context(|| format!("open the records in {}", file.display()))
}

async fn on_this_host(config: &Config, state: &StateDir, descriptors: Descriptors) -> anyhow::Result<World> {
    let store = open_records(state)?;
    let here = std::env::current_dir().context("find the current folder")?;
    let host = Host {
        agent_binary: config.agent_binary()?,
        default_work_dir: here,
        not_inherited: Config::own_variables(),
        descriptors,
        orphans: Orphans::adopted().context("become the parent of orphans")?,
    };
    let backend = ProcessBackend::new(host, state.path()).context("read the pods' folders")?;
    // These agents do not outlive this master, so a random key is enough.
    World::with_file(store, Arc::new(backend), AgentKey::random(), state).await
}

async fn on_machines(config: &Config, state: &StateDir) -> anyhow::Result<World> {
    let agent_key = agent_key(config, state)?;
    let store = open_records(state)?;
    let records = store.list().await.context("list the records")?;
    // The back end accepts no job without a lease.
    let lease_of = |stored: &Stored| Some((stored.key(), stored.record.spec.run_policy.lease()?));
    let leases: BTreeMap<JobKey, Lease> = records.iter().filter_map(lease_of).collect();
    let backend = JoinedBackend::open(state.machines(), agent_key.clone(), |job| leases.get(job).copied());
    let backend = backend.context("read the messages of machines")?;
    World::with_file(store, Arc::new(backend), agent_key, state).await
}

/// The key for the tokens of agents that outlive this master.
fn agent_key(config: &Config, state: &StateDir) -> anyhow::Result<AgentKey> {
    config.agent_key()?.map_or_else(|| AgentKey::read_or_make(&state.agent_key()), Ok)
}

async fn in_cluster(config: &Config, state: &StateDir) -> anyhow::Result<World> {
    let agent_key = agent_key(config, state)?;
    let cluster = Cluster::connect(config.namespace.clone()).await?;
    let own = cluster.own_pod(Config::pod_name().as_deref()).await;
    let own = own.context("read the master's own pod")?;
    let own_agent = own_agent(config, own.image.as_ref())?;
    let gives_users = cluster.gives_users().await.context("list the groups of the Kubernetes API")?;
    let rules = PodRules {
        host_volumes: if config.cluster.allow_host_volumes { HostVolumes::Allowed } else { HostVolumes::Refused },
        agent_image: config.cluster.agent_image.clone().or(own.image),
        default_user: if gives_users { DefaultUser::OfCluster } else { DefaultUser::Muster },
        own_uses: own.uses,
    };
    let mut backend = KubeBackend::begin(&cluster, rules).await?;
    if let Some(agent) = own_agent {
        backend = backend.with_agent_program(&cluster, &agent).await;
    }
    info!(namespace = cluster.namespace(), "connected to Kubernetes");
    let store = KubeStore::new(&cluster);
    let honours_root = config.cluster.watch_tfjobs == WatchTfJobs::AllowRoot;
    Ok(World {
        boot_id: boot_id(&store).await?,
        store: Arc::new(store),
        backend: Arc::new(backend),
        place: ReplicaHost::Pods { namespace: cluster.namespace().to_owned(), honours_root },
        agent_key,
        logs: state.logs().join(cluster.folder()),
        code: state.code().join(cluster.folder()),
        history: state.history().join(cluster.folder()),
        cluster: Some(cluster),
    })
}

/// The agent beside this program, if pods use it. Pods use it if this master runs in a pod, whose image has a static
/// agent, and `--agent-image` names no other agent.
fn own_agent(config: &Config, own_image: Option<&ImageRef>) -> anyhow::Result<Option<Vec<u8>>> {
    let is_own = own_image.is_some() && config.cluster.agent_image.is_none();
    let path = config.agent_to_give()?.filter(|_| is_own);
    path.map(std::fs::read).transpose().context("read the agent's program")
}

/// The exit status: 0 after a requested shutdown, 2 when the master could not start or continue.
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, there is no other place to report the error.
            let _ = writeln!(std::io::stderr(), "error: {error:#}{}", hint(&error));
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("listen on {0} (--listen)")]
struct CannotListen(SocketAddr);

/// A line that says how to fix the error; empty if there is no advice.
fn hint(error: &anyhow::Error) -> String {
    let kind = error.root_cause().downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    match (error.downcast_ref::<CannotListen>(), kind) {
        (Some(CannotListen(address)), Some(ErrorKind::AddrInUse)) => format!(
            "\nhint: client list --master http://{address} shows whether a master runs there; to run another \
             master, choose another --listen and --state-dir"
        ),
        (_, _) => String::new(),
    }
}

/// Prints the address of this master as the first line on stdout, for programs that have started this master.
fn announce(listener: &TcpListener) -> anyhow::Result<()> {
    let address = listener.local_addr().context("find the address of the listening socket")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on http://{address}").and_then(|()| stdout.flush()).context("write to stdout")
}
