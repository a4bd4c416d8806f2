//! A TFJob that is an object of the cluster: what its job needs next, and the status that it shows (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::{JobName, UnixMillis};
use protocol::image::Entrypoint;
use protocol::origin::Origin;
use protocol::text;
use protocol::tfjob::TfJobRequest;
use protocol::view::JobView;
use serde_json::{Map, Value, json};

use super::object::object;
use super::programs::{Programs, Unknown, needed};
use super::same::difference_at;
use super::status::{condition, keep_times, status};
use super::{ALLOW_ROOT, Read, ReplicaHost, difference, read};
use crate::template::{Note, listed};
use crate::timestamp::{time_of, timestamp};

/// The field with the time at which a status was written.
const TIME: &str = "lastReconcileTime";
/// Minimum time between two writes of a status if only counts of replicas have changed.
const COUNTS_INTERVAL: Duration = Duration::from_secs(30);

/// Shown if the object has not changed, but this master computes another job from it. The master that created the job
/// had other flags or another version.
const READ_DIFFERENTLY: &str =
    "this master reads the TFJob differently than the master that created the job: the job is not changed";

/// The reason of the condition of an object whose job waits for the program of an image.
const WAITS: &str = "ImageProgram";
/// Maximum length in JSON of the reason why the program of an image is unknown.
const REASON_JSON_BYTES: usize = 600;

/// An object of the cluster.
#[derive(Debug, Clone)]
pub struct Watched {
    object: Value,
    name: Option<JobName>,
    uid: String,
    generation: u64,
    read: Result<Read, Vec<Note>>,
    /// Set if the object's only fault is that the programs of some images are unknown.
    lacks: Option<Lacks>,
}

/// The programs that an object needs.
#[derive(Debug, Clone)]
struct Lacks {
    /// The images, each with the pull secrets that its templates name.
    images: BTreeMap<String, BTreeSet<String>>,
    start_timeout: Duration,
}

/// What a master remembers of an object. The memory of a new master is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectMemory {
    /// Whether the object had a job.
    pub had_job: bool,
    /// The newest generation of the object that the master has accepted or refused.
    pub applied: Option<u64>,
    /// Why the generation `applied` was refused.
    pub refusal: Option<String>,
    /// The programs of the object's images.
    pub programs: Programs,
}

/// What to do next for an object.
#[derive(Debug, Clone, PartialEq)]
pub enum NextStep {
    /// Nothing, until the object or the job changes.
    Nothing,
    /// Submit the job, or change it.
    Apply(Box<Read>),
    /// Write this status.
    Show(Value),
    /// Write this status, unless the object has it already. Then look up the programs of these images, with the pull
    /// secrets that the templates name.
    LookUp {
        /// The images with the names of the secrets.
        images: BTreeMap<String, BTreeSet<String>>,
        /// The status, or `None` if the object has it already.
        status: Option<Value>,
    },
    /// Look again after this time, because the last write of counts of replicas or the last look-up is too recent.
    Wait(Duration),
    /// Delete the object, because its job was deleted, by a user or when `ttlSecondsAfterFinished` was over. Otherwise
    /// the job would run again.
    Remove,
}

impl Watched {
    /// Reads an object for a master whose replicas run in `place`. `known` has the programs of images, by the names of
    /// the images.
    pub fn of(object: &Value, place: &ReplicaHost, known: &BTreeMap<String, Entrypoint>) -> Self {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        let uid = text("uid");
        let read = |entrypoints: BTreeMap<String, Entrypoint>| {
            let request = TfJobRequest { document: document(object), entrypoints, ..TfJobRequest::default() };
            read(&request, place)
        };
        let images = needed(&object["spec"], known);
        let lacks = if images.is_empty() {
            None
        } else {
            // With any program instead of the unknown ones, the reader finds the other faults.
            read(with_any_program(&images, known)).ok().map(|Read { spec, .. }| Lacks {
                images,
                start_timeout: Duration::from_secs(spec.run_policy.start_timeout_seconds.into()),
            })
        };
        let used = known.clone();
        let read = read(used.clone()).map(|mut read| {
            if let Some(Origin::TfJob(origin)) = &mut read.spec.origin {
                origin.object_uid = Some(uid.clone());
                origin.programs = used;
            }
            read
        });
        let (name, generation) = (text("name").parse().ok(), metadata["generation"].as_u64().unwrap_or_default());
        Self { object: object.clone(), name, uid, generation, read, lacks }
    }

