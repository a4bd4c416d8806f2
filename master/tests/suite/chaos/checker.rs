//! The checker of the crash matrix. It checks the master's promises against everything that the store, the pods and the
//! agents have recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use master::store::{JobRecord, Wish};
use protocol::agent::ExitOutcome;
use protocol::code::CodeId;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;
use serde_json::Value;
use testkit::chaos::broken_promises;
use testkit::fake::AgentEvent;
use testkit::fake::Written;

use crate::chaos::evidence::{Evidence, Left, Mishaps, PodLife};

/// After a takeover, agents may still receive messages of the earlier master for this time.
const UNDERWAY: Duration = Duration::from_secs(1);

/// The broken promises, each as a sentence.
pub(crate) fn violations(evidence: &Evidence) -> Vec<String> {
    let runs = runs(evidence);
    let mut found = records(evidence);
    found.extend(restarts(evidence, &runs));
    found.extend(pods(&evidence.pods));
    found.extend(evidence.pods.iter().flat_map(agent));
    found.extend(gangs(evidence, &runs));
    found.extend(sizes(evidence));
    found.extend(epochs(evidence));
    found.extend(result(evidence, &runs));
    found.extend(calm(evidence));
    found.extend(remains(evidence));
    found
}

/// One execution of exec.py.
#[derive(Debug)]
struct Run {
    replica: ReplicaId,
    generation: Generation,
    started: Instant,
    ended: Option<(Instant, Option<ExitOutcome>)>,
}

fn runs(evidence: &Evidence) -> Vec<Run> {
    let mut runs: Vec<Run> = vec![];
    for pod in &evidence.pods {
        let mut current: Option<usize> = None;
        for (at, event) in &pod.journal {
            match event {
                AgentEvent::Configured(..) => {}
                AgentEvent::Started(generation) => {
                    current = Some(runs.len());
                    runs.push(Run { replica: pod.replica, generation: *generation, started: *at, ended: None });
                }
                AgentEvent::Ended { outcome, stopped, .. } => {
                    if let Some(run) = current.take() {
                        runs[run].ended = Some((*at, (!stopped).then(|| outcome.clone())));
                    }
                }
                AgentEvent::Gone => {
                    if let Some(run) = current.take() {
                        runs[run].ended = Some((*at, None));
                    }
                }
            }
        }
    }
    runs
}

/// The versions of the record in the order of their writes, without deletions.
fn versions(evidence: &Evidence) -> impl Iterator<Item = (Instant, &JobRecord)> {
    evidence.records.iter().filter_map(|(at, written)| match written {
        Written::Record(stored) => Some((*at, &stored.record)),
        Written::Nothing(_) => None,
    })
}

/// No accepted submission is lost. A name belongs to one job. [`broken_promises`] accepts each change of the record.
fn records(evidence: &Evidence) -> Vec<String> {
    let mut found = vec![];
    let mut current: Option<&JobRecord> = None;
    let mut uids: BTreeSet<&str> = BTreeSet::new();
    for (_, written) in &evidence.records {
        match written {
            Written::Record(stored) => {
                let now = &stored.record;
                uids.insert(&now.uid);
                found.extend(current.into_iter().flat_map(|before| broken_promises(before, now)));
                current = Some(now);
            }
            Written::Nothing(_) => {
                if current.take().is_none_or(|last| last.wish != Wish::Delete) {
                    found.push("a record was deleted without a wish to delete it".to_owned());
                }
            }
        }
    }
    let lost = evidence.answers.accepted.iter().filter(|uid| !uids.contains(uid.as_str()));
    found.extend(lost.map(|uid| format!("the accepted job {uid} was never on record")));
    if uids.len() != 1 {
        found.push(format!("one job was submitted, but {} jobs were on record", uids.len()));
    }
    found
}

