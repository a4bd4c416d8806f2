//! The instants at which a master can be struck, and what strikes it there.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use protocol::routes;

use master::store::JobRecord;

/// What a master does to the world outside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// The record of a new job is created.
    Accept,
    /// The record says that this master holds the job, and its epoch rises.
    Adopt,
    /// What the pods need around them is made.
    Prepare,
    /// A pod is created.
    CreatePod,
    /// An agent is asked how it is, for the first time.
    Join,
    /// An agent is given its environment.
    Configure,
    /// An agent is told to run.
    Run,
    /// An agent is asked how its run goes.
    Follow,
    /// An agent is told to stop its run.
    Stop,
    /// The record says that a start has failed and is made up for.
    MakeUp,
    /// The record says how the job ended.
    Conclude,
    /// An agent is told to end itself.
    Finish,
    /// A pod is deleted.
    DeletePod,
    /// All pods of a job are deleted.
    DeleteAll,
    /// The record is deleted.
    Forget,
    /// The record says what a user wishes.
    Wish,
}

impl Deed {
    /// Every one.
    pub const ALL: [Self; 16] = [
        Self::Accept,
        Self::Adopt,
        Self::Prepare,
        Self::CreatePod,
        Self::Join,
        Self::Configure,
        Self::Run,
        Self::Follow,
        Self::Stop,
        Self::MakeUp,
        Self::Conclude,
        Self::Finish,
        Self::DeletePod,
        Self::DeleteAll,
        Self::Forget,
        Self::Wish,
    ];

    /// Which one it is to replace one record by another; none where it is none of these.
    pub(super) fn of_update(before: &JobRecord, after: &JobRecord) -> Option<Self> {
        if after.epoch != before.epoch {
            Some(Self::Adopt)
        } else if after.ended != before.ended {
            Some(Self::Conclude)
        } else if after.restarts != before.restarts {
            Some(Self::MakeUp)
        } else if after.wish != before.wish {
            Some(Self::Wish)
        } else {
            None
        }
    }

    /// Which one a request to an agent is.
    pub(crate) fn of_request(uri: &Uri) -> Option<Self> {
        match uri.path() {
            routes::AGENT_CONFIG => Some(Self::Configure),
            routes::AGENT_RUN => Some(Self::Run),
            routes::AGENT_STOP => Some(Self::Stop),
            routes::AGENT_FINISH => Some(Self::Finish),
            routes::AGENT_STATUS if uri.query().is_some() => Some(Self::Follow),
            routes::AGENT_STATUS => Some(Self::Join),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Adopt => "adopt",
            Self::Prepare => "prepare",
            Self::CreatePod => "create-pod",
            Self::Join => "join",
            Self::Configure => "configure",
            Self::Run => "run",
            Self::Follow => "follow",
            Self::Stop => "stop",
            Self::MakeUp => "make-up",
            Self::Conclude => "conclude",
            Self::Finish => "finish",
            Self::DeletePod => "delete-pod",
            Self::DeleteAll => "delete-all",
            Self::Forget => "forget",
            Self::Wish => "wish",
        }
    }
}

/// An instant in a master's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Just before it does this.
    Before(Deed),
    /// Just after it has done this, and before it knows.
    After(Deed),
}

impl Point {
    /// Every one.
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
    /// It never does anything again.
    Crash,
    /// Its process is killed.
    Kill,
    /// The task that it is about panics.
    Panic,
    /// What it was about to do fails, and was not done.
    Error,
    /// What it did is answered with an error.
    AnswerLost,
    /// It stands still, with all that it does, until it is let go on.
    Freeze,
    /// This one deed takes until it is let go on; the master does everything else meanwhile.
    Delay,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 7] =
        [Self::Crash, Self::Kill, Self::Panic, Self::Error, Self::AnswerLost, Self::Freeze, Self::Delay];

    /// Whether it can happen there.
    pub fn fits(self, point: Point) -> bool {
        match (self, point) {
            // These two are no driver's: a panic is an answer of 500 there, and the client's own to deal with.
            (Self::Panic, Point::Before(deed) | Point::After(deed)) => !matches!(deed, Deed::Accept | Deed::Wish),
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

/// One fault at one point, when the master passes it for the `passing`-th time, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// Where.
    pub point: Point,
    /// What.
    pub fault: Fault,
    /// When.
    pub passing: u32,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.point, self.fault, self.passing)
    }
}

/// A text that is no [`Strike`].
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no strike: write POINT:FAULT or POINT:FAULT:N, as before-create-pod:kill:3")]
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
