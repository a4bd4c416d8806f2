//! A TFJob that is an object of the cluster: what its job needs next, and the status that it shows (pure).

use std::time::Duration;

use protocol::ids::{JobName, UnixMillis};
use protocol::origin::Origin;
use protocol::tfjob::TfJobRequest;
use protocol::view::JobView;
use serde_json::{Map, Value, json};

use super::object::object;
use super::same::difference_at;
use super::status::{condition, keep_times, status};
use super::{ALLOW_ROOT, Place, Read, difference, read};
use crate::kube::clock::{time_of, timestamp};
use crate::template::{Note, listed};

/// The field with the time at which a status was written.
const TIME: &str = "lastReconcileTime";
/// Minimum time between two writes of a status if only counts of replicas have changed.
const COUNTS_INTERVAL: Duration = Duration::from_secs(30);

/// Shown if the object has not changed, and this master still computes another job from it. The master that created the
/// job had other flags or another version.
const READ_DIFFERENTLY: &str =
    "this master reads the TFJob differently than the master that created the job: the job is not changed";

/// An object of the cluster.
#[derive(Debug, Clone)]
pub struct Watched {
    name: Option<JobName>,
    uid: String,
    generation: u64,
    /// The annotation [`ALLOW_ROOT`], or null if it is absent. No other annotation changes the job.
    allow_root: Value,
    spec: Value,
    status: Value,
    read: Result<Read, Vec<Note>>,
}

/// What a master remembers of an object. The memory of a new master is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Whether the object had a job.
    pub had_job: bool,
    /// The newest generation of the object that the master has accepted or refused.
    pub applied: Option<u64>,
    /// Why the generation `applied` was refused.
    pub refusal: Option<String>,
}

/// What to do next for an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// Nothing, until the object or the job changes.
    Nothing,
    /// Submit the job, or change it.
    Apply(Box<Read>),
    /// Write this status.
    Show(Value),
    /// Look again after this time. Only counts of replicas have changed, and the last write is too recent.
    Wait(Duration),
    /// Delete the object, because its job was deleted, by a user or when `ttlSecondsAfterFinished` was over. Otherwise
    /// the job would run again.
    Remove,
}

impl Watched {
    /// Reads an object for a master whose replicas run in `place`.
    pub fn of(object: &Value, place: &Place) -> Self {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        // Do not read labels, owners and other annotations: other programs may change these at any time.
        let allow_root = metadata["annotations"][ALLOW_ROOT].clone();
        let annotations = if allow_root.is_null() { Value::Null } else { json!({ ALLOW_ROOT: allow_root }) };
        let document = json!({
            "apiVersion": object["apiVersion"], "kind": object["kind"], "spec": object["spec"],
            "metadata": { "name": metadata["name"], "namespace": metadata["namespace"], "annotations": annotations },
        });
        let request = TfJobRequest { document: document.to_string(), ..TfJobRequest::default() };
        let uid = text("uid");
        let read = read(&request, place).map(|mut read| {
            if let Some(Origin::TfJob(origin)) = &mut read.spec.origin {
                origin.object_uid = Some(uid.clone());
            }
            read
        });
        Self {
            name: text("name").parse().ok(),
            uid,
            generation: metadata["generation"].as_u64().unwrap_or_default(),
            allow_root,
            spec: object["spec"].clone(),
            status: object["status"].clone(),
            read,
        }
    }

    /// The name of the object's job; `None` if a job cannot have the object's name.
    pub fn job(&self) -> Option<&JobName> {
        self.name.as_ref()
    }

    /// The number that grows whenever a user changes the `spec`.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this job belongs to the object.
    pub fn owns(&self, job: &JobView) -> bool {
        job.spec.object_uid() == Some(&self.uid)
    }

    /// What to do next, at this time. `job` is the job with the object's name.
    pub fn need(&self, job: Option<&JobView>, memory: &Memory, now: UnixMillis) -> Need {
        if let Some(own) = job.filter(|job| self.owns(job)) {
            return self.need_of(own, memory, now);
        }
        let is_of_earlier_object = job.is_some_and(|job| job.spec.object_uid().is_some());
        match &self.read {
            _ if memory.had_job => Need::Remove,
            _ if self.has_ended() || is_of_earlier_object => Need::Nothing,
            _ if self.newest_condition().is_some() => self.failed(
                "Cancelled",
                "its job is not on record any more: create the TFJob again to run the job again",
                now,
            ),
            Err(notes) => self.failed("FailedValidation", &listed(notes), now),
            Ok(read) => match &memory.refusal {
                Some(refusal) => self.failed("FailedValidation", refusal, now),
                None => Need::Apply(Box::new(read.clone())),
            },
        }
    }

