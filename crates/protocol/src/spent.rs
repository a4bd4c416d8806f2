//! How the time of a job was spent: training, starting, recovering from failures, and waiting for its user.

use serde::{Deserialize, Serialize};

/// How the time of a job was spent, in milliseconds. The sum of all fields is the whole time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Spent {
    /// Steps that are not lost.
    pub kept_steps_ms: u64,
    /// Steps that are lost, because they were not saved: a later start began at or before them.
    pub lost_steps_ms: u64,
    /// The scripts ran, and they report no steps.
    pub running_ms: u64,
    /// From the launch of exec.py to its first step.
    pub program_startup_ms: u64,
    /// From the last step of a start to the stop of its runs.
    pub after_steps_ms: u64,
    /// Gathering the gang for the first start, and for starts after a change of code or members.
    pub gathering_ms: u64,
    /// From a failure or a loss to the next launch.
    pub recovery_ms: u64,
    /// Suspended by a user.
    pub suspended_ms: u64,
    /// Halted: the job waited for new code.
    pub halted_ms: u64,
}

/// A part of a job's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePart {
    /// The name for programs.
    pub name: &'static str,
    /// What the job did, in plain words.
    pub words: &'static str,
    /// The time in milliseconds.
    pub millis: u64,
}

/// The share of a job's time in which it made progress, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goodput {
    /// The share of the whole time that went into steps that are kept.
    KeptSteps(u64),
    /// No script has reported a step. The share of the time in which the scripts ran.
    Running(u64),
}

impl Spent {
    /// The whole time.
    pub fn whole_ms(&self) -> u64 {
        self.parts().iter().map(|part| part.millis).sum()
    }

    /// The share of the time in which the job made progress. `None` if no time has passed.
    pub fn goodput(&self) -> Option<Goodput> {
        if self.reports_steps() {
            return self.thousandths(self.kept_steps_ms).map(Goodput::KeptSteps);
        }
        self.thousandths(self.running_ms).map(Goodput::Running)
    }

    /// This part of the whole time, in thousandths, rounded down. `None` if no time has passed.
    pub fn thousandths(&self, part_ms: u64) -> Option<u64> {
        part_ms.saturating_mul(1000).checked_div(self.whole_ms())
    }

    /// Each part, in the order in which to show them.
    pub fn parts(&self) -> [TimePart; 9] {
        let Self {
            kept_steps_ms,
            lost_steps_ms,
            running_ms,
            program_startup_ms,
            after_steps_ms,
            gathering_ms,
            recovery_ms,
            suspended_ms,
            halted_ms,
        } = *self;
        let part = |name, words, millis| TimePart { name, words, millis };
        [
            part("kept_steps", "steps that are kept", kept_steps_ms),
            part("lost_steps", "steps that a later start repeated", lost_steps_ms),
            part("running", "scripts ran, and report no steps", running_ms),
            part("program_startup", "from the launch to the first step", program_startup_ms),
            part("after_steps", "from the last step to the stop", after_steps_ms),
            part("gathering", "gathering pods and agents", gathering_ms),
            part("recovery", "from a failure to the next launch", recovery_ms),
            part("suspended", "suspended", suspended_ms),
            part("halted", "waiting for new code", halted_ms),
        ]
    }

    /// Whether scripts have reported steps. If all steps of a short run are in one report, they take no time. So this
    /// also looks at the time of the start-up.
    pub(crate) fn reports_steps(&self) -> bool {
        self.kept_steps_ms + self.lost_steps_ms + self.program_startup_ms > 0
    }
}
