//! Measures how long other requests wait while large logs are read, and what finished jobs cost: memory, and the time
//! of a start and of a list.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use e2e::{Master, programs};
use futures_util::future::try_join_all;
use job::plan;
use launchers::kubeflow::ReplicaHost;
use master::host::clock::wall_clock;
use master::http::{AboutMaster, Guard, Server};
use master::logs::{JobLogs, KEPT_BYTES};
use master::store::sqlite::SqliteStore;
use master::store::{Ended, JobRecord, JobStore};
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::ids::{PodName, ReplicaId, UnixMillis};
use protocol::master::BackendKind;
use protocol::view::{JobResult, JobTimes, ReplicaState, ReplicaView};
use testkit::fake::{Arrival, FakeBackend, FakeStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::agents::{peak, resident};
use crate::gang::{jobs, spec};
use crate::sample::{Figure, Row};

/// Number of concurrent readers. Each reader requests more last lines than a full log has, so that the master searches
/// the whole log.
const TAILS: usize = 300;
const LOGS: u32 = 4;
const HEALTH_CHECKS: usize = 1000;
/// Bytes per write while a log is filled.
const PIECE: usize = 1024 * 1024;

const REPLICAS_OF_A_JOB: u32 = 100;
const FEW_JOBS: u32 = 100;
const MANY_JOBS: u32 = 200;

/// Number of finished jobs that a master finds at its start, and the replicas of each.
const JOBS_AT_A_START: u32 = 10_000;
const REPLICAS_AT_A_START: u32 = 16;

/// Measures the 99th percentile of the time that `/healthz` takes while the readers run.
pub(crate) async fn tails() -> anyhow::Result<Vec<Row>> {
    // One worker thread, like a master that is limited to one processor.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_owned();
    let address = runtime.spawn(async move { serve_full_logs(&path).await }).await??;
    let read = async |reader: usize| -> anyhow::Result<()> {
        let path = format!("/v1/jobs/full/logs?replica=worker-{}&tail=1000000000", reader % LOGS as usize);
        loop {
            let answer = ask(&address, &path, Answer::Head).await?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    };
    let ask_health = async {
        let mut times = vec![];
        while times.len() < HEALTH_CHECKS {
            let asked = Instant::now();
            ask(&address, "/healthz", Answer::Whole).await?;
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        Ok::<_, anyhow::Error>(times)
    };
    let times = tokio::select! {
        times = ask_health => times?,
        failed = try_join_all((0..TAILS).map(read)) => { failed?; vec![] }
    };
    runtime.shutdown_background();
    let slow = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    let what = format!("99th percentile of /healthz during {TAILS} tails of full logs");
    Ok(vec![Row::new(what, Figure::Time(slow))])
}

async fn serve_full_logs(dir: &Path) -> anyhow::Result<String> {
    let jobs = jobs(&FakeBackend::new(Arrival::AtOnce), &FakeStore::default(), dir);
    tokio::spawn(Arc::clone(&jobs).run());
    let spec = spec("full", None, LOGS)?;
    jobs.requests.submit(spec.clone()).await?;
    let handle = jobs.table.find(&spec.name).context("the registry does not contain the job")?;
    for replica in plan::replicas(&spec) {
        fill(&handle.kept.logs, replica).await?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let about =
        AboutMaster { backend: BackendKind::Process, place: ReplicaHost::Processes, agent_binary: None, python: None };
    let server = Server::new(jobs, Guard::ThisMachine, about, CancellationToken::new());
    tokio::spawn(async move { server.serve(listener).await });
    Ok(address)
}

async fn fill(logs: &JobLogs, replica: ReplicaId) -> anyhow::Result<()> {
    let log = logs.of(replica).context("the replica has no log")?;
    let piece = Bytes::from("0123456789abcde\n".repeat(PIECE / 16));
    let mut offset = 0;
    while offset < KEPT_BYTES.get() {
        log.append(offset, piece.clone(), wall_clock()).await?;
        offset += PIECE as u64;
    }
    Ok(())
}

/// The part of an answer that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Head,
    Whole,
}

async fn ask(address: &str, path: &str, answer: Answer) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut read = vec![0; 512];
    let length = stream.read(&mut read).await?;
    read.truncate(length);
    if answer == Answer::Whole {
        stream.read_to_end(&mut read).await?;
    }
    Ok(String::from_utf8_lossy(&read).into_owned())
}

/// Measures the memory per finished replica: the growth of a master's memory when the number of finished
/// replicas grows by 10,000, divided by 10,000.
pub(crate) async fn finished() -> anyhow::Result<Vec<Row>> {
    let few = memory_with(FEW_JOBS).await?;
    let many = memory_with(MANY_JOBS).await?;
    let replicas = |jobs: u32| u64::from(jobs * REPLICAS_OF_A_JOB);
    let each = many.saturating_sub(few) / (replicas(MANY_JOBS) - replicas(FEW_JOBS));
    let what = format!("bytes per finished replica, from {} to {} replicas", replicas(FEW_JOBS), replicas(MANY_JOBS));
    Ok(vec![Row::new(what, Figure::Count(each))])
}

/// Measures the start of a master that finds many finished jobs and keeps all of them. Also measures a list of these
/// jobs, and the master's peak memory.
pub(crate) async fn start() -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    put(dir.path(), JOBS_AT_A_START, REPLICAS_AT_A_START).await?;
    let began = Instant::now();
    let master = master_with(dir.path());
    let started = began.elapsed();
    let began = Instant::now();
    let list = Command::new(programs::built("client")).args(["list", "--master", &master.url]).output()?;
    let listed = began.elapsed();
    let lines = String::from_utf8_lossy(&list.stdout).lines().count();
    ensure!(lines > JOBS_AT_A_START as usize, "client list shows {lines} lines: {list:?}");
    let row = |what: &str, muster: Figure| {
        Row::new(format!("{what} with {JOBS_AT_A_START} finished jobs of {REPLICAS_AT_A_START} replicas"), muster)
    };
    Ok(vec![
        row("start of a master", Figure::Time(started)),
        row("client list", Figure::Time(listed)),
        row("peak memory of a master", Figure::Bytes(peak(master.pid())?)),
    ])
}

/// Puts the records of finished jobs into a master's state directory.
async fn put(state_dir: &Path, jobs: u32, replicas: u32) -> anyhow::Result<()> {
    let store = SqliteStore::open(&state_dir.join("jobs.sqlite"))?;
    for job in 0..jobs {
        store.create(record(&format!("job-{job}"), replicas)?).await?;
    }
    Ok(())
}

async fn memory_with(jobs: u32) -> anyhow::Result<u64> {
    let dir = tempfile::tempdir()?;
    put(dir.path(), jobs, REPLICAS_OF_A_JOB).await?;
    let mut master = master_with(dir.path());
    let mut last = 0;
    // The memory grows until the master has read all records.
    for _ in 0..20 {
        let now = resident(master.pid())?;
        ensure!(master.end().is_none(), "the master has ended");
        if now == last {
            return Ok(now);
        }
        last = now;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(last)
}

/// Starts a master that keeps all finished jobs of this state directory.
fn master_with(state_dir: &Path) -> Master {
    let keep = JOBS_AT_A_START.to_string();
    Master::start(state_dir, &["--backend", "process", "--state-dir", ".", "--keep-finished", &keep], &[])
}

fn record(name: &str, replicas: u32) -> anyhow::Result<JobRecord> {
    let spec = spec(name, None, replicas)?;
    let at = UnixMillis(1);
    let exit = ExitReport::new(ExitOutcome::Code(0), at);
    let view = |replica: ReplicaId| ReplicaView {
        replica,
        state: ReplicaState::Exited,
        pod: PodName::new(&spec.name, replica).to_string(),
        address: None,
        reason: None,
        pid: None,
        started_at: Some(at),
        exit: Some(exit.clone()),
    };
    let replicas = plan::replicas(&spec).into_iter().map(view).collect();
    let ended =
        Ended { result: JobResult::Succeeded, times: JobTimes::default(), generation: None, roster: vec![], replicas };
    let record = testkit::conformance::store::record(name);
    Ok(JobRecord { spec: spec.into(), ended: Some(ended), ..record })
}