/// Each failed start is on record exactly once, and the restarts that count stay within the budget.
fn restarts(evidence: &Evidence, runs: &[Run]) -> Vec<String> {
    let Some((_, last)) = versions(evidence).last() else { return vec![] };
    let mut found = vec![];
    let restarts = &last.restarts;
    let mut failed: BTreeMap<Generation, usize> = BTreeMap::new();
    for generation in restarts.failed_starts.iter().filter_map(|start| start.generation) {
        *failed.entry(generation).or_default() += 1;
    }
    found.extend(
        failed.iter().filter(|(_, count)| **count > 1).map(|(one, _)| format!("start {one} is on record twice")),
    );
    // If a master is replaced during a launch, it is possible that only some replicas run. Such a start need not be on
    // record.
    let is_whole =
        |one: &Generation| runs.iter().filter(|run| run.generation == *one).count() == evidence.replicas.len();
    // A late request of a master that was replaced may begin a start. The new master ends this start, which has not failed.
    let is_late = |run: &Run| {
        let is_replaced =
            |(at, record): (Instant, &JobRecord)| at <= run.started && record.epoch > run.generation.epoch;
        evidence.is_overlapping && versions(evidence).any(is_replaced)
    };
    let in_time = runs.iter().filter(|run| !is_late(run)).map(|run| run.generation);
    let launched: BTreeSet<Generation> = in_time.filter(is_whole).collect();
    // When a user pushes new code, the start with the older code ends without a failure.
    let is_outdated = |generation: Generation| configured(evidence, generation).any(|one| one.code != last.code());
    let is_recorded = |generation: &&Generation| {
        evidence.is_elastic
            || failed.contains_key(*generation)
            || last.suspension.ended == Some(**generation)
            || is_outdated(**generation)
    };
    let over = launched.iter().rev().skip(1).filter(|generation| !is_recorded(generation));
    found.extend(over.map(|generation| format!("start {generation} is over, but not on record as failed")));
    if restarts.counted > evidence.budget {
        found.push(format!("{} restarts exceed the budget of {}", restarts.counted, evidence.budget));
    }
    let Mishaps { failures, evictions } = evidence.mishaps;
    let free = if evidence.is_elastic { 0..=0 } else { evictions..=evictions + evidence.unconfirmed_pods };
    let is_right = if evidence.is_elastic {
        restarts.uncounted == 0
            && (restarts.counted == failures || evidence.is_overlapping && restarts.counted < failures)
    } else if evidence.is_overlapping {
        restarts.counted <= failures && restarts.total() >= failures + evictions
    } else {
        restarts.counted == failures && free.contains(&restarts.uncounted)
    };
    if !is_right {
        let counts = (restarts.counted, restarts.uncounted);
        found.push(format!("restarts (counted, uncounted) are {counts:?}, expected {:?}", (failures, free)));
    }
    found
}

/// A replica never has two live pods.
fn pods(pods: &[PodLife]) -> Vec<String> {
    let overlap = |(index, pod): (usize, &PodLife)| {
        let is_live_at = |other: &PodLife, at: Instant| {
            other.created <= at && other.ended.is_none_or(|end| end > at) && other.deleted.is_none_or(|end| end > at)
        };
        let others = pods[..index].iter().filter(|other| other.replica == pod.replica);
        others
            .filter(|other| is_live_at(other, pod.created))
            .map(|_| format!("two live pods for {}", pod.replica))
            .next()
    };
    pods.iter().enumerate().filter_map(overlap).collect()
}

/// An agent accepts the generations in order, each at most once. It starts exec.py at most once for each generation.
fn agent(pod: &PodLife) -> Vec<String> {
    let (mut found, mut newest, mut started) = (vec![], None, BTreeSet::new());
    for (_, event) in &pod.journal {
        match event {
            AgentEvent::Configured(generation, ..) => {
                if newest >= Some(*generation) {
                    found.push(format!("{} is configured for start {generation} after {newest:?}", pod.replica));
                }
                newest = Some(*generation);
            }
            AgentEvent::Started(generation) => {
                if newest != Some(*generation) {
                    found.push(format!("{} runs in start {generation} but was configured for {newest:?}", pod.replica));
                }
                if !started.insert(*generation) {
                    found.push(format!("{} runs in start {generation} twice", pod.replica));
                }
            }
            AgentEvent::Ended { .. } | AgentEvent::Gone => {}
        }
    }
    found
}