    /// Reads the object again, with these programs.
    pub fn with_programs(&self, place: &ReplicaHost, known: &BTreeMap<String, Entrypoint>) -> Self {
        Self::of(&self.object, place, known)
    }

    fn status(&self) -> &Value {
        &self.object["status"]
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
    pub fn need(&self, job: Option<&JobView>, memory: &ObjectMemory, now: UnixMillis) -> NextStep {
        if let Some(own) = job.filter(|job| self.owns(job)) {
            return self.need_of(own, memory, now);
        }
        let is_of_earlier_object = job.is_some_and(|job| job.spec.object_uid().is_some());
        match &self.read {
            _ if memory.had_job => NextStep::Remove,
            _ if self.has_ended() || is_of_earlier_object => NextStep::Nothing,
            _ if self.newest_condition().is_some() && self.waits_since().is_none() => self.failed(
                "Cancelled",
                "its job is not on record any more: create the TFJob again to run the job again",
                now,
            ),
            Err(notes) if self.lacks.is_some() => self.need_of_programs(notes, memory, now),
            Err(notes) => self.failed("FailedValidation", &listed(notes), now),
            Ok(read) => match &memory.refusal {
                Some(refusal) => self.failed("FailedValidation", refusal, now),
                None => NextStep::Apply(Box::new(read.clone())),
            },
        }
    }

    /// What to do next for an object whose job waits for the programs of images.
    fn need_of_programs(&self, notes: &[Note], memory: &ObjectMemory, now: UnixMillis) -> NextStep {
        let Some(Lacks { images, start_timeout }) = &self.lacks else { return NextStep::Nothing };
        let (programs, mut reasons, mut is_final) = (&memory.programs, vec![], false);
        for image in images.keys() {
            let unknown = programs.unknown(image);
            is_final |= matches!(unknown, Some(Unknown::Final(_)));
            let reason = unknown.map_or("its registry is asked", Unknown::reason);
            // A registry's answer may be long, and the API refuses long objects.
            reasons.push(format!("image {image}: {}", text::beginning(reason, REASON_JSON_BYTES)));
        }
        let waited = now.0.saturating_sub(self.waits_since().unwrap_or(now).0);
        let is_late = !programs.is_untried() && Duration::from_millis(waited) >= *start_timeout;
        if is_final || is_late {
            return self.failed("FailedValidation", &format!("{}; {}", listed(notes), reasons.join("; ")), now);
        }
        let name = self.name.as_ref().map_or("", |name| name.as_str());
        let message = format!("TFJob {name} waits for the program of its image; {}", reasons.join("; "));
        let mut status = json!({
            "conditions": [condition("Created", WAITS, &message, now)], "replicaStatuses": {},
            "lastReconcileTime": timestamp(now),
        });
        keep_times(&mut status["conditions"], &self.status()["conditions"]);
        let status = (without(&[TIME], &status) != without(&[TIME], self.status())).then_some(status);
        match (programs.pause(now), status) {
            (None, status) => NextStep::LookUp { images: images.clone(), status },
            (Some(_), Some(status)) => NextStep::Show(status),
            (Some(pause), None) => NextStep::Wait(pause),
        }
    }

    /// Since when the object's job waits for the program of an image. A new master continues to count.
    fn waits_since(&self) -> Option<UnixMillis> {
        let newest = self.status()["conditions"].as_array()?.last()?;
        let is_waiting = newest["reason"] == format!("TFJob{WAITS}");
        time_of(newest["lastTransitionTime"].as_str().filter(|_| is_waiting)?)
    }

    /// What to do next for an object with this job.
    fn need_of(&self, job: &JobView, memory: &ObjectMemory, now: UnixMillis) -> NextStep {
        let is_known =
            memory.applied == Some(self.generation) || self.status()["observedGeneration"] == self.generation;
        let refusal = if memory.applied == Some(self.generation) { memory.refusal.clone() } else { None };
        let ignored = self.ignored(job, now).or(refusal);
        if let (Ok(read), None, None, false) = (&self.read, &ignored, &job.result, is_known) {
            return NextStep::Apply(Box::new(read.clone()));
        }
        let Some(Origin::TfJob(origin)) = &job.spec.origin else { return NextStep::Nothing };
        let mut status = status(job, origin, now);
        status["observedGeneration"] = self.generation.into();
        let newest = status["conditions"].as_array_mut().and_then(|conditions| conditions.last_mut());
        if let (Some(newest), Some(ignored)) = (newest, ignored) {
            newest["message"] = format!("{}; {ignored}", newest["message"].as_str().unwrap_or_default()).into();
        }
        keep_times(&mut status["conditions"], &self.status()["conditions"]);
        if without(&[TIME], &status) == without(&[TIME], self.status()) {
            return NextStep::Nothing;
        }
        self.pause(&status, now).map_or(NextStep::Show(status), NextStep::Wait)
    }

    /// How long to wait before this status is written, if only counts of replicas have changed. During a launch, the
    /// counts change with each replica.
    fn pause(&self, status: &Value, now: UnixMillis) -> Option<Duration> {
        let written = time_of(self.status()[TIME].as_str()?)?;
        // A time in the future comes from a wrong clock, and is treated like a time in the past.
        let since = now.0.abs_diff(written.0);
        let of_counts = [TIME, "replicaStatuses"];
        let pause = COUNTS_INTERVAL.checked_sub(Duration::from_millis(since)).filter(|pause| !pause.is_zero());
        pause.filter(|_| without(&of_counts, status) == without(&of_counts, self.status()))
    }

    /// The change of the object that has no effect on its job, as a sentence.
    fn ignored(&self, job: &JobView, now: UnixMillis) -> Option<String> {
        match &self.read {
            Err(notes) => Some(format!("the newest change is ignored: {}", listed(notes))),
            Ok(read) if difference(&job.spec, job.workers, &read.spec).is_some() => None,
            Ok(_) => {
                let on_record = object(job, None, now).unwrap_or_default();
                let annotation = &on_record["metadata"]["annotations"][ALLOW_ROOT];
                let path = difference_at("spec", &on_record["spec"], &self.object["spec"]).or_else(|| {
                    let path = format!("metadata.annotations.{ALLOW_ROOT}");
                    difference_at(&path, annotation, allow_root(&self.object))
                });
                Some(match path {
                    Some(path) => format!("the change of {path} is ignored"),
                    None => READ_DIFFERENTLY.to_owned(),
                })
            }
        }
    }

    fn newest_condition(&self) -> Option<&str> {
        self.status()["conditions"].as_array()?.last()?["type"].as_str()
    }

    fn has_ended(&self) -> bool {
        matches!(self.newest_condition(), Some("Succeeded" | "Failed"))
    }

    fn failed(&self, reason: &str, message: &str, now: UnixMillis) -> NextStep {
        NextStep::Show(json!({
            "conditions": [condition("Failed", reason, message, now)],
            "replicaStatuses": {},
            "observedGeneration": self.generation,
            "lastReconcileTime": timestamp(now),
            "completionTime": timestamp(now),
        }))
    }

    /// Stores the status that was written. The watch reports this status later, and the job may change before then.
    pub fn wrote(&mut self, status: Value) {
        self.object["status"] = status;
    }

    /// The merge patch (RFC 7396) that sets the object's status. The API refuses the patch if a newer object has the
    /// name.
    pub fn patch(&self, status: &Value) -> Value {
        json!({ "metadata": { "uid": self.uid }, "status": merge_patch(self.status(), status) })
    }

    /// The uid of the object.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

/// The annotation [`ALLOW_ROOT`], or null if it is absent. No other annotation changes the job.
fn allow_root(object: &Value) -> &Value {
    &object["metadata"]["annotations"][ALLOW_ROOT]
}

/// The parts of an object that the reader reads. Labels, owners and other annotations are left out: other programs may
/// change these at any time.
fn document(object: &Value) -> String {
    let (metadata, allow_root) = (&object["metadata"], allow_root(object));
    let annotations = if allow_root.is_null() { Value::Null } else { json!({ ALLOW_ROOT: allow_root }) };
    let metadata = json!({ "name": metadata["name"], "namespace": metadata["namespace"], "annotations": annotations });
    let (version, kind, spec) = (&object["apiVersion"], &object["kind"], &object["spec"]);
    json!({ "apiVersion": version, "kind": kind, "spec": spec, "metadata": metadata }).to_string()
}

/// The programs that are known, and any program for each of these images.
fn with_any_program(
    images: &BTreeMap<String, BTreeSet<String>>,
    known: &BTreeMap<String, Entrypoint>,
) -> BTreeMap<String, Entrypoint> {
    let any = Entrypoint { command: vec!["any".to_owned()], ..Entrypoint::default() };
    let of_images = images.keys().map(|image| (image.clone(), any.clone()));
    known.clone().into_iter().chain(of_images).collect()
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
