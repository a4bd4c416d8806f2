//! The programs of the images whose containers have no `command`: which are known, and which the master must look up
//! (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::UnixMillis;
use protocol::image::Entrypoint;
use protocol::job::JobSpec;
use protocol::origin::{Origin, TfJobOrigin};
use protocol::pause::doubled;
use serde_json::Value;

use super::container;

/// Pause after the first look-up that a registry did not answer. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Why a program is not known after a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// A later look-up may succeed.
    Passing(String),
    /// Another look-up would have the same result.
    Final(String),
}

impl Unknown {
    /// The reason, without a full stop.
    pub fn reason(&self) -> &str {
        match self {
            Self::Passing(reason) | Self::Final(reason) => reason,
        }
    }
}

/// What a master knows of the programs of a TFJob's images, by the names of the images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Programs {
    known: BTreeMap<String, Entrypoint>,
    unknown: BTreeMap<String, Unknown>,
    /// The number of look-ups so far.
    look_ups: u32,
    /// When to look up unknown programs again. `None` before the first look-up.
    again_at: Option<UnixMillis>,
}

impl Programs {
    /// The programs that are known.
    pub fn known(&self) -> &BTreeMap<String, Entrypoint> {
        &self.known
    }

    /// Why the program of an image is not known, if it was looked up.
    pub fn unknown(&self, image: &str) -> Option<&Unknown> {
        self.unknown.get(image)
    }

    /// Whether no look-up has ended yet.
    pub fn is_untried(&self) -> bool {
        self.again_at.is_none()
    }

    /// How long to wait before the next look-up.
    pub fn pause(&self, now: UnixMillis) -> Option<Duration> {
        let left = self.again_at?.0.saturating_sub(now.0);
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Takes over the programs with which the job on record was accepted, because the tags of its images may name other
    /// images today. Returns whether a program is new or differs.
    pub fn recall(&mut self, on_record: &JobSpec) -> bool {
        let Some(Origin::TfJob(TfJobOrigin { programs, .. })) = &on_record.origin else { return false };
        let is_new = programs.iter().any(|(image, program)| self.known.get(image) != Some(program));
        self.known.extend(programs.clone());
        is_new
    }

    /// Notes the outcomes of look-ups at this time.
    pub fn note(&mut self, outcomes: Vec<(String, Result<Entrypoint, Unknown>)>, now: UnixMillis) {
        self.unknown.clear();
        for (image, outcome) in outcomes {
            match outcome {
                Ok(program) => drop(self.known.insert(image, program)),
                Err(unknown) => drop(self.unknown.insert(image, unknown)),
            }
        }
        let pause = doubled(FIRST_PAUSE, self.look_ups, PAUSE_MAX);
        let pause = u64::try_from(pause.as_millis()).expect("a minute is a small number");
        self.again_at = Some(UnixMillis(now.0 + pause));
        self.look_ups += 1;
    }
}

/// The images of a `spec` whose program is needed and not known, each with the pull secrets that its templates name.
pub(super) fn needed(spec: &Value, known: &BTreeMap<String, Entrypoint>) -> BTreeMap<String, BTreeSet<String>> {
    let mut needed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let types = spec["tfReplicaSpecs"].as_object().into_iter().flatten();
    for (_, of_type) in types.filter(|(_, of_type)| of_type["replicas"] != 0) {
        let pod = &of_type["template"]["spec"];
        let Some(position) = container::position(&of_type["template"]) else { continue };
        let container = &pod["containers"][position];
        let lacks_command = container["command"].is_null() || container["command"] == Value::Array(vec![]);
        let image = container["image"].as_str().filter(|image| lacks_command && !known.contains_key(*image));
        if let Some(image) = image {
            let secrets = pod["imagePullSecrets"].as_array().into_iter().flatten();
            let names = secrets.filter_map(|secret| secret["name"].as_str().map(str::to_owned));
            needed.entry(image.to_owned()).or_default().extend(names);
        }
    }
    needed
}
