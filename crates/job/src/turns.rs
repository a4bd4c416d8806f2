//! Which gang may create pods now. Without this order, two gangs could each hold a part of the room, and both would wait
//! for ever. Pure: times are arguments.
//!
//! The rule is wait-die. Among the gangs that gather and compete for the same resources, the first one keeps its pods
//! and waits for room. A later gang that lacks room gives its pods back, and creates none until its turn comes. A gang
//! whose pods all have a node is not affected: it runs to its end.
//!
//! While no gang lacks room, the gangs start at the same time. As soon as one lacks a resource, the gangs that ask for this
//! resource start one after another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::{JobName, UnixMillis};

use super::need::Need;
use super::wait::Resources;

/// Maximum time that later gangs wait until the scheduler has decided on the pods of an earlier gang. After a takeover,
/// also the maximum time that gangs wait until the driver of each job has posted.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of gangs that create pods at the same time while none lacks room. It limits how many pods are given
/// back if the room is not enough.
pub const AT_ONCE: usize = 32;
/// If a gang lacks room for this time although no other job holds what it lacks, the other gangs may try first.
pub const GIVE_WAY_AFTER: Duration = Duration::from_secs(30);

/// What a job may do now about its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Create all pods.
    Go,
    /// Create only the pods that the gang needs to start or to continue, because another gang lacks room.
    Minimum,
    /// Create no pods for a moment: it is not known yet whether the gang of this other job has enough room. `None`: not
    /// all jobs of an earlier master have posted.
    Hold(Option<JobName>),
    /// Give all pods back, and wait until the gang of this other job runs or ends.
    Queue(JobName),
}

/// The order in which gangs get room.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The priority of the job's pods. The highest is first.
    pub priority: Reverse<i32>,
    /// When the job was accepted.
    pub accepted_at: UnixMillis,
    /// The uid of the job.
    pub uid: String,
}

/// What a driver reports about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The job.
    pub name: JobName,
    /// The job's place in the order.
    pub rank: Rank,
    /// The resources that the job's pods ask for.
    pub asks: Resources,
    /// Whether the job has pods, or has requested pods that may still appear.
    pub holds: bool,
    /// What the gang still needs; `None` if the gang does not gather.
    pub need: Option<Need>,
}

impl Post {
    fn asks_for_any_of(&self, resources: &Resources) -> bool {
        let lacks = self.need.as_ref().map(|need| &need.lacking);
        !self.asks.is_disjoint(resources) || lacks.is_some_and(|lacks| !lacks.is_disjoint(resources))
    }
}

/// The posts of all jobs of one master, and the turn of each job.
#[derive(Debug, Default)]
pub struct Table {
    seats: BTreeMap<String, Seat>,
    /// The resources that a gang has lacked, as long as gangs that gather ask for them.
    scarce: Resources,
    /// Whether each job that existed when the master began has a seat.
    is_open: bool,
    /// When to decide again, if nobody posts until then.
    next: Option<Duration>,
}

#[derive(Debug)]
struct Seat {
    taken_at: Duration,
    post: Option<Post>,
    turn: Turn,
    /// How often the gang has let all others try first.
    lap: u32,
    /// Since when the scheduler has not decided on all pods that the gang may have.
    undecided_since: Option<Duration>,
    /// Since when the gang lacks room although no other job holds what it lacks.
    alone_since: Option<Duration>,
}

impl Seat {
    fn of(taken_at: Duration) -> Self {
        Self { taken_at, post: None, turn: Turn::Hold(None), lap: 0, undecided_since: None, alone_since: None }
    }

    fn may_create(&self) -> bool {
        matches!(self.turn, Turn::Go | Turn::Minimum)
    }

    /// The resources that the gang lacks, if it is the gang's turn.
    fn lacking(&self) -> Option<&Resources> {
        let need = self.post.as_ref()?.need.as_ref().filter(|_| self.may_create())?;
        Some(&need.lacking).filter(|lacking| !lacking.is_empty())
    }

    fn take(&mut self, turn: Turn, now: Duration) {
        let since = match &turn {
            Turn::Go | Turn::Minimum => self.undecided_since.or(Some(now)),
            Turn::Hold(_) => self.undecided_since,
            Turn::Queue(_) => None,
        };
        self.undecided_since = if self.is_undecided() { since } else { None };
        self.turn = turn;
    }

    fn is_being_decided(&self, now: Duration) -> bool {
        self.is_undecided() && self.undecided_since.is_some_and(|since| now < since + PATIENCE)
    }

