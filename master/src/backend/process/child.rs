//! Runs one agent as a child process. The first line that the agent prints is its address.
//!
//! The agent's stdin is a pipe from this master. When the master dies, even by `kill -9`, the kernel closes the pipe.
//! The agent then ends all processes that it started, and itself.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use job::observation::{Addresses, PodState};
use listener::ReservedPorts;
use protocol::agent::ExitOutcome;
use protocol::env::{MUSTER_SCRIPT_PREFIX, MUSTER_TOKEN_SHA256};
use protocol::group::Template;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::force::kill_tree;
use super::{Launcher, PodSpec};
use crate::error_chain::error_chain;
use crate::host::files::lacks_room;

/// Maximum time until an agent has printed its address.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for an agent to end by itself when its pod is deleted. After this time, the master kills the agent.
const SOON: Duration = Duration::from_millis(100);

/// What a child must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChildOrder {
    /// Keep running.
    Live,
    /// End, and remove the pod.
    Delete,
    /// End because the master ends. The pod's folder stays for the next master.
    Abandon,
}

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("start the agent \"{program}\"")]
    Spawn { program: String, source: io::Error },
    #[error("find a free port for TensorFlow")]
    Port(#[source] io::Error),
    #[error("create the pod's folder")]
    Folder(#[source] io::Error),
    #[error("the agent did not print its address within {} s", ANNOUNCE_TIMEOUT.as_secs())]
    Silent,
    #[error("the agent ended before it printed its address")]
    Ended(#[source] io::Error),
    #[error("the agent printed {0:?} instead of an address")]
    NoAddress(String),
}

impl ChildError {
    /// Whether the agent may start later, when other programs have ended or removed files.
    pub(super) fn lacks_room(&self) -> bool {
        match self {
            Self::Spawn { source, .. } | Self::Port(source) | Self::Folder(source) => lacks_room(source),
            Self::Silent | Self::Ended(_) | Self::NoAddress(_) => false,
        }
    }
}

/// Waits for one pod to end. Calls `state` when the pod runs, and returns the pod's last state.
pub(super) async fn run(
    launcher: &Launcher,
    (pod, started): (&PodSpec, Started),
    mut orders: watch::Receiver<ChildOrder>,
    state: impl Fn(PodState),
) -> PodState {
    let Started { mut child, lifeline, claim } = started;
    let pid = pid_of(&child);
    let announced = tokio::select! {
        announced = timeout(ANNOUNCE_TIMEOUT, announced(&mut child)) => {
            Some(announced.unwrap_or(Err(ChildError::Silent)))
        }
        () = ordered_to_end(&mut orders) => None,
    };
    match announced {
        Some(Ok(agent)) => {
            let tensorflow = SocketAddr::from((Ipv4Addr::LOCALHOST, claim.first()));
            state(PodState::Running(Addresses { agent, tensorflow }));
        }
        // The agent has not failed. The code below carries out the order.
        None => {}
        Some(Err(error)) => {
            end(&mut child, lifeline).await;
            let last_message = launcher.run_dirs.last_message(&pod.job.name, pod.replica);
            return ended(last_message.unwrap_or_else(|| error_chain(&error)));
        }
    }
    let status = tokio::select! {
        status = child.wait() => status,
        () = ordered_to_end(&mut orders) => {
            // The child may have ended already, which is fine.
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            let order = *orders.borrow();
            match order {
                ChildOrder::Delete => end_soon(&mut child, lifeline, pid).await,
                ChildOrder::Live | ChildOrder::Abandon => end(&mut child, lifeline).await,
            }
            child.wait().await
        }
    };
    if status.as_ref().is_ok_and(|status| status.signal().is_some()) {
        // The next pod needs the memory and the GPUs of the processes that the agent could not kill.
        launcher.host.orphans.kill().await;
    }
    // The agent and its processes have ended, and released the port.
    drop(claim);
    match status {
        Ok(status) => ended(format!("its agent {}", outcome(status))),
        Err(error) => ended(format!("could not wait for its agent: {error}")),
    }
}

/// A child with its lifeline and its claimed port.
pub(super) struct Started {
    child: Child,
    /// The child's stdin, taken out of `child`: otherwise, a wait for the child would close the stdin.
    lifeline: Option<ChildStdin>,
    claim: ReservedPorts,
}

/// Starts the agent of one pod.
pub(super) fn start(launcher: &Launcher, pod: &PodSpec) -> Result<Started, ChildError> {
    // `admit` has refused images and pod options. A process uses only the variables of a template.
    let PodSpec { job: key, replica, work_dir, brings_code, command, template, agent_token_sha256, .. } = pod;
    let job = &key.name;
    launcher.run_dirs.create(job, *replica).map_err(ChildError::Folder)?;
    let messages = launcher.run_dirs.agent_log(job, *replica).map_err(ChildError::Folder)?;
    // All agents of the job put its code into the same folder.
    let brought = || Ok((launcher.work_dirs.create(key)?, launcher.run_dirs.create_code_dir(job, *replica)?));
    let brought = brings_code.then(brought).transpose().map_err(ChildError::Folder)?;
    let (own_work_dir, code_dir) = brought.unzip();
    let folder = own_work_dir.as_deref().unwrap_or_else(|| launcher.work_dir_of(work_dir.as_deref()));
    let claim = launcher.ports.claim(pod.processes).map_err(ChildError::Port)?;
    let of_script = template.iter().flat_map(Template::variables);
    let of_script = of_script.map(|(name, value)| (format!("{MUSTER_SCRIPT_PREFIX}{name}"), value));
    let mut agent = Command::new(&launcher.host.agent_binary);
    for name in &launcher.host.not_inherited {
        agent.env_remove(name);
    }
    agent
        .args(["--supervised", "--listen", "127.0.0.1:0", "--work-dir"])
        .arg(folder)
        .args(code_dir.iter().flat_map(|folder| [OsStr::new("--code-dir"), folder.as_os_str()]))
        .arg("--")
        .args(command)
        // The inherited variable names the folder in which the master was started.
        .env("PWD", folder)
        .envs(of_script)
        .env(MUSTER_TOKEN_SHA256, agent_token_sha256)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(messages)
        .kill_on_drop(true);
    let mut child = launcher
        .host
        .orphans
        .start(&mut agent)
        .map_err(|source| ChildError::Spawn { program: launcher.host.agent_binary.display().to_string(), source })?;
    // This fails if the child has ended already.
    let _ = pid_of(&child).map(|pid| launcher.host.descriptors.give_back(pid));
    let lifeline = child.stdin.take();
    Ok(Started { child, lifeline, claim })
}

async fn announced(child: &mut Child) -> Result<SocketAddr, ChildError> {
    let stdout = child.stdout.take().expect("stdout was piped at the start and is taken once");
    let mut line = String::new();
    // An address is short; a longer line is not an address.
    let read = BufReader::new(stdout.take(256)).read_line(&mut line).await;
    if let Err(error) = read {
        return Err(ChildError::Ended(error));
    }
    if line.is_empty() {
        return Err(ChildError::Ended(io::ErrorKind::UnexpectedEof.into()));
    }
    line.trim_end().parse().map_err(|_| ChildError::NoAddress(line))
}

/// Waits for an order to end the child. A closed channel is such an order, too.
async fn ordered_to_end(orders: &mut watch::Receiver<ChildOrder>) {
    let _ = orders.wait_for(|order| *order != ChildOrder::Live).await;
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Ends an agent by closing its stdin: the agent then kills its processes. SIGKILL would orphan these processes, so
/// only an agent that does not end in time gets SIGKILL.
async fn end(child: &mut Child, lifeline: Option<ChildStdin>) {
    // An agent needs up to 10 s for processes that do not die at once.
    const LAST_CHANCE: Duration = Duration::from_secs(12);
    drop(lifeline);
    if timeout(LAST_CHANCE, child.wait()).await.is_err() {
        // An error means that the agent has ended by now.
        let _ = child.kill().await;
    }
}

/// Like [`end`], but kills the agent and its processes if the agent does not end soon. An agent that has received
/// SIGSTOP reacts only to SIGKILL.
async fn end_soon(child: &mut Child, lifeline: Option<ChildStdin>, pid: Option<Pid>) {
    let killed = async {
        sleep(SOON).await;
        match pid {
            Some(pid) => kill_tree(pid).await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = end(child, lifeline) => {}
        () = killed => {}
    }
}

fn outcome(status: ExitStatus) -> ExitOutcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitOutcome::Code(code),
        (None, signal) => ExitOutcome::Signal(signal.unwrap_or(0)),
    }
}

/// The state of an ended pod. Its `exit` is `None`: in this back end, only the agent's status tells how exec.py ended.
fn ended(reason: String) -> PodState {
    PodState::ended(None, reason)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use protocol::job::{JobRequest, JobSpec, Strategy};

    use super::*;
    use crate::backend::process::Host;
    use crate::backend::process::orphans::Orphans;
    use crate::backend::process::ports::Ports;
    use crate::backend::process::run_dir::RunDirs;
    use crate::backend::process::work_dirs::WorkDirs;
    use crate::host::descriptors::Descriptors;
    use job::key::JobKey;

    #[tokio::test]
    async fn a_pod_that_is_deleted_before_its_agent_prints_an_address_has_not_failed() {
        let folder = tempfile::tempdir().expect("no folder");
        let agent_binary = folder.path().join("agent");
        fs::write(&agent_binary, "#!/bin/sh\nexec sleep 600\n").expect("cannot write the program");
        fs::set_permissions(&agent_binary, Permissions::from_mode(0o755)).expect("cannot change the mode");
        let launcher = Launcher {
            host: Host {
                agent_binary,
                default_work_dir: folder.path().to_owned(),
                not_inherited: vec![],
                descriptors: Descriptors::raise().expect("cannot read the limits"),
                orphans: Orphans::ignored(),
            },
            run_dirs: RunDirs::new(folder.path()),
            work_dirs: WorkDirs::new(folder.path()),
            ports: Ports::new(std::process::id()),
        };
        let request = JobRequest::new("digits".parse().expect("not a name"), Strategy::AllReduce);
        let spec = JobSpec::try_from(request).expect("an invalid job");
        let job = JobKey { name: spec.name.clone(), uid: "uid".to_owned() };
        let pod = PodSpec::new(job, &spec, "worker-0".parse().expect("not a replica"), String::new());
        for order in [ChildOrder::Delete, ChildOrder::Abandon] {
            let started = start(&launcher, &pod).expect("the agent does not start");
            let (orders, receiver) = watch::channel(ChildOrder::Live);
            let ordering = async { orders.send_modify(|now| *now = order) };
            let running = run(&launcher, (&pod, started), receiver, |state| panic!("{state:?}"));
            let (last, ()) = tokio::join!(running, ordering);
            assert_eq!(last, ended("its agent was killed by signal 15 (SIGTERM)".to_owned()), "{order:?}");
        }
    }
}
