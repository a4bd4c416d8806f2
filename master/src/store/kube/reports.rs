//! What a reader of the records receives: the reports of the API's watch, and the writes of this master, which the watch may
//! report late.

use std::collections::{HashMap, HashSet};

use futures_util::{Stream, StreamExt, pin_mut};
use job::key::JobKey;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::runtime::watcher;
use protocol::ids::JobName;
use tokio::sync::{broadcast, mpsc};
use tracing::{error, warn};

use super::{job_of, number, readable, version_of};
use crate::error_chain::error_chain;
use crate::kube::record_name;
use crate::store::{StoreEvent, Stored, Version, set_aside};

/// Passes changes on until the receiver is dropped.
pub(super) async fn follow(
    events: impl Stream<Item = Result<watcher::Event<ConfigMap>, watcher::Error>>,
    written: broadcast::Sender<Stored>,
    sender: mpsc::Sender<StoreEvent>,
) {
    pin_mut!(events);
    let mut own_writes = written.subscribe();
    let mut told = Told::default();
    loop {
        let news = tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => told.news(event),
                Some(Err(error)) => {
                    warn!(error = error_chain(&error), "the watch of the records broke; restarting it");
                    vec![]
                }
                None => return,
            },
            stored = own_writes.recv() => match stored {
                Ok(stored) => told.written(stored),
                // Too many writes are waiting, so the oldest are lost. The API's watch reports all of them.
                Err(_) => vec![],
            },
            () = sender.closed() => return,
        };
        for event in news {
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// What the reader has received. The reader gets each change once, including deletions while the watch was broken.
#[derive(Debug, Default)]
struct Told {
    /// The version and the job's uid of each reported record.
    known: HashMap<JobName, (Version, String)>,
    /// The newest version that the API's watch has reported since its last list.
    watched: u64,
    /// The version of each own write that the API's watch has not reached. Earlier versions are out of date.
    ahead: HashMap<JobName, u64>,
    /// While the records are listed: the names of the ConfigMaps that exist.
    relisted: Option<HashSet<String>>,
    /// The version of each ConfigMap without a readable record. Each version is reported only once.
    set_aside: HashMap<String, Option<String>>,
    /// What the last event said about whether all records are readable. `None` before the end of the first list.
    all_readable: Option<bool>,
}

impl Told {
    fn news(&mut self, event: watcher::Event<ConfigMap>) -> Vec<StoreEvent> {
        let is_list_complete = matches!(event, watcher::Event::InitDone);
        let mut news = self.changes(event);
        let all_readable = self.set_aside.is_empty();
        match self.all_readable {
            None if is_list_complete => news.push(StoreEvent::Replayed { all_readable }),
            Some(told) if told != all_readable => news.push(StoreEvent::AllReadable(all_readable)),
            None | Some(_) => return news,
        }
        self.all_readable = Some(all_readable);
        news
    }

    fn changes(&mut self, event: watcher::Event<ConfigMap>) -> Vec<StoreEvent> {
        match event {
            watcher::Event::Init => {
                // This list contains all writes so far.
                (self.watched, self.ahead) = (0, HashMap::new());
                self.relisted = Some(HashSet::new());
                vec![]
            }
            watcher::Event::InitApply(map) => {
                self.relisted.get_or_insert_default().insert(map.name_any());
                self.changed(&map)
            }
            watcher::Event::Apply(map) => {
                self.watched = self.watched.max(number(&version_of(&map)).unwrap_or_default());
                self.changed(&map)
            }
            watcher::Event::InitDone => {
                let relisted = self.relisted.take().unwrap_or_default();
                self.set_aside.retain(|map, _| relisted.contains(map));
                let is_gone = |name: &&JobName| !relisted.contains(&record_name(name.as_str()));
                let gone: Vec<JobName> = self.known.keys().filter(is_gone).cloned().collect();
                gone.into_iter().flat_map(|name| self.deleted(name)).collect()
            }
            watcher::Event::Delete(map) => {
                self.watched = self.watched.max(number(&version_of(&map)).unwrap_or_default());
                self.set_aside.remove(&map.name_any());
                job_of(&map)
                    .filter(|job| !self.is_old(job, &map))
                    .into_iter()
                    .flat_map(|name| self.deleted(name))
                    .collect()
            }
        }
    }

    fn changed(&mut self, map: &ConfigMap) -> Vec<StoreEvent> {
        let job = job_of(map);
        if job.as_ref().is_some_and(|job| self.is_old(job, map)) {
            return vec![];
        }
        // Compare the versions first: reading a long record takes time.
        if job.as_ref().and_then(|name| self.known.get(name)).is_some_and(|(known, _)| *known == version_of(map)) {
            return vec![];
        }
        let stored = match readable(map) {
            Ok(stored) => stored,
            Err(error) => {
                let version = map.resource_version();
                if self.set_aside.insert(map.name_any(), version.clone()) == Some(version) {
                    return vec![];
                }
                error!(
                    config_map = map.name_any(),
                    error = error_chain(error.as_ref()),
                    "{}",
                    set_aside(error.as_ref())
                );
                let job = job.filter(|name| self.known.contains_key(name)).zip(map.uid());
                return job.map(|(name, uid)| StoreEvent::Damaged(JobKey { name, uid })).into_iter().collect();
            }
        };
        self.set_aside.remove(&map.name_any());
        self.note(&stored);
        vec![StoreEvent::Changed(Box::new(stored))]
    }

    /// Whether an own write is newer than this report of the API's watch.
    fn is_old(&mut self, job: &JobName, map: &ConfigMap) -> bool {
        let Some(ahead) = self.ahead.get(job) else { return false };
        let is_old = number(&version_of(map)).is_some_and(|version| version < *ahead);
        if !is_old {
            self.ahead.remove(job);
        }
        is_old
    }

    /// Takes an own write, unless the API's watch has already reported it.
    fn written(&mut self, stored: Stored) -> Vec<StoreEvent> {
        let name = stored.name().clone();
        let ahead = self.ahead.get(&name).copied().unwrap_or_default();
        let known = self.known.get(&name).and_then(|(version, _)| number(version)).unwrap_or_default();
        let newest = self.watched.max(ahead).max(known);
        let Some(version) = number(&stored.version).filter(|version| *version > newest) else { return vec![] };
        let is_replaced = self.known.get(&name).is_some_and(|(_, uid)| *uid != stored.record.uid);
        let replaced = if is_replaced { self.deleted(name.clone()) } else { vec![] };
        if let Some(relisted) = &mut self.relisted {
            relisted.insert(record_name(name.as_str()));
        }
        self.note(&stored);
        self.ahead.insert(name, version);
        replaced.into_iter().chain([StoreEvent::Changed(Box::new(stored))]).collect()
    }

    fn note(&mut self, stored: &Stored) {
        self.known.insert(stored.name().clone(), (stored.version.clone(), stored.record.uid.clone()));
    }

    fn deleted(&mut self, name: JobName) -> Vec<StoreEvent> {
        self.known.remove(&name).map(|_| StoreEvent::Deleted(name)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::UnixMillis;
    use protocol::job::{JobRequest, Strategy};

    use super::*;
    use crate::store::JobRecord;
    use crate::store::kube::{map, parse};

    fn at_version(version: &str) -> ConfigMap {
        let request = JobRequest::new("one".parse().unwrap(), Strategy::AllReduce);
        let record = JobRecord::new(request.try_into().unwrap(), "uid".to_owned(), "holder".to_owned(), UnixMillis(0));
        map(&record, Some(&Version(version.to_owned()))).unwrap()
    }

    #[test]
    fn the_late_answer_to_an_own_write_does_not_replace_a_newer_record_of_a_list() {
        let (mut told, name) = (Told::default(), "one".parse().unwrap());
        told.news(watcher::Event::Init);
        assert_eq!(told.news(watcher::Event::InitApply(at_version("101"))).len(), 1);
        told.news(watcher::Event::InitDone);
        assert_eq!(told.written(parse(&name, &at_version("100")).unwrap()), []);
        assert_eq!(told.written(parse(&name, &at_version("102")).unwrap()).len(), 1);
    }
}