    fn is_undecided(&self) -> bool {
        self.post.as_ref().and_then(|post| post.need.as_ref()).is_some_and(|need| need.is_undecided)
    }
}

/// The gangs that are earlier in the order, and whose turn it is.
#[derive(Debug, Default)]
struct Earlier {
    /// The gangs that lack room, and what they lack.
    short: Vec<(JobName, Resources)>,
    /// The gangs with pods on which the scheduler must still decide, and the resources that they ask for.
    undecided: Vec<(JobName, Resources)>,
}

impl Earlier {
    /// The turn of a gang that gathers. `is_being_decided`: whether the gang has pods that may still get a node.
    fn turn_of(&self, post: &Post, need: &Need, is_being_decided: bool, scarce: &Resources) -> Turn {
        // Another program decides when a gated gang gets room.
        if need.is_complete || need.is_gated {
            return Turn::Go;
        }
        match self.short.iter().find(|(_, lacking)| post.asks_for_any_of(lacking)) {
            Some((first, _)) if post.holds && is_being_decided => Turn::Hold(Some(first.clone())),
            Some((first, _)) => Turn::Queue(first.clone()),
            None => self.decided_before(post, scarce).map_or(Turn::Go, |first| Turn::Hold(Some(first.clone()))),
        }
    }

    /// The gang on which the scheduler must decide before this gang creates pods.
    fn decided_before(&self, post: &Post, scarce: &Resources) -> Option<&JobName> {
        let is_full = self.undecided.len() >= AT_ONCE;
        let competes = |asks: &Resources| {
            if is_full { post.asks_for_any_of(asks) } else { post.asks_for_any_of(&(asks & scarce)) }
        };
        self.undecided.iter().find(|(_, asks)| competes(asks)).map(|(name, _)| name)
    }

    fn note(&mut self, seat: &Seat, now: Duration) {
        let Some(post) = &seat.post else { return };
        self.short.extend(seat.lacking().map(|lacking| (post.name.clone(), lacking.clone())));
        if seat.may_create() && seat.is_being_decided(now) {
            self.undecided.push((post.name.clone(), post.asks.clone()));
        }
    }
}

impl Table {
    /// Notes that each job that existed when the master began has a seat now. Before that, no gang creates pods.
    pub fn open(&mut self) {
        self.is_open = true;
        self.next = Some(Duration::ZERO);
    }

    /// Adds a job whose driver will post soon. Until then, but at most for [`PATIENCE`], no other incomplete gang
    /// creates pods.
    pub fn expect(&mut self, uid: String, now: Duration) {
        self.seats.entry(uid).or_insert_with(|| Seat::of(now));
    }

    /// Replaces the post of a job.
    pub fn post(&mut self, post: Post, now: Duration) {
        let seat = self.seats.entry(post.rank.uid.clone()).or_insert_with(|| Seat::of(now));
        seat.post = Some(post);
    }

    /// Removes a job.
    pub fn remove(&mut self, uid: &str) {
        self.seats.remove(uid);
        self.next = Some(Duration::ZERO);
    }

    /// The turn of a job, as the last [`Self::settle`] decided.
    pub fn turn(&self, uid: &str) -> Turn {
        self.seats.get(uid).map_or(Turn::Hold(None), |seat| seat.turn.clone())
    }

    /// The turns of all jobs.
    pub fn turns(&self) -> Vec<(String, Turn)> {
        self.seats.iter().map(|(uid, seat)| (uid.clone(), seat.turn.clone())).collect()
    }

    /// Whether this post would change no turn.
    pub fn is_settled(&self, post: &Post, now: Duration) -> bool {
        self.posted(&post.rank.uid) == Some(post) && self.next.is_none_or(|next| now < next)
    }

    fn posted(&self, uid: &str) -> Option<&Post> {
        self.seats.get(uid)?.post.as_ref()
    }

    /// Decides the turn of each job.
    pub fn settle(&mut self, now: Duration) {
        self.decide(now);
        if self.let_others_pass(now) {
            self.decide(now);
        }
        self.next = self.next_at(now);
    }

    fn decide(&mut self, now: Duration) {
        self.note_scarce();
        let is_expected = |seat: &Seat| seat.post.is_none() && now < seat.taken_at + PATIENCE;
        let is_incomplete = !self.is_open || self.seats.values().any(is_expected);
        let mut earlier = Earlier::default();
        for uid in self.order() {
            let Some(seat) = self.seats.get_mut(&uid) else { continue };
            let Some(post) = &seat.post else { continue };
            let turn = match &post.need {
                Some(need) if is_incomplete && !need.is_complete => Turn::Hold(None),
                Some(need) => earlier.turn_of(post, need, seat.is_being_decided(now), &self.scarce),
                None => Turn::Go,
            };
            seat.take(turn, now);
            earlier.note(seat, now);
        }
        self.limit_growth();
    }

