//! The points at which a fault can strike a master, and the kinds of faults.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use protocol::routes;

use master::store::JobRecord;

/// An action of a master on something outside its process: a record, a copy of code, a network policy, a pod or an
/// agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// Keep a copy of code beside the records.
    KeepCode,
    /// Read a copy of code, because this master's disk lacks the code.
    ReadCode,
    /// Create the record of a new job.
    Accept,
    /// Record that this master holds the job, and raise the job's epoch.
    Adopt,
    /// Create the network policy of the pods.
    Prepare,
    /// Create a pod.
    CreatePod,
    /// Ask an agent for its status, for the first time.
    Join,
    /// Offer code to an agent.
    Offer,
    /// Send an agent the files of the offered code that the agent lacks.
    Send,
    /// Send an agent its environment.
    Configure,
    /// Ask an agent to run exec.py.
    Run,
    /// Ask an agent for its status again.
    Follow,
    /// Tell an agent the new batch sizes of the ranks.
    Notify,
    /// Ask an agent to stop its run.
    Stop,
    /// Record that a start failed and that the job restarts.
    MakeUp,
    /// Record that the job waits for new code.
    Halt,
    /// Record that a user has pushed new code.
    Push,
    /// Record how the job ended.
    Conclude,
    /// Ask an agent to shut down.
    Finish,
    /// Delete a pod.
    DeletePod,
    /// Delete all pods of a job.
    DeleteAll,
    /// Delete the record.
    Forget,
    /// Record a user's wish.
    Wish,
}

impl Deed {
    /// Every action.
    pub const ALL: [Self; 23] = [
        Self::KeepCode,
        Self::ReadCode,
        Self::Accept,
        Self::Adopt,
        Self::Prepare,
        Self::CreatePod,
        Self::Join,
        Self::Offer,
        Self::Send,
        Self::Configure,
        Self::Run,
        Self::Follow,
        Self::Notify,
        Self::Stop,
        Self::MakeUp,
        Self::Halt,
        Self::Push,
        Self::Conclude,
        Self::Finish,
        Self::DeletePod,
        Self::DeleteAll,
        Self::Forget,
        Self::Wish,
    ];

    /// The action that changes a record from `before` to `after`. `None` if the change belongs to no action.
    pub(super) fn of_update(before: &JobRecord, after: &JobRecord) -> Option<Self> {
        if after.epoch != before.epoch {
            Some(Self::Adopt)
        } else if after.ended != before.ended {
            Some(Self::Conclude)
        } else if after.restarts != before.restarts {
            Some(Self::MakeUp)
        } else if after.pushes != before.pushes {
            Some(Self::Push)
        } else if after.halted != before.halted && after.suspension == before.suspension {
            Some(Self::Halt)
        } else if after.wish != before.wish {
            Some(Self::Wish)
        } else {
            None
        }
    }

    /// The action of a request to an agent.
    pub(crate) fn of_request(uri: &Uri) -> Option<Self> {
        match uri.path() {
            routes::AGENT_CONFIG => Some(Self::Configure),
            routes::AGENT_RUN => Some(Self::Run),
            routes::AGENT_NOTICE => Some(Self::Notify),
            routes::AGENT_STOP => Some(Self::Stop),
            routes::AGENT_FINISH => Some(Self::Finish),
            routes::AGENT_STATUS if uri.query().is_some() => Some(Self::Follow),
            routes::AGENT_STATUS => Some(Self::Join),
            path if path.starts_with(routes::AGENT_CODE) => {
                Some(if path.ends_with(routes::AGENT_CODE_BLOBS) { Self::Send } else { Self::Offer })
            }
            _ => None,
        }
    }

    /// Whether a master performs this action only for a job that can receive new code.
    pub fn is_about_code(self) -> bool {
        matches!(self, Self::KeepCode | Self::ReadCode | Self::Offer | Self::Send | Self::Halt | Self::Push)
    }

