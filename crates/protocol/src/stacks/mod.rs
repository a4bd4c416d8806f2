//! The Python stacks of a job's scripts: the messages, and the sentence that says in which functions the replicas are.

mod dump;
mod groups;
mod sentence;

use serde::{Deserialize, Serialize};

pub use self::dump::{Frame, Thread, is_library, place_in, threads};
pub use self::groups::{StackGroup, grouped, main_thread, other_threads};
pub use self::sentence::{SENTENCE_JSON_BYTES, sentence};

use crate::ids::ReplicaId;
use crate::processes::ProcessName;

/// Maximum bytes of all [`Dump::Text`]s together in an agent's answer.
pub const TEXT_BYTES: usize = 256 * 1024;

/// The answer of an agent's `POST /stacks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacks {
    /// The main process of the run, and then its child processes, oldest first. If the run has several main processes,
    /// each is followed by its own child processes.
    pub processes: Vec<ProcessStacks>,
}

/// The stacks of one process, and what it does according to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessStacks {
    /// The process id on the replica's machine or in its container.
    pub pid: u32,
    /// The index in the replica, if this is a main process of a replica of several processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The file name of its program, such as `python3.11`. Empty if it is unknown.
    pub program: String,
    /// The kernel's letter for the state of its main thread (proc_pid_stat(5)): `R` runs, `S` sleeps, `D` waits for a
    /// device.
    pub state: char,
    /// Its processor time during the request, in percent of one core. More than 100 for several busy threads.
    pub cpu_percent: u32,
    /// The function of the kernel in which its main thread waits. Absent if the thread does not wait, or if the
    /// function is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_in: Option<String>,
    /// The stacks of its threads.
    pub dump: Dump,
}

/// The stacks of a process's Python threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dump {
    /// The text of Python's module `faulthandler`. Below each frame whose file is not in a library, the agent adds the
    /// source line, indented by four spaces.
    Text(String),
    /// Why there are no stacks.
    WhyNot(String),
}

/// The answer of `GET /v1/jobs/NAME/stacks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobStacks {
    /// Where the main threads of all replicas are, in one sentence of at most 1 KiB.
    pub summary: String,
    /// The members of the job's current start, ordered by role and index.
    pub replicas: Vec<ReplicaStacks>,
}

/// The stacks of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaStacks {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// What its agent has answered.
    pub answer: Answer,
}

/// The stacks of a replica's processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The main process of the run, and then its child processes.
    Processes(Vec<ProcessStacks>),
    /// Why there are no stacks.
    WhyNot(String),
}

impl JobStacks {
    /// The stacks with their summary.
    pub fn new(replicas: Vec<ReplicaStacks>) -> Self {
        Self { summary: sentence(&replicas), replicas }
    }
}

/// The stacks of one main process and its child processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MainStacks<'a> {
    /// The main process.
    pub name: ProcessName,
    /// The main process, and then its child processes. Empty if the agent gave no stacks.
    pub processes: &'a [ProcessStacks],
    why_not: Option<&'a str>,
}

impl ReplicaStacks {
    /// The main processes of the replica. A replica without stacks counts as one.
    pub fn mains(&self) -> Vec<MainStacks<'_>> {
        let main = |processes, why_not| MainStacks { name: self.replica.into(), processes, why_not };
        match &self.answer {
            Answer::WhyNot(reason) => vec![main(&[], Some(reason.as_str()))],
            Answer::Processes(processes) if processes.is_empty() => vec![main(&[], None)],
            Answer::Processes(processes) => {
                let families = processes.chunk_by(|_, next| next.process.is_none());
                let name = |family: &[ProcessStacks]| ProcessName { replica: self.replica, process: family[0].process };
                families.map(|family| MainStacks { name: name(family), ..main(family, None) }).collect()
            }
        }
    }
}

impl<'a> MainStacks<'a> {
    /// The process to show: the first one with stacks. If a shell is the main process, this is the Python that the shell
    /// has started.
    pub fn shown(&self) -> Option<(&'a ProcessStacks, &'a str)> {
        self.processes.iter().find_map(|process| match &process.dump {
            Dump::Text(text) => Some((process, text.as_str())),
            Dump::WhyNot(_) => None,
        })
    }

    /// The processes other than [`Self::shown`], each by itself.
    pub fn children(&self) -> impl Iterator<Item = MainStacks<'a>> {
        let (shown, of) = (self.shown().map(|(process, _)| process.pid), *self);
        let others = self.processes.chunks(1).filter(move |other| Some(other[0].pid) != shown);
        others.map(move |processes| MainStacks { processes, ..of })
    }

    /// Why there are no stacks; `None` if there are some.
    pub fn why_not(&self) -> Option<&'a str> {
        match self.processes.first().map(|main| &main.dump) {
            Some(Dump::WhyNot(reason)) if self.shown().is_none() => Some(reason),
            Some(Dump::Text(_) | Dump::WhyNot(_)) => None,
            None => self.why_not,
        }
    }
}