/// In each start, no member runs before all members have their environment. All members have the same TF_CONFIG
/// cluster and code, and distinct seats. When a run begins, no run of an older start is alive.
fn gangs(evidence: &Evidence, runs: &[Run]) -> Vec<String> {
    let mut found = vec![];
    let launched: BTreeSet<Generation> = runs.iter().map(|run| run.generation).collect();
    for generation in launched {
        let members: Vec<Configured<'_>> = configured(evidence, generation).collect();
        let named: BTreeSet<ReplicaId> = members.iter().map(|member| member.replica).collect();
        let all: BTreeSet<ReplicaId> = evidence.replicas.iter().copied().collect();
        let has_members = if evidence.is_elastic { named.len() + 1 >= all.len() } else { named == all };
        if !has_members || members.len() != named.len() {
            found.push(format!("start {generation} has the wrong members: {named:?}"));
        }
        found.extend(members.iter().flat_map(|Configured { replica, env, .. }| {
            let index = (!evidence.is_elastic).then_some(replica.index);
            environment((*replica, index), (generation, members.len()), env)
        }));
        let seats: BTreeSet<String> = members.iter().map(|one| one.env["TF_CONFIG"]["task"].to_string()).collect();
        if seats.len() != members.len() {
            found.push(format!("two members of start {generation} have the same seat: {seats:?}"));
        }
        let clusters: BTreeSet<String> =
            members.iter().map(|one| one.env["TF_CONFIG"]["cluster"].to_string()).collect();
        if clusters.len() != 1 {
            found.push(format!("the members of start {generation} see different clusters: {clusters:?}"));
        }
        if members.iter().any(|one| one.code != members[0].code) {
            found.push(format!("the members of start {generation} run different code"));
        }
        let first = runs.iter().filter(|run| run.generation == generation).map(|run| run.started).min();
        if members.iter().any(|one| first < Some(one.at)) {
            found.push(format!("a replica runs in start {generation} before all its members are configured"));
        }
    }
    for run in runs {
        let is_alive = |older: &&Run| {
            older.generation < run.generation
                && older.started <= run.started
                && older.ended.as_ref().is_none_or(|(ended, _)| *ended > run.started)
        };
        let alive = runs.iter().filter(is_alive);
        found.extend(alive.map(|older| {
            format!(
                "{} still runs in start {} while {} is launched in start {}",
                older.replica, older.generation, run.replica, run.generation
            )
        }));
    }
    found
}

/// The sizes that the agents of a start have received.
#[derive(Default)]
struct Told<'a> {
    /// The different sizes of each version.
    sizes: BTreeMap<u64, BTreeSet<&'a [u32]>>,
    /// The replicas that have received each version.
    replicas: BTreeMap<u64, BTreeSet<ReplicaId>>,
}

/// In each start, a version has the same batch sizes for all ranks and under all masters. The sizes of a version add up
/// to the global batch. At least two versions reach all ranks, because the scripts end after two changes.
fn sizes(evidence: &Evidence) -> Vec<String> {
    let Some(global) = evidence.global_batch else { return vec![] };
    let mut told: BTreeMap<Generation, Told<'_>> = BTreeMap::new();
    for pod in &evidence.pods {
        for (generation, notice) in &pod.notices {
            let (Some(split), start) = (&notice.split, told.entry(*generation).or_default()) else { continue };
            start.sizes.entry(split.version).or_default().insert(&split.sizes);
            start.replicas.entry(split.version).or_default().insert(pod.replica);
        }
    }
    let mut found = vec![];
    for (generation, Told { sizes, .. }) in &told {
        let several = sizes.iter().filter(|(_, sizes)| sizes.len() > 1);
        found
            .extend(several.map(|(version, all)| format!("version {version} of start {generation} has sizes {all:?}")));
        let divides = |sizes: &[u32]| sizes.len() == evidence.replicas.len() && sizes.iter().sum::<u32>() == global;
        let wrong = sizes.values().flatten().filter(|sizes| !divides(sizes));
        found.extend(wrong.map(|sizes| format!("the sizes {sizes:?} in start {generation} do not divide {global}")));
    }
    let replicas = told.values().flat_map(|start| start.replicas.values());
    let complete = replicas.filter(|replicas| replicas.len() == evidence.replicas.len()).count();
    if complete < 2 {
        found.push(format!("only {complete} versions of the sizes reached all ranks"));
    }
    found
}

/// A replica that accepted the environment of a start.
struct Configured<'a> {
    replica: ReplicaId,
    at: Instant,
    env: &'a Value,
    code: Option<CodeId>,
}

fn configured(evidence: &Evidence, wanted: Generation) -> impl Iterator<Item = Configured<'_>> {
    evidence.pods.iter().flat_map(move |pod| {
        pod.journal.iter().filter_map(move |(at, event)| match event {
            AgentEvent::Configured(generation, env, code) if *generation == wanted => {
                Some(Configured { replica: pod.replica, at: *at, env, code: *code })
            }
            AgentEvent::Configured(..) | AgentEvent::Started(_) | AgentEvent::Ended { .. } | AgentEvent::Gone => None,
        })
    })
}