    fn name(self) -> &'static str {
        match self {
            Self::KeepCode => "keep-code",
            Self::ReadCode => "read-code",
            Self::Accept => "accept",
            Self::Adopt => "adopt",
            Self::Prepare => "prepare",
            Self::CreatePod => "create-pod",
            Self::Join => "join",
            Self::Offer => "offer",
            Self::Send => "send",
            Self::Configure => "configure",
            Self::Run => "run",
            Self::Follow => "follow",
            Self::Notify => "notify",
            Self::Stop => "stop",
            Self::MakeUp => "make-up",
            Self::Halt => "halt",
            Self::Push => "push",
            Self::Conclude => "conclude",
            Self::Finish => "finish",
            Self::DeletePod => "delete-pod",
            Self::DeleteAll => "delete-all",
            Self::Forget => "forget",
            Self::Wish => "wish",
        }
    }
}

/// A moment before or after an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Just before the action.
    Before(Deed),
    /// Just after the action, before the master learns the result.
    After(Deed),
}

impl Point {
    /// Every point that a master passes for a job that cannot receive new code, and whose batch sizes do not change.
    pub fn without_code() -> impl Iterator<Item = Self> {
        Self::all().filter(|point| !point.deed().is_about_code() && point.deed() != Deed::Notify)
    }

    /// Every point that a master passes for a job that brings its code and receives no other code, and whose batch
    /// sizes do not change.
    pub fn without_push() -> impl Iterator<Item = Self> {
        Self::all().filter(|point| !matches!(point.deed(), Deed::Halt | Deed::Push | Deed::Notify))
    }

    /// The action.
    pub fn deed(self) -> Deed {
        match self {
            Self::Before(deed) | Self::After(deed) => deed,
        }
    }

    /// Every point.
    pub fn all() -> impl Iterator<Item = Self> {
        Deed::ALL.into_iter().flat_map(|deed| [Self::Before(deed), Self::After(deed)])
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(deed) => write!(f, "before-{}", deed.name()),
            Self::After(deed) => write!(f, "after-{}", deed.name()),
        }
    }
}

/// What happens to a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The master never does anything again, but its process continues.
    Crash,
    /// The master's process is killed.
    Kill,
    /// The task that performs the action panics.
    Panic,
    /// The action fails without effect.
    Error,
    /// The action succeeds, but the master gets an error.
    AnswerLost,
    /// The whole master freezes until it is released.
    Freeze,
    /// Only this action is delayed, until it is released. The rest of the master continues.
    Delay,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 7] =
        [Self::Crash, Self::Kill, Self::Panic, Self::Error, Self::AnswerLost, Self::Freeze, Self::Delay];

    /// Whether this fault can happen at this point.
    pub fn fits(self, point: Point) -> bool {
        match (self, point) {
            // HTTP handlers, not drivers, perform the actions in this list. A panic in a handler ends no driver: the
            // client only receives status 500.
            (Self::Panic, Point::Before(deed) | Point::After(deed)) => {
                !matches!(deed, Deed::KeepCode | Deed::Accept | Deed::Wish | Deed::Push)
            }
            (Self::Crash | Self::Kill | Self::Freeze | Self::Delay, _)
            | (Self::Error, Point::Before(_))
            | (Self::AnswerLost, Point::After(_)) => true,
            (Self::Error, Point::After(_)) | (Self::AnswerLost, Point::Before(_)) => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "crash",
            Self::Kill => "kill",
            Self::Panic => "panic",
            Self::Error => "error",
            Self::AnswerLost => "answer-lost",
            Self::Freeze => "freeze",
            Self::Delay => "delay",
        })
    }
}

/// One fault at one point. With a `passing` of 3, the fault strikes when the master passes the point a third time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// The point.
    pub point: Point,
    /// The fault.
    pub fault: Fault,
    /// The number of the passing, from 1.
    pub passing: u32,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.point, self.fault, self.passing)
    }
}

/// The error for a text that is not a [`Strike`].
#[derive(Debug, thiserror::Error)]
#[error("invalid strike \"{0}\": write POINT:FAULT or POINT:FAULT:N, such as before-create-pod:kill:3")]
pub struct NoStrike(String);

impl FromStr for Strike {
    type Err = NoStrike;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split(':');
            let (point, fault) = (parts.next()?, parts.next()?);
            let passing = parts.next().map_or(Some(1), |number| number.parse().ok())?;
            let point = Point::all().find(|known| known.to_string() == point)?;
            let fault = Fault::ALL.into_iter().find(|known| known.to_string() == fault && known.fits(point))?;
            (parts.next().is_none() && passing > 0).then_some(Self { point, fault, passing })
        };
        parse().ok_or_else(|| NoStrike(text.to_owned()))
    }
}