    /// Notes the resources that gangs lack, and forgets those for which no gathering gang asks any more.
    fn note_scarce(&mut self) {
        let gathers = |post: &&Post| post.need.as_ref().is_some_and(|need| !need.is_complete && !need.is_gated);
        let gathering: Vec<&Post> = self.seats.values().filter_map(|seat| seat.post.as_ref()).filter(gathers).collect();
        self.scarce.retain(|resource| gathering.iter().any(|post| post.asks.contains(resource)));
        let lacking = gathering.iter().filter_map(|post| post.need.as_ref()).flat_map(|need| &need.lacking);
        self.scarce.extend(lacking.cloned());
    }

    /// When to decide again, if nobody posts until then.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// The jobs that have posted, in the order of their turns.
    fn order(&self) -> Vec<String> {
        let mut order: Vec<(u32, &Rank)> =
            self.seats.values().filter_map(|seat| Some((seat.lap, &seat.post.as_ref()?.rank))).collect();
        order.sort();
        order.into_iter().map(|(_, rank)| rank.uid.clone()).collect()
    }

    /// While a gang lacks room, other jobs that ask for the same resources get only the pods that they need. If others
    /// wait for the gang, the gang itself gets only the pods that it needs.
    fn limit_growth(&mut self) {
        let short: Vec<(String, Resources)> =
            self.seats.iter().filter_map(|(uid, seat)| Some((uid.clone(), seat.lacking()?.clone()))).collect();
        let first: Vec<JobName> = self.waited_for().cloned().collect();
        for (uid, seat) in &mut self.seats {
            let Some(post) = &seat.post else { continue };
            let mut others = short.iter().filter(|(other, _)| other != uid);
            let is_limited = others.any(|(_, lacking)| post.asks_for_any_of(lacking)) || first.contains(&post.name);
            if seat.turn == Turn::Go && is_limited {
                seat.turn = Turn::Minimum;
            }
        }
    }

    /// The gangs for which others wait.
    fn waited_for(&self) -> impl Iterator<Item = &JobName> {
        self.seats.values().filter_map(|seat| if let Turn::Queue(behind) = &seat.turn { Some(behind) } else { None })
    }

    /// Moves a gang behind all others if others wait for it, and [`Self::is_alone`] has been true for
    /// [`GIVE_WAY_AFTER`]. Such a gang may be larger than the cluster. Returns whether the order has changed.
    fn let_others_pass(&mut self, now: Duration) -> bool {
        let alone: BTreeSet<String> = self.seats.keys().filter(|uid| self.is_alone(uid)).cloned().collect();
        let first: BTreeSet<JobName> = self.waited_for().cloned().collect();
        let last = self.seats.values().map(|seat| seat.lap).max().unwrap_or_default();
        let mut has_changed = false;
        for (uid, seat) in &mut self.seats {
            seat.alone_since = alone.contains(uid).then(|| seat.alone_since.unwrap_or(now));
            let is_over = seat.alone_since.is_some_and(|since| now >= since + GIVE_WAY_AFTER);
            let Some(post) = &seat.post else { continue };
            if post.need.is_none() {
                seat.lap = 0;
            } else if is_over && first.contains(&post.name) {
                (seat.alone_since, seat.lap, has_changed) = (None, last + 1, true);
            }
        }
        has_changed
    }

    /// Whether the gang lacks room although no other job holds what it lacks.
    fn is_alone(&self, uid: &str) -> bool {
        let holds = |post: &Post, lacking| post.rank.uid != uid && post.holds && post.asks_for_any_of(lacking);
        let mut posts = self.seats.values().filter_map(|seat| seat.post.as_ref());
        let lacking = self.seats.get(uid).and_then(Seat::lacking);
        lacking.is_some_and(|lacking| !posts.any(|post| holds(post, lacking)))
    }

    /// The next time at which a limit passes.
    fn next_at(&self, now: Duration) -> Option<Duration> {
        let of = |seat: &Seat| {
            let is_expected = seat.post.is_none().then_some(seat.taken_at + PATIENCE);
            let decided = seat.undecided_since.map(|since| since + PATIENCE);
            let given_way = seat.alone_since.map(|since| since + GIVE_WAY_AFTER);
            [is_expected, decided, given_way]
        };
        self.seats.values().flat_map(of).flatten().filter(|at| *at > now).min()
    }
}