/// An environment contains the start's generation, and one distinct address for each member. In a fixed job, it also
/// contains the index of its replica.
fn environment(
    (replica, index): (ReplicaId, Option<u32>),
    (generation, members): (Generation, usize),
    env: &Value,
) -> Option<String> {
    let addresses: Vec<&str> =
        env["TF_CONFIG"]["cluster"]["worker"].as_array()?.iter().filter_map(Value::as_str).collect();
    let distinct: BTreeSet<&str> = addresses.iter().copied().collect();
    let roles = env["TF_CONFIG"]["cluster"].as_object().map_or(0, serde_json::Map::len);
    let task = &env["TF_CONFIG"]["task"];
    let is_right = roles == 1
        && addresses.len() == members
        && distinct.len() == addresses.len()
        && index.is_none_or(|index| task["index"] == index)
        && task["index"].as_u64().is_some_and(|index| index < members as u64)
        && env["MUSTER_GENERATION"] == generation.to_string();
    (!is_right).then(|| format!("{replica} has a wrong environment in start {generation}: {env}"))
}

/// When [`UNDERWAY`] has passed after a takeover, no agent accepts an environment of an earlier master.
fn epochs(evidence: &Evidence) -> Vec<String> {
    let mut found = vec![];
    for (adopted, record) in versions(evidence).filter(|_| !evidence.is_overlapping) {
        for pod in &evidence.pods {
            found.extend(pod.journal.iter().filter_map(|(at, event)| match event {
                AgentEvent::Configured(generation, ..)
                    if *at > adopted + UNDERWAY && generation.epoch < record.epoch =>
                {
                    Some(format!("{} accepts start {generation} after epoch {} has begun", pod.replica, record.epoch))
                }
                AgentEvent::Configured(..) | AgentEvent::Started(_) | AgentEvent::Ended { .. } | AgentEvent::Gone => {
                    None
                }
            }));
        }
    }
    found
}

/// The recorded result agrees with the outcome of the last start, and with the result that the client was shown. The
/// last start has the recorded code.
fn result(evidence: &Evidence, runs: &[Run]) -> Vec<String> {
    let Some((_, last)) = versions(evidence).last() else { return vec![] };
    let mut found = vec![];
    let newest = runs.iter().map(|run| run.generation).max();
    let of_newest = || runs.iter().filter(|run| Some(run.generation) == newest);
    let ended_well = |run: &Run| matches!(&run.ended, Some((_, Some(ExitOutcome::Code(0)))));
    let has_succeeded = of_newest().count() == evidence.replicas.len() && of_newest().all(ended_well);
    let result = last.ended.as_ref().map(|ended| &ended.result);
    let agrees = match result {
        Some(JobResult::Succeeded) => has_succeeded,
        Some(JobResult::Cancelled) => {
            !has_succeeded && versions(evidence).any(|(_, record)| record.wish >= Wish::Cancel)
        }
        Some(JobResult::Failed { .. }) | None => false,
    };
    if !agrees {
        let succeeded = if has_succeeded { "all replicas succeeded" } else { "not all replicas succeeded" };
        found.push(format!("the record must not say {result:?}: {succeeded} in the last start"));
    }
    if result.is_some() && newest.is_some_and(|newest| configured(evidence, newest).any(|one| one.code != last.code()))
    {
        found.push("the last start has older code than the record".to_owned());
    }
    let otherwise = evidence.answers.results.iter().filter(|shown| Some(*shown) != result);
    found.extend(otherwise.map(|shown| format!("the client was shown {shown:?}, but the record says {result:?}")));
    found
}

/// A master that was replaced while it was frozen changes neither the record nor an agent when it continues.
fn calm(evidence: &Evidence) -> Vec<String> {
    let is_amid = |at: Instant| evidence.calm.iter().any(|(from, to)| *from <= at && at < *to);
    let mut found = vec![];
    if evidence.records.iter().any(|(at, _)| is_amid(*at)) {
        found.push("a master that was replaced has changed the record".to_owned());
    }
    for pod in &evidence.pods {
        found.extend(pod.journal.iter().filter(|(at, _)| is_amid(*at)).filter_map(|(_, event)| match event {
            AgentEvent::Configured(..) | AgentEvent::Started(_) => {
                Some(format!("a master that was replaced has changed the agent of {}: {event:?}", pod.replica))
            }
            AgentEvent::Ended { .. } | AgentEvent::Gone => None,
        }));
    }
    found
}

/// Nothing is left after the delete.
fn remains(evidence: &Evidence) -> Option<String> {
    let Left { pods, records, files } = evidence.left;
    (evidence.left != Left { pods: 0, records: 0, files: 0 })
        .then(|| format!("left behind: {pods} pods, {records} records, {files} files or folders of logs"))
}
