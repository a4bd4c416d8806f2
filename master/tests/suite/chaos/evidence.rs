//! The evidence of one run of the crash matrix: everything that the store, the pods and the agents have recorded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use protocol::batching::Notice;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;
use testkit::fake::Written;
use testkit::fake::{AgentEvent, FakeAgent, History, PodChange};

use crate::chaos::place::{BUDGET, Place, kept_output};

/// Everything that the checker reads.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    /// All replicas of the job.
    pub(crate) replicas: Vec<ReplicaId>,
    /// Whether the job is elastic. If so, a start may leave out one of `replicas`, and the record contains no
    /// evictions.
    pub(crate) is_elastic: bool,
    /// The job's `max_restarts`.
    pub(crate) budget: u32,
    /// Samples of all replicas in a step, if the job divides a batch.
    pub(crate) global_batch: Option<u32>,
    /// The failures and evictions of the scenario.
    pub(crate) mishaps: Mishaps,
    /// How many pods were created by calls whose answers were lost, so that the master got errors. The master replaces
    /// these pods. If the other pods already run when the error comes, the gang also restarts. This restart is not
    /// counted.
    pub(crate) unconfirmed_pods: u32,
    /// Whether two masters drove the job at the same time. If so, late messages of the first master may have an effect:
    /// an agent that the second master has not yet contacted may accept an environment of the first master. A late
    /// delete may end a newer pod of the same name.
    pub(crate) is_overlapping: bool,
    /// The answers to the client.
    pub(crate) answers: Answers,
    /// Every write and every deletion of a record.
    pub(crate) records: Vec<(Instant, Written)>,
    /// Every pod that was created.
    pub(crate) pods: Vec<PodLife>,
    /// The periods, after the job's end, in which a master that was frozen and replaced is active again. In these
    /// periods, no record may change, and no agent may be configured or start a run.
    pub(crate) calm: Vec<(Instant, Instant)>,
    /// What is left at the end of the run.
    pub(crate) left: Left,
}

/// How many counted failures and how many evictions a scenario has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mishaps {
    pub(crate) failures: u32,
    pub(crate) evictions: u32,
}

/// The answers to the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    /// The uids in the answers to submissions.
    pub(crate) accepted: Vec<String>,
    /// The results that the client was shown.
    pub(crate) results: Vec<JobResult>,
}

/// One pod, from its creation on.
#[derive(Debug, Clone)]
pub(crate) struct PodLife {
    pub(crate) replica: ReplicaId,
    pub(crate) created: Instant,
    /// When the pod ended.
    pub(crate) ended: Option<Instant>,
    /// When the back end stopped listing the pod.
    pub(crate) deleted: Option<Instant>,
    /// What the pod's agent did.
    pub(crate) journal: Vec<(Instant, AgentEvent)>,
    /// The notices to the script, each with the start's generation.
    pub(crate) notices: Vec<(Generation, Notice)>,
}

/// The numbers of pods, records, and files or folders of output that are left at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) pods: usize,
    pub(crate) records: usize,
    pub(crate) files: usize,
}

impl Evidence {
    /// Reads what the store and the pods of `place` have recorded. The caller sets the remaining fields, such as
    /// `answers` and `calm`.
    pub(crate) async fn gather(place: &Place, mishaps: Mishaps) -> Self {
        let records = place.store.history().await;
        let is_there = matches!(records.last(), Some((_, Written::Record(_))));
        Self {
            replicas: place.replicas(),
            is_elastic: place.spec.workers().is_some(),
            budget: BUDGET,
            global_batch: place.spec.global_batch(),
            mishaps,
            unconfirmed_pods: 0,
            is_overlapping: false,
            answers: Answers::default(),
            pods: pods(place),
            calm: vec![],
            left: Left { pods: place.backend.pods(), records: usize::from(is_there), files: kept_output(&place.logs) },
            records,
        }
    }

    /// All events, ordered by time, one per line.
    pub(crate) fn history(&self) -> String {
        let mut lines: Vec<(Instant, String)> = vec![];
        for (at, written) in &self.records {
            lines.push((
                *at,
                match written {
                    Written::Nothing(name) => format!("record of {name} deleted"),
                    Written::Record(stored) => {
                        let record = &stored.record;
                        let ended = record.ended.as_ref().map(|ended| &ended.result);
                        let failed: Vec<_> = record
                            .restarts
                            .failed_starts
                            .iter()
                            .map(|one| (one.generation, one.failure.to_string()))
                            .collect();
                        let (epoch, holder, wish) = (record.epoch, &record.holder, record.wish);
                        format!("record: epoch {epoch} of {holder}, {wish:?}, failed {failed:?}, ended {ended:?}")
                    }
                },
            ));
        }
        for pod in &self.pods {
            lines.push((pod.created, format!("{} created", pod.replica)));
            lines.extend(pod.ended.map(|at| (at, format!("{} ended", pod.replica))));
            lines.extend(pod.deleted.map(|at| (at, format!("{} deleted", pod.replica))));
            lines.extend(pod.journal.iter().map(|(at, event)| (*at, format!("{}: {}", pod.replica, brief(event)))));
        }
        for (from, to) in &self.calm {
            lines.push((*from, "the frozen masters thaw".to_owned()));
            lines.push((*to, "all is quiet".to_owned()));
        }
        lines.sort();
        let Some(begin) = lines.first().map(|(at, _)| *at) else { return String::new() };
        lines.iter().fold(String::new(), |mut text, (at, line)| {
            writeln!(text, "    {:>9.3} ms {line}", (*at - begin).as_secs_f64() * 1000.0)
                .expect("a String never fails");
            text
        })
    }
}

fn brief(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Configured(generation, ..) => format!("configured {generation}"),
        AgentEvent::Started(generation) => format!("started {generation}"),
        AgentEvent::Ended { generation, outcome, stopped } => {
            let generation = generation.map(|generation| generation.to_string()).unwrap_or_default();
            format!("ended {generation}: {outcome}{}", if *stopped { ", stopped" } else { "" })
        }
        AgentEvent::Gone => "gone".to_owned(),
    }
}

fn pods(place: &Place) -> Vec<PodLife> {
    let mut lives: Vec<PodLife> = vec![];
    let mut newest: BTreeMap<ReplicaId, usize> = BTreeMap::new();
    for event in place.backend.history() {
        match event.change {
            PodChange::Created(agent) => {
                newest.insert(event.replica, lives.len());
                let History { events: journal, notices, .. } =
                    agent.as_ref().map(FakeAgent::history).unwrap_or_default();
                let (replica, created) = (event.replica, event.at);
                lives.push(PodLife { replica, created, ended: None, deleted: None, journal, notices });
            }
            PodChange::Ended => lives[newest[&event.replica]].ended = Some(event.at),
            PodChange::Deleted => lives[newest[&event.replica]].deleted = Some(event.at),
        }
    }
    lives
}