    /// What to do next for an object with this job.
    fn need_of(&self, job: &JobView, memory: &Memory, now: UnixMillis) -> Need {
        let is_known = memory.applied == Some(self.generation) || self.status["observedGeneration"] == self.generation;
        let refusal = memory.refusal.clone().filter(|_| memory.applied == Some(self.generation));
        let ignored = self.ignored(job, now).or(refusal);
        if let (Ok(read), None, None, false) = (&self.read, &ignored, &job.result, is_known) {
            return Need::Apply(Box::new(read.clone()));
        }
        let Some(Origin::TfJob(origin)) = &job.spec.origin else { return Need::Nothing };
        let mut status = status(job, origin, now);
        status["observedGeneration"] = self.generation.into();
        let newest = status["conditions"].as_array_mut().and_then(|conditions| conditions.last_mut());
        if let (Some(newest), Some(ignored)) = (newest, ignored) {
            newest["message"] = format!("{}; {ignored}", newest["message"].as_str().unwrap_or_default()).into();
        }
        keep_times(&mut status["conditions"], &self.status["conditions"]);
        if without(&[TIME], &status) == without(&[TIME], &self.status) {
            return Need::Nothing;
        }
        self.pause(&status, now).map_or(Need::Show(status), Need::Wait)
    }

    /// How long to wait before this status is written, if only counts of replicas have changed. During a launch, the
    /// counts change with each replica.
    fn pause(&self, status: &Value, now: UnixMillis) -> Option<Duration> {
        let written = time_of(self.status[TIME].as_str()?)?;
        // A time in the future comes from a wrong clock, and is treated like a time in the past.
        let since = now.0.abs_diff(written.0);
        let of_counts = [TIME, "replicaStatuses"];
        let pause = COUNTS_INTERVAL.checked_sub(Duration::from_millis(since)).filter(|pause| !pause.is_zero());
        pause.filter(|_| without(&of_counts, status) == without(&of_counts, &self.status))
    }

    /// The change of the object that has no effect on its job, as a sentence.
    fn ignored(&self, job: &JobView, now: UnixMillis) -> Option<String> {
        match &self.read {
            Err(notes) => Some(format!("the newest change is ignored: {}", listed(notes))),
            Ok(read) if difference(&job.spec, job.workers, &read.spec).is_some() => None,
            Ok(_) => {
                let on_record = object(job, None, now).unwrap_or_default();
                let annotation = &on_record["metadata"]["annotations"][ALLOW_ROOT];
                let path = difference_at("spec", &on_record["spec"], &self.spec).or_else(|| {
                    difference_at(&format!("metadata.annotations.{ALLOW_ROOT}"), annotation, &self.allow_root)
                });
                Some(match path {
                    Some(path) => format!("the change of {path} is ignored"),
                    None => READ_DIFFERENTLY.to_owned(),
                })
            }
        }
    }

    fn newest_condition(&self) -> Option<&str> {
        self.status["conditions"].as_array()?.last()?["type"].as_str()
    }

    fn has_ended(&self) -> bool {
        matches!(self.newest_condition(), Some("Succeeded" | "Failed"))
    }

    fn failed(&self, reason: &str, message: &str, now: UnixMillis) -> Need {
        Need::Show(json!({
            "conditions": [condition("Failed", reason, message, now)],
            "replicaStatuses": {},
            "observedGeneration": self.generation,
            "lastReconcileTime": timestamp(now),
            "completionTime": timestamp(now),
        }))
    }

    /// Stores the status that was written. The watch reports this status later, and the job may change before then.
    pub fn wrote(&mut self, status: Value) {
        self.status = status;
    }

    /// The merge patch (RFC 7396) that sets the object's status. The API refuses the patch if a newer object has the
    /// name.
    pub fn patch(&self, status: &Value) -> Value {
        json!({ "metadata": { "uid": self.uid }, "status": merge_patch(&self.status, status) })
    }

    /// The uid of the object.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

/// The status without some of its fields.
fn without(fields: &[&str], status: &Value) -> Option<Map<String, Value>> {
    let mut status = status.as_object().cloned()?;
    status.retain(|name, _| !fields.contains(&name.as_str()));
    Some(status)
}

/// The merge patch from one value to another.
fn merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(fields)) = (from, to) else { return to.clone() };
    let gone = from.keys().filter(|name| !fields.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let kept =
        fields.iter().map(|(name, field)| (name.clone(), merge_patch(from.get(name).unwrap_or(&Value::Null), field)));
    Value::Object(gone.chain(kept).collect())
}
