//! What a run of the matrix leaves as evidence, as plain values: what the store, the pods and the agents have noted
//! themselves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use protocol::ids::ReplicaId;
use protocol::view::JobResult;
use testkit::fake::Written;
use testkit::fake::{AgentEvent, FakeAgent, PodChange};

use crate::chaos::place::{BUDGET, Place, kept_output};

/// See the file's first line.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    /// The gang, as it was asked for.
    pub(crate) replicas: Vec<ReplicaId>,
    /// How many failed starts may be made up for.
    pub(crate) budget: u32,
    /// What the world did to the job.
    pub(crate) mishaps: Mishaps,
    /// How many pods were created, and the master was told that they were not. Where the others are there before it hears
    /// of that, it costs the start; else such a pod is replaced at no cost, as is one that was not created.
    pub(crate) denied_pods: u32,
    /// Whether two masters were at it for a moment. What the first had sent may still arrive then: an environment at an
    /// agent that has not heard of the second, the end of a pod that by its name is another by now.
    pub(crate) is_overlapping: bool,
    /// What the client was told.
    pub(crate) told: Told,
    /// Every version of every record.
    pub(crate) records: Vec<(Instant, Written)>,
    /// Every pod that ever was.
    pub(crate) pods: Vec<PodLife>,
    /// When masters that had stood still were let go on after the job's end, and until when nothing else was done.
    pub(crate) calm: Vec<(Instant, Instant)>,
    /// What is left in the end.
    pub(crate) left: Left,
}

/// What the world did to the starts of the gang.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mishaps {
    pub(crate) failures: u32,
    pub(crate) evictions: u32,
}

/// What the client was told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// The uids with which submits were answered.
    pub(crate) accepted: Vec<String>,
    /// How the job was shown to have ended, each time that was asked.
    pub(crate) results: Vec<JobResult>,
}

/// One pod, from its creation on.
#[derive(Debug, Clone)]
pub(crate) struct PodLife {
    pub(crate) replica: ReplicaId,
    pub(crate) created: Instant,
    /// When it ran nothing any more.
    pub(crate) ended: Option<Instant>,
    /// When it was listed no more.
    pub(crate) deleted: Option<Instant>,
    /// What its agent did.
    pub(crate) journal: Vec<(Instant, AgentEvent)>,
}

/// What is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) pods: usize,
    pub(crate) records: usize,
    pub(crate) files: usize,
}

impl Evidence {
    /// What is to be seen in a place where all is over. Nobody was told anything, and no pod was denied.
    pub(crate) async fn gather(place: &Place, mishaps: Mishaps) -> Self {
        let records = place.store.history().await;
        let is_there = matches!(records.last(), Some((_, Written::Record(_))));
        Self {
            replicas: place.replicas(),
            budget: BUDGET,
            mishaps,
            denied_pods: 0,
            is_overlapping: false,
            told: Told::default(),
            pods: pods(place),
            calm: vec![],
            left: Left { pods: place.backend.pods(), records: usize::from(is_there), files: kept_output(&place.logs) },
            records,
        }
    }

    /// All that happened, in the order of time.
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
            lines.push((*from, "the masters that stood still go on".to_owned()));
            lines.push((*to, "all is quiet".to_owned()));
        }
        lines.sort();
        let Some(begin) = lines.first().map(|(at, _)| *at) else { return String::new() };
        lines.iter().fold(String::new(), |mut text, (at, line)| {
            writeln!(text, "    {:>9.3} ms {line}", (*at - begin).as_secs_f64() * 1000.0).expect("a String takes all");
            text
        })
    }
}

fn brief(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Configured(generation, _) => format!("configured {generation}"),
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
                let journal = agent.as_ref().map(FakeAgent::history).map(|history| history.events).unwrap_or_default();
                lives.push(PodLife { replica: event.replica, created: event.at, ended: None, deleted: None, journal });
            }
            PodChange::Ended => lives[newest[&event.replica]].ended = Some(event.at),
            PodChange::Deleted => lives[newest[&event.replica]].deleted = Some(event.at),
        }
    }
    lives
}
